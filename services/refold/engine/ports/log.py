"""The event log as services see it: partitioned topics, one group member, positions. Topic names are logical
(`run-log`, `tool-requested.default`); adapters add the prefix."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

Headers = Sequence[tuple[str, bytes]]

Place = tuple[str, int]
"""A topic and a partition number."""


class Record(NamedTuple):
    """A record as read. `read_headers` parses the headers, which is costly; the list is empty if a name is not UTF-8.
    **Units**: `at_ms` is the append time by the broker's clock, since 1970 in UTC."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    read_headers: Callable[[], Headers | None]
    at_ms: int = 0


class Outgoing(NamedTuple):
    """A record to write. `token` names it in its `Delivery`; value None is a tombstone. `awaited`: its writer needs the
    delivery to go on. Other deliveries come with the next `take`."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None
    headers: Headers
    token: int
    awaited: bool = False


NEVER = -1
"""`offset` of a delivery that did not and will not happen: the record is too large."""


class Delivery(NamedTuple):
    """Outcome of an outgoing record. `offset` None: **unknown**, it may be in the log now, later or never. `at_ms` as
    in `Record`; 0 if unknown."""

    token: int
    offset: int | None
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Assigned:
    """A partition number now belongs to this member. It is not read before a `read` with an offset. By topic:
    `committed` is the group's offset (absent: none), `starts` and `ends` are the present low and high watermarks. An
    end is a position to reach, never "last offset + 1". `assignment` differs each time. `absent` topics do not exist:
    when one is made, the number is revoked and assigned again."""

    partition: int
    committed: Mapping[str, int]
    starts: Mapping[str, int]
    ends: Mapping[str, int]
    assignment: int = 0
    absent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Revoked:
    """A partition number left this member. Best effort, late or never; numbers that stay are not revoked."""

    partition: int


class End(NamedTuple):
    """A high watermark, captured after its request."""

    topic: str
    partition: int
    offset: int


class Reached(NamedTuple):
    """Reading of a partition has come to this offset: when the end in `Assigned.ends` is reached, though the last
    records before it may be gone (compaction), and when it passes a hole later on."""

    topic: str
    partition: int
    offset: int


class Shrunk(NamedTuple):
    """A partition ends before the position to read: acknowledged records are lost. Sent also if it has grown again
    since, if any of it was read before. Reading stops until a `read` with an offset."""

    topic: str
    partition: int
    end: int


@dataclass(frozen=True, slots=True)
class Membership:
    """Member of a group, and the topics that it reads of each partition number assigned to it. The group shares out the
    first topic alone, the same for all members. `rare` topics have few records, and must not slow the others down. A
    `lazy` topic, once read to its end, may come late: records of this process are handed over. An `optional` topic may
    be absent, and counts as absent while the topic that it is mapped to is."""

    group: str
    member: str
    topics: tuple[str, ...]
    rare: frozenset[str] = frozenset()
    lazy: frozenset[str] = frozenset()
    optional: Mapping[str, str] = field(default_factory=dict)

    @property
    def shared(self) -> str:
        """Topic whose partitions the group shares out."""
        # A member's other topics follow from its app (pools, limits). The assignor deals out each topic among its
        # subscribers: beside members with other apps some numbers would have no owner for as long as a deploy.
        return self.topics[0]


class Depth(NamedTuple):
    """Progress of a member: next offsets, number of unanswered writes, and if the group has assigned its partitions,
    maybe none. `unstable` places have had records behind an open transaction for these seconds."""

    positions: Mapping[Place, int]
    unacknowledged: int
    placed: bool
    unstable: Mapping[Place, float] = {}


@dataclass(slots=True)
class Taken:
    """Records of a poll, in processing order; per partition and topic in order of offset. `begun`: places where reading
    began as requested, with their offsets. The other items are later than that."""

    begun: dict[Place, int] = field(default_factory=dict)
    rebalances: list[Assigned | Revoked] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    reached: list[Reached] = field(default_factory=list)
    shrunk: list[Shrunk] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)


class EventLog(Protocol):
    """One member of a group, with an idempotent producer. Appending keeps order per partition. Nothing is
    transactional: safety rests on the hash chain alone. A caller in another thread than the one of `take` passes the
    assignment (`under`): its call is dropped after a new one."""

    def take(self, limit: int, timeout_s: float) -> Taken:
        """Wait for a record or awaited delivery up to the timeout, then take up to `limit` records."""

    def append(self, records: Sequence[Outgoing]) -> list[Delivery]:
        """Write until each record is acknowledged by all replicas or unknown. **Shape**: a delivery each, any order."""

    def publish(self, records: Sequence[Outgoing]) -> None:
        """Write without waiting; deliveries come with a later `take`, records may leave with a later write."""

    def push(self) -> None:
        """Send the records published so far at once."""

    def end(self, topic: str, partition: int) -> int:
        """Return the high watermark, from the broker now. **Raises** UnreachableError: retry."""

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return offsets committed by any group in a topic, by partition, as far as available now."""

    def commit(self, positions: Mapping[tuple[str, int], int]) -> None:
        """Make positions (the next offset to read) durable for the group, without waiting. May be lost."""

    def read(self, topic: str, partition: int, offset: int, *, under: int | None = None) -> None:
        """Read an assigned partition from an offset on, until it is revoked; a repeated call seeks."""

    def reopen(self, partition: int) -> None:
        """Revoke and assign a partition of this member again, with its present offsets."""

    def pause(self, topic: str, partition: int, *, under: int | None = None) -> None:
        """Stop delivery from a place until `resume` or revocation, even if `read` seeks meanwhile."""

    def resume(self, topic: str, partition: int, *, under: int | None = None) -> None: ...

    def depth(self) -> Depth: ...

    def leave(self) -> None:
        """Leave the group after earlier commits, and be revoked; writing still works. No effect for a static member."""

    def close(self) -> None:
        """Leave the group, after the last deliveries and commits."""


class LogFeed(Protocol):
    """Records of some topics from given positions on, for ever."""

    def take(self, timeout_s: float) -> list[Record]:
        """Return new records, in order per partition; wait for the first. **Raises** errors that no wait can cure."""

    @property
    def reached(self) -> Mapping[Place, int]:
        """Ends reached, by topic and partition. No record lies between the last one and such an end."""

    def close(self) -> None: ...


class LogSource(Protocol):
    """Topics behind views: identity, bounds and records. **Raises** UnreachableError while Kafka is away."""

    @property
    def reader(self) -> "LogReader": ...

    def identity(self) -> str:
        """Return a text that is unique to this log: a position is meaningless in another."""

    def bounds(self) -> dict[Place, tuple[int, int]]:
        """Return the first offset and the high watermark, by topic and partition."""

    def feed(self, positions: Mapping[Place, int]) -> LogFeed: ...


class LogReader(Protocol):
    """Reader of topics without a group."""

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic. **Raises** NotFoundError if there is no such topic."""

    def scan(self, topic: str, partition: int | None = None) -> Iterator[Record]:
        """Iterate up to the high watermark captured at the call, in order per partition."""

    def tail(self, topic: str, partition: int | None = None) -> Iterator[Record | None]:
        """Like `scan`, then endless; None whenever there is nothing new for a moment."""

    def tail_kinds(self, kinds: Collection[str], partition: int) -> Iterator[Record | None]:
        """Like `tail`, of all topics of some kinds at once (see `kind_of`), in no order between them."""
