"""Brings the histories of failed runs back that are to go on: the log is read once more, for many of them at a time.

Of a run that is over a lane has a row and no history. The log has it for as long as the run was not erased, so a retry
costs a reading of the partition: all that wait when one begins share it. The same is done where somebody else's retry
is read of a run of which this lane has the row alone, and for the result of a run whose parent never heard of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from refold.core.errors import ConflictError, MalformedError
from refold.core.events import Entry
from refold.core.ids import EntryId, RunId, child_id, parse_log_key
from refold.core.messages import RunOperation
from refold.core.planning.family import UNREAD
from refold.core.planning.redrive import failure_named
from refold.core.planning.verdict import ChildOver
from refold.core.run import chain
from refold.core.run.chain import Head, LogRecord
from refold.core.run.fold import apply
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.planner.deciding.admission import Admission
from refold.planner.intake.inbox import Inbox, Pending
from refold.planner.log.acceptance import Acceptance, Revived
from refold.planner.log.outbox import Outbox
from refold.ports.log import Record

REPAIR = "repair"


@dataclass(slots=True)
class Repair:
    """A repair under way: the records of the run below `goal`, by the id in their keys."""

    item: Pending
    goal: int
    head: EntryId | None
    records: dict[EntryId, Record] = field(default_factory=dict)


class Repairs:
    """The repairs of one lane. `refuse` is told of a signal that cannot be carried out, with the reason."""

    def __init__(self, log: Acceptance, outbox: Outbox, refuse: Callable[[Pending, str], None]) -> None:
        self._log, self._outbox, self._refuse = log, outbox, refuse
        self._open: dict[RunId, Repair] = {}
        self.wants_log = False

    def asks(self) -> bool:
        """Whether the log has to be read once more from its start; told once."""
        wanted, self.wants_log = self.wants_log, False
        return wanted

    def takes(self, item: Pending) -> bool:
        """Whether an input is for here; then the log is read once more from its start."""
        said = item.input
        if not isinstance(said, RunOperation) or said.kind != REPAIR or item.answered:
            return False
        try:
            named = canonical.parse(said.data)["head"]
            head = EntryId(bytes.fromhex(named)) if named else None
        except (MalformedError, KeyError, TypeError, ValueError):
            self._refuse(item, "a repair names the id of a head, or nothing")
            return True
        self._open[item.run_id] = Repair(item, self._log.position, head)
        self.wants_log = True
        return True

    def follow(self, record: Record) -> None:
        """A record of the run log, also one that was read long ago."""
        if not self._open:
            return
        parts = parse_log_key(record.key)
        repair = self._open.get(parts[0]) if parts else None
        if parts is not None and repair is not None and record.offset < repair.goal:
            repair.records.pop(parts[2], None)
            if record.value is not None:
                repair.records[parts[2]] = record
        self.reached(record.offset + 1)

    def reached(self, offset: int) -> None:
        """Reading has come to this offset."""
        for run in [run for run, repair in self._open.items() if offset >= repair.goal]:
            repair = self._open.pop(run)
            try:
                self._mend(run, repair)
            except ConflictError as error:
                self._refuse(repair.item, error.message)

    def _mend(self, run: RunId, repair: Repair) -> None:
        entries = read_entries(repair.records)
        history = path(entries, repair.head or self._head(run, entries))
        for name in history:
            self._outbox.repeat(repair.records[name], None)
        # What was not chosen must be gone, or the next reader has to choose again.
        losers = entries.keys() - set(history) if repair.head else set()
        for name in losers:
            self._outbox.sweep(repair.records[name].key or b"")
        self._outbox.repeat(repair.records[history[-1]], repair.item)

    def _head(self, run: RunId, entries: Mapping[EntryId, LogRecord]) -> EntryId:
        state = self._log.latest(run)
        if state is not None and run not in self._log.fold.frozen:
            return state.head.id
        ends = heads(entries)
        if len(ends) != 1:
            named = ", ".join(name.hex() for name in ends) or "none"
            raise ConflictError(
                f"the log has {len(ends)} histories of the run; name the head that shall count: {named}"
            )
        return ends[0]


def read_entries(records: Mapping[EntryId, Record]) -> dict[EntryId, LogRecord]:
    """The records that are entries of a run."""
    found = {name: chain.read(record.key, record.value) for name, record in records.items()}
    return {name: read for name, read in found.items() if isinstance(read, LogRecord)}


def path(entries: Mapping[EntryId, LogRecord], head: EntryId) -> list[EntryId]:
    """The history that ends at a head. **Raises** ConflictError when it does not go back to a beginning."""
    found: list[EntryId] = []
    name = head
    while name:
        if name not in entries or name in found:
            raise ConflictError(f"the log has no whole history that ends at {head.hex()}")
        found.append(name)
        name = EntryId(entries[name].entry.prev)
    return found[::-1]


def heads(entries: Mapping[EntryId, LogRecord]) -> list[EntryId]:
    """Where whole histories end: the last entries of all that go back to a beginning."""
    followed = {read.entry.prev for read in entries.values()}
    ends = [name for name in entries if name not in followed]
    found = []
    for name in ends:
        try:
            path(entries, name)
        except ConflictError:
            continue
        found.append(name)
    return sorted(found)


PASS_RUNS = 500
"""Runs of which one reading of the log collects the histories. With 20 KiB each they take 10 MB until it is over."""


@dataclass(slots=True)
class Collected:
    """The records of a run, by the id in their keys; whether one of them was there twice."""

    records: dict[EntryId, Record] = field(default_factory=dict)
    copied: bool = False


class Redrives:
    """The retries of one lane that wait for a history. `refuse` is told of one that cannot be, with the reason.

    `goes_on` is told of runs that do by somebody else's word, with the entries of which nobody here has heard.
    """

    def __init__(
        self,
        log: Acceptance,
        inbox: Inbox,
        admission: Admission,
        *,
        refuse: Callable[[Pending, str], None],
        goes_on: Callable[[RunState, list[Entry]], None],
    ) -> None:
        self._log, self._inbox, self._admission = log, inbox, admission
        self._refuse, self._goes_on = refuse, goes_on
        self._asked: dict[RunId, list[Pending]] = {}
        self._open: dict[RunId, Collected] = {}
        self._brought: dict[RunId, list[Pending]] = {}
        self._goal, self._last = 0, -1
        self.wants_log = self._begun = False

    def asks(self) -> bool:
        """Whether the log has to be read once more from its start; told once."""
        wanted, self.wants_log = self.wants_log, False
        return wanted

    def takes(self, item: Pending) -> bool:
        """Whether an input needs a history that is not here: then it waits for that."""
        said = item.input
        if isinstance(said, ChildOver) and said.result == UNREAD:
            child = child_id(said.run_id, said.step)
            return self._waits(child, item)
        if not isinstance(said, RunOperation) or said.kind != "retry" or item.answered:
            return False
        run, row = item.run_id, self._log.finished.get(item.run_id)
        if row is None or (row.status, row.head.seq) != ("failed", failure_named(said)):
            return False
        if run not in self._log.revivals.revived and self._admission.room() <= 0:  # it would be with executors at once
            self._inbox.hold(item, "")
            return True
        return self._waits(run, item)

    def _waits(self, run: RunId, item: Pending) -> bool:
        """True if it has to wait for a history. One that was brought stays until the last is done that needs it."""
        there = run in self._log.revivals.revived
        (self._brought[run] if there else self._asked.setdefault(run, [])).append(item)
        return not there

    def begin(self) -> None:
        """Has the log read for whatever waits, unless that is under way. What was answered is not kept."""
        for run in [run for run, items in self._brought.items() if all(item.done for item in items)]:
            del self._brought[run]
            self._log.revivals.revived.pop(run, None)
        if self._open or not (self._asked or self._log.revivals.unknown):
            return
        for run in [*self._log.revivals.unknown, *self._asked][:PASS_RUNS]:
            self._open[run] = Collected()
        self._goal, self.wants_log, self._begun = self._log.position, True, self._last < 0

    def follow(self, record: Record) -> None:
        """A record of the run log, also one that was read long ago."""
        # What was on its way when the reading was asked for is not of it.
        self._begun |= record.offset <= self._last and not self.wants_log
        self._last = record.offset
        if not self._open or not self._begun:
            return
        parts = parse_log_key(record.key)
        if parts is not None and (collected := self._open.get(parts[0])) is not None:
            collected.copied |= collected.records.pop(parts[2], None) is not None and record.value is not None
            if record.value is not None:
                collected.records[parts[2]] = record
        self.reached(record.offset + 1)

    def reached(self, offset: int) -> None:
        """Reading has come to this offset."""
        if not self._open or not self._begun or offset < self._goal:
            return
        opened, self._open = self._open, {}
        for run, collected in opened.items():
            self._bring_back(run, collected)

    def _bring_back(self, run: RunId, collected: Collected) -> None:
        items = self._asked.pop(run, [])
        unknown, row = self._log.revivals.unknown.get(run), self._log.finished.get(run)
        try:
            revived = _revived(run, collected, row.head if row else unknown, goes_on=unknown is not None)
        except ConflictError as error:
            if unknown:  # read once more, it would be the same
                del self._log.revivals.unknown[run]
                self._log.freeze(run, error.message)
            for item in items:
                self._refuse(item, error.message)
            return
        if unknown:
            self._log.revivals.take_back(revived)
            offsets = {seq: offset for offset, seq, _ in revived.entries}
            for entry in revived.news:
                self._log.windows.accepted(entry, revived.state, offsets[entry.seq])
            self._goes_on(revived.state, revived.news)
            if revived.state.over:
                self._log.finish(revived.state)
        elif row is not None and items:
            self._log.revivals.revived[run], self._brought[run] = revived, items
        self._inbox.push(items)


def _revived(run: RunId, collected: Collected, head: Head | None, *, goes_on: bool) -> Revived:
    """A history that was read up to this head, or if it goes on, to its end.

    **Raises** ConflictError when the log does not have all of it.
    """
    entries = read_entries(collected.records)
    history = path(entries, head.id) if head else []
    known = len(history)
    if goes_on:
        history += _after(history[-1], entries, collected, run)
    state = RunState(run)
    for name in history:
        apply(state, entries[name].entry, name)
    kept = [(collected.records[name], entries[name].entry.seq) for name in history]
    news = [entries[name].entry for name in history[known:]]
    return Revived(state, [(record.offset, seq, record.value or b"") for record, seq in kept], news)


def _after(head: EntryId, entries: dict[EntryId, LogRecord], collected: Collected, run: RunId) -> list[EntryId]:
    """The entries that count after a head, of all that lie there: who was first to extend it has won."""
    ends = [found for end in heads(entries) if head in (found := path(entries, end))]
    if len(ends) == 1:
        return ends[0][ends[0].index(head) + 1 :]
    last, found = head, list[EntryId]()
    for name, read in entries.items():
        if read.entry.prev == last:
            last = name
            found.append(name)
    # Among copies the first is not who came first.
    if collected.copied or last not in [end[-1] for end in ends]:
        raise ConflictError(f"the log has {len(ends)} histories of run {run}: `refold run repair` takes one of them")
    return found
