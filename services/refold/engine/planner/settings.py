"""Settings of a planner, and the topics that it reads."""

from dataclasses import dataclass, field

from refold.core import defaults, topics
from refold.core.approval.signature import NOBODY, Trust
from refold.core.planning.verdict import Rules
from refold.core.wire.sizes import ENVELOPE_BYTES
from refold.engine.ports.log import Membership
from refold.engine.runtime.settings import Settings
from refold.sdk.execution import MOST_ASKED


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a lane. **Units**: `payload_bytes` of one input, argument or result; `flying_entries`, of `topic_bytes`
    in all, are on their way to the log; a turn resumes `turn_resumed` runs. A topic pauses while `topic_bytes` of it
    wait, requests also at `active` runs. Of each topic `parked_bytes` may be about unknown runs; more is refused. Large
    inputs have `input_bytes` for active runs (others wait in their topic), and as much for waiting runs (others are
    refused). `blob_bytes` is of one value in the blob store; 0 without a store."""

    payload_bytes: int = defaults.PAYLOAD_BYTES
    flying_entries: int = 500
    turn_resumed: int = 100
    topic_bytes: int = 4 << 20
    parked_bytes: int = 4 << 20
    # A run that waits for executors takes 7 kB with its agent: by default some 35 MB for a lane.
    active: int = defaults.ACTIVE_RUNS
    input_bytes: int = defaults.INPUT_BYTES
    blob_bytes: int = 0

    @property
    def entry_bytes(self) -> int:
        """The longest entry: an input payload, one that follows from it, and their envelopes."""
        return 2 * self.payload_bytes + 2 * ENVELOPE_BYTES


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one run in its planner; a run beyond them fails, and its failure names the limit. **Units**: steps;
    bytes of history, of the arguments of one call (JSON text in UTF-8), and, with a blob store, `blob_bytes` of a run's
    input; `turn`: requests of its code in one turn; runs that it starts, and their depth. `live_bytes` is for the
    executions of all runs of a process."""

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
    """Settings of a planner. **Units**: milliseconds. `windows`: the app has limits per day or month. `beside`: pools
    whose executors run in this process, and hand their results over."""

    partitions: int
    member: str = "planner-1"
    environment: str = "dev"
    pools: tuple[str, ...] = ("default",)
    commit_ms: int = defaults.COMMIT_MS
    # Shorter than the log's `min.compaction.lag.ms`: a take-over reads the entries after a snapshot.
    snapshot_ms: int = 5_000
    rules: Rules = field(default_factory=Rules)
    limits: Limits = field(default_factory=Limits)
    budget: Bounds = field(default_factory=Bounds)
    trust: Trust = field(default_factory=lambda: NOBODY)
    windows: bool = False
    beside: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        people = (topics.RUN_REQUESTED, topics.RUN_SIGNALLED, topics.RUN_OPERATED)
        return (*people, *map(topics.tool_completed, self.pools), topics.APPROVAL_DECIDED)

    @property
    def membership(self) -> Membership:
        """Topics of a planner; the group distributes `run-requested`."""
        spent = (topics.BUDGET_SPENT,) if self.windows else ()
        state = (topics.CATALOG, topics.RUN_SNAPSHOT, *spent)
        rare = frozenset({topics.RUN_OPERATED, topics.APPROVAL_DECIDED, *state})
        # A pool without topics delays only its own calls.
        optional = {topics.tool_completed(pool): topics.tool_requested(pool) for pool in self.pools}
        lazy = frozenset(map(topics.tool_completed, self.beside))
        return Membership(topics.PLANNERS, self.member, (*self.inputs, *state, topics.RUN_LOG), rare, lazy, optional)


def bounds_of(settings: Settings) -> Bounds:
    own = settings.planner
    return Bounds(
        steps=own.run_steps,
        history_bytes=own.run_bytes,
        live_bytes=own.live_bytes,
        children=own.run_children,
        depth=own.run_depth,
        payload_bytes=settings.max_payload_bytes,
        blob_bytes=settings.blobs.max_bytes if settings.blobs.url else 0,
    )
