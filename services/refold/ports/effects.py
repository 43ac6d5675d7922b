"""Effects that a turn may ask its host for, and what the host puts into the next inbox.

Effects are carried out in order. A host that dies between two of them, or is a zombie while a successor works, may
never break a promise of the product: the simulator does just that at every such boundary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

from refold.core.approval.decision import Refusal
from refold.core.events import Failure
from refold.core.ids import RunId
from refold.core.messages import ToolRequest
from refold.ports.ledger import Operation, Reply
from refold.ports.log import Assigned, Delivery, End, Outgoing, Reached, Record, Revoked, Shrunk


class Append(NamedTuple):
    """Write to the log and wait. -> one `Delivery` each, before anything else."""

    records: list[Outgoing]


class Publish(NamedTuple):
    """Write to the log without waiting. -> one `Delivery` each, later."""

    records: list[Outgoing]


class AskEnd(NamedTuple):
    """-> `End`, before anything else; later while nobody says where it ends. It is as it was when it is told."""

    topic: str
    partition: int


class AskCommitted(NamedTuple):
    """-> `CommittedAt`, before anything else."""

    group: str
    topic: str


class CommittedAt(NamedTuple):
    """Offsets committed by a group in a topic, by partition. A partition that is not there: nothing is known of it."""

    group: str
    topic: str
    positions: Mapping[int, int]


class Commit(NamedTuple):
    """Make positions durable. No answer, may be lost."""

    positions: Mapping[tuple[str, int], int]


class Read(NamedTuple):
    """Read a topic's partition from an offset on. No answer but the records, and `Reached`."""

    topic: str
    partition: int
    offset: int


class Look(NamedTuple):
    """Look at one place of a topic. -> `Looked`, later."""

    topic: str
    partition: int
    offset: int


class Looked(NamedTuple):
    """Record at a position. `record` None: it is not there any more; not `known`: nobody says, so ask again."""

    topic: str
    partition: int
    offset: int
    record: Record | None
    known: bool = True


class LoadBlob(NamedTuple):
    """Read a large value of a run. -> `BlobLoaded`, later: an outage of the store is waited for.

    `kept`: another service says that it has put it into the store. So there is one, also if none is set here.
    """

    number: int
    run: RunId
    pointer: str
    kept: bool = False


class BlobLoaded(NamedTuple):
    """The text, or why there is none."""

    number: int
    value: str | Failure


class SaveBlob(NamedTuple):
    """Keep a large value of a run. -> `BlobSaved`, later, when it is durable."""

    number: int
    run: RunId
    text: str


class BlobSaved(NamedTuple):
    """The value is stored."""

    number: int


class Reopen(NamedTuple):
    """Begin a partition anew, because what is known of it does not hold. -> `Revoked` and `Assigned`, later."""

    partition: int


class Flow(NamedTuple):
    """Stop (`pause`) or go on (`resume`) delivering records of a topic's partition. No answer."""

    action: Literal["pause", "resume"]
    topic: str
    partition: int


class Leave(NamedTuple):
    """Leave the group, and go on: what was ordered before is done first. -> `Revoked` for each partition, later.

    None where the group keeps the partitions for this member's name.
    """


class AskLedger(NamedTuple):
    """-> `Answers` with the same `batch`, before anything else."""

    batch: int
    operations: list[Operation]


class Answers(NamedTuple):
    """The replies to a batch, in order; None: unknown, the ledger could not be reached."""

    batch: int
    replies: list[Reply] | None


class Within(Protocol):
    """Judges the calls that an agent makes in memory."""

    def __call__(self, tool: str, args: str, calls: int) -> Refusal | None:
        """Why a call may not be made, after so many `calls`; None if it may. Asked from any thread.

        `stale`: it is halted. Else the agent hears of what is `denied`, and of the rest nothing in memory can come.
        """
        ...


class StartTool(NamedTuple):
    """Run the tool (`probe`: its status hook) for the attempt of this number. -> `ToolEnded`, later or never.

    `within` judges what it calls, if it is an agent.
    """

    number: int
    request: ToolRequest
    probe: bool
    within: Within | None = None


class StopTool(NamedTuple):
    """Tell the tool of an attempt to stop: `timeout`, `cancelled`, `handed_over`. Best effort; it may end as well."""

    number: int
    reason: str


class ToolEnded(NamedTuple):
    """End of a tool's or a probe's run.

    `status`: `completed` with canonical JSON in `result` (a probe: `happened` with the result, or `did_not_happen`),
    `failed` (it did not happen, `retryable`), `broken` (it happened, and its result is of no use) or `unknown` (it may
    have happened). `detail` is what an agent's code may want to know of a failure, beside its message.
    """

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
"""Something worth a line in the log of the process: an event name and its fields."""


class LanesNow(NamedTuple):
    """The partitions of a service, those of them that have not caught up, and executions of agents in memory.

    `waiting` are the numbers of inputs that wait, by what for.
    """

    lanes: int = 0
    behind: int = 0
    executions: int = 0
    waiting: Mapping[str, int] = MappingProxyType({})


class Service(Protocol):
    """A service without I/O. The host takes `news` away after every turn; `counts` is what happened so far, by name."""

    counts: Counter[str]
    news: list[News]

    def turn(self, inbox: list[Item], now: Now) -> list[Effect]:
        """Takes what came and gives what is to be done. With an empty inbox it looks after what time has made due."""
        ...

    def next_due_ms(self) -> int | None:
        """When `turn` wants to be called at the latest though nothing came. **Units**: monotonic, None: never."""
        ...

    def drain(self) -> bool:
        """Takes nothing new from now on, and ends what is under way; asked before each further turn.

        True when nothing is left that would be worth a wait. Whoever is not asked, or dies meanwhile, loses nothing.
        """
        ...

    def lanes_now(self) -> LanesNow: ...
