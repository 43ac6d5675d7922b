"""Lanes of a service, one per assigned partition: routing, catching up, throttling, committing, and shared parts."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

from refold.core.approval.catalog import Catalog
from refold.engine.ports.effects import Answers, AskLedger, Commit, Effect, Flow, Item, News, Now, Read, Reopen
from refold.engine.ports.ledger import Fill, Lapsed, Operation, Reply, Unpublished
from refold.engine.ports.log import Assigned, End, Reached, Record, Revoked, Shrunk
from refold.engine.runtime.clock import LogClock

Positions = Mapping[tuple[str, int], int]


class Lane(Protocol):
    def reads(self) -> Mapping[str, int]:
        """Offsets to read from after the assignment, by topic."""

    def feed(self, item: Record | Reached | End) -> None:
        """Read an item of the partition; per topic in order of offset."""

    def low_water(self) -> Positions:
        """Offsets that may be committed: everything below is settled."""


class ClockedLane(Lane, Protocol):
    partition: int
    clock: LogClock


L = TypeVar("L", bound=Lane)
C = TypeVar("C", bound=ClockedLane)
T = TypeVar("T")
Name = TypeVar("Name")

INPUT_OVERHEAD = 1_024
"""Memory of an input besides its record, in bytes."""


def record_bytes(record: Record) -> int:
    return INPUT_OVERHEAD + len(record.key or b"") + len(record.value or b"")


class Lanes(Generic[L]):
    """Lanes of a process by partition, opened by `open_lane` and ended by `leave`. With `wake`, a revoked lane is kept
    idle and continues when its partition returns. A lane whose log lost records that it read starts again from the
    start of every topic. Changed positions are committed every `commit_ms` (monotonic)."""

    def __init__(
        self,
        open_lane: Callable[[Assigned], L],
        *,
        leave: Callable[[L], None] = lambda lane: None,
        wake: Callable[[L, Assigned], None] | None = None,
        commit_ms: int = 0,
    ) -> None:
        self._open_lane, self._leave, self._wake, self._commit_ms = open_lane, leave, wake, commit_ms
        self._lanes: dict[int, L] = {}
        self._asleep: dict[int, L] = {}
        self._restarted: set[int] = set()
        self._committed: dict[tuple[str, int], int] = {}
        self._commit_due = 0
        self._paused: set[int] = set()

    def __iter__(self) -> Iterator[L]:
        return iter(self._lanes.values())

    def __len__(self) -> int:
        return len(self._lanes)

    def get(self, partition: int) -> L | None:
        return self._lanes.get(partition)

    def route(self, item: Item) -> list[Effect]:
        if isinstance(item, (Record, Reached, End)):
            if (lane := self._lanes.get(item.partition)) is not None:
                lane.feed(item)
        elif isinstance(item, Assigned):
            return self._assign(item)
        elif isinstance(item, Revoked):
            self._revoke(item.partition)
        elif isinstance(item, Shrunk):
            return self.restart_lane(item.partition)
        return []

    def restart_lane(self, partition: int) -> list[Effect]:
        """Drop a lane whose state differs from the log, and read its partition again."""
        if self._close(partition) is None:
            return []
        self._restarted.add(partition)
        return [Reopen(partition)]

    @property
    def throttled(self) -> bool:
        return bool(self._paused)

    def throttle(self, waiting: Callable[[L], int], *, limit: int, topics: Iterable[str]) -> list[Effect]:
        """Pause inputs of a lane with more than `limit` waiting bytes, until less than half of them wait."""
        effects: list[Effect] = []
        for partition, lane in self._lanes.items():
            paused, size = partition in self._paused, waiting(lane)
            if not paused and size > limit:
                self._paused.add(partition)
                effects += [Flow("pause", topic, partition) for topic in topics]
            elif paused and size < limit // 2:
                self._paused.discard(partition)
                effects += [Flow("resume", topic, partition) for topic in topics]
        return effects

    def commit(self, now: Now, *, at_once: bool = False) -> list[Effect]:
        if now.mono_ms < self._commit_due and not at_once:
            return []
        self._commit_due = now.mono_ms + self._commit_ms
        lanes, committed = self._lanes.values(), self._committed
        positions = {key: at for lane in lanes for key, at in lane.low_water().items() if committed.get(key) != at}
        self._committed |= positions
        return [Commit(positions)] if positions else []

    def _assign(self, assigned: Assigned) -> list[Effect]:
        number = assigned.partition
        self._revoke(number)
        # Another member may have committed since: positions are committed again.
        self._committed = {key: at for key, at in self._committed.items() if key[1] != number}
        if number in self._restarted:
            # Committed positions may be of inputs whose entries are lost.
            assigned = replace(assigned, committed={})
            self._restarted.discard(number)
        lane = self._asleep.pop(number, None)
        if lane is not None and self._wake is not None:
            self._wake(lane, assigned)
        else:
            lane = self._open_lane(assigned)
        self._lanes[number] = lane
        return [Read(topic, number, offset) for topic, offset in lane.reads().items()]

    def _revoke(self, partition: int) -> None:
        lane = self._close(partition)
        if lane is not None and self._wake is not None:
            self._asleep[partition] = lane

    def _close(self, partition: int) -> L | None:
        self._paused.discard(partition)
        if (lane := self._lanes.pop(partition, None)) is not None:
            self._leave(lane)
        return lane


class Awake(Generic[C]):
    """Lanes that work in a turn: due ones, and those with items; others cost nothing. **Units**: monotonic ms."""

    _STALE = 64

    def __init__(self, lanes: Lanes[C]) -> None:
        self._lanes, self._mono = lanes, 0
        self._awake: set[int] = set()
        self._sorted: list[C] | None = None
        self._due: dict[int, int] = {}
        self._times: list[tuple[int, int]] = []

    def begin(self, mono_ms: int) -> list[C]:
        """Start a turn; return the lanes that are due."""
        self._mono = mono_ms
        due: set[int] = set()
        while self._times and self._times[0][0] <= mono_ms:
            at_ms, partition = heappop(self._times)
            if self._due.get(partition) == at_ms:
                del self._due[partition]
                due.add(partition)
        return [lane for partition in sorted(due) if (lane := self.touch(partition)) is not None]

    def touch(self, partition: int) -> C | None:
        """Wake a lane for this turn."""
        lane = self._lanes.get(partition)
        if lane is not None and partition not in self._awake:
            self._awake.add(partition)
            self._sorted = None
            lane.clock.tick(self._mono)
        return lane

    def forget(self, partition: int) -> None:
        self._awake.discard(partition)
        self._sorted = None
        self._due.pop(partition, None)

    def __iter__(self) -> Iterator[C]:
        if self._sorted is None:
            self._sorted = [lane for home in sorted(self._awake) if (lane := self._lanes.get(home)) is not None]
        return iter(self._sorted)

    def rest(self, next_due_ms: Callable[[C], int | None]) -> None:
        for lane in self:
            due = next_due_ms(lane)
            if due is None:
                self._due.pop(lane.partition, None)
            elif self._due.get(lane.partition) != due:
                self._due[lane.partition] = due
                heappush(self._times, (due, lane.partition))
        self._awake.clear()
        self._sorted = None
        if len(self._times) > 2 * len(self._due) + self._STALE:
            self._times = [(due, partition) for partition, due in self._due.items()]
            heapify(self._times)

    def next_due_ms(self) -> int | None:
        while self._times and self._due.get(self._times[0][1]) != self._times[0][0]:
            heappop(self._times)
        return self._times[0][0] if self._times else None


def resumed(assigned: Assigned, topics: Iterable[str]) -> dict[str, int]:
    """Positions to resume at, by topic: the committed one, else the start."""
    positions = {}
    for topic in topics:
        start, position = assigned.starts.get(topic, 0), assigned.committed.get(topic, 0)
        # A position beyond the end: the topic lost records, and newer ones have their offsets.
        positions[topic] = start if position > assigned.ends.get(topic, position) else max(start, position)
    return positions


class CatchUp:
    """Progress of a take-over to the ends captured at the assignment."""

    def __init__(self, assigned: Assigned, topics: Iterable[str]) -> None:
        # Ends are positions, not "the last offset + 1": compaction may have removed the records before them.
        self.ends = {topic: assigned.ends[topic] for topic in topics}
        self._missing = {topic for topic, end in self.ends.items() if end > 0}

    def reached(self, topic: str, offset: int) -> None:
        if topic in self._missing and offset >= self.ends[topic]:
            self._missing.discard(topic)

    def has(self, topic: str) -> bool:
        return topic not in self._missing

    @property
    def done(self) -> bool:
        return not self._missing


@dataclass(slots=True, eq=False, kw_only=True)
class Owed:
    """Unanswered input; `kept`: its run is known and idle."""

    done: bool = False
    kept: bool = False


class Outstanding:
    """Inputs of one topic, in order; everything below `position` is done, `end` follows the last known one."""

    _LEAST = 1_000

    def __init__(self) -> None:
        self._inputs: deque[tuple[int, Owed]] = deque()
        self._most = self._LEAST
        self.position: int | None = None
        self.end = 0

    def add(self, offset: int, owed: Owed) -> None:
        self._inputs.append((offset, owed))
        self.end = offset + 1
        if len(self._inputs) > self._most:
            self.low_water()
            # Without this, an input that is open for months would keep all later ones in memory.
            self._inputs = deque(pending for pending in self._inputs if not pending[1].done)
            self._most = max(self._LEAST, 2 * len(self._inputs))

    def low_water(self) -> int | None:
        """Offset below which every input is done; None before the first."""
        while self._inputs and self._inputs[0][1].done:
            self._inputs.popleft()
            self.position = self._inputs[0][0] if self._inputs else self.end
        return self.position

    def passed(self) -> int | None:
        """Offset below which every input is done or kept; None before the first."""
        position = self.low_water()
        if not self._inputs or not self._inputs[0][1].kept:
            return position
        return next((offset for offset, owed in self._inputs if not (owed.done or owed.kept)), self.end)


class Recent(OrderedDict[Name, T]):
    """The last `limit` names, with a value each."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def add(self, name: Name, content: T) -> None:
        self[name] = content
        if len(self) > self.limit:
            self.popitem(last=False)


class Tokens(Generic[T]):
    """Receivers of deliveries by token; `number` makes tokens unique in the process, as services share a log."""

    def __init__(self, number: Callable[[], int]) -> None:
        self._number = number
        self._askers: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._askers)

    def give(self, asker: T) -> int:
        token = self._number()
        self._askers[token] = asker
        return token

    def take(self, token: int) -> T | None:
        """Remove and return the receiver of a token; None if it is another service's or was taken."""
        return self._askers.pop(token, None)

    def forget(self, matches: Callable[[T], bool]) -> None:
        self._askers = {token: asker for token, asker in self._askers.items() if not matches(asker)}


class Journal:
    """Counters and log lines of a service."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.news: list[News] = []

    def tell(self, event: str, **fields: object) -> None:
        self.counts[event] += 1
        self.news.append((event, fields))


def follow_catalog(catalog: Catalog, item: Record | Reached, journal: Journal) -> None:
    """Read the next item of the catalog. A gap before it is an alarm, even if the partition is empty since; so is a
    void record, as the authority writes none."""
    if item.offset > catalog.position:
        journal.tell("catalog.lost", partition=item.partition, first=item.offset, expected=catalog.position)
    catalog.reached(item.offset)
    if isinstance(item, Record) and (why := catalog.follow(item.offset, item.key, item.value)):
        place = {"partition": item.partition, "offset": item.offset}
        journal.tell("catalog.void", **place, name=(item.key or b"").decode(errors="replace")[:200], reason=why)


Who = TypeVar("Who")


class Batches(Generic[Who]):
    """Ledger operations of a service, one batch per turn, sent again `resend_ms` after an unknown outcome."""

    def __init__(self, number: Callable[[], int], *, resend_ms: int) -> None:
        self._resend_ms = resend_ms
        self._new: list[tuple[Who | None, Operation]] = []
        self._flying: Tokens[list[tuple[Who | None, Operation]]] = Tokens(number)
        self._again: list[tuple[int, list[tuple[Who | None, Operation]]]] = []

    def __len__(self) -> int:
        return len(self._new) + len(self._flying) + len(self._again)

    def ask(self, operation: Operation, asker: Who | None = None) -> None:
        self._new.append((asker, operation))

    def answered(self, answers: Answers, now: Now) -> list[tuple[Who | None, Operation, Reply]]:
        """Askers, operations and replies of an answered batch; empty if it is another service's or has no answer."""
        batch = self._flying.take(answers.batch)
        if batch is None:
            return []
        if answers.replies is not None:
            return [(*pair, reply) for pair, reply in zip(batch, answers.replies, strict=True)]
        # Operations are repeatable, so an unknown outcome is safe. Queries are dropped: the next round sends new ones.
        if batch := [pair for pair in batch if not isinstance(pair[1], (Lapsed, Unpublished, Fill))]:
            self._again.append((now.mono_ms + self._resend_ms, batch))
        return []

    def send(self, now: Now) -> list[Effect]:
        while self._again and self._again[0][0] <= now.mono_ms:
            self._new += self._again.pop(0)[1]
        if not self._new:
            return []
        batch, self._new = self._new, []
        return [AskLedger(self._flying.give(batch), [operation for _, operation in batch])]
