"""Take-over of a partition, and repeated reading of histories. A take-over reads the snapshot first; its marks name the
offsets from which the log and the inputs are read."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from refold.core.errors import ConflictError, MalformedError
from refold.core.events import Entry
from refold.core.ids import EntryId, RunId, child_id, parse_log_key
from refold.core.messages import Marks, RunOperation
from refold.core.planning.copying import FORK, ForkAsked, fork_asked, kept_for, lacks_history
from refold.core.planning.family import UNREAD
from refold.core.planning.redrive import failure_named
from refold.core.planning.verdict import ChildEnded, Input
from refold.core.run import chain
from refold.core.run.chain import Head, LogRecord, anchor_name
from refold.core.run.fold import apply
from refold.core.run.snapshot import Asleep
from refold.core.run.state import RunState
from refold.core.topics import BUDGET_SPENT, CATALOG, RUN_LOG, RUN_REQUESTED, RUN_SNAPSHOT
from refold.core.wire import canonical
from refold.engine.planner.agents.stalls import Holds
from refold.engine.planner.deciding.admission import Admission
from refold.engine.planner.intake.inbox import Inbox, Pending, WaitsFor
from refold.engine.planner.log.acceptance import Acceptance, RedrivenRun
from refold.engine.planner.log.outbox import Outbox
from refold.engine.planner.snapshot import Anchor
from refold.engine.ports.log import Assigned, Reached, Record
from refold.engine.runtime.lanes import CatchUp, resumed


class TakeOver:
    """Take-over of one lane: the topics to read before it is live, and the runs to resume then. `distrust` ignores
    committed positions; `foreign`: the marks belong to another log."""

    def __init__(
        self, assigned: Assigned, log: Acceptance, outbox: Outbox, *, inbox: Inbox, holds: Holds, distrust: bool = False
    ) -> None:
        self._assigned = replace(assigned, committed={}) if distrust else assigned
        self._log, self._outbox, self._journal = log, outbox, log.journal
        self._inbox, self._stalls, self._distrust = inbox, holds, distrust
        self._waiting: deque[RunId] = deque()
        self._first = (RUN_SNAPSHOT, BUDGET_SPENT) if log.windows.limits else (RUN_SNAPSHOT,)
        self._catch_up = CatchUp(assigned, (*self._first, CATALOG, RUN_LOG))
        self.foreign = False
        self._positions: dict[str, int] = {}
        self._reads_log, self._anchored = False, True
        self._seeks = {topic: assigned.starts.get(topic, 0) for topic in self._first}
        self.reached(RUN_SNAPSHOT, 0)

    @property
    def done(self) -> bool:
        return self._reads_log and self._anchored and self._catch_up.done

    def seeks(self) -> Mapping[str, int]:
        wants, self._seeks = self._seeks, {}
        return wants

    def follow(self, record: Record) -> None:
        """Read a record of the snapshot."""
        if self._catch_up.has(RUN_SNAPSHOT):
            self._log.snapshot_writer.follow(record.key or b"", record.value)
        else:
            self._log.snapshot.feed(record.key or b"", record.value)
            self.reached(RUN_SNAPSHOT, record.offset + 1)

    def reached(self, topic: str, offset: int) -> None:
        if topic != RUN_LOG or self._reads_log:
            self._catch_up.reached(topic, offset)
        if self._catch_up.has(BUDGET_SPENT):
            self._log.windows.load()  # from here on, earlier owners of the lane publish these sums
        if not self._reads_log and all(map(self._catch_up.has, self._first)):
            self._reads_log = True
            self._read_log()

    def may_read(self, item: Record | Reached) -> bool:
        """True if an item of the run log may be read; False once its anchor is missing: it is another log."""
        marks = self._log.snapshot.marks
        if self.foreign or self._anchored or marks is None:
            return not self.foreign
        # Offsets do not hold in a mirror of the log: unless the anchor lies at its offset, all is read from the start.
        if isinstance(item, Reached):
            self.foreign = item.offset > marks.anchor_offset
        elif item.offset == marks.anchor_offset and (anchor := _anchor(marks, item)) is not None:
            self._anchored = True
            self._log.snapshot_writer.anchors.add(anchor)
            self._read_inputs(self._positions)
        else:
            self.foreign = item.offset >= marks.anchor_offset
        return not self.foreign

    def begin(self, states: Iterable[RunId]) -> None:
        """Start a live lane: queue these runs, and sleeping ones that cannot wait, to be resumed."""
        asleep = self._log.asleep
        inputs = self._inbox.low_water() | {RUN_LOG: self._log.position}
        live = [*self._log.fold.states, *asleep]
        self._log.snapshot_writer.begin(self._log.snapshot, live, inputs, distrust=self._distrust)
        self._waiting.extend(states)
        self._waiting.extend(run for run, row in asleep.items() if not row.status)
        if not self._waiting:
            self._outbox.begun()

    @property
    def resuming(self) -> bool:
        return bool(self._waiting)

    def resume(self, count: int) -> None:
        """Resume up to `count` runs: send open commands, and drive code that can go on."""
        for _ in range(min(len(self._waiting), count)):
            run = self._waiting.popleft()
            state = self._log.accepted(run)
            if state is not None and state.over:
                self._log.finish(state)
            elif state is not None and run not in self._log.fold.frozen:
                self._outbox.take_up(state)
                if state.unseen and self._stalls.get(run) is None:
                    self._inbox.push([Pending(run, None)])
            if not self._waiting:
                self._outbox.begun()

    def _read_log(self) -> None:
        snapshot, number, start = self._log.snapshot, self._assigned.partition, self._assigned.starts.get(RUN_LOG, 0)
        asleep, marks, end = snapshot.close(), snapshot.marks, self._assigned.ends[RUN_LOG]
        if marks is None and end > start:
            # Either written by the first version, which had only the group's offsets, or a topic was emptied.
            self._journal.tell("marks.missing", partition=number)
        elif marks is not None and not self._distrust and not self._has_all(marks, asleep):
            self._distrust, self._assigned = True, replace(self._assigned, committed={})
            self._journal.tell("log.shrunk", partition=number, marks=marks.log, end=end)
        if self._distrust:
            self._log.windows.distrust(end)
        emit_from, inputs = self._emit_from(marks), self._inputs_from(marks)
        if marks is None or not _anchor_name(marks) or self._distrust:
            snapshot.whole = False
            self._begin(start, start, emit_from, {})
            self._read_inputs(inputs)
            return
        self._positions = {topic: max(at, int(marks.inputs.get(topic, 0))) for topic, at in inputs.items()}
        emit_from, self._anchored = max(marks.log, emit_from), False
        if snapshot.whole:
            self._log.asleep = asleep
            self._log.count_generations(asleep)
            apart = {RunId(run): int(offset) for run, offset in marks.apart.items()}
            self._begin(marks.log, max(min([marks.anchor_offset, *apart.values()]), start), emit_from, apart)
        else:
            self._journal.tell("snapshot.broken", partition=number, round=marks.round)
            self._begin(start, start, emit_from, {})

    def _inputs_from(self, marks: Marks | None) -> dict[str, int]:
        # Committed positions are fresher than marks, but may rest on entries that the log has lost since. That of
        # requests covers requests that are kept only in memory: these have to be read again.
        committed = {} if marks else {**self._assigned.committed, RUN_REQUESTED: 0}
        return resumed(replace(self._assigned, committed=committed), self._inbox.topics)

    def _emit_from(self, marks: Marks | None) -> int:
        """Run-log offset below which all commands are acknowledged, by the group's positions."""
        # Empty marks are the sign that the log has lost its end: committed positions do not count then.
        disowned = marks is not None and not (_anchor_name(marks) or marks.inputs)
        return resumed(replace(self._assigned, committed={}) if disowned else self._assigned, (RUN_LOG,))[RUN_LOG]

    def _has_all(self, marks: Marks, asleep: Mapping[RunId, Asleep]) -> bool:
        """True if all topics reach the positions of marks and sleeping runs."""
        positions = {topic: int(position) for topic, position in marks.inputs.items()}
        logs = [marks.log, positions.get(RUN_LOG, 0), *(row.log for row in asleep.values())]
        ends = self._assigned.ends
        return all(at <= ends.get(topic, at) for topic, at in (positions | {RUN_LOG: max(logs)}).items())

    def _read_inputs(self, positions: dict[str, int]) -> None:
        self._inbox.starts(positions)
        self._seeks |= positions

    def _begin(self, position: int, reads: int, emit_from: int, apart: dict[RunId, int]) -> None:
        """Read the log from `reads` on, and send the commands from `emit_from` on."""
        self._log.begin(position, apart)
        self._outbox.begin(emit_from)
        self._seeks |= {RUN_LOG: reads}
        self._catch_up.reached(RUN_LOG, position)


def _anchor_name(marks: Marks) -> str:
    return marks.anchor or marks.apart_anchor


def _anchor(marks: Marks, record: Record) -> Anchor | None:
    """The anchor of the marks, if this record is it."""
    parts, own = parse_log_key(record.key), anchor_name(record.key)
    run, name = (parts[0], parts[2]) if parts else (RunId(""), own)
    # A mirror's copy has the same id, but another append time.
    if name is None or not record.value or name.hex() != _anchor_name(marks) or record.at_ms != marks.anchor_ms:
        return None
    return Anchor(run, name, record.offset, record.at_ms)


REPAIR = "repair"

PASS_RUNS = 500
"""Runs whose histories one reading of the log collects: 10 MB at 20 KiB each."""


@dataclass(slots=True)
class Collected:
    """Run-log records of one run, collected by reading the log again, by entry id; `copied`: one was there twice."""

    records: dict[EntryId, Record] = field(default_factory=dict)
    copied: bool = False


class Unmended(NamedTuple):
    """An input that fails on the history read for it, and the reason."""

    item: Pending
    why: str


class GoesOn(NamedTuple):
    """A failed run that another planner resumed, with its history read again; `news` are the new entries."""

    state: RunState
    news: list[Entry]


class LoadedHistory(NamedTuple):
    """The history that a fork keeps of its source."""

    item: Pending
    fork: ForkAsked
    history: list[Entry]


HistoryOutcome = Unmended | GoesOn | LoadedHistory
"""Consequences of a history that was read again."""


class Histories:
    """Histories of one lane read again from the log, for repairs, retries, forks, and results that a parent lacks."""

    def __init__(self, log: Acceptance, outbox: Outbox, inbox: Inbox, admission: Admission) -> None:
        self._log, self._outbox, self._inbox, self._admission = log, outbox, inbox, admission
        self._waiting = inbox.waiting.at(WaitsFor.HISTORY)
        self._open: dict[RunId, Collected] = {}
        self._resumed: dict[RunId, list[Pending]] = {}
        self._goal, self._last = 0, -1
        self.wants_log = self._begun = False

    def needs_log(self) -> bool:
        """True, once, if the log has to be read again from its start."""
        needed, self.wants_log = self.wants_log, False
        return needed

    def parks(self, item: Pending, message: ChildEnded | RunOperation) -> bool:
        """True if an input has to wait for a history or for room. **Raises** ConflictError if it names no history."""
        if isinstance(message, ChildEnded):
            return message.result == UNREAD and self._waits_for_history(child_id(message.run_id, message.step), item)
        run, row = item.run_id, self._log.finished.get(item.run_id)
        if message.kind == REPAIR:
            _named_head(message)
            self._inbox.waiting.put(item, WaitsFor.HISTORY, run)
            return True
        if message.kind == FORK:
            return self._waits_for_source(item, message)
        if message.kind != "retry" or row is None or (row.status, row.head.seq) != ("failed", failure_named(message)):
            return False
        if run not in self._log.redriven_runs.reread and self._waits_for_room(item):
            return True
        return self._waits_for_history(run, item)

    def _waits_for_room(self, item: Pending) -> bool:
        """True if an input waits because its run would be with executors at once."""
        if crowded := self._admission.room() <= 0:
            self._inbox.wait(item, WaitsFor.ROOM, "")
        return crowded

    def _waits_for_source(self, item: Pending, operation: RunOperation) -> bool:
        try:
            fork = fork_asked(operation)
        except MalformedError as error:
            raise ConflictError(error.message) from None
        source = RunId(fork.source.run_id)
        if not (lacks_history(self._log.known(item.run_id), fork) and self._log.forkable(item.run_id)):
            return False
        if source in self._log.erased.runs:
            raise ConflictError(f"run {source} was erased: nothing is left to fork")
        if not self._waits_for_room(item):
            self._inbox.waiting.put(item, WaitsFor.HISTORY, source)
        return True

    def _waits_for_history(self, run: RunId, item: Pending) -> bool:
        loaded = run in self._log.redriven_runs.reread
        if loaded:
            self._resumed[run].append(item)
        else:
            self._inbox.waiting.put(item, WaitsFor.HISTORY, run)
        return not loaded

    def begin(self) -> None:
        """Request a reading of the log for waiting inputs, and drop used histories."""
        for run in [run for run, items in self._resumed.items() if all(item.done for item in items)]:
            del self._resumed[run]
            self._log.redriven_runs.reread.pop(run, None)
        if self._open or not (self._waiting or self._log.redriven_runs.unknown):
            return
        # One reading of the partition serves all inputs that wait when it begins.
        for run in [*self._log.redriven_runs.unknown, *self._waiting][:PASS_RUNS]:
            self._open[run] = Collected()
        self._goal, self.wants_log, self._begun = self._log.position, True, self._last < 0

    def follow(self, record: Record) -> list[HistoryOutcome]:
        """Read a run-log record, also an old one; return the consequences of histories now complete."""
        # Records that were on their way when the reading was requested are not part of it.
        self._begun |= record.offset <= self._last and not self.wants_log
        self._last = record.offset
        if not self._open or not self._begun:
            return []
        parts = parse_log_key(record.key)
        if parts is not None and (collected := self._open.get(parts[0])) is not None:
            collected.copied |= collected.records.pop(parts[2], None) is not None and record.value is not None
            if record.value is not None:
                collected.records[parts[2]] = record
        return self.reached(record.offset + 1)

    def reached(self, offset: int) -> list[HistoryOutcome]:
        if not self._open or not self._begun or offset < self._goal:
            return []
        opened, self._open = self._open, {}
        return [outcome for run, collected in opened.items() for outcome in self._outcomes_of(run, collected)]

    def _outcomes_of(self, run: RunId, collected: Collected) -> list[HistoryOutcome]:
        """Use the records of a run for all inputs that wait for its history."""
        waits = self._inbox.waiting.take(WaitsFor.HISTORY, run)
        items = [item for item in waits if not _is_order(item.input, REPAIR, FORK)]
        outcomes: list[HistoryOutcome] = [*self._mend_all(waits, collected.records)]
        unknown, row = self._log.redriven_runs.unknown.get(run), self._log.finished.get(run)
        if not items and unknown is None:
            return outcomes
        try:
            reread = _reread(run, collected, row.head if row else unknown, goes_on=unknown is not None)
        except ConflictError as error:
            if unknown:  # a second reading would give the same
                del self._log.redriven_runs.unknown[run]
                self._log.freeze(run, error.message)
            return outcomes + self._unmended(items, error)
        if unknown:
            outcomes.append(self._go_on(reread))
        elif row is not None:
            self._log.redriven_runs.reread[run], self._resumed[run] = reread, items
        self._inbox.push(items)
        return outcomes

    def _go_on(self, reread: RedrivenRun) -> GoesOn:
        self._log.redriven_runs.take_back(reread)
        offsets = {seq: offset for offset, seq, _ in reread.entries}
        for entry in reread.news:
            self._log.windows.accepted(entry, reread.state, offsets[entry.seq])
        return GoesOn(reread.state, reread.news)

    def _unmended(self, items: Iterable[Pending], error: ConflictError) -> list[Unmended]:
        # The history may lie after the start of the reading, or beyond a zombie's view: then it is read again.
        final = (item for item in items if self._inbox.confirms(item, self._goal, speculated=False))
        return [Unmended(item, error.message) for item in final]

    def _mend_all(self, items: list[Pending], records: Mapping[EntryId, Record]) -> Iterator[Unmended | LoadedHistory]:
        for item in items:
            try:
                if _is_order(item.input, REPAIR):
                    self._mend(item, records)
                elif isinstance(item.input, RunOperation) and item.input.kind == FORK:
                    yield self._loaded(item, fork_asked(item.input), records)
            except ConflictError as error:
                yield from self._unmended([item], error)

    def _mend(self, item: Pending, records: Mapping[EntryId, Record]) -> None:
        """Write the chosen history once more. **Raises** ConflictError."""
        entries, named = read_entries(records), _named_head(item.input)
        history = path(entries, named or self._head(item.run_id, entries))
        for name in history:
            self._outbox.repeat(records[name], None)
        # The other entries must go, or the next reader has to choose again.
        losers = entries.keys() - set(history) if named else set()
        for name in losers:
            self._outbox.sweep(records[name].key or b"")
        self._outbox.repeat(records[history[-1]], item)

    def _loaded(self, item: Pending, fork: ForkAsked, records: Mapping[EntryId, Record]) -> LoadedHistory:
        """Part of a history that a fork keeps. **Raises** ConflictError, also if the head does not count."""
        entries, source = read_entries(records), RunId(fork.source.run_id)
        history, state = path(entries, EntryId(fork.source.head)), self._log.accepted(source)
        accepted = state is not None and source not in self._log.fold.frozen
        counts = [head.id for head in state.heads] if state and accepted else path(entries, self._head(source, entries))
        if history[-1] not in counts:
            raise ConflictError(f"entry {history[-1].hex()} of run {source} does not count")
        return LoadedHistory(item, fork, kept_for(fork, [entries[name].entry for name in history]))

    def _head(self, run: RunId, entries: Mapping[EntryId, LogRecord]) -> EntryId:
        state = self._log.latest(run)
        if state is not None and run not in self._log.fold.frozen:
            return state.head.id
        ends = heads(entries)
        if len(ends) != 1:
            named = ", ".join(name.hex() for name in ends) or "none"
            message = f"the log has {len(ends)} histories of the run; name the head that shall count: {named}"
            raise ConflictError(message)
        return ends[0]


def _is_order(message: Input | None, *kinds: str) -> bool:
    return isinstance(message, RunOperation) and message.kind in kinds


def _named_head(order: Input | None) -> EntryId | None:
    """The head that a repair names, if any. **Raises** ConflictError."""
    assert isinstance(order, RunOperation), "operators repair"
    try:
        named = canonical.parse(order.data)["head"]
        return EntryId(bytes.fromhex(named)) if named else None
    except (MalformedError, KeyError, TypeError, ValueError):
        raise ConflictError("a repair names the id of a head, or nothing") from None


def read_entries(records: Mapping[EntryId, Record]) -> dict[EntryId, LogRecord]:
    entries = {name: chain.read(record.key, record.value) for name, record in records.items()}
    return {name: read for name, read in entries.items() if isinstance(read, LogRecord)}


def path(entries: Mapping[EntryId, LogRecord], head: EntryId) -> list[EntryId]:
    """The history that ends at a head. **Raises** ConflictError if it does not go back to a beginning."""
    names: dict[EntryId, None] = {}
    name = head
    while name:
        if name not in entries or name in names:
            raise ConflictError(f"the log has no whole history that ends at {head.hex()}")
        names[name] = None
        name = EntryId(entries[name].entry.prev)
    return [*names][::-1]


def heads(entries: Mapping[EntryId, LogRecord]) -> list[EntryId]:
    """Last entries of all histories that go back to a beginning."""
    followed = {read.entry.prev for read in entries.values()}
    last = []
    for name in entries.keys() - followed:
        try:
            path(entries, name)
        except ConflictError:
            continue
        last.append(name)
    return sorted(last)


def _reread(run: RunId, collected: Collected, head: Head | None, *, goes_on: bool) -> RedrivenRun:
    """A history up to this head, or to its end. **Raises** ConflictError if the log lacks a part."""
    entries = read_entries(collected.records)
    history = path(entries, head.id) if head else []
    count = len(history)
    if goes_on:
        history += _entries_after(history[-1], entries, collected, run)
    state = RunState(run)
    for name in history:
        apply(state, entries[name].entry, name)
    values = [(collected.records[name], entries[name].entry.seq) for name in history]
    news = [entries[name].entry for name in history[count:]]
    return RedrivenRun(state, [(record.offset, seq, record.value or b"") for record, seq in values], news)


def _entries_after(head: EntryId, entries: dict[EntryId, LogRecord], collected: Collected, run: RunId) -> list[EntryId]:
    """Entries that count after a head: of several branches, those that extended it first."""
    ends = [names for end in heads(entries) if head in (names := path(entries, end))]
    if len(ends) == 1:
        return ends[0][ends[0].index(head) + 1 :]
    last, names = head, list[EntryId]()
    for name, read in entries.items():
        if read.entry.prev == last:
            last = name
            names.append(name)
    # With copies, the first in the log need not be the first that was written.
    if collected.copied or last not in [end[-1] for end in ends]:
        raise ConflictError(f"the log has {len(ends)} histories of run {run}: `refold run repair` takes one of them")
    return names
