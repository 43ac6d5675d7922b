"""Runs folded from a view's rows of entries."""

import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from refold.client.operations.runs import STALLED, STATES, RunQuery
from refold.client.reading.history import JudgedRecord, Run, extend, fold_to
from refold.console.projections.projector import HEADS
from refold.console.projections.shipped.tables import ENTRIES, HOLDS, RUN_LABELS, RUN_SESSIONS, RUNS, STEPS
from refold.core.errors import FoldError, GoneError
from refold.core.events import Entry
from refold.core.ids import NO_ENTRY, EntryId, RunId, entry_id, log_key, run_id
from refold.core.run.erased import gone
from refold.core.run.state import ENDED
from refold.core.tables import Scalar, ViewRow
from refold.core.topics import RUN_LOG
from refold.core.wire import codec
from refold.engine.ports.log import Record
from refold.engine.ports.tables import Query, RunsWith, Test, ViewReader, Where


class ViewedRuns:
    """Reader of runs from `store`, the generation in use of the shipped projection."""

    def __init__(self, store: ViewReader) -> None:
        self._store = store

    def find(self, run: str, until: int = 0) -> Run | None:
        """Return a run up to the event `until`, 0 for all; None if the view has no complete history. Void records and
        reasons of stalls are only in the log."""
        points = self.points(run, [until or sys.maxsize])
        return points[0] if points else None

    def points(self, run: str, seqs: Collection[int]) -> list[Run]:
        """Return a run as of each of these events; empty where `find` returns None."""
        name = run_id(run)
        head = head_of(self._store, name)
        if head is None or head["reason"] or not head["seq"]:
            return []
        try:
            # The projector has judged the entries, and rows contain those that count alone: they are not judged again.
            folded = fold_to(name, _chained(self._store.rows_of(ENTRIES, name)), seqs)
        except FoldError:
            return []
        # A point of the past lacks the head; one of now has the entry that the projector noted.
        ids = {judged.id for judged in max(folded, key=lambda point: point.state.head.seq).records}
        whole = max(seqs) < head["seq"] or head["entry"] in ids
        return folded if ids and whole else []

    def again(self, run: Run) -> Run | None:
        """Return a known run with its newer entries; None if they do not continue it."""
        name, seq = run.state.run_id, run.state.head.seq
        head = head_of(self._store, name)
        if head is None or head["reason"]:
            return None
        if head["entry"] == run.state.head.id:  # an id is a digest of all entries before it too
            return run
        newer, where = run.copy(), (Where("run_id", "=", name), Where("last_seq", ">", seq))
        try:
            rows = self._store.query(Query(ENTRIES, where, order="seq"))
            for judged, fresh in _chained(rows, run.state.head.id):
                extend(newer, judged, fresh)
        except FoldError:
            return None
        return newer if head["entry"] == newer.state.head.id else None

    def gone(self, run: RunId) -> GoneError | None:
        """Return the error of an erased run while any topic has records of it; None for any other."""
        head = head_of(self._store, run)
        if head is None or head["seq"] or not (head["status"] or head["marked"]):
            return None
        return gone(run, head["marked"], head["file"])

    def seq_at(self, run: RunId, at_ms: int) -> int:
        """Return the number of a run's last event by a time, 0 for none."""
        where = (Where("run_id", "=", run), Where("at_ms", "<=", at_ms))
        rows = self._store.query(Query(ENTRIES, where, order="seq", descending=True, limit=1))
        return int(rows[0][ENTRIES.places["last_seq"]]) if rows else 0

    def find_at(self, run: RunId, at_ms: int) -> Run | None:
        """Return a run as of a time; None before its first entry, and where `find` returns None."""
        seq = self.seq_at(run, at_ms)
        return self.find(run, seq) if seq else None

    def family(self, run: Run) -> list[Run]:
        """Return the descendants of a run, each after its parent."""
        runs: list[Run] = []
        children = (name for step in run.timeline.steps if step.kind in ("run", "event") for name in step.runs)
        for name in children:
            if (child := self.find(name)) is not None:
                runs += [child, *self.family(child)]
        return runs


def head_of(view: ViewReader, run: RunId) -> dict[str, Any] | None:
    """Return the columns of `heads` for a run, None if the view has none."""
    row = view.rows(HEADS, [(run,)]).get((run,))
    return None if row is None else HEADS.named(row)


def latest_generation(view: ViewReader, run: str) -> RunId:
    """Id of the latest generation of a run by its plain name; `RUN+1` is the first. **Raises** MalformedError."""
    name = run_id(run.removesuffix("+1"))
    if {"+", "."} & set(run) or (head := head_of(view, name)) is None or head["status"] != "continued":
        return name
    whole = Where("root", "=", name), Where("parent", "=", "")
    rows = view.query(Query(RUNS, whole, (), "requested_ms", descending=True, limit=1))
    return RunId(str(rows[0][0])) if rows else name


def matching(*conditions: tuple[str, Test, Scalar]) -> list[Where]:
    """Return the conditions with a value; an empty one matches any row."""
    return [Where(*condition) for condition in conditions if condition[2]]


def runs_query(query: RunQuery) -> Query:
    """Return the rows of `runs` that a query selects."""
    by = query.sort.lstrip("-")
    where = matching(("agent", "=", query.agent), ("root", "=", query.root), ("run_id says", "contains", query.text))
    where += matching((by, ">=", query.since_ms), (by, "<", query.until_ms))
    where += [Where("parent", "=", "")] if query.top else []
    within = [RunsWith(RUN_LABELS, (Where("name", "=", key), Where("value", "=", text))) for key, text in query.labels]
    within += [RunsWith(RUN_SESSIONS, (Where("session", "=", query.session),))] if query.session else []
    code = matching(("failure_code", "=", query.code))
    if query.tool:
        within.append(RunsWith(STEPS, (Where("name", "=", query.tool), *code)))
    else:
        where += code
    if query.state:
        conditions, runs = _in_state(query.state, alone=query.alone)
        where, within = [*where, *conditions], [*within, *runs]
    return Query(RUNS, tuple(where), tuple(within), by, descending=query.sort.startswith("-"), limit=query.limit)


def _in_state(state: str, *, alone: bool) -> tuple[list[Where], list[RunsWith]]:
    """Return the conditions of a state; `alone` excludes runs with another `one_state`."""
    if state == STALLED:
        where, within = [Where("ended_ms", "=", 0)], [RunsWith(HOLDS, ())]
    else:
        where, within = [Where(state, ">", 0) if state in STATES else Where("status", "=", state)], []
    if alone:
        ends = state in (STALLED, *ENDED)
        before = STATES.index(state) if state in STATES else len(STATES) - (state != "suspended")
        where += [Where(name, "=", 0) for name in STATES[: 1 if ends else before]]
        where += [Where("status", "=", "suspended")] if state == "waiting" else []
        within += [] if ends or state == "doubt" else [RunsWith(HOLDS, (), absent=True)]
    return where, within


def _chained(rows: Iterable[ViewRow], head: EntryId = NO_ENTRY) -> Iterator[tuple[JudgedRecord, Entry]]:
    for judged, entry in map(entry_of, rows):
        if entry.prev != head:
            raise FoldError(f"an entry of run {entry.run_id} does not follow from the one before in the views")
        head = judged.id
        yield judged, entry


def entry_of(row: ViewRow) -> tuple[JudgedRecord, Entry]:
    """Decode a row of `entries`. **Raises** FoldError if its bytes have another id."""
    of = ENTRIES.named(row)
    entry, name = codec.decode(Entry, of["value"]), EntryId(of["id"])
    if entry_id(of["value"][codec.FRAME_BYTES :]) != name or entry.run_id != of["run_id"]:
        raise FoldError(f"an entry of run {of['run_id']} has other bytes in the views than in the log")
    key = log_key(entry.run_id, entry.seq, name)
    record = Record(RUN_LOG, of["partition"], of["offset"], key, of["value"], list, of["logged_ms"])
    return JudgedRecord(entry.run_id, name, entry, "", record=record), entry
