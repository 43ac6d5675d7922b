"""What the gateway reads: the view in use, and how a request waits until it has a write."""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from refold.core.errors import MalformedError, NotFoundError, TransientError, UnreachableError
from refold.core.events import Entry
from refold.core.ids import EntryId, RunId, run_id
from refold.core.topics import RUN_LOG
from refold.core.wire import codec
from refold.ports.log import Place, Record
from refold.ports.tables import MOST_PAGE, Query, RunsWith, ViewDatabase, ViewReader, ViewRow, Where
from refold.projections.projector import HEADS
from refold.projections.runs import ViewedRuns
from refold.projections.service import serving
from refold.projections.shipped.projection import Shipped
from refold.projections.shipped.tables import ENTRIES, RUN_LABELS, RUN_SESSIONS, RUNS
from refold.views.api import RunPage, RunSummary
from refold.views.history import JudgedRecord, Run
from refold.views.run import RunEvent, entry_events

WAIT_S = 2.0
"""How long a read waits for a write. Then the client asks again."""
POLL_S = 0.02
STATES: Mapping[str, Where] = {
    "doubt": Where("doubt", ">", 0),
    "on_hold": Where("on_hold", ">", 0),
    "paused": Where("paused", ">", 0),
    "waiting_for_people": Where("waiting_for_people", ">", 0),
}
"""What a run may be beside its status."""
SORTS = ("requested_ms", "at_ms", "ended_ms")


class NotYetError(TransientError):
    """The view is behind what was asked for."""

    code = "behind"


@dataclass(frozen=True)
class RunQuery:
    """Which runs are listed, and in which order. What is empty means any. **Raises** MalformedError when made wrong."""

    agent: str = ""
    state: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    session: str = ""
    root: str = ""
    text: str = ""
    since_ms: int = 0
    until_ms: int = 0
    sort: str = "-requested_ms"
    limit: int = MOST_PAGE

    def __post_init__(self) -> None:
        if self.sort.lstrip("-") not in SORTS:
            raise MalformedError(
                f"sort={self.sort!r} is no order of runs", hint=f"use one of {', '.join(SORTS)}, or -one"
            )

    def query(self, after: ViewRow) -> Query:
        """The query for the page behind a row."""
        by = self.sort.lstrip("-")
        where = [Where(name, "=", value) for name, value in (("agent", self.agent), ("root", self.root)) if value]
        if self.state:
            where.append(STATES.get(self.state, Where("status", "=", self.state)))
        where += [Where(by, ">=", self.since_ms)] if self.since_ms else []
        where += [Where(by, "<", self.until_ms)] if self.until_ms else []
        where += [Where("run_id says", "contains", self.text)] if self.text else []
        within = [
            RunsWith(RUN_LABELS, (Where("name", "=", name), Where("value", "=", value))) for name, value in self.labels
        ]
        within += [RunsWith(RUN_SESSIONS, (Where("session", "=", self.session),))] if self.session else []
        return Query(
            RUNS,
            tuple(where),
            tuple(within),
            by,
            descending=self.sort.startswith("-"),
            after=after,
            limit=self.limit + 1,
        )


class ReadSide:
    """The view in use. Any thread may ask. **Raises** UnreachableError while there is none."""

    def __init__(self, database: ViewDatabase) -> None:
        self._database = database

    def store(self) -> ViewReader:
        """Return the generation in use."""
        try:
            return self._database.store(Shipped.name, serving(self._database, Shipped.name))
        except NotFoundError as error:
            raise UnreachableError(error.message, hint="`refold serve projections` builds the views") from None

    @contextmanager
    def still(self, after: Mapping[Place, int] | None = None) -> Iterator[ViewReader]:
        """The view as of one moment, behind these positions. **Raises** NotYetError if it is not there in time."""
        store = self.store()
        self._wait(store.positions, after or {})
        with self._database.store(Shipped.name, serving(self._database, Shipped.name)).snapshot() as view:
            yield view

    def _wait(self, positions: Callable[[], Mapping[Place, int]], after: Mapping[Place, int]) -> None:
        deadline = time.monotonic() + WAIT_S
        while after and any(positions().get(place, 0) < end for place, end in after.items()):
            if time.monotonic() > deadline:
                raise NotYetError(f"the view is behind {_named(after)}", retry_after=1.0, hint="ask again in a second")
            time.sleep(POLL_S)

    def run(self, view: ViewReader, run: str) -> Run:
        """Return a run. **Raises** NotFoundError, GoneError if it was erased, MalformedError for what is no id."""
        found = ViewedRuns(view).find(run)
        if found is None:
            raise _missing(view, run_id(run))
        return found

    def check(self, view: ViewReader, run: str) -> int:
        """Return the number of the last event of a run. **Raises** as `run`."""
        name = run_id(run)
        head = view.rows(HEADS, [(name,)]).get((name,))
        if head is None or not head[HEADS.places["seq"]]:
            raise _missing(view, name)
        return int(head[HEADS.places["seq"]])

    def check_seq(self, run: str, seq: int) -> None:
        """Wait until the view has an event of a run. **Raises** NotYetError if it has not in time, and as `run`."""
        store, deadline = self.store(), time.monotonic() + WAIT_S
        while (last := self.check(store, run)) < seq:
            if time.monotonic() > deadline:
                raise NotYetError(f"run {run} has {last} events here, and not {seq}", retry_after=1.0)
            time.sleep(POLL_S)

    def runs(self, view: ViewReader, listing: RunQuery, cursor: str) -> RunPage:
        """Return a page of runs. **Raises** MalformedError for a cursor of another query."""
        query = listing.query(_opened(cursor, listing))
        rows = view.query(query)
        page = rows[: listing.limit]
        more = _sealed(query.place(page[-1]), listing) if len(rows) > listing.limit else ""
        return RunPage(runs=[_summary(row) for row in page], cursor=more)


class GoneError(NotFoundError):
    """The run was erased."""

    code = "erased"


def _missing(view: ViewReader, run: RunId) -> NotFoundError:
    head = view.rows(HEADS, [(run,)]).get((run,))
    if head is None:
        return NotFoundError(f"there is no run {run}", hint="it may be on its way: pass on the header Refold-After")
    if head[HEADS.places["status"]] == "erased":
        return GoneError(f"run {run} was erased")
    return NotFoundError(f"the history of run {run} cannot be told from the view: {head[HEADS.places['reason']]!s}")


_SUMMARY = [(name, RUNS.places[name]) for name in RunSummary.model_fields]


def _summary(row: ViewRow) -> RunSummary:
    values: dict[str, Any] = {name: row[place] for name, place in _SUMMARY}
    return RunSummary.model_construct(None, **values)


def events_after(view: ViewReader, run: str, seq: int, limit: int = MOST_PAGE) -> list[RunEvent]:
    """Return the events of a run behind the one with this number, of at most so many entries."""
    where = (Where("run_id", "=", run), Where("last_seq", ">", seq))
    rows = view.query(Query(ENTRIES, where, order="seq", limit=limit))
    return [event for row in rows for event in events_in(row) if event.seq > seq]


def events_in(row: ViewRow) -> list[RunEvent]:
    """Return the events of a row of `entries`."""
    of: dict[str, Any] = dict(zip(ENTRIES.names, row, strict=True))
    entry = codec.decode(Entry, of["value"])
    record = Record(RUN_LOG, of["partition"], of["offset"], None, of["value"], list, of["logged_ms"])
    return entry_events(JudgedRecord(entry.run_id, EntryId(of["id"]), entry, "", record=record))


def after_of(header: str) -> dict[Place, int]:
    """Return the positions behind the records of `Refold-After`: `topic/partition/offset`, several with commas."""
    found: dict[Place, int] = {}
    for part in filter(None, map(str.strip, header.split(","))):
        topic, _, rest = part.partition("/")
        partition, _, offset = rest.partition("/")
        if topic != RUN_LOG or not (partition.isdecimal() and offset.isdecimal()):
            raise MalformedError(f"{part!r} is no place in {RUN_LOG}", hint="pass the header on as it came")
        found[topic, int(partition)] = int(offset) + 1
    return found


def _named(after: Mapping[Place, int]) -> str:
    return ", ".join(f"{topic}/{partition}/{end - 1}" for (topic, partition), end in after.items())


def _sealed(place: ViewRow, listing: RunQuery) -> str:
    return base64.urlsafe_b64encode(json.dumps([hash_of(listing), *place]).encode()).decode()


def _opened(cursor: str, listing: RunQuery) -> ViewRow:
    if not cursor:
        return ()
    try:
        of, *place = json.loads(base64.b64decode(cursor.encode(), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        of, place = None, []
    if of != hash_of(listing):
        raise MalformedError(
            "the cursor is of another query, or none", hint="leave it out to begin with the first page"
        )
    return tuple(place)


def hash_of(listing: RunQuery) -> str:
    """Return what tells one query from another."""
    return blake2b(repr(listing).encode(), digest_size=8).hexdigest()
