"""Defaults that the environment may override, each with its reason; see also `core.planning.matrix`."""

PAYLOAD_BYTES = 1_048_576
"""Longest input, argument or result, as JSON text in UTF-8: Kafka's own limit, which any cluster accepts."""

BLOB_BYTES = 256 << 20
"""Longest value for the blob store: it takes a gigabyte of memory of a process that handles it."""

ACTIVE_RUNS = 5_000
"""Active runs (with calls at executors) of one partition: more than any pool works on, and little memory."""

# Senders choose the size; a laptop's planner with four partitions must stay below 200 MiB.
INPUT_BYTES = 8 << 20
"""Large inputs of the active runs of one partition, and again of waiting ones."""

COMMIT_MS = 500
"""Interval of commits: the amount read again after a crash, without effect."""

SLOTS = 200
"""Concurrent calls of one executor: each may take a thread."""

LEASE_MS = 1_000
"""Silence of an executor before another takes over its call: short, as it costs only a repeated call."""

CHAINED_LEASE_MS = 10_000
"""The same for `probed` and `once`: long, as a take-over costs a query or a human decision."""

GRACE_MS = 20_000
"""Time for running tools of a stopping executor; with its last seconds, below the 30 s of Kubernetes."""

BLIND_MS = 300_000
"""Age limit of an executor's view of the catalog: longer than a broker's restart, short for a thief."""

CONVERSATION_BYTES = 24 << 20
"""Memory of an executor for conversations, which orders then need not repeat: about thirty of the longest."""

RETENTION_MS = 30 * 86_400_000
"""Time of a finished run in the topics: a month's questions are answered from there."""

RUN_STEPS = 100_000
"""Steps of one run; a replay of all takes ten seconds and more."""

# Partitions share it, and the one with the most drops first. A dropped execution is replayed, in milliseconds.
LIVE_BYTES = 64 << 20
"""Memory of a planner for executions between their steps: 5,000 runs that wait for executors take half of it."""

RUN_BYTES = 64 << 20
"""History of one run, which its planner has in memory and every take-over reads."""

RUN_CHILDREN = 20_000
"""Children of one run: each awaited one takes 2 kB, and a fan-out of 10,000 is large."""

RUN_DEPTH = 8
"""Largest number of ancestors of a run: agents that start each other without end stop here."""

GATEWAY_WRITES = {"person": 60, "program": 6_000}
GATEWAY_READS = {"person": 1_200, "program": 60_000}
"""Requests to the gateway per minute: people click and pages reload; programs may use one gateway's capacity."""
