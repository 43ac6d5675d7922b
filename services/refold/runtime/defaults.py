"""Defaults of several rooms that the environment may override, each with its reason. `core.run.retry` has the times
after which an unanswered call goes out again."""

from __future__ import annotations

PAYLOAD_BYTES = 1_048_576
"""The longest input, argument or result, as JSON text in UTF-8. Kafka's own limit, so that any cluster takes it."""

BLOB_BYTES = 256 << 20
"""The longest value for the blob store: a gigabyte of memory of the process that handles it."""

ACTIVE_RUNS = 5_000
"""Runs of one partition with calls at executors: more than any pool works on, and little memory."""

INPUT_BYTES = 8 << 20
"""Large inputs of the active runs of one partition, and again of waiting ones: senders choose their size, and four
partitions of a laptop shall leave its planner below 200 MiB."""

COMMIT_MS = 500
"""Interval of commits: after a crash so much is read a second time, without effect."""

SLOTS = 200
"""Calls that one executor acts on at once: each may hold a thread."""

LEASE_MS = 1_000
"""Silence of an executor before another takes its call over: short, as that costs only a repeated call."""

CHAINED_LEASE_MS = 10_000
"""The same for `probed` and `once`: long, because there a take-over costs a query or a human."""

GRACE_MS = 20_000
"""Time for running tools in an executor that ends, and has handed over its partitions: with the seconds that follow
still below the 30 s after which Kubernetes kills."""

BLIND_MS = 300_000
"""Age limit of an executor's view of the catalog: longer than any restart of a broker, and short for a thief."""

CONVERSATION_BYTES = 24 << 20
"""Conversations kept by an executor, so that orders need not repeat them: some thirty of the longest."""

RETENTION_MS = 30 * 86_400_000
"""Time of a run in the topics after its end: a month's questions are answered from there."""

RUN_STEPS = 100_000
"""Steps of one run. A replay runs along all of them: ten seconds and more, at this many."""

LIVE_BYTES = 64 << 20
"""Memory for executions of a planner between their steps: 5,000 runs that wait for executors take half of it. Its
partitions share it: that with the most gives first. Dropped ones are replayed from their history when they go on, which
costs milliseconds."""

RUN_BYTES = 64 << 20
"""History of one run, which its planner holds and every take-over reads."""

RUN_CHILDREN = 20_000
"""Runs that one run starts. Each that it waits for takes some 2 kB, and a fan-out of 10,000 is a large one."""

RUN_DEPTH = 8
"""The largest number of runs above one that starts others: agents that wake each other for ever end here."""

GATEWAY_WRITES = {"person": 60, "program": 6_000}
GATEWAY_READS = {"person": 1_200, "program": 60_000}
"""Requests to the gateway a minute. People click and pages reload; a program's limit is the capacity of one gateway."""
