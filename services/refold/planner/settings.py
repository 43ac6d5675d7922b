"""How a planner works, and how it reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from refold.core.approval.signature import NOBODY, Trust
from refold.core.planning.verdict import Rules
from refold.core.topics import (
    APPROVAL_DECIDED,
    BUDGET_SPENT,
    CATALOG,
    RUN_LOG,
    RUN_OPERATED,
    RUN_REQUESTED,
    RUN_SIGNALLED,
    RUN_SNAPSHOT,
    tool_completed,
    tool_requested,
)
from refold.core.wire.sizes import ENVELOPE_BYTES
from refold.ports.log import Membership
from refold.runtime import defaults
from refold.sdk.execution import MOST_ASKED


@dataclass(frozen=True, slots=True)
class Limits:
    """What a lane holds at most.

    **Units**: `payload_bytes` is of one input, argument or result; `turn_entries` a turn decides, `turn_resumed` runs
    it takes up after a take-over. Of a topic of which `topic_bytes` wait in the lane (20 MiB for all five), and of
    requests while so many runs are `active` (not waiting for time or people), no more is taken. Of a topic
    `parked_bytes` may be about runs that are not known so far; what comes beyond is refused. Inputs of more than
    a few KiB have `input_bytes` for those of runs that are active (others wait in their topic), and as much for those
    of runs that wait (others are refused: nobody knows when there would be room). A run that waits for executors takes
    7 kB with its agent, so the default is some 35 MB for a lane. `blob_bytes` is of one value in the blob store; 0
    where there is none.
    """

    payload_bytes: int = defaults.PAYLOAD_BYTES
    turn_entries: int = 500
    turn_resumed: int = 100
    topic_bytes: int = 4 << 20
    parked_bytes: int = 4 << 20
    active: int = defaults.ACTIVE_RUNS
    input_bytes: int = defaults.INPUT_BYTES
    blob_bytes: int = 0

    @property
    def entry_bytes(self) -> int:
        """The longest entry: a payload that came, one that follows from it, and what is around them."""
        return 2 * self.payload_bytes + 2 * ENVELOPE_BYTES


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one run may take of its planner; one that takes more fails, and its failure says so.

    **Units**: steps; bytes of history, and of the arguments of one call (JSON text in UTF-8; of a run's input
    `blob_bytes`, where there is a blob store); `turn`: what its code may
    ask for in one turn, see `sdk.execution`; runs that it starts, and how many may be above one that starts others.
    `live_bytes` is for the code of all runs of a process that is kept running.
    """

    steps: int = defaults.RUN_STEPS
    history_bytes: int = defaults.RUN_BYTES
    turn: int = MOST_ASKED
    live_bytes: int = defaults.LIVE_BYTES
    payload_bytes: int = defaults.PAYLOAD_BYTES
    blob_bytes: int = 0
    children: int = defaults.RUN_CHILDREN
    depth: int = defaults.RUN_DEPTH


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """How a planner works.

    What has moved is kept in the snapshot every `snapshot_ms`: a take-over reads what came after it. It has to be more
    often than the log is cleaned (`min.compaction.lag.ms`). `windows`: its app has limits per day or month, which its
    lanes tell each other of.

    **Units**: milliseconds.
    """

    partitions: int
    member: str = "planner-1"
    environment: str = "dev"
    pools: tuple[str, ...] = ("default",)
    commit_ms: int = defaults.COMMIT_MS
    snapshot_ms: int = 5_000
    rules: Rules = field(default_factory=Rules)
    limits: Limits = field(default_factory=Limits)
    budget: Bounds = field(default_factory=Bounds)
    trust: Trust = field(default_factory=lambda: NOBODY)
    windows: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """The topics of what it answers: what people say, what the executors of each pool do, what people decide."""
        return (RUN_REQUESTED, RUN_SIGNALLED, RUN_OPERATED, *map(tool_completed, self.pools), APPROVAL_DECIDED)

    @property
    def membership(self) -> Membership:
        """What a planner reads. The group shares out `run-requested`, whose offsets others ask for, too."""
        spent = (BUDGET_SPENT,) if self.windows else ()
        rare = frozenset({RUN_OPERATED, APPROVAL_DECIDED, CATALOG, RUN_SNAPSHOT, BUDGET_SPENT})
        topics = (*self.inputs, CATALOG, RUN_SNAPSHOT, *spent, RUN_LOG)
        # A pool without topics holds its own calls, and nobody else's.
        optional = {tool_completed(pool): tool_requested(pool) for pool in self.pools}
        return Membership("refold-planner", self.member, topics, rare, optional)
