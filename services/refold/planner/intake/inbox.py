"""What a lane has to answer, and how far it has come: inputs settle in any order, positions move only in theirs."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from refold.core.events import Cause
from refold.core.ids import RunId
from refold.core.planning.verdict import ChildOver, Input
from refold.core.run.handed import NO_VALUES, Values
from refold.core.topics import RUN_OPERATED, RUN_REQUESTED, RUN_SIGNALLED
from refold.core.wire import headers
from refold.planner.intake import inputs
from refold.planner.settings import Limits
from refold.ports.effects import AskCommitted, AskEnd, CommittedAt, Effect
from refold.ports.log import End, Record
from refold.runtime.lanes import Outstanding, Owed, record_bytes


class Emitted:
    """Orders that are not acknowledged so far, by the run-log offset of the entry behind them."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, int] = OrderedDict()

    def add(self, offset: int, count: int) -> None:
        """An entry at `offset` (not lower than any before) ordered `count` commands."""
        self._open[offset] = self._open.get(offset, 0) + count

    def acknowledge(self, offset: int) -> None:
        """One command of the entry at `offset` is in its topic."""
        self._open[offset] -= 1

    def low_water(self, position: int) -> int:
        """The run-log offset from which a successor has to emit again; `position` when nothing is open."""
        while self._open and self._open[offset := next(iter(self._open))] <= 0:
            del self._open[offset]
        return next(iter(self._open), position)


LARGE_BYTES = 65_536
"""What is larger is read anew when its time comes: read, it takes up to four times as much again."""


@dataclass(slots=True, eq=False)
class Pending(Owed):
    """Something that a lane has to answer: an input with its record, a timer, what the entry at `source` of another
    run means (`owed` until it is answered), or (no input) a run to be driven.

    `end` is a high watermark of the run log captured after the input was taken. `waited`: what it is about would be
    known by now. `passed`: executors have passed the request that it is about. With a `letter` (code and reason) it is
    a dead one, and done when its dead letter is in the log; a `short` one, because the log does not take it whole.
    `bytes` is what it takes, counted in `among` by topic until it is finished; `turn` is when it came. `values` are the
    large ones that were read for it. `closed`: it was refused or ignored for good, and is done when its tombstone is in
    its topic.
    """

    run_id: RunId
    input: Input | None
    record: Record | None = None
    end: int | None = None
    waited: bool = False
    passed: bool = False
    letter: tuple[str, str] | None = None
    short: bool = False
    closed: bool = False
    bytes: int = 0
    turn: int = 0
    among: Counter[str] | None = None
    source: Cause | None = None
    owed: Emitted | None = None
    values: Values = NO_VALUES

    def finish(self) -> None:
        """It is answered: nothing of it is kept, though its position may have to wait for others for months."""
        self.count_among(None)
        self.done, self.input, self.record = True, None, None
        self.values = NO_VALUES
        if self.owed is not None and self.source is not None:
            self.owed.acknowledge(self.source.offset)
            self.owed = None

    def means(self, run: RunId, told: ChildOver) -> None:
        """Takes note that what a run is told is more than was known, or is for another one."""
        self.run_id, self.input = run, told

    def rest(self) -> None:
        """It will be answered later."""
        if self.from_people and self.bytes > LARGE_BYTES:
            self.input = None
        self.values = NO_VALUES

    def count_among(self, among: Counter[str] | None) -> None:
        """Counts what it takes elsewhere, or (None) no longer."""
        if self.record is None:
            return
        if self.among is not None:
            self.among[self.record.topic] -= self.bytes
        if among is not None:
            among[self.record.topic] += self.bytes
        self.among = among

    @property
    def answered(self) -> bool:
        """Whether nothing is left to decide: its dead letter or its tombstone is on its way."""
        return self.letter is not None or self.closed

    @property
    def from_user(self) -> bool:
        """Whether it is what a user says, who may say anything, as much as they like."""
        return self.record is not None and self.record.topic in inputs.FROM_USERS

    @property
    def from_people(self) -> bool:
        """Whether it is what a user or an operator says, and no word of a service about a call."""
        return self.record is not None and self.record.topic in inputs.FROM_PEOPLE

    @property
    def cause(self) -> Cause | None:
        """Where the input lies, as the entry that it causes says it."""
        record = self.record
        return Cause(record.topic, record.partition, record.offset) if record else self.source


class Unconfirmed:
    """Inputs that would change nothing, as far as the fold has come.

    That is final only if the fold has reached a high watermark captured after the input was taken, and no speculation
    lies under the answer: else somebody else's entry, written but not read so far, might say otherwise.
    """

    def __init__(self) -> None:
        self._unasked: list[Pending] = []
        self.waiting: list[Pending] = []

    @property
    def wants_end(self) -> bool:
        """Whether a high watermark has to be asked for."""
        return bool(self._unasked)

    def confirms(self, item: Pending, position: int, *, speculated: bool) -> bool:
        """Whether the answer is final; if not, the item is kept until it may be."""
        if item.cause is None:
            return True
        if item.end is not None and position >= item.end and not speculated:
            return True
        (self._unasked if item.end is None else self.waiting).append(item)
        item.rest()
        return False

    def ask(self, item: Pending) -> None:
        """Keeps an item whose entry may have been written or not, until the log is read that far."""
        self._unasked.append(item)

    def reached_end(self, end: int) -> None:
        """The high watermark that was asked for."""
        for item in self._unasked:
            item.end = end
        self.waiting += self._unasked
        self._unasked = []

    def take(self, position: int) -> list[Pending]:
        """The items that can be answered now that the fold has come so far."""
        ready = [item for item in self.waiting if item.end is not None and item.end <= position]
        if ready:
            self.waiting = [item for item in self.waiting if item.end is None or item.end > position]
        return ready


class Inbox:
    """The inputs of one lane, which come from `topics`.

    What operators say is answered first, however much users say. What these say is answered before what services do,
    but in one turn not more of it than its allowance: they could say anything, as much as they like, and others' runs
    go on meanwhile. `kept` is what they have said of runs that stand still. **Units**: bytes.
    """

    def __init__(self, topics: tuple[str, ...], limits: Limits) -> None:
        self.topics, self._limits = topics, limits
        self._operated: deque[Pending] = deque()
        self._ready: deque[Pending] = deque()
        self._signals: deque[Pending] = deque()
        self._requests: deque[Pending] = deque()
        self._outstanding = {topic: Outstanding() for topic in topics}
        self._parked: dict[RunId, list[Pending]] = {}
        self._kept: dict[RunId, list[Pending]] = {}
        self._held: dict[str, deque[Pending]] = {}
        self._postponed: deque[Pending] = deque()
        self._bytes: Counter[str] = Counter(dict.fromkeys(topics, 0))
        self._parked_bytes: Counter[str] = Counter(dict.fromkeys(topics, 0))
        self._kept_bytes: Counter[str] = Counter()
        self._held_bytes: Counter[str] = Counter()
        self._full: set[str] = set()
        self.allowance = self.turn = self._rests_until = 0
        self.unconfirmed = Unconfirmed()
        self.catalog = Unconfirmed()

    def __len__(self) -> int:
        return len(self._operated) + len(self._ready) + len(self._signals) + len(self._requests)

    @property
    def bytes(self) -> int:
        """What is not answered so far takes, but for what is kept for runs that stand still."""
        return self._bytes.total() + self._parked_bytes.total() + self._held_bytes.total()

    def begin(self, allowance: int, rests_until: int) -> None:
        """A turn begins. Another is wanted at once for what services say, and not before `rests_until` for users."""
        self.turn += 1
        self.allowance, self._rests_until = allowance, rests_until
        if self._postponed:
            self._ready.append(self._postponed.popleft())

    @property
    def answerable(self) -> bool:
        """Whether something is there that may be answered in this turn."""
        return bool(self._operated or self._ready or (self.allowance > 0 and self._said))

    def next_due_ms(self) -> int | None:
        """When there is something to be answered: 0, now. **Units**: monotonic."""
        if self._operated or self._ready or self._postponed:
            return 0
        return self._rests_until if self._said else None

    def heard(self, topic: str, turn: int) -> bool:
        """Whether all that was said of runs in a topic until a turn, and could not wait, is answered."""
        said = {RUN_OPERATED: self._operated, RUN_SIGNALLED: self._signals}.get(topic)
        return not said or said[0].turn > turn  # what services say is answered before all that becomes due later

    @property
    def _said(self) -> deque[Pending]:
        # Heard first, a cancel costs nothing, though its run was asked for before it. What came later has to wait.
        if self._signals and (not self._requests or self._signals[0].turn <= self._requests[0].turn):
            return self._signals
        return self._requests

    def take(self, record: Record) -> Pending:
        """A record of an input topic, to be answered. A tombstone is not."""
        item = Pending(RunId(""), None, record, turn=self.turn)
        self._outstanding[record.topic].add(record.offset, item)
        if record.value is None:  # what lay here was answered long before it was erased
            item.finish()
            return item
        item.bytes = record_bytes(record)
        if item.from_people:
            item.bytes += headers.size(record.read_headers())
        item.count_among(self._bytes)
        queues = {RUN_OPERATED: self._operated, RUN_SIGNALLED: self._signals, RUN_REQUESTED: self._requests}
        queues.get(record.topic, self._ready).append(item)
        return item

    def push(self, items: Iterable[Pending]) -> None:
        """To be answered after what is there."""
        self._ready.extend(items)

    def postpone(self, item: Pending) -> None:
        """To be answered in a turn of its own: it takes long."""
        self._postponed.append(item)

    def push_front(self, item: Pending) -> None:
        """To be answered next."""
        self._ready.appendleft(item)

    def pop(self) -> Pending:
        """What is to be answered next."""
        if self._operated:
            return self._operated.popleft()
        if self.allowance > 0 and (said := self._said):
            self.allowance -= said[0].bytes
            return said.popleft()
        return self._ready.popleft()

    def retry(self, item: Pending) -> None:
        """Its answer did not hold: to be answered next, on what the log says by now."""
        item.end = None
        self._ready.appendleft(item)

    def settle(self, position: int) -> None:
        """The fold has come so far: what waited for that is answered next."""
        if self.unconfirmed.waiting:
            self._ready.extendleft(reversed(self.unconfirmed.take(position)))

    # What waits

    def full(self, topic: str) -> bool:
        """Whether no more of a topic is to be taken, because so much of it waits; until half of that is answered."""
        limit = self._limits.topic_bytes // (2 if topic in self._full else 1)
        full = self._bytes[topic] >= limit
        (self._full.add if full else self._full.discard)(topic)
        return full

    def hold(self, item: Pending, agent: str) -> None:
        """Keeps a request until there is room for another run of this agent."""
        item.rest()
        item.count_among(self._held_bytes)
        self._held.setdefault(agent, deque()).append(item)

    @property
    def holders(self) -> list[str]:
        """The agents for whose runs there is no room."""
        return list(self._held)

    @property
    def held_bytes(self) -> int:
        """What the requests take that there is no room for."""
        return self._held_bytes.total()

    def admit(self, agent: str, count: int) -> None:
        """There is room for so many runs of an agent."""
        held = self._held[agent]
        while held and count > 0:
            self._leave(held.popleft())
            count -= 1
        if not held:
            del self._held[agent]

    def parkable(self, item: Pending) -> bool:
        """Whether an input may wait: no topic waits for what waits. Large ones leave room for the small."""
        assert item.record is not None, "only records are parked"
        most = self._limits.parked_bytes // (1 if item.bytes <= LARGE_BYTES else 2)
        return self._parked_bytes[item.record.topic] + item.bytes <= most

    def park(self, item: Pending) -> None:
        """Keeps an input for a run that is not known so far."""
        item.end = None
        item.rest()
        item.count_among(self._parked_bytes)
        self._parked.setdefault(item.run_id, []).append(item)

    def parks(self, run: RunId) -> bool:
        """Whether something waits for this run."""
        return run in self._parked

    def keeps(self, item: Pending) -> bool:
        """Keeps an input of a run that stands still, which may be for months: no topic waits for that.

        Of what users say so much, if others shall have room as well, and of operators; what services say is all needed.
        """
        kept = self.kept if item.from_user else self._kept_bytes[RUN_OPERATED]
        if item.from_people and kept + item.bytes > self._limits.topic_bytes:
            return False
        item.end = None
        item.rest()
        item.kept = True
        item.count_among(self._kept_bytes)
        self._kept.setdefault(item.run_id, []).append(item)
        return True

    @property
    def kept(self) -> int:
        """What is kept for runs that stand still, of what users say."""
        return sum(self._kept_bytes[topic] for topic in inputs.FROM_USERS)

    def unpark(self, run: RunId) -> None:
        """Something has become known of this run."""
        for item in [*self._kept.pop(run, []), *self._parked.pop(run, [])]:
            self._leave(item)

    def give_up(self, item: Pending) -> None:
        """Its run would be known by now. It is answered once more, and then for good."""
        waiting = self._parked.get(item.run_id, [])
        if item in waiting:
            waiting.remove(item)
            if not waiting:
                del self._parked[item.run_id]
            item.waited = True
            self._leave(item)

    def _leave(self, item: Pending) -> None:
        item.kept = False
        item.count_among(self._bytes)
        self._ready.append(item)

    # Positions

    def reached(self, topic: str, offset: int) -> None:
        """Reading has come to this offset, though nothing lies before it any more."""
        self._outstanding[topic].add(offset - 1, Pending(RunId(""), None, done=True))

    def read(self, topic: str) -> int:
        """The offset to which a topic was read; 0 before the first record."""
        return self._outstanding[topic].end

    def passed(self, topic: str) -> int:
        """The offset below which every input of a topic is settled, or kept for a run that is known; 0: none."""
        return self._outstanding[topic].passed() or 0

    def low_water(self) -> dict[str, int]:
        """By topic, the offset below which every input is settled."""
        positions = {topic: outstanding.low_water() for topic, outstanding in self._outstanding.items()}
        return {topic: position for topic, position in positions.items() if position is not None}


ASK_MS = 1_000
"""How often positions of others are asked for: they commit twice a second, and nobody waits for a dead letter."""


@dataclass(slots=True)
class Round:
    """Inputs of one partition that began to wait together; `home_end` is the end that is captured last."""

    partition: int
    items: list[Pending]
    ends: dict[int, int] = field(default_factory=dict)
    home_end: int | None = None


class Patience:
    """What the lanes of a planner wait for. **Units**: milliseconds, monotonic."""

    def __init__(self, group: str, partitions: int) -> None:
        self._group, self._partitions = group, partitions
        self._fresh: dict[int, list[Pending]] = {}
        self._rounds: list[Round] = []
        self._committed: Mapping[int, int] = {}
        self._due_ms = 0

    def add(self, partition: int, item: Pending) -> None:
        """An input of this partition waits from now on."""
        self._fresh.setdefault(partition, []).append(item)

    def forget(self, partition: int) -> None:
        """The partition is another's: whoever serves it reads its inputs again."""
        self._fresh.pop(partition, None)
        self._rounds = [each for each in self._rounds if each.partition != partition]

    def asks(self, now_ms: int) -> list[Effect]:
        """What has to be asked, if it is time."""
        if now_ms < self._due_ms or not (self._fresh or self._rounds):
            return []
        self._due_ms = now_ms + ASK_MS
        effects: list[Effect] = []
        if self._fresh:
            self._rounds += [Round(partition, items) for partition, items in self._fresh.items()]
            self._fresh = {}
            effects += [AskEnd(RUN_REQUESTED, number) for number in range(self._partitions)]
        if self._partitions > 1:
            effects.append(AskCommitted(self._group, RUN_REQUESTED))
        last = {each.partition for each in self._rounds if each.ends and each.home_end is None and self._passed(each)}
        return effects + [AskEnd(RUN_REQUESTED, number) for number in sorted(last)]

    def next_due_ms(self) -> int | None:
        """When `asks` wants to be asked."""
        return self._due_ms if self._fresh or self._rounds else None

    def take(self, answer: End | CommittedAt, now_ms: int) -> None:
        """What was asked for; it may have taken long, and all else has waited for it."""
        self._due_ms = now_ms + ASK_MS
        if isinstance(answer, CommittedAt):
            self._committed = answer.positions
            return
        for each in self._rounds:
            if len(each.ends) < self._partitions:
                each.ends.setdefault(answer.partition, answer.offset)
            elif answer.partition == each.partition and each.home_end is None and self._passed(each):
                each.home_end = answer.offset

    def over(self, decided: Callable[[int], int]) -> Iterator[tuple[int, Pending]]:
        """The inputs that have waited long enough, with their partition. `decided`: how far an own lane has come."""
        if not self._rounds:
            return
        waiting: list[Round] = []
        for each in self._rounds:
            if each.home_end is not None and decided(each.partition) >= each.home_end:
                yield from ((each.partition, item) for item in each.items)
            else:
                waiting.append(each)
        self._rounds = waiting

    def _passed(self, each: Round) -> bool:
        """Whether the planners have decided all that lay in the other partitions."""
        return len(each.ends) == self._partitions and all(
            self._committed.get(number, 0) >= end for number, end in each.ends.items() if number != each.partition
        )
