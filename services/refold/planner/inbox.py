"""What a lane has to answer, and how far it has come: inputs settle in any order, positions move only in theirs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from refold.core.errors import MalformedError
from refold.core.events import Cause
from refold.core.ids import RunId
from refold.core.planning.verdict import Input
from refold.planner import inputs
from refold.planner.settings import Limits
from refold.ports.log import Record
from refold.runtime.lanes import Outstanding, Owed
from refold.runtime.parking import Parking


@dataclass(slots=True, eq=False)
class Pending(Owed):
    """Something that a lane has to answer: an input with its record, a timer, or (no `input`) a run to be driven.

    `end` is a high watermark of the run log captured after the input was taken. `due_ms` is until when it may be
    parked. With a `letter` (code and reason) it is a dead one, and done when its dead letter is in the log.
    """

    run_id: RunId
    input: Input | None
    record: Record | None = None
    end: int | None = None
    due_ms: int = 0
    letter: tuple[str, str] | None = None

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
    """The inputs of one lane."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.clear()

    def clear(self) -> None:
        """Forgets everything: whoever has the partition reads it again from what was committed."""
        self._ready: deque[Pending] = deque()
        self._outstanding = {topic: Outstanding() for topic in inputs.TOPICS}
        self._parking = Parking[Pending](self._limits.parked)
        self.unconfirmed = Unconfirmed()

    def __len__(self) -> int:
        return len(self._ready)

    def take(self, record: Record) -> Pending:
        """A record of an input topic: ready to be answered, or dead at once."""
        if record.value is None:  # what lay here was erased, long after it was answered
            item = Pending(RunId(""), None, record, done=True)
            self._outstanding[record.topic].add(record.offset, item)
            return item
        try:
            run, given = inputs.read(record, self._limits.payload_bytes)
            item = Pending(run, given, record)
            self._ready.append(item)
        except MalformedError as error:
            item = Pending(RunId(""), None, record, letter=(error.code, str(error)))
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
        return self._ready.popleft()

    def retry(self, item: Pending) -> None:
        """Its answer did not hold: to be answered next, on what the log says by now."""
        item.end = None
        self._ready.appendleft(item)

    def settle(self, position: int) -> None:
        """The fold has come so far: what waited for that is answered next."""
        self._ready.extendleft(reversed(self.unconfirmed.take(position)))

    def park(self, item: Pending, now: int) -> bool:
        """Keeps an input for what is not known so far; False if it has waited long enough, or there is no room."""
        item.due_ms = item.due_ms or now + self._limits.park_ms
        if now >= item.due_ms or self._parking.full:
            return False
        item.end = None
        self._parking.park(item.run_id, item)
        return True

    def waited_ms(self, item: Pending, now: int) -> int:
        """How long an input has been parked."""
        return now - (item.due_ms - self._limits.park_ms)

    def unpark(self, run: RunId) -> None:
        """Something has become known of this run."""
        self.push(self._parking.take(run))

    def unpark_all(self) -> None:
        """Something has become known that may be about any run."""
        for run in self._parking:
            self.push(self._parking.take(run))

    def next_due_ms(self) -> int | None:
        """When something has been parked for long enough."""
        return self._parking.next_due_ms()

    def wake(self, now: int) -> None:
        """Nothing is parked longer than the limit: what is due is answered once more, and then for good."""
        self.push(self._parking.overdue(now))

    def low_water(self) -> dict[str, int]:
        """By topic, the offset below which every input is settled."""
        positions = {topic: outstanding.low_water() for topic, outstanding in self._outstanding.items()}
        return {topic: position for topic, position in positions.items() if position is not None}
