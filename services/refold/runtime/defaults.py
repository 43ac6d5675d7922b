"""Numbers that the rooms use and the environment may set: each stands here once, with its reason.

Besides these, `core.run.retry` has when an unanswered call goes out again.
"""

from __future__ import annotations

PAYLOAD_BYTES = 1_048_576
"""The longest input, argument or result, as JSON text in UTF-8. Kafka's own limit, so that any cluster takes it."""

BLOB_BYTES = 256 << 20
"""The longest value that goes to the blob store: a gigabyte of memory of the process that has it in hand."""

ACTIVE_RUNS = 5_000
"""Runs of one partition that are with executors at once: more than any pool works on, and little memory."""

INPUT_BYTES = 8 << 20
"""Of large inputs of runs of one partition that work, and again of those that wait: senders choose how large they are,
and four partitions of a laptop shall leave its planner below 200 MiB."""

COMMIT_MS = 500
"""How often positions are committed: so much is read a second time after a crash, and does nothing then."""

SLOTS = 200
"""Calls that one executor acts on at once: each may hold a thread."""

LEASE_MS = 1_000
"""The time an executor may be silent before another takes its call over: short, where that costs a repeated call."""

CHAINED_LEASE_MS = 10_000
"""The same for `probed` and `once`: long, because there a take-over costs a query or a human."""

GRACE_MS = 20_000
"""The time tools may go on in an executor that is told to end, which has given its partitions away by then: with the
seconds that follow still below the 30 s after which Kubernetes kills."""

BLIND_MS = 300_000
"""How old an executor's knowledge of the catalog may be: longer than any restart of a broker, and short for a thief."""

CONVERSATION_BYTES = 24 << 20
"""Kept of conversations by an executor, so that orders need not bring them again: some thirty of the longest."""

RETENTION_MS = 30 * 86_400_000
"""The time a run stays in the topics after its end: a month's questions are answered from there."""

RUN_STEPS = 100_000
"""Of one run. Its code is run along all of them whenever it is made again: ten seconds and more, at this many."""

LIVE_BYTES = 64 << 20
"""For the code of the runs of a planner that is kept running, between its steps: 5,000 runs that wait for executors
take half of it. Its partitions share it: the one that has most gives first. What does not fit is made again from its
history when it goes on, which costs milliseconds."""

RUN_BYTES = 64 << 20
"""Of the history of one run, which its planner holds and every take-over reads."""

RUN_CHILDREN = 20_000
"""That one run starts. What it waits for it holds, some 2 kB for each, and a fan-out of 10,000 is a large one."""

RUN_DEPTH = 8
"""The largest number of runs above one that starts others: agents that wake each other for ever end here."""

GATEWAY_WRITES = {"person": 60, "program": 6_000}
GATEWAY_READS = {"person": 1_200, "program": 60_000}
"""Requests to the gateway a minute. People click and pages reload; a program's limit is what one gateway can do."""
