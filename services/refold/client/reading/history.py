"""A run with its records, accepted and void, and its steps."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Protocol, Self, TypeVar

from refold.client.reading.model import utc_of
from refold.client.reading.steps import Timeline
from refold.core.errors import MalformedError
from refold.core.events import Entry
from refold.core.ids import EntryId, RunId
from refold.core.messages import Hold
from refold.core.run.fold import apply
from refold.core.run.log import Judged, LogFold
from refold.core.run.state import RunState

_T = TypeVar("_T")


class ReadRecord(Protocol):
    """A record of any topic as read from Kafka or a bundle. **Units**: `at_ms`, its append time, since 1970 in UTC."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def at_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class JudgedRecord(Judged):
    record: ReadRecord = field(kw_only=True)

    @property
    def place(self) -> str:
        return f"{self.record.topic}/{self.record.partition}/{self.record.offset}"


@dataclass(slots=True)
class Run:
    """A run as folded from the log: `records` has its entries in order, `void` the rejected records."""

    state: RunState
    timeline: Timeline
    records: list[JudgedRecord] = field(default_factory=list)
    void: list[JudgedRecord] = field(default_factory=list)
    hold: Hold | None = None

    @classmethod
    def empty(cls, run: RunId) -> Self:
        return cls(RunState(run), Timeline(run))

    @property
    def status(self) -> str:
        """Status of the run; `stalled` while a hold is in force."""
        return "stalled" if self.hold and not self.state.over else self.state.status

    @property
    def forked(self) -> int:
        """Number of the first event that is in no topic, as in forks; 0 without one."""
        return next((judged.entry.seq for judged in self.records if judged.entry and judged.record.offset < 0), 0)

    def copy(self) -> Self:
        timeline, records = self.timeline.copy(), self.records.copy()
        return replace(self, state=self.state.copy(), timeline=timeline, records=records, void=self.void.copy())

    def stall(self, hold: Hold | None) -> None:
        self.hold = hold

    def mark(self, idle: Callable[[Collection[str]], Collection[str]], *, now: bool = True) -> None:
        """Mark calls whose pool has no executor `now`; `idle` returns such pools."""
        if now and not self.state.over and (pools := idle(self.timeline.pools)):
            self.timeline = self.timeline.marked(pools)

    def take(self, judged: JudgedRecord, fold: LogFold) -> None:
        """Add a record that `fold` has judged: update the state and the steps, or list it as void."""
        counts = not judged.void and judged.entry is not None
        (self.records if counts else self.void).append(judged)
        if counts or judged.mended:
            self.state = fold.states[judged.run_id]
        if judged.linked or judged.mended:
            self._put_in_order()
        elif counts and judged.entry is not None:
            self.timeline.feed(judged.entry)

    def _put_in_order(self) -> None:
        """Rebuild the history from its head, with records that arrived out of order."""
        read = {judged.id: (judged, judged.entry) for judged in (*self.void, *self.records) if judged.entry}
        history, name = list[tuple[JudgedRecord, Entry]](), self.state.head.id
        while pair := read.pop(name, None):
            history.append(pair)
            name = EntryId(pair[1].prev)
        history.reverse()
        self.records[:] = [judged for judged, _ in history]
        counting = {judged.id for judged in self.records}
        self.void = [judged for judged in self.void if judged.id not in counting or judged.void == "copy"]
        self.timeline = Timeline(self.state.run_id)
        for _, entry in history:
            self.timeline.feed(entry)


def at_seq(run: Run, seq: int) -> Run:
    return at_seqs(run, [seq])[0]


def at_seqs(run: Run, seqs: Collection[int]) -> list[Run]:
    """A run as of each of these events, folded once, without its hold. **Raises** MalformedError for an unknown one."""
    if wrong := [seq for seq in seqs if not 1 <= seq <= run.state.head.seq]:
        raise MalformedError(
            f"run {run.state.run_id} has no event {wrong[0]}", hint=f"its events are 1 to {run.state.head.seq}"
        )
    entries = ((judged, judged.entry) for judged in run.records if judged.entry is not None)
    return fold_to(run.state.run_id, entries, seqs)


def fold_to(run: RunId, entries: Iterable[tuple[JudgedRecord, Entry]], seqs: Collection[int]) -> list[Run]:
    """Fold entries once; return the run as of each of these events, or at its end."""
    points, so_far = dict[int, Run](), Run.empty(run)
    places = sorted(set(seqs), reverse=True)
    for judged, entry in entries:
        while places and entry.last_seq >= places[-1]:
            points[places[-1]] = point = so_far.copy() if len(places) > 1 else so_far
            extend(point, judged, entry, places.pop())
        if not places:
            break
        extend(so_far, judged, entry)
    return [points.get(seq, so_far) for seq in seqs]


def extend(run: Run, judged: JudgedRecord, entry: Entry, until: int = 0) -> None:
    """Apply the next accepted entry, up to event `until`; 0 applies all of it."""
    if until and entry.last_seq > until:
        # Only readers see a state within an entry: services apply whole ones.
        entry = replace(entry, events=entry.events[: until - entry.seq + 1])
    apply(run.state, entry, judged.id)
    run.records.append(judged if entry is judged.entry else replace(judged, entry=entry))
    run.timeline.feed(entry)


def at_time(run: Run, at_ms: int) -> Run:
    """A run as of a time. **Raises** MalformedError for a time before its first entry."""
    seqs = [judged.entry.last_seq for judged in run.records if judged.entry is not None and judged.entry.at_ms <= at_ms]
    if not seqs:
        first, last = (utc_of(run.records[place].entry.at_ms) for place in (0, -1))  # type: ignore[union-attr]
        raise MalformedError(
            f"run {run.state.run_id} was not there then",
            hint=f"its entries are from {first:%Y-%m-%dT%H:%M:%S.%fZ} to {last:%Y-%m-%dT%H:%M:%S.%fZ}",
        )
    return at_seq(run, max(seqs))


def feed(fold: LogFold, record: ReadRecord) -> JudgedRecord:
    """Judge the next record of the run log by a fold."""
    judged = fold.feed(record.key, record.value, offset=record.offset, at_ms=record.at_ms)
    # A history that replaces the one before: until the log is read whole, the run was not known to stall.
    if judged.held:
        judged = replace(judged, mended=True)
    return JudgedRecord(*_all_of(judged), record=record)


_all_of = attrgetter(*(spec.name for spec in fields(Judged)))
