"""What a lane has to answer, and how far it has come: inputs settle in any order, positions move only in theirs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from refold.core.errors import MalformedError
from refold.core.events import Cause
from refold.core.ids import RunId
from refold.core.planning.verdict import Input
from refold.core.topics import RUN_SIGNALLED
from refold.planner import inputs
from refold.planner.settings import Limits
from refold.ports.log import Record
from refold.runtime.lanes import Outstanding, Owed


@dataclass(slots=True, eq=False)
class Pending(Owed):
    """Something that a lane has to answer: an input with its record, a timer, or (no `input`) a run to be driven.

    `end` is a high watermark of the run log captured after the input was taken. `waited`: what it is about would be
    known by now. `passed`: executors have passed the request that it is about. With a `letter` (code and reason) it is
    a dead one, and done when its dead letter is in the log; a `short` one, because the log does not take it whole.
    """

    run_id: RunId
    input: Input | None
    record: Record | None = None
    end: int | None = None
    waited: bool = False
    passed: bool = False
    letter: tuple[str, str] | None = None
    short: bool = False

    @property
    def from_user(self) -> bool:
        """Whether it is what a user says, and no word of a service about a call."""
        return self.record is not None and self.record.topic in inputs.FROM_USERS

    @property
    def cause(self) -> Cause | None:
        """Where the input lies, as the entry that it causes says it."""
        record = self.record
        return Cause(record.topic, record.partition, record.offset) if record else None


class Unconfirmed:
    """Inputs that would change nothing, as far as the fold has come.

    That is final only if the fold has reached a high watermark captured after the input was taken, and no speculation
    lies under the answer: else somebody else's entry, written but not read so far, might say otherwise.
    """

    def __init__(self) -> None:
        self._unasked: list[Pending] = []
        self._waiting: list[Pending] = []

    @property
    def wants_end(self) -> bool:
        """Whether a high watermark has to be asked for."""
        return bool(self._unasked)

    def confirms(self, item: Pending, position: int, *, speculated: bool) -> bool:
        """Whether the answer is final; if not, the item is kept until it may be."""
        if item.record is None:
            return True
        if item.end is None:
            self._unasked.append(item)
            return False
        if position < item.end or speculated:
            self._waiting.append(item)
            return False
        return True

    def ask(self, item: Pending) -> None:
        """Keeps an item whose entry may have been written or not, until the log is read that far."""
        self._unasked.append(item)

    def reached_end(self, end: int) -> None:
        """The high watermark that was asked for."""
        for item in self._unasked:
            item.end = end
        self._waiting += self._unasked
        self._unasked = []

    def take(self, position: int) -> list[Pending]:
        """The items that can be answered now that the fold has come so far."""
        ready = [item for item in self._waiting if item.end is not None and item.end <= position]
        if ready:
            self._waiting = [item for item in self._waiting if item.end is None or item.end > position]
        return ready


class Inbox:
    """The inputs of one lane, which come from `topics`. `kept` is how many of users wait for runs that stand still."""

    def __init__(self, topics: tuple[str, ...], limits: Limits) -> None:
        self.topics, self._limits = topics, limits
        self._ready: deque[Pending] = deque()
        self._signals: deque[Pending] = deque()
        self._outstanding = {topic: Outstanding() for topic in topics}
        self._parked: dict[RunId, list[Pending]] = {}
        self._parked_of: Counter[str] = Counter()
        self._kept: dict[RunId, list[Pending]] = {}
        self.kept = 0
        self._held: deque[Pending] = deque()
        self.unconfirmed = Unconfirmed()
        self.catalog = Unconfirmed()

    def __len__(self) -> int:
        return len(self._ready) + len(self._signals)

    def take(self, record: Record) -> Pending:
        """A record of an input topic: ready to be answered, or dead at once. A tombstone is neither."""
        if record.value is None:  # what lay here was erased, long after it was answered
            item = Pending(RunId(""), None, record, done=True)
            self._outstanding[record.topic].add(record.offset, item)
            return item
        try:
            run, given = inputs.read(record, self._limits.payload_bytes)
            item = Pending(run, given, record)
            # Heard first, a cancel costs nothing, though its run was asked for before it.
            (self._signals if record.topic == RUN_SIGNALLED else self._ready).append(item)
        except MalformedError as error:
            spoilt = inputs.spoilt(record, error)
            item = Pending(spoilt.run_id if spoilt else RunId(""), spoilt, record, letter=(error.code, str(error)))
        self._outstanding[record.topic].add(record.offset, item)
        return item

    def push(self, items: Iterable[Pending]) -> None:
        """To be answered after what is there."""
        self._ready.extend(items)

    def push_front(self, item: Pending) -> None:
        """To be answered next."""
        self._ready.appendleft(item)

    def pop(self) -> Pending:
        """What is to be answered next."""
        return (self._signals or self._ready).popleft()

    def retry(self, item: Pending) -> None:
        """Its answer did not hold: to be answered next, on what the log says by now."""
        item.end = None
        self._ready.appendleft(item)

    def settle(self, position: int) -> None:
        """The fold has come so far: what waited for that is answered next."""
        self._ready.extendleft(reversed(self.unconfirmed.take(position)))

    # What waits

    def hold(self, item: Pending) -> None:
        """Keeps a request until there is room for another run."""
        self._held.append(item)

    @property
    def held(self) -> int:
        """How many requests there is no room for."""
        return len(self._held)

    def admit(self, count: int) -> None:
        """There is room for so many runs."""
        while self._held and count > 0:
            self._ready.append(self._held.popleft())
            count -= 1

    def park(self, item: Pending) -> None:
        """Keeps an input for a run that is not known so far."""
        assert item.record is not None, "only records are parked"
        item.end = None
        self._parked.setdefault(item.run_id, []).append(item)
        self._parked_of[item.record.topic] += 1

    def parks(self, run: RunId) -> bool:
        """Whether something waits for this run."""
        return run in self._parked

    def crowded(self, topic: str) -> bool:
        """Whether no more of a topic is to be taken, because so much of it is parked."""
        return self._parked_of[topic] >= self._limits.parked

    def keep(self, item: Pending) -> None:
        """Keeps an input of a run that stands still, which may be for months: no topic waits for that."""
        item.end = None
        self._kept.setdefault(item.run_id, []).append(item)
        self.kept += item.from_user

    def unpark(self, run: RunId) -> None:
        """Something has become known of this run."""
        kept = self._kept.pop(run, [])
        self.kept -= sum(item.from_user for item in kept)
        self._ready.extend(kept)
        for item in self._parked.pop(run, []):
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
        assert item.record is not None, "only records are parked"
        self._parked_of[item.record.topic] -= 1
        self._ready.append(item)

    # Positions

    def reached(self, topic: str, offset: int) -> None:
        """Reading has come to this offset, though nothing lies before it any more."""
        self._outstanding[topic].add(offset - 1, Pending(RunId(""), None, done=True))

    def read(self, topic: str) -> int:
        """The offset to which a topic was read; 0 before the first record."""
        return self._outstanding[topic].end

    def passed(self, topic: str) -> int:
        """The offset below which every input of a topic is settled; 0 before the first."""
        return self._outstanding[topic].low_water() or 0

    def low_water(self) -> dict[str, int]:
        """By topic, the offset below which every input is settled."""
        positions = {topic: outstanding.low_water() for topic, outstanding in self._outstanding.items()}
        return {topic: position for topic, position in positions.items() if position is not None}
