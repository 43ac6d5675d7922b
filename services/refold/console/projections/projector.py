"""Applies batches of run-log records to the rows of a view.

A record counts if it extends the head of its run; one with a lower seq is a copy or lost a race. After any other record
the run is read whole by the fold that all readers share, and its rows are replaced.
"""

import gc
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, get_type_hints

from refold.console.projections.batch import APPLIES, Batch, shares_of
from refold.console.projections.publishing import REPLACED
from refold.core import events
from refold.core.errors import FoldError, RefoldError, UsageError, text_of
from refold.core.events import Entry
from refold.core.ids import EntryId, RunId, parse_log_key
from refold.core.run import chain
from refold.core.run.chain import Head, LogRecord, Unreadable
from refold.core.run.erased import erased_run, held_run, read_marker
from refold.core.run.redrive import reopens
from refold.core.run.state import END_STATUSES, ENDED, Status
from refold.core.tables import ViewTable
from refold.core.topics import APPROVAL_VOTED, BUDGET_SPENT, RUN_LOG, RUN_SNAPSHOT
from refold.engine.archive.erasure import run_of
from refold.engine.ports.log import Place, Record
from refold.engine.ports.tables import ViewChanges, ViewStore
from refold.engine.runtime.watchdog import STACK, Driven, HeldUp
from refold.sdk.projection import Called, Projection, Recorded

HEADS = ViewTable(
    "heads",
    {"run_id": str, "entry": bytes, "seq": int, "status": str, "marked": int, "reason": str, "orphans": int,
     "file": str},
    1,
)  # fmt: skip
"""Head of each run's history. `reason`: why it is unreadable; `marked`: start of its erasure in milliseconds, 0 for
none; `file`: its copy in the archive; `orphans`: entries wait for a predecessor."""

CALLS = ViewTable(
    "calls",
    {
        "run_id": str, "step": int, "seq": int, "tool": str, "args": str, "key": str, "effect": str, "pool": str,
        "label": str,
    },
    2,
)  # fmt: skip
"""Calls that runs have proposed, for projections of their outcomes. Columns as in `Called`."""


_ENDS: Mapping[type, str] = END_STATUSES


class Accepted(NamedTuple):
    """An accepted entry; `since` is the offset of the record that made it count."""

    id: EntryId
    entry: Entry
    record: Record
    since: int


@dataclass(frozen=True)
class WholeRun:
    """History of a run up to an offset. `reason`: why `entries` is incomplete; `marked`: it is being erased, so nothing
    counts; `orphans`: entries lack their predecessor."""

    entries: Sequence[Accepted] = ()
    reason: str = ""
    marked: bool = False
    orphans: bool = False


_Content = LogRecord | Unreadable | str


class WholeRuns(Protocol):
    @property
    def partitions(self) -> int: ...

    def home(self, run: RunId) -> int:
        """Return the partition of a run; records in others are not part of its history."""
        ...

    def read(self, runs: Collection[RunId], ends: Mapping[int, int]) -> Mapping[RunId, WholeRun]:
        """Return runs as of these offsets by partition. A run without any record is absent."""
        ...


class ProjectionError(RefoldError, code="projection_failed"):
    """The code of a projection raised. `run_id` and `seq` name the event."""


class RunHead(NamedTuple):
    last: Head
    status: Status | str
    marked: int
    reason: str
    orphans: bool = False
    file: str = ""


LONGEST_APPLY_S = 1.0
"""Seconds of a projection's code per batch, during which others wait."""
MOST_RUN = 255
"""Characters of a run's id at most."""
_NEW = RunHead(Head(), "", marked=0, reason="")


@dataclass
class Projector:
    """Applies batches of records to one generation of a projection. `notes_replaced`: a note names the runs whose rows
    a batch removes, for publishers; `counts`: records, events and runs by outcome."""

    projection: Projection
    store: ViewStore
    histories: WholeRuns
    counts: Counter[str] = field(default_factory=Counter)
    notes_replaced: bool = False

    def __post_init__(self) -> None:
        events_of = self.projection.events
        self._event_names = frozenset(events_of)
        self._took_s = 0.0
        self._seq = 0  # of the event that is applied, to be named if that fails
        self._take = getattr(self.projection, "take", self._apply)
        of_calls = not events_of or any("step" in get_type_hints(cls) for cls in events_of)
        self._of_calls = of_calls and self._take == self._apply
        self._expect: Callable[[Batch, Sequence[Entry]], None] | None = getattr(self.projection, "expect", None)
        self._beside: Callable[[Batch, Record, int], None] | None = getattr(self.projection, "beside", None)
        self._forget: Callable[[Batch], None] = getattr(
            self.projection, "forget", lambda batch: batch.forget(batch.run, erased=False)
        )

    @staticmethod
    def tables_of(projection: Projection) -> tuple[ViewTable, ...]:
        return (HEADS, CALLS, *projection.tables, *(shares_of(table) for table in projection.tables if table.sums))

    def apply(
        self, records: Sequence[Record], moves: Mapping[Place, tuple[int, int]], notes: Mapping[str, str] | None = None
    ) -> ViewChanges:
        """Apply records in order, and commit them with `moves` and `notes`. **Raises** ProjectionError, with nothing
        committed, if the projection's code raises; ConflictError if another process moved the position."""
        self._took_s = 0.0
        with _uncollected():
            changes = self._changes(records, moves)
            changes.moves.update(moves)
            changes.notes.update(notes or {})
            if self.notes_replaced and changes.runs:
                changes.notes[REPLACED] = " ".join(sorted(changes.runs))
            self.store.commit(changes)
            return changes

    def _changes(self, records: Sequence[Record], moves: Mapping[Place, tuple[int, int]]) -> ViewChanges:
        read = [(record, _classified(record)) for record in records]
        batch = self._begin_batch(read)
        aside: dict[RunId, None] = {}
        for record, (run, content) in read:
            if content == "beside":
                self._apply_beside(batch, run, record)
            elif run:
                batch.enter(run)
                self._take_record(batch, record, content, aside)
        if aside:
            self._read_whole(batch, aside, {place[1]: end for place, (_, end) in moves.items() if place[0] == RUN_LOG})
        for run, ((entry, seq), status, marked, reason, orphans, file) in self._heads.items():
            batch.write(HEADS, (run,), [run, bytes(entry), seq, status, marked, reason, int(orphans), file])
        return batch.changed()

    def _take_record(self, batch: Batch, record: Record, content: _Content, aside: dict[RunId, None]) -> None:
        if content == "marker":
            self._apply_marker(batch, record, aside)
        elif record.partition != self.histories.home(batch.run):
            self.counts["void"] += 1
        elif batch.run not in aside:
            self._judge(batch, record, content, aside)

    def _begin_batch(self, read: Sequence[tuple[Record, tuple[RunId, _Content]]]) -> Batch:
        batch = Batch(self.store, self.projection.tables, (HEADS, CALLS))
        self._heads: dict[RunId, RunHead] = {}  # that the batch has changed, written when it ends
        runs = dict.fromkeys(run for _, (run, _) in read if run)
        batch.fetch(HEADS, ((run,) for run in runs))
        new = {run for run in runs if not batch.has(HEADS, (run,))}
        entries = [content.entry for _, (_, content) in read if isinstance(content, LogRecord)]
        batch.foresee(runs, new, [] if self._expect else list(_steps_changed(entries)))
        if self._expect is not None:
            self._expect(batch, entries)
        return batch

    def _apply_beside(self, batch: Batch, run: RunId, record: Record) -> None:
        if record.topic in (RUN_SNAPSHOT, APPROVAL_VOTED) and record.partition != self.histories.home(run):
            return
        batch.enter(run)
        if self._beside is not None and not (run and self._head(batch).status == "erased"):
            self._beside(batch, record, self.histories.partitions)

    def _judge(self, batch: Batch, record: Record, content: _Content, aside: dict[RunId, None]) -> None:
        """Accept or drop a record of the run log, or set its run `aside` to be read whole."""
        run = batch.run
        head = self._head(batch)
        if head.status == "erased":
            self.counts["void"] += 1
        elif isinstance(content, LogRecord) and not head.reason and not head.orphans and _counts(head, content.entry):
            if not self._accepts(batch, Accepted(content.id, content.entry, record, record.offset), head):
                aside[run] = None
        elif isinstance(content, LogRecord) and not head.reason and content.entry.seq <= head.last.seq:
            self.counts["void"] += 1
        elif content == "tombstone":
            self._apply_tombstone(batch, record, head, aside)
        elif isinstance(content, LogRecord | Unreadable):
            aside[run] = None
        else:
            self.counts["void"] += 1

    def _accepts(self, batch: Batch, accepted: Accepted, head: RunHead) -> bool:
        """Accept an entry; False if it contradicts its history, as one of a faulty planner may."""
        try:
            self._accept(batch, accepted, head)
        except ProjectionError as error:
            if not isinstance(error.__cause__, FoldError):
                raise
            # The fold of the whole log decides: the projector keeps no state by which it could.
            return False
        return True

    def _accept(self, batch: Batch, accepted: Accepted, head: RunHead) -> None:
        entry = accepted.entry
        status: Status | str = ""
        for event in entry.events:
            status = _ENDS.get(type(event), status)
        last = Head(accepted.id, entry.last_seq)
        self._stand(batch, RunHead(last, status, *head[2:]))
        self.counts["accepted"] += 1
        self.counts["events"] += len(entry.events)
        self._seq = entry.seq
        try:
            self._take(batch, accepted)
        # The code is the user's: whatever it raises stops its own projection, and no other.
        except (Exception, HeldUp, SystemExit) as error:
            where = f"{type(self.projection).__name__}.apply, run {entry.run_id}, seq {self._seq}"
            raise ProjectionError(
                f"{where}: {text_of(error)}",
                hint="mend it, give it a higher `version`, and start the projector again",
                run_id=entry.run_id,
                seq=self._seq,
                traceback=traceback.format_exc()[-STACK:],
            ) from error

    def _apply(self, batch: Batch, accepted: Accepted) -> None:
        entry, begun = accepted.entry, time.monotonic()
        for seq, event in enumerate(entry.events, start=entry.seq):
            self._seq = seq
            if self._of_calls:
                _write_call(batch, event, seq)
            if self._event_names and type(event) not in self._event_names:
                continue
            row = batch.row(CALLS, (entry.run_id, event.step)) if self._of_calls and hasattr(event, "step") else None
            with APPLIES.on(Driven(entry.run_id, "", f"projection {self.projection.name}, seq {seq}", ends=True)):
                self.projection.apply(batch, Recorded(entry, event, seq, Called(*row) if row else None))  # type: ignore[arg-type]
        self._took_s += time.monotonic() - begun
        if self._took_s > LONGEST_APPLY_S:
            raise UsageError(f"it has taken {self._took_s:.1f} s for a batch, and {LONGEST_APPLY_S:g} s is the most")

    def _apply_tombstone(self, batch: Batch, record: Record, head: RunHead, aside: dict[RunId, None]) -> None:
        """Apply a tombstone: the head's erases the run if a marker exists; without one the run is read whole."""
        parts = parse_log_key(record.key)
        if parts is None or parts[2] != head.last.id:
            self.counts["void"] += 1
        elif head.marked:
            self._erase(batch)
        else:
            aside[batch.run] = None

    def _erase(self, batch: Batch) -> None:
        """Remove the rows of the batch's run; its head remains, as `erased`."""
        head = self._head(batch)
        batch.forget(batch.run, erased=True)
        self._stand(batch, _NEW._replace(status="erased", marked=head.marked, file=head.file))
        self.counts["erased"] += 1

    def _apply_marker(self, batch: Batch, record: Record, aside: dict[RunId, None]) -> None:
        head = self._head(batch)
        if record.value is not None:
            marker = read_marker(batch.run, record.value)
            self._stand(batch, head._replace(marked=marker.at_ms or max(1, record.at_ms), file=marker.file))
        elif head.status == "erased" or head._replace(marked=0, file="") == _NEW:
            self._remove_head(batch)
        else:
            # It was taken back, or nothing of the run is left: its tombstones may be cleaned before they are read.
            self._stand(batch, head._replace(marked=0, file=""))
            aside[batch.run] = None

    def _read_whole(self, batch: Batch, runs: Collection[RunId], ends: Mapping[int, int]) -> None:
        """Replace the rows of runs by those of their histories in the log, up to these offsets by partition."""
        histories = self.histories.read(runs, ends)
        for run in runs:
            batch.enter(run)
            marked, file = (head := self._head(batch)).marked, head.file
            history = histories.get(run, WholeRun())
            self.counts["repaired"] += 1
            if not history.entries and not history.reason:
                self._erase(batch)
                if not marked and not history.marked:
                    self._remove_head(batch)
                continue
            self._forget(batch)
            self._stand(batch, _NEW._replace(marked=marked, file=file))
            for accepted in history.entries:
                self._accept(batch, accepted, self._head(batch))
            self._stand(batch, self._head(batch)._replace(reason=history.reason, orphans=history.orphans))

    def _stand(self, batch: Batch, head: RunHead) -> None:
        self._heads[batch.run] = head

    def _remove_head(self, batch: Batch) -> None:
        self._heads.pop(batch.run, None)
        batch.write(HEADS, (batch.run,), None)

    def _head(self, batch: Batch) -> RunHead:
        if (cached := self._heads.get(batch.run)) is not None:
            return cached
        row = batch.row(HEADS, (batch.run,))
        if row is None:
            return _NEW
        _, entry, seq, status, marked, reason, orphans, file = row
        return RunHead(Head(EntryId(entry), seq), status, marked, reason, bool(orphans), file)  # type: ignore[arg-type]


def _write_call(batch: Batch, event: events.Event, seq: int) -> None:
    if isinstance(event, events.CallProposed):
        of = event.tool, event.args, event.key, event.effect, event.pool, event.label
        called = Called(batch.run, event.step, seq, *of)
        batch.write(CALLS, called[:2], list(called))
    elif isinstance(event, events.CallRenewed) and (row := batch.edit(CALLS, (batch.run, event.step))) is not None:
        row[CALLS.places["seq"]] = seq


@contextmanager
def _uncollected() -> Iterator[None]:
    """Turn garbage collection off for a batch, whose objects all live to its end."""
    collects = gc.isenabled()
    gc.disable()  # it would take a third of the time with Python's defaults, a tenth with the settings of a service
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _classified(record: Record) -> tuple[RunId, _Content]:
    """Return the run of a record, empty for none, with its entry or kind."""
    if record.topic != RUN_LOG:
        run = erased_run(record.key) if record.topic == RUN_SNAPSHOT else None
        return (run, "marker") if run else _run_beside(record)
    content = chain.read(record.key, record.value)
    if isinstance(content, LogRecord):
        return content.entry.run_id, content
    if isinstance(content, Unreadable):
        return content.run, content
    parts = parse_log_key(record.key)
    return (parts[0] if parts else RunId("")), content


def _run_beside(record: Record) -> tuple[RunId, str]:
    """Return the run of a record outside the run log, empty for none, and `beside`, or empty for a record to skip."""
    if record.topic == RUN_SNAPSHOT:
        run = held_run(record.key)
        return run or RunId(""), "beside" if run else ""
    return RunId("" if record.topic == BUDGET_SPENT else run_of(record)[:MOST_RUN]), "beside"


def _counts(head: RunHead, entry: Entry) -> bool:
    """True if an entry extends a run; only a retry extends a failed one."""
    if head.status in ENDED:
        return reopens(head.last, head.status, entry)
    return chain.extends(head.last, entry)


def _steps_changed(entries: Sequence[Entry]) -> Iterator[tuple[RunId, int]]:
    for entry in entries:
        for event in entry.events:
            if (step := getattr(event, "step", 0)) and not isinstance(event, events.CallProposed):
                yield entry.run_id, step
