"""The event log as services see it: partitioned topics, one group member, positions.

Topic names are the logical ones of the design (`run-log`, `tool-requested.default`); adapters add the prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

Headers = Sequence[tuple[str, bytes]]

Place = tuple[str, int]
"""A topic and a partition number of it."""


class Record(NamedTuple):
    """A record as it was read. `read_headers` gives the headers; it costs, so ask only where they matter.

    Headers of which one has a name that is not UTF-8 read as none. **Units**: `at_ms` is when the broker appended it,
    by the broker's clock, since 1970 in UTC.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    read_headers: Callable[[], Headers | None]
    at_ms: int = 0


class Outgoing(NamedTuple):
    """A record to be written. `token` names it in its `Delivery`; value None is a tombstone.

    `awaited`: its writer can do nothing before the delivery. Others come with what is taken next, a little later.
    """

    topic: str
    partition: int
    key: bytes
    value: bytes | None
    headers: Headers
    token: int
    awaited: bool = False


NEVER = -1
"""The `offset` of a delivery that certainly did not and will not happen, because the record is too large."""


class Delivery(NamedTuple):
    """Outcome of an outgoing record. `offset` None: **unknown**, it may be in the log now, later or never.

    `at_ms` is when the broker appended it, as in `Record`; 0 where the offset is not known.
    """

    token: int
    offset: int | None
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Assigned:
    """A partition number is this member's from now on. Nothing of it is read before `read` says from where.

    By topic: `committed` is what the group has (absent: nothing), `starts` and `ends` are the low and high watermarks,
    captured now. An end is a position to reach, never "last offset + 1". `assignment` is another number each time.
    `absent` topics of the membership do not exist: the partition number goes and comes once more when one is made.
    """

    partition: int
    committed: Mapping[str, int]
    starts: Mapping[str, int]
    ends: Mapping[str, int]
    assignment: int = 0
    absent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Revoked:
    """A partition number is another member's from now on. Best effort: a member may learn of it late or never.

    Told only of what really went: a rebalance that leaves a number where it is says nothing.
    """

    partition: int


class End(NamedTuple):
    """A high watermark, captured after it was asked for."""

    topic: str
    partition: int
    offset: int


class Reached(NamedTuple):
    """Reading of a partition has come to this offset.

    Given when the end in `Assigned.ends` is reached, though the last records before it may be gone (compaction), and
    whenever reading passes a hole at the start or the end later on.
    """

    topic: str
    partition: int
    offset: int


class Shrunk(NamedTuple):
    """A partition ends before the position that was to be read: acknowledged records are lost.

    Told too when it has grown again since, if anything was read of it before. It is not read on until somebody says
    from where.
    """

    topic: str
    partition: int
    end: int


@dataclass(frozen=True, slots=True)
class Membership:
    """Member of a group, and the topics that it reads of each partition number that the group gives it.

    The group shares out the first topic alone. It has to be the same for all members; the others may differ. `rare`
    topics are those in which little comes, so that reading the others shall not pay for them. A topic of `optional` may
    be absent, and counts as absent while the topic that it is mapped to is.
    """

    group: str
    member: str
    topics: tuple[str, ...]
    rare: frozenset[str] = frozenset()
    optional: Mapping[str, str] = field(default_factory=dict)

    @property
    def shared(self) -> str:
        """Topic whose partitions the group shares out."""
        # What else a member reads follows from its app (pools, limits). The assignor deals out each topic among those
        # that subscribe to it: beside members with other apps some numbers would be nobody's for as long as a deploy.
        return self.topics[0]


class Depth(NamedTuple):
    """Progress of a member in reading and writing.

    The next offset of each place that it reads, how many records were sent and are not answered yet, and whether the
    group has placed it: has said which partitions are its own, though it may be none. `unstable` places have
    records that an open transaction keeps from it, for so many seconds.
    """

    positions: Mapping[Place, int]
    unacknowledged: int
    placed: bool
    unstable: Mapping[Place, float] = {}


@dataclass(slots=True)
class Taken:
    """Records of a poll, to be taken in this order; records per partition and topic in order of offset."""

    rebalances: list[Assigned | Revoked] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    reached: list[Reached] = field(default_factory=list)
    shrunk: list[Shrunk] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)


class EventLog(Protocol):
    """One member of a group, with an idempotent producer.

    Appending keeps order per partition. Nothing here is transactional: safety rests on the hash chain alone. Who steers
    from another thread than the one that takes says `under` which assignment: a partition may have gone and come back
    since, and what was meant for it before is dropped. None: whichever it is.
    """

    def take(self, limit: int, timeout_s: float) -> Taken:
        """Waits for the first record or awaited delivery up to the timeout, then takes what is there.

        **JsonCodec**: up to `limit` records.
        """
        ...

    def append(self, records: Sequence[Outgoing]) -> list[Delivery]:
        """Writes and waits until every record is acknowledged by all replicas, or its outcome is unknown.

        **JsonCodec**: one delivery per record, any order.
        """
        ...

    def publish(self, records: Sequence[Outgoing]) -> None:
        """Writes without waiting; the deliveries come with a later `take`, what goes out with a later write."""
        ...

    def push(self) -> None:
        """Sends at once the few records that were published since: no more of this turn comes to go with them."""
        ...

    def end(self, topic: str, partition: int) -> int:
        """The high watermark, asked of the broker now. **Raises** UnreachableError: ask again."""
        ...

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Offsets committed by any group in a topic, by partition, as far as can be learnt now."""
        ...

    def commit(self, positions: Mapping[tuple[str, int], int]) -> None:
        """Makes positions (the next offset to read) durable for the group, without waiting. May be lost."""
        ...

    def read(self, topic: str, partition: int, offset: int, *, under: int | None = None) -> None:
        """Reads a partition that is this member's from an offset on, until it is revoked; once more: goes there."""
        ...

    def reopen(self, partition: int) -> None:
        """Is told of a partition that is this member's once more: revoked, and assigned as it is by then."""
        ...

    def pause(self, topic: str, partition: int, *, under: int | None = None) -> None:
        """Takes no more from there until `resume`, wherever `read` goes meanwhile, or until it is revoked."""
        ...

    def resume(self, topic: str, partition: int, *, under: int | None = None) -> None: ...

    def depth(self) -> Depth:
        """Return how far it has read and written, and if the group has placed it."""
        ...

    def leave(self) -> None:
        """Leaves the group, after the commits before it: its partitions are others' at once, and it is told so.

        Records can be written as before. With a place that is kept nothing happens.
        """
        ...

    def close(self) -> None:
        """Leaves the group, after the last deliveries and commits: its partitions are others' at once."""
        ...


class LogFeed(Protocol):
    """The records of some topics from given positions on, for ever."""

    def take(self, timeout_s: float) -> list[Record]:
        """Return what has come, in order per partition; wait for the first record at most so long.

        **Raises** what waiting cannot help against.
        """
        ...

    @property
    def reached(self) -> Mapping[Place, int]:
        """The ends that were reached, by topic and partition. No record lies between the last one and such an end."""
        ...

    def close(self) -> None: ...


class LogSource(Protocol):
    """The topics that views are made of: which log they are, where they begin and end, and their records.

    **Raises** UnreachableError from every method while Kafka is away.
    """

    @property
    def reader(self) -> LogReader: ...

    def identity(self) -> str:
        """Return a text that no other log has: a position means nothing in another."""
        ...

    def bounds(self) -> dict[Place, tuple[int, int]]:
        """Return the first offset and the high watermark, by topic and partition."""
        ...

    def feed(self, positions: Mapping[Place, int]) -> LogFeed: ...


class LogReader(Protocol):
    """Reads topics without a group: the command line, verification, rebuilding."""

    def partitions(self, topic: str) -> int:
        """The number of partitions the topic has. **Raises** NotFoundError when there is no such topic."""
        ...

    def scan(self, topic: str, partition: int | None = None) -> Iterator[Record]:
        """Every record up to the high watermark captured at the call, in order per partition."""
        ...

    def tail(self, topic: str, partition: int | None = None) -> Iterator[Record | None]:
        """Like `scan`, then goes on for ever; None whenever there is nothing new for a moment."""
        ...

    def tail_kinds(self, kinds: Collection[str], partition: int) -> Iterator[Record | None]:
        """Like `tail`, of all topics of some kinds at once (see `kind_of`), in no order between them."""
        ...
