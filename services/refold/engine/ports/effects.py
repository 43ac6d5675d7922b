"""Effects that a turn requests from its host, and the answers in the next inbox. Effects are carried out in order; a
host may die between two of them, or act as a zombie beside its successor."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

from refold.core.approval.decision import Refusal
from refold.core.events import Failure
from refold.core.ids import RunId
from refold.core.messages import StreamPart, ToolRequest
from refold.engine.ports.ledger import Operation, Reply
from refold.engine.ports.log import Assigned, Delivery, End, Outgoing, Reached, Record, Revoked, Shrunk


class Append(NamedTuple):
    """Write to the log and wait. -> one `Delivery` each, before anything else."""

    records: list[Outgoing]


class Publish(NamedTuple):
    """Write to the log without waiting. -> one `Delivery` each, later."""

    records: list[Outgoing]


class AskEnd(NamedTuple):
    """Request a high watermark. -> `End`, current, before anything else; later during an outage."""

    topic: str
    partition: int


class AskCommitted(NamedTuple):
    """Request committed offsets. -> `CommittedAt`, before anything else."""

    group: str
    topic: str


class CommittedAt(NamedTuple):
    """Offsets committed by a group in a topic, by partition. A missing one is unknown."""

    group: str
    topic: str
    positions: Mapping[int, int]


class Commit(NamedTuple):
    """Make positions durable. No answer; may be lost."""

    positions: Mapping[tuple[str, int], int]


class Read(NamedTuple):
    """Read an assigned partition from an offset on, until it is revoked. -> `Record` and `Reached` as they come."""

    topic: str
    partition: int
    offset: int


class Look(NamedTuple):
    """Read one record of a topic. -> `Looked`, later."""

    topic: str
    partition: int
    offset: int


class Looked(NamedTuple):
    """Record at a position, or None if it is gone. Not `known`: an outage, so request it again."""

    topic: str
    partition: int
    offset: int
    record: Record | None
    known: bool = True


class LoadBlob(NamedTuple):
    """Read a large value of a run. -> `BlobLoaded`, later, after any outage. `kept`: another service stored it, so a
    store exists even if none is configured here."""

    number: int
    run: RunId
    pointer: str
    kept: bool = False


class BlobLoaded(NamedTuple):
    """Text of a large value, or the failure to read it."""

    number: int
    value: str | Failure


class SaveBlob(NamedTuple):
    """Store a large value of a run. -> `BlobSaved`, later, when it is durable."""

    number: int
    run: RunId
    text: str


class BlobSaved(NamedTuple):
    number: int


class Reopen(NamedTuple):
    """Restart a partition whose state is invalid. -> `Revoked` and `Assigned`, later."""

    partition: int


class Flow(NamedTuple):
    """Stop (`pause`) or go on (`resume`) delivering records of a topic's partition. No answer."""

    action: Literal["pause", "resume"]
    topic: str
    partition: int


class Leave(NamedTuple):
    """Leave the group after earlier effects, and keep running. -> `Revoked` for each partition, later; none if the
    group keeps them for this member's name."""


class AskLedger(NamedTuple):
    """Run ledger operations. -> `Answers` with the same `batch`, before anything else."""

    batch: int
    operations: list[Operation]


class Answers(NamedTuple):
    """Replies to a batch, in order. None: unknown, the ledger could not be reached."""

    batch: int
    replies: list[Reply] | None


Within = Callable[[str, str, int], Refusal | None]
"""Judge of a call that an agent makes in memory: its tool, its arguments and the number of calls before it. For any
thread. None: it may run. A `stale` refusal halts it, a `denied` one goes to the agent; any other ends the agent."""


class StartTool(NamedTuple):
    """Run the tool (`probe`: its status hook) for the attempt of this number. -> `ToolEnded`, later or never. `within`
    judges the calls of an agent."""

    number: int
    request: ToolRequest
    probe: bool
    within: Within | None = None


class StopTool(NamedTuple):
    """Stop the tool of an attempt (`timeout`, `cancelled`, `handed_over`). Best effort: it may still end by itself."""

    number: int
    reason: str


class ToolEnded(NamedTuple):
    """End of a tool or a probe. `status`: `completed` with canonical JSON in `result` (a probe: `happened` with the
    result, or `did_not_happen`), `failed` (it did not happen, `retryable`), `broken` (it happened, the result is
    unusable) or `unknown`. `detail`: further data of a failure for the agent's code."""

    number: int
    status: str
    result: str = ""
    code: str = ""
    message: str = ""
    retryable: bool = True
    retry_after_ms: int = 0
    detail: str = ""


class Now(NamedTuple):
    """The time. **Units**: `wall_ms` since 1970 in UTC, `mono_ms` on the local monotonic clock."""

    wall_ms: int
    mono_ms: int


_Asked = AskEnd | AskCommitted | AskLedger | Look | LoadBlob | SaveBlob
Effect = Append | Publish | Commit | Read | Reopen | Flow | Leave | StartTool | StopTool | _Asked
_Answer = Delivery | End | CommittedAt | Looked | Answers | ToolEnded | BlobLoaded | BlobSaved
Item = Record | Assigned | Revoked | Reached | Shrunk | _Answer

News = tuple[str, dict[str, object]]
"""Line for the log of the process: an event name and its fields."""


class LanesNow(NamedTuple):
    """Partitions of a service, the number of them behind, runs or calls in memory, and `waiting` inputs by cause."""

    lanes: int = 0
    behind: int = 0
    executions: int = 0
    waiting: Mapping[str, int] = MappingProxyType({})


class Service(Protocol):
    """A service without I/O. The host clears `news` after every turn; `counts` are totals by name."""

    counts: Counter[str]
    news: list[News]

    def turn(self, inbox: list[Item], now: Now) -> list[Effect]:
        """Handle the inbox and return the effects. An empty inbox handles the timers that are due."""

    def next_due_ms(self) -> int | None:
        """Return the latest time of the next `turn` without input. **Units**: monotonic milliseconds. None: never."""

    def drain(self) -> bool:
        """Accept nothing new and end the work in progress; called before each further turn. True when no remaining work
        is worth a wait. Optional: dying loses nothing."""

    def lanes_now(self) -> LanesNow: ...


class Tools(Protocol):
    """Runner of tools: see `engine.adapters.tools.toolbox`."""

    @property
    def alive(self) -> bool:
        """True if the started processes still run. A host whose tools are dead ends its process."""

    def start(self, orders: Sequence[StartTool]) -> None: ...

    def stop(self, order: StopTool) -> None: ...

    def close(self) -> None: ...


class Live(Protocol):
    """Sink of live parts, for display: see `engine.adapters.kafka.writer`. Lossy, never waited for."""

    def tell(self, part: StreamPart) -> None: ...

    def close(self) -> None: ...
