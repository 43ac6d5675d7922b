"""Puts the records of a run in order again: copies of its history, byte for byte, behind everything else.

After the next cleaning they are what is left of it. Nothing new is said by them, so a repair that breaks off, or comes
twice, does no harm; what makes the run go on is that every reader finds one history in order (`core.run.tangle`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from refold.core.errors import ConflictError, MalformedError
from refold.core.ids import EntryId, RunId, parse_log_key
from refold.core.messages import RunOperation
from refold.core.run import chain
from refold.core.run.chain import LogRecord
from refold.core.wire import canonical
from refold.planner.acceptance import Acceptance
from refold.planner.inbox import Pending
from refold.planner.outbox import Outbox
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
