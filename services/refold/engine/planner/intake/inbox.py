"""Inputs of a lane and their positions: inputs settle in any order, positions advance in theirs."""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from refold.core.events import Cause, Entry
from refold.core.ids import EntryId, RunId
from refold.core.planning.verdict import Due, Input
from refold.core.run.handed import NO_VALUES, Values
from refold.core.run.state import RunState
from refold.core.topics import APPROVAL_DECIDED, RUN_OPERATED, RUN_REQUESTED, RUN_SIGNALLED
from refold.core.wire import headers
from refold.engine.planner.intake import inputs
from refold.engine.planner.settings import Limits
from refold.engine.ports.effects import AskCommitted, AskEnd, CommittedAt, Effect
from refold.engine.ports.log import End, Record
from refold.engine.runtime.lanes import Outstanding, Owed, record_bytes


class Emitted:
    """Unacknowledged commands, by the run-log offset of the entry that ordered them."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, int] = OrderedDict()

    def add(self, offset: int, count: int) -> None:
        """Add `count` commands of the entry at `offset`; offsets only grow."""
        self._open[offset] = self._open.get(offset, 0) + count

    def acknowledge(self, offset: int) -> None:
        """Count one command or message of the entry at this run-log offset as acknowledged."""
        self._open[offset] -= 1

    def low_water(self, position: int) -> int:
        """Run-log offset from which a successor has to send again, or `position`."""
        while self._open and self._open[offset := next(iter(self._open))] <= 0:
            del self._open[offset]
        return next(iter(self._open), position)


LARGE_BYTES = 65_536
"""Size above which an input is decoded again at its turn: decoded, it takes four times as much."""


# While log, executors and ledger have one part of the inputs, the planner answers the next. Answered in one turn, all
# runs would wait for each other.
LEAST = 128
"""Inputs of services that a turn of a lane answers at least; it leaves up to half of them to the next."""


class WaitsFor(StrEnum):
    LOG = "the log to be read"
    CATALOG = "the catalog to be read"
    RUN = "a run that is not known"
    STALLED = "a run that stands still"
    ROOM = "room for a run"
    TURN = "a turn of its own"
    HISTORY = "a history to be read again"
    DOUBT = "a history that is not sure"
    VALUE = "large values"
    EXECUTORS = "executors to pass its call"


class InputSize(NamedTuple):
    """Size of an input in bytes, and the counter that includes it."""

    among: Counter[str]
    topic: str
    bytes: int


class Owing(NamedTuple):
    """An entry of one run that affects another, counted in `among` until it is answered."""

    cause: Cause
    among: Emitted


@dataclass(slots=True, eq=False)
class Pending(Owed):
    """A task of a lane: an input with its `record`, a timer, a message that another run's entry is `owing`, or (no
    input) a run to be driven. `waited`: conditions that it has waited for, with offsets."""

    run_id: RunId
    input: Input | None
    record: Record | None = None
    owing: Owing | None = None
    waited: Mapping[WaitsFor, int] | None = None
    counted: InputSize | None = None
    values: Values = NO_VALUES

    def finish(self) -> None:
        owing, counted = self.owing, self.counted
        # Its position may have to wait for others for months.
        self.done, self.input, self.record, self.owing, self.counted = True, None, None, None, None
        self.values = NO_VALUES
        if counted is not None:
            counted.among[counted.topic] -= counted.bytes
        if owing is not None:
            owing.among.acknowledge(owing.cause.offset)

    def redirect(self, run: RunId, message: Input) -> None:
        """Replace the message by a fuller one, or the run that it is for."""
        self.run_id, self.input = run, message

    def rest(self) -> None:
        """Drop content that is decoded or loaded again at its turn."""
        if self.from_people and self.bytes > LARGE_BYTES:
            self.input = None
        self.values = NO_VALUES

    def until(self, why: WaitsFor) -> int | None:
        """Offset up to which the task has waited for a condition; None if it has not waited."""
        return self.waited.get(why) if self.waited else None

    def has_waited(self, why: WaitsFor, until: int = 1) -> None:
        self.waited = {**(self.waited or {}), why: until}

    def forget_log_end(self) -> None:
        """Drop the offset of the log that it waited for: the log has grown since."""
        self.waited = {why: until for why, until in (self.waited or {}).items() if why != WaitsFor.LOG}

    @property
    def waited_for_subject(self) -> bool:
        """True if the task has waited for the run or catalog entry that it names: if still unknown, there is none."""
        return self.until(WaitsFor.RUN) is not None or self.until(WaitsFor.CATALOG) is not None

    def count_among(self, among: Counter[str]) -> None:
        if self.counted is not None:
            before, topic, size = self.counted
            before[topic] -= size
            among[topic] += size
            self.counted = InputSize(among, topic, size)

    @property
    def bytes(self) -> int:
        return self.counted.bytes if self.counted else 0

    @property
    def from_user(self) -> bool:
        return self.record is not None and self.record.topic in inputs.FROM_USERS

    @property
    def from_people(self) -> bool:
        return self.record is not None and self.record.topic in inputs.FROM_PEOPLE

    @property
    def cause(self) -> Cause | None:
        """Position of the input, as its entry records it."""
        if (record := self.record) is None:
            return self.owing.cause if self.owing else None
        return Cause(record.topic, record.partition, record.offset)


@dataclass(slots=True, eq=False)
class SentEntry:
    """An entry on its way into the log, its record key, its input, the state after it, and its log time."""

    id: EntryId
    key: bytes
    entry: Entry
    after: RunState
    value: bytes
    item: Pending
    at_ms: int = 0


class WaitingInputs:
    """Inputs of a lane that wait for a condition, by condition and subject."""

    def __init__(self) -> None:
        self._items: dict[WaitsFor, dict[Any, list[Pending]]] = {why: {} for why in WaitsFor}

    def put(self, item: Pending, why: WaitsFor, which: Any = None) -> None:
        self._items[why].setdefault(which, []).append(item)

    def take(self, why: WaitsFor, which: Any = None, most: int | None = None) -> list[Pending]:
        """Remove and return the first `most` inputs that wait for this."""
        items = self._items[why].pop(which, [])
        if most is not None and most < len(items):
            self._items[why][which] = items[most:]
        return items[:most]

    def at(self, why: WaitsFor) -> Mapping[Any, list[Pending]]:
        return self._items[why]

    def counts(self) -> dict[WaitsFor, int]:
        return {why: sum(map(len, which.values())) for why, which in self._items.items()}

    # Inputs that wait for a high watermark captured after they were taken

    def has_waiting(self, why: WaitsFor) -> bool:
        return None in self._items[why]

    def reached_end(self, why: WaitsFor, end: int) -> None:
        if unasked := self.take(why):
            self._items[why].setdefault(end, []).extend(unasked)

    def reached(self, why: WaitsFor, position: int) -> list[Pending]:
        """Remove and return the inputs whose end reading has reached."""
        waiting = self._items[why]
        ready: list[Pending] = []
        for end in sorted(end for end in waiting if end is not None and end <= position):
            for item in waiting.pop(end):
                item.has_waited(why, end)
                ready.append(item)
        return ready


class Inbox:
    """Inputs of one lane from `topics`, whose `ends` were captured at its take-over. Order: inputs of operators, of
    users up to an allowance per turn, of services. **Units**: bytes."""

    def __init__(self, topics: tuple[str, ...], limits: Limits, ends: Mapping[str, int] | None = None) -> None:
        self.topics, self.limits, self._ends = topics, limits, ends or {}
        self._operated: deque[tuple[int, Pending]] = deque()
        self._ready: deque[Pending] = deque()
        self._signals: deque[tuple[int, Pending]] = deque()
        self._requests: deque[tuple[int, Pending]] = deque()
        self._queues = {RUN_OPERATED: self._operated, RUN_SIGNALLED: self._signals, RUN_REQUESTED: self._requests}
        self.waiting = waiting = WaitingInputs()
        self._for_log, self._for_catalog = waiting.at(WaitsFor.LOG), waiting.at(WaitsFor.CATALOG)
        self._for_turn, self._for_runs = waiting.at(WaitsFor.TURN), waiting.at(WaitsFor.RUN)
        self._for_stalled = waiting.at(WaitsFor.STALLED)
        self._outstanding = {topic: Outstanding() for topic in topics}
        self._bytes: Counter[str] = Counter(dict.fromkeys(topics, 0))
        self._elsewhere: defaultdict[WaitsFor, Counter[str]] = defaultdict(Counter)
        self._full: set[str] = set()
        self.allowance = self._next = self.turn = self._rests_until = 0
        self._starts: dict[str, int] = {}
        self._held_timers: list[Due] = []
        self._turn_read: dict[str, int] = {}
        self._overtaking = {RUN_OPERATED, RUN_SIGNALLED, APPROVAL_DECIDED}.intersection(topics)  # of existing runs

    def begin(self, allowance: int, rests_until: int) -> None:
        """Begin a turn with this allowance for user inputs; further ones request no turn before `rests_until`."""
        self.turn += 1
        self.allowance, self._rests_until = allowance, rests_until
        if self._for_turn:
            self._ready += self.waiting.take(WaitsFor.TURN, next(iter(self._for_turn)))
        ready = len(self._ready)
        self._next = min(ready // 2, ready - LEAST) if ready > LEAST else 0

    @property
    def answerable(self) -> bool:
        """True if `pop` has an input for this turn: within the allowance for users, and not left to the next."""
        ready = len(self._ready) > self._next
        return bool(ready or self._operated or (self.allowance > 0 and self._overtaking_queue))

    def next_due_ms(self) -> int | None:
        """Monotonic time of the next answerable input; 0: now."""
        if self._operated or self._ready or self._for_turn:
            return 0
        return self._rests_until if self._overtaking_queue else None

    @property
    def _overtaking_queue(self) -> deque[tuple[int, Pending]]:
        # Read first, a cancel costs nothing, though its run was requested before it. Later ones have to wait.
        if self._signals and (not self._requests or self._signals[0][0] <= self._requests[0][0]):
            return self._signals
        return self._requests

    def take(self, record: Record) -> Pending:
        """Add a record of an input topic; a tombstone counts as answered."""
        item, topic = Pending(RunId(""), None, record), record.topic
        self._outstanding[topic].add(record.offset, item)
        if record.value is None:  # its input was answered long before it was erased
            item.finish()
            return item
        size = record_bytes(record)
        if topic in inputs.FROM_PEOPLE:
            size += headers.size(record.read_headers())
        self._bytes[topic] += size
        item.counted = InputSize(self._bytes, topic, size)
        if (queue := self._queues.get(topic)) is not None:
            queue.append((self.turn, item))
        else:
            self._ready.append(item)
        return item

    def push(self, items: Iterable[Pending]) -> None:
        self._ready.extend(items)

    def postpone(self, run: RunId) -> None:
        """Have a run driven in a turn of its own, as it takes long."""
        item = Pending(run, None)
        self.waiting.put(item, WaitsFor.TURN, item)

    def push_front(self, item: Pending) -> None:
        self._ready.appendleft(item)

    def pop(self) -> Pending:
        if self._operated:
            return self._operated.popleft()[1]
        if self.allowance > 0 and (queue := self._overtaking_queue):
            item = queue.popleft()[1]
            self.allowance -= item.bytes
            return item
        return self._ready.popleft()

    def retry(self, item: Pending) -> None:
        """Answer an input again next, as its entry did not count."""
        item.forget_log_end()
        self._ready.appendleft(item)

    def settle(self, position: int, catalog: int) -> None:
        """Queue inputs that waited for these positions of the log and the catalog."""
        if self._for_log:
            self._ready.extendleft(reversed(self.waiting.reached(WaitsFor.LOG, position)))
        if self._for_catalog:
            self._ready += self.waiting.reached(WaitsFor.CATALOG, catalog)

    # Waiting inputs

    def confirms(self, item: Pending, position: int, *, speculated: bool) -> bool:
        """True if an answer without an entry is final; if not, the input waits for the log."""
        end = item.until(WaitsFor.LOG)
        # Final: the fold has reached an end captured after the input was taken, and nothing is speculated. Otherwise an
        # unread entry of another planner might contradict the answer.
        if item.cause is None or (end is not None and position >= end and not speculated):
            return True
        self.waiting.put(item, WaitsFor.LOG, end)
        item.rest()
        return False

    @property
    def crowded(self) -> bool:
        """False if no topic can be `full`: a cheap check."""
        return bool(self._full) or max(self._bytes.values()) >= self.limits.topic_bytes // 2

    def full(self, topic: str) -> bool:
        """True while so much of a topic waits that it pauses, until half of that is answered."""
        limit = self.limits.topic_bytes // (2 if topic in self._full else 1)
        full = self._bytes[topic] >= limit
        (self._full.add if full else self._full.discard)(topic)
        return full

    @property
    def holders(self) -> list[str]:
        """Agents whose requests wait for room for another run."""
        return list(self.waiting.at(WaitsFor.ROOM))

    @property
    def held_bytes(self) -> int:
        return self._elsewhere[WaitsFor.ROOM].total()

    def admit(self, agent: str, count: int) -> None:
        for item in self.waiting.take(WaitsFor.ROOM, agent, count):
            self._leave(item)

    def parkable(self, item: Pending) -> bool:
        """True if memory allows an input to wait for an unknown run; large inputs may fill only half of it."""
        assert item.record is not None, "only records are parked"
        most = self.limits.parked_bytes // (1 if item.bytes <= LARGE_BYTES else 2)
        return self._elsewhere[WaitsFor.RUN][item.record.topic] + item.bytes <= most

    def park(self, item: Pending) -> None:
        item.forget_log_end()
        self.wait(item, WaitsFor.RUN, item.run_id)

    def keeps(self, item: Pending) -> bool:
        """Keep an input of a run that stands still; False if people's inputs have no more room."""
        counts = self._elsewhere[WaitsFor.STALLED]
        waiting = sum(counts[topic] for topic in inputs.FROM_USERS) if item.from_user else counts[RUN_OPERATED]
        # No topic waits for these inputs. Those from services are all needed.
        if item.from_people and waiting + item.bytes > self.limits.topic_bytes:
            return False
        item.forget_log_end()
        item.kept = True
        self.wait(item, WaitsFor.STALLED, item.run_id)
        return True

    def unpark(self, run: RunId) -> None:
        """Queue inputs that waited for a run to begin, or to go on."""
        if run in self._for_stalled or run in self._for_runs:
            for item in (*self.waiting.take(WaitsFor.STALLED, run), *self.waiting.take(WaitsFor.RUN, run)):
                self._leave(item)

    def give_up(self, item: Pending) -> None:
        """Queue an input for its final answer: its run does not exist."""
        if item in self._for_runs.get(item.run_id, ()):
            for pending in self.waiting.take(WaitsFor.RUN, item.run_id):
                if pending is item:
                    item.has_waited(WaitsFor.RUN)
                    self._leave(item)
                else:
                    self.waiting.put(pending, WaitsFor.RUN, item.run_id)

    def wait(self, item: Pending, why: WaitsFor, which: str) -> None:
        item.rest()
        item.count_among(self._elsewhere[why])
        self.waiting.put(item, why, which)

    def _leave(self, item: Pending) -> None:
        item.kept = False
        item.count_among(self._bytes)
        self._ready.append(item)

    # Inputs from before a take-over: a cancel precedes any cost, and no input is late because no planner ran.

    @property
    def is_read(self) -> bool:
        """True if all inputs about runs from before the take-over are answered."""
        return not self._overtaking or all(self._is_answered(topic) for topic in list(self._overtaking))

    @property
    def holds_back(self) -> bool:
        """True if work waits for the answers to earlier inputs."""
        return bool(self._overtaking and (self._held_timers or self.waiting.at(WaitsFor.ROOM)))

    def ready(self, timers: Iterable[Due], reached: Callable[[Due], bool]) -> list[Due]:
        """Timers that may fire; those for which `reached` is true wait for earlier inputs."""
        if self.is_read:
            due, self._held_timers = [*self._held_timers, *timers], []
            return due
        due = []
        for timer in timers:
            (self._held_timers if reached(timer) else due).append(timer)
        return due

    def _is_answered(self, topic: str) -> bool:
        if topic not in self._turn_read:
            if max(self._starts.get(topic, 0), self.read(topic)) < self._ends.get(topic, 0):
                return False
            self._turn_read[topic] = self.turn
        queue = self._queues.get(topic)
        if queue and queue[0][0] <= self._turn_read[topic]:
            return False  # inputs of services are answered before timers that become due later
        self._overtaking.discard(topic)  # for good: inputs from now on are later ones
        return True

    # Positions

    def starts(self, positions: Mapping[str, int]) -> None:
        self._starts = {**positions}

    def reached(self, topic: str, offset: int) -> None:
        self._outstanding[topic].add(offset - 1, Pending(RunId(""), None, done=True))

    def read(self, topic: str) -> int:
        """Offset to which a topic was read; 0: none."""
        return self._outstanding[topic].end

    def passed(self, topic: str) -> int:
        """Offset below which every input of a topic is settled, or kept for a known run."""
        return max(self._starts.get(topic, 0), self._outstanding[topic].passed() or 0)

    def low_water(self) -> dict[str, int]:
        """By topic, the offset below which every input is settled."""
        positions = {topic: outstanding.low_water() for topic, outstanding in self._outstanding.items()}
        return self._starts | {topic: position for topic, position in positions.items() if position is not None}


ASK_MS = 1_000
"""Interval of queries for other members' positions, which are committed twice a second."""


@dataclass(slots=True)
class Cohort:
    """Inputs of one partition that began to wait together; `home_end` is captured after all the `ends`."""

    partition: int
    items: list[Pending]
    ends: dict[int, int] = field(default_factory=dict)
    home_end: int | None = None


class UnknownRuns:
    """Inputs of a planner's lanes that wait for unknown runs. **Units**: milliseconds, monotonic."""

    def __init__(self, group: str, partitions: int) -> None:
        self._group, self._partitions = group, partitions
        self._fresh: dict[int, list[Pending]] = {}
        self._cohorts: list[Cohort] = []
        self._committed: Mapping[int, int] = {}
        self._due_ms = 0

    def add(self, partition: int, item: Pending) -> None:
        self._fresh.setdefault(partition, []).append(item)

    def forget(self, partition: int) -> None:
        self._fresh.pop(partition, None)
        self._cohorts = [cohort for cohort in self._cohorts if cohort.partition != partition]

    def effects(self, now_ms: int) -> list[Effect]:
        if now_ms < self._due_ms or not (self._fresh or self._cohorts):
            return []
        self._due_ms = now_ms + ASK_MS
        fresh, self._fresh = self._fresh, {}
        self._cohorts += [Cohort(partition, items) for partition, items in fresh.items()]
        effects: list[Effect] = [AskEnd(RUN_REQUESTED, number) for number in range(self._partitions if fresh else 0)]
        if self._partitions > 1:
            effects.append(AskCommitted(self._group, RUN_REQUESTED))
        return effects + [AskEnd(RUN_REQUESTED, number) for number in self._awaiting_home_end()]

    def next_due_ms(self) -> int | None:
        return self._due_ms if self._fresh or self._cohorts else None

    def take(self, answer: End | CommittedAt, now_ms: int) -> None:
        # The answer may have taken long, and all else has waited for it.
        self._due_ms = now_ms + ASK_MS
        if isinstance(answer, CommittedAt):
            self._committed = answer.positions
            return
        for cohort in self._cohorts:
            if len(cohort.ends) < self._partitions:
                cohort.ends.setdefault(answer.partition, answer.offset)
            elif answer.partition == cohort.partition and cohort.home_end is None and self._decided_elsewhere(cohort):
                cohort.home_end = answer.offset

    def without_run(self, decided: Callable[[int], int]) -> Iterator[tuple[int, Pending]]:
        """Remove inputs (partition, input) whose run no earlier request began; `decided`: position of an own lane."""
        if not self._cohorts:
            return
        waiting: list[Cohort] = []
        for cohort in self._cohorts:
            if cohort.home_end is not None and decided(cohort.partition) >= cohort.home_end:
                yield from ((cohort.partition, item) for item in cohort.items)
            else:
                waiting.append(cohort)
        self._cohorts = waiting

    def _awaiting_home_end(self) -> list[int]:
        open_ended = [cohort for cohort in self._cohorts if cohort.home_end is None]
        return sorted({cohort.partition for cohort in open_ended if self._decided_elsewhere(cohort)})

    def _decided_elsewhere(self, cohort: Cohort) -> bool:
        """True if all requests of other partitions from before the wait are decided, by the committed positions."""
        return len(cohort.ends) == self._partitions and all(
            self._committed.get(number, 0) >= end for number, end in cohort.ends.items() if number != cohort.partition
        )
