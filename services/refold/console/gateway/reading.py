"""Reads of the gateway: the view in use, and waits for writes."""

import asyncio
import base64
import binascii
import json
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

from starlette.concurrency import run_in_threadpool

from refold.client.letters import Letter
from refold.client.operations.runs import RunQuery
from refold.client.reading import api
from refold.client.reading.budget import LimitInUse, limits_of
from refold.client.reading.history import Run
from refold.client.reading.run import RunEvent, entry_events, exposed_values
from refold.client.schedules import LABEL, MOST_SCHEDULES, ScheduleRow, ScheduleRun, schedule_rows
from refold.console.gateway.rates import DEFAULT_LIMITS, GatewayLimits
from refold.console.projections.projector import HEADS
from refold.console.projections.runs import ViewedRuns, entry_of, head_of, latest_generation, matching, runs_query
from refold.console.projections.service import serving
from refold.console.projections.shipped import tables
from refold.console.projections.shipped.beside import spent_of
from refold.console.projections.shipped.projection import Shipped
from refold.core import errors
from refold.core.events import Cause
from refold.core.ids import RunId
from refold.core.run.intents import MOST_EXPOSED, SCHEDULE_AGENT, SCHEDULE_VALUE
from refold.core.run.state import ENDED
from refold.core.tables import Scalar, ViewRow
from refold.core.topics import RUN_LOG, RUN_OPERATED, RUN_REQUESTED, RUN_SIGNALLED
from refold.engine.ports.log import Place
from refold.engine.ports.tables import MOST_PAGE, Query, ViewDatabase, ViewReader, ViewStore, Where

_T = TypeVar("_T")

POLL_S = 0.02
INPUT_TOPICS = (RUN_REQUESTED, RUN_SIGNALLED, RUN_OPERATED)
MOST_AFTER = 100
"""Places in a `Refold-After` at most."""
MOST_SENT = 10_000
"""Cached places of inputs: a few MiB."""


class NotYetError(errors.TransientError, code="behind"):
    """The view is behind the requested write."""


class After(NamedTuple):
    """Prerequisites of a read: positions in the run log, and inputs that have caused an entry."""

    positions: Mapping[Place, int] = {}
    causes: frozenset[Cause] = frozenset()


class KeptRuns:
    """Cache of recently folded runs, which must not be changed. Thread-safe."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits, self._lock, self._runs = limits, threading.Lock(), dict[RunId, Run]()

    def find(self, view: ViewReader, run: RunId) -> Run | None:
        with self._lock:
            cached = self._runs.copy()
        heads = view.rows(HEADS, [(name,) for name in cached])
        # Erased runs are dropped, whichever run is requested.
        gone = [name for name in cached if (name,) not in heads or not heads[name,][HEADS.places["seq"]]]
        runs, before = ViewedRuns(view), cached.get(run)
        current = (runs.again(before) if before and run not in gone else None) or runs.find(run)
        with self._lock:
            # Removed and added: the run moves to the end, as the one used last.
            for name in (*gone, run):
                self._runs.pop(name, None)
            self._runs |= {run: current} if current is not None else {}
            while sum(map(_cached_bytes, self._runs.values())) > self._limits.kept_bytes:
                del self._runs[next(iter(self._runs))]  # the one whose last use was longest ago
        return current and replace(current)


def _cached_bytes(run: Run) -> int:
    # Measured with 1,700 entries of 200 bytes.
    return sum(5_000 + 2 * len(judged.record.value or b"") for judged in run.records)


Refused = Callable[[Cause], errors.RefoldError | None]


class ReadSide:
    """Thread-safe reads of the view in use. `refused`: the error of a refused input. **Raises** UnreachableError."""

    def __init__(
        self, database: ViewDatabase, refused: Refused = lambda _: None, limits: GatewayLimits = DEFAULT_LIMITS
    ) -> None:
        self._database, self._refused, self.kept = database, refused, KeptRuns(limits)
        self._sent = OrderedDict[str, Cause]()

    def store(self) -> ViewStore:
        try:
            with _in_use():
                return self._database.store(Shipped.name, serving(self._database, Shipped.name))
        except errors.NotFoundError as error:
            message = f"the views are not built so far: {error.message}"
            raise errors.UnreachableError(message, hint="`refold serve projections` builds them") from None

    @contextmanager
    def still(self, after: After | None = None) -> Iterator[ViewReader]:
        """Lend the view as of one moment, after these writes. **Raises** NotYetError if they are missing."""
        self.check_after(after)
        # A ConflictError inside means a generation that was just dropped: the block raises it for no other reason.
        with _in_use(), self.store().snapshot() as view:
            yield view

    def check_after(self, after: After | None) -> None:
        """Check that the view has these writes. **Raises** NotYetError if not; the error of a refused input."""
        if after and (missing := self._missing(after)):
            hint = "ask again in a second; leave the header out for an input that changes nothing"
            raise NotYetError(f"the view is behind {missing}", retry_after=1.0, hint=hint)

    def _missing(self, after: After) -> str:
        with _in_use():
            store = self.store()
            positions = store.positions() if after.positions else {}
            for place, end in after.positions.items():
                if positions.get(place, 0) < end:
                    return f"{place[0]}/{place[1]}/{end - 1}"
            for cause in after.causes:
                if not store.query(Query(tables.ENTRIES, _caused_by(cause), limit=1)):
                    break
            else:
                return ""
        if (refused := self._refused(cause)) is not None:
            raise refused
        return f"{cause.topic}/{cause.partition}/{cause.offset}"

    def note_sent(self, run: str, position: Cause) -> None:
        """Cache the place of the last input for a run that this process has sent."""
        self._sent[run] = position
        if len(self._sent) > MOST_SENT:
            self._sent.popitem(last=False)

    def is_awaited(self, view: ViewReader, run: str) -> bool:
        """Return True if a view lacks a run that was requested here. **Raises** the error of a refused request."""
        if (sent := self._sent.get(run)) is None or head_of(view, RunId(run)) is not None:
            return False
        with suppress(NotYetError):
            self.check_after(After(causes=frozenset({sent})))
        return True

    def wait(self, timeout_s: float) -> bool:
        return self._database.wait(timeout_s)

    def head(self, run: RunId) -> dict[str, Any] | None:
        with _in_use():
            return head_of(self.store(), run)

    def find(self, run: RunId) -> Run | None:
        with self.still() as view:
            return ViewedRuns(view).find(run)

    def run(self, view: ViewReader, run: str) -> Run:
        """Return a run. **Raises** NotFoundError, GoneError if it was erased, MalformedError for an invalid id."""
        name = latest_generation(view, run)
        history = self.kept.find(view, name)
        if history is None:
            raise _missing(view, name)
        return history

    def runs_at(self, view: ViewReader, run: str, seqs: Sequence[int]) -> list[Run]:
        """Return a run after each of these events. **Raises** as `run`; MalformedError for an unknown event."""
        head = self.check(view, run)
        if wrong := [seq for seq in seqs if not 1 <= seq <= head["seq"]]:
            raise errors.MalformedError(f"run {run} has no event {wrong[0]}", hint=f"its events are 1 to {head['seq']}")
        if not (points := ViewedRuns(view).points(head["run_id"], seqs)):
            raise _missing(view, head["run_id"])
        return points

    def seq_at(self, view: ViewReader, run: str, at_ms: int) -> int:
        """Return the number of a run's last event by a time. **Raises** as `runs_at`."""
        name = RunId(self.check(view, run)["run_id"])
        if seq := ViewedRuns(view).seq_at(name, at_ms):
            return seq
        row = view.rows(tables.RUNS, [(name,)])[name,]
        first, last = (row[tables.RUNS.places[column]] for column in ("requested_ms", "at_ms"))
        hint = f"its entries are from {first!s} to {last!s}"
        raise errors.MalformedError(f"run {run} was not there at {at_ms}", hint=hint)

    def daily(self, view: ViewReader, filters: api.DailyFilter) -> list[api.DailyRow]:
        where = matching(("day", ">=", filters.since), ("day", "<=", filters.until), ("agent", "=", filters.agent))
        where += [Where("tool", "=", filters.tool)] if filters.tool is not None else []
        rows = view.query(Query(tables.DAILY, tuple(where), descending=True, limit=2 * filters.limit))
        return list(daily_sums(_of_models(rows)))[: filters.limit]

    def actions(self, view: ViewReader, filters: api.ActionFilter) -> list[api.OperatorAction]:
        where = matching(("run_id", "=", filters.run), ("actor", "=", filters.actor), ("at_ms", ">=", filters.since_ms))
        query = Query(tables.OPERATOR_ACTIONS, tuple(where), (), "at_ms", descending=True, limit=filters.limit)
        return [api.OperatorAction(**tables.OPERATOR_ACTIONS.named(row)) for row in view.query(query)]

    def values(self, view: ViewReader, run: str) -> dict[str, Any]:
        """Return the exposed values of a run. **Raises** as `run`."""
        name = self.check(view, run)["run_id"]
        query = Query(tables.RUN_VALUES, (Where("run_id", "=", name),), limit=MOST_EXPOSED + 1)
        rows = map(tables.RUN_VALUES.named, view.query(query))
        return exposed_values((row["name"], row["value"]) for row in rows)

    def schedules(self, view: ViewReader) -> list[ScheduleRow]:
        """Return the schedules by name, as their latest runs have them."""
        of_agent = (Where("agent", "=", SCHEDULE_AGENT),)
        found = view.query(Query(tables.RUNS, of_agent, (), "requested_ms", descending=True, limit=MOST_SCHEDULES))
        rows = {str(row["run_id"]): row for row in map(tables.RUNS.named, found)}
        labels = view.rows(tables.RUN_LABELS, [(run, LABEL) for run in rows])
        values = view.rows(tables.RUN_VALUES, [(run, SCHEDULE_VALUE) for run in rows])
        runs = []
        for run, row in rows.items():
            label, value = labels.get((run, LABEL)), values.get((run, SCHEDULE_VALUE))
            name = str(label[tables.RUN_LABELS.places["value"]]) if label else ""
            text = str(value[tables.RUN_VALUES.places["value"]]) if value else ""
            runs.append(ScheduleRun(RunId(run), name, str(row["status"]), bool(row["paused"]), text))
        return schedule_rows(runs)

    def letters(self, view: ViewReader, filters: api.LetterFilter) -> list[Letter]:
        where = matching(("run_id", "=", filters.run), ("code", "=", filters.code), ("at_ms", ">=", filters.since_ms))
        query = Query(tables.DEAD_LETTER_ROWS, tuple(where), (), "at_ms", descending=True, limit=filters.limit)
        return [_letter_of(tables.DEAD_LETTER_ROWS.named(row)) for row in view.query(query)]

    def limits(self, view: ViewReader) -> list[LimitInUse]:
        return limits_of(map(spent_of, view.scan(tables.LIMIT_ROWS)))

    def missing(self, view: ViewReader, run: str) -> errors.NotFoundError | None:
        """Return the error of a run that the view lacks, or None."""
        name = latest_generation(view, run)
        return ViewedRuns(view).gone(name) if head_of(view, name) else _missing(view, name)

    def check(self, view: ViewReader, run: str) -> dict[str, Any]:
        """Return the columns of `heads` for a run with events. **Raises** as `run`."""
        return self._head(view, latest_generation(view, run))

    def _head(self, view: ViewReader, name: RunId) -> dict[str, Any]:
        if (head := head_of(view, name)) is None or not head["seq"]:
            raise _missing(view, name)
        return head

    def check_seq(self, run: RunId, seq: int) -> bool:
        """Return False if this is the last possible event. **Raises** NotYetError if it is missing, and as `run`."""
        with _in_use():
            head = self._head(self.store(), run)
        if (last := head["seq"]) < seq:
            raise NotYetError(f"run {run} has {last} events here, and not {seq}", retry_after=1.0)
        return last > seq or head["status"] not in ENDED - {"failed"}

    def runs(self, view: ViewReader, listing: RunQuery, cursor: str) -> api.RunPage:
        """Return a page of runs. **Raises** MalformedError for a cursor of another query."""
        rows, more = page_behind(view, cursor, listing, runs_query(listing))
        return api.RunPage(runs=[summary_of(row) for row in rows], cursor=more)


async def patiently(look: Callable[[], _T], wait_s: float) -> _T:
    """Repeat `look` while it raises NotYetError, for `wait_s` at most, without holding a thread."""
    deadline, pause_s = time.monotonic() + wait_s, POLL_S
    while True:
        try:
            return await run_in_threadpool(look)
        except NotYetError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.25)


def _of_models(rows: Sequence[ViewRow]) -> Iterator[ViewRow]:
    """Assign calls without a model to their tool's only model."""
    # A call names its model only when it completes: the sums of its proposal have none.
    models = defaultdict[ViewRow, set[Scalar]](set)
    for row in rows:
        models[row[:3]] |= {row[3]} - {""}
    for row in rows:
        yield (*row[:3], *models[row[:3]], *row[4:]) if len(models[row[:3]]) == 1 else row


def daily_sums(rows: Iterable[ViewRow]) -> Iterator[api.DailyRow]:
    """Sum rows of `daily` by day, agent, tool and model, erased runs included."""
    totals: dict[ViewRow, list[int]] = {}
    for row in rows:
        amounts = totals.setdefault(row[: tables.DAILY.keys - 1], [0] * (len(row) - tables.DAILY.keys))
        for place, amount in enumerate(row[tables.DAILY.keys :]):
            amounts[place] += int(amount)
    names = (*tables.DAILY.names[: tables.DAILY.keys - 1], *tables.DAILY.names[tables.DAILY.keys :])
    for key, sums in totals.items():
        of: dict[str, Any] = dict(zip(names, (*key, *sums), strict=True))
        buckets = [of.pop(f"b{number}") for number in range(tables.BUCKETS)]
        yield api.DailyRow(**of, p50_ms=_below(buckets, 0.5), p95_ms=_below(buckets, 0.95))


def _below(buckets: Sequence[int], share: float) -> int:
    """Return the upper bound of a quantile of durations, in milliseconds."""
    rank, total = share * sum(buckets), 0
    for number, amount in enumerate(buckets):
        total += amount
        if amount and total >= rank:
            return 1 << number
    return 0


def _letter_of(row: Mapping[str, Any]) -> Letter:
    place = [row[name] for name in ("from_topic", "from_partition", "from_offset")]
    more = {name: row[name] for name in ("letter", "code", "reason", "service", "at_ms")}
    return Letter(lies="/".join(map(str, place)), topic=place[0], partition=place[1], offset=place[2], **more)


def _missing(view: ViewReader, run: RunId) -> errors.NotFoundError:
    head = head_of(view, run)
    if head is None:
        return errors.NotFoundError(f"there is no run {run}", hint="it may be on its way: look again in a second")
    if (gone := ViewedRuns(view).gone(run)) is not None:
        return gone
    reason = head["reason"] or "its rows are not the entries of its log"
    hint = f"`refold projection rebuild {Shipped.name}`"
    return errors.NotFoundError(f"the view has no history of run {run}: {reason}", hint=hint)


_SUMMARY = [(name, tables.RUNS.places[name]) for name in api.RunSummary.model_fields]


def summary_of(row: ViewRow) -> api.RunSummary:
    values: dict[str, Any] = {name: row[place] for name, place in _SUMMARY}
    return api.RunSummary.model_construct(None, **values)


def events_after(view: ViewReader, run: str, seq: int, limit: int = MOST_PAGE) -> list[RunEvent]:
    where = (Where("run_id", "=", run), Where("last_seq", ">", seq))
    rows = view.query(Query(tables.ENTRIES, where, order="seq", limit=limit))
    return [event for row in rows for event in events_in(row) if event.seq > seq]


def events_in(row: ViewRow) -> list[RunEvent]:
    return entry_events(entry_of(row)[0])


def after_of(header: str) -> After | None:
    """Parse `Refold-After`: `topic/partition/offset`, several with commas."""
    parts = [part for entry in header.split(",") if (part := entry.strip())]
    if len(parts) > MOST_AFTER:
        raise errors.MalformedError(f"Refold-After names {len(parts)} places", hint=f"name the last {MOST_AFTER}")
    positions: dict[Place, int] = {}
    causes = set[Cause]()
    for topic, partition, offset in map(_parse_place, parts):
        if topic == RUN_LOG:
            positions[topic, partition] = max(positions.get((topic, partition), 0), offset + 1)
        else:
            causes.add(Cause(topic, partition, offset))
    return After(positions, frozenset(causes)) if parts else None


def _parse_place(text: str) -> tuple[str, int, int]:
    """Parse the place of a write, `topic/partition/offset`, from `Refold-After`. **Raises** MalformedError."""
    topic, _, rest = text.partition("/")
    partition, _, offset = (number_of(part) for part in rest.partition("/"))
    if topic not in (RUN_LOG, *INPUT_TOPICS) or partition is None or offset is None:
        raise errors.MalformedError(f"{text[:80]!r} is no place of a write", hint="send it as an answer had it")
    return topic, partition, offset


def number_of(text: str) -> int | None:
    """Parse a number of up to 18 digits, which fits 64 bits; None for another text."""
    return int(text) if len(text) <= 18 and text.isascii() and text.isdecimal() else None


def _caused_by(cause: Cause) -> tuple[Where, ...]:
    return tuple(Where(f"cause_{name}", "=", getattr(cause, name)) for name in ("topic", "partition", "offset"))


@contextmanager
def _in_use() -> Iterator[None]:
    """Translate the error of a generation that was switched or dropped meanwhile."""
    try:
        yield
    except errors.ConflictError as error:
        raise errors.UnreachableError(error.message, hint="the views were switched: ask again") from None


def cursor_behind(place: ViewRow, listing: object) -> str:
    return base64.urlsafe_b64encode(json.dumps([hash_of(listing), *place]).encode()).decode()


def behind_cursor(cursor: str, listing: object, query: Query) -> Query:
    """Return the query of a cursor's page. **Raises** MalformedError for a cursor of another query."""
    if not cursor:
        return query
    try:
        of, *place = json.loads(base64.b64decode(cursor.encode(), altchars=b"-_", validate=True))
    except (ValueError, TypeError, RecursionError, binascii.Error):
        of, place = None, []
    kinds = [query.table.columns[name] for name in query.sorting]
    fits = all(not isinstance(value, int) or -(2**63) <= value < 2**63 for value in place)
    if of != hash_of(listing) or [type(value) for value in place] != kinds or not fits:
        hint = "without it, the first page is read"
        raise errors.MalformedError("the cursor is of another query, or none", hint=hint)
    return replace(query, after=tuple(place))


def page_behind(view: ViewReader, cursor: str, listing: object, query: Query) -> tuple[list[ViewRow], str]:
    """Return the page of a cursor, and the next cursor, empty after the last. **Raises** as `behind_cursor`."""
    query = behind_cursor(cursor, listing, query)
    # One row more than the page, to detect another page without a count.
    rows = view.query(replace(query, limit=query.limit + 1))
    page = rows[: query.limit]
    return page, cursor_behind(query.place(page[-1]), listing) if len(rows) > query.limit else ""


def hash_of(listing: object) -> str:
    return blake2b(repr(listing).encode(), digest_size=8).hexdigest()
