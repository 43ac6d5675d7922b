"""Updates projections: the generations in use and being built. One process per projection; others wait for its lock."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any

import structlog

from refold.client.reading.projection import ProjectionVerified, RowDifference, TableDigest
from refold.console.projections.following import MOST_RECORDS, Follower, lags
from refold.console.projections.projector import ProjectionError, Projector
from refold.console.projections.publishing import REPLACED, RUN_IDS, RunRows, SendRows
from refold.console.projections.shipped.projection import Shipped
from refold.console.projections.shipped.turn import PriceOf
from refold.core.errors import ConflictError, NotFoundError, RefoldError, UnreachableError, UsageError
from refold.core.tables import Scalar, ViewRow, ViewTable
from refold.engine.ports.log import LogSource, Place
from refold.engine.ports.tables import ViewChanges, ViewDatabase, ViewReader, fenced, rows_digest
from refold.engine.runtime.memory import give_back
from refold.engine.runtime.outages import OUTAGES
from refold.sdk.prices import Price, Prices
from refold.sdk.projection import Projection

_log = structlog.get_logger()

REFRESH_S = 1.0
"""Seconds between looks for generations made by other processes."""
PACE_S = 0.1
"""Longest rest of projections that have caught up, in seconds: a commit costs as much as ten records."""
SHARE, BURST_S = 0.05, 0.03
"""Share of a core that batches may take as they come, and CPU seconds of those after a quiet time: some ten commits."""
BACKOFF_S = (0.5, 10.0)
"""First and longest wait, in seconds, after an error of Kafka or the database."""


def priced(own: Mapping[str, Price] | None = None) -> tuple[PriceOf, str]:
    """Return a function that prices usage, and the name of its table. `own` go before `genai-prices`."""
    prices = Prices(own or {})

    def price(usage: Mapping[str, Any], at_ms: int) -> int:
        # It takes a second and much memory: not before there is something to price.
        prices.load()
        return prices.of(usage, at_ms) or 0

    return price, prices.table


def shipped(own: Mapping[str, Price] | None = None) -> tuple[Projection, ...]:
    return (Shipped(*priced(own)),)


class KeptProjection:
    """Updater of a projection's generations. `stopped` is the reason of a halt, until a generation is added."""

    def __init__(
        self,
        projection: Projection,
        database: ViewDatabase,
        source: LogSource,
        *,
        clock: Callable[[], float] = time.monotonic,
        send: SendRows | None = None,
        refresh_s: float = REFRESH_S,
    ) -> None:
        self.projection, self.stopped = projection, ""
        self._database, self._source, self._clock, self._send = database, source, clock, send
        self._serving: Follower | None = None
        self._building: Follower | None = None
        self._number = self._next = self._newest = 0
        self._refresh_s, self._looked_s = refresh_s, -refresh_s
        self._wait_s = self._until = 0.0
        self._near, self._reason = False, ""

    @property
    def name(self) -> str:
        return self.projection.name

    def turn(self, timeout_s: float) -> int:
        """Apply new records and return their number. Errors of Kafka and the database are waited out."""
        if self._clock() < self._until:
            time.sleep(timeout_s)
            return 0
        try:
            if self.stopped and not self._restarts():
                time.sleep(timeout_s)
                return 0
            count = self._turn(timeout_s)
            self._wait_s, self._reason = 0.0, ""
            return count
        except (UnreachableError, ConflictError, NotFoundError) as error:  # away, or another process has gone on
            self._wait_s = min(max(BACKOFF_S[0], self._wait_s * 2), BACKOFF_S[1])
            self._until = self._clock() + self._wait_s
            # Logged once: a second projector waits as long as the first one lives.
            if error.message != self._reason:
                level = "info" if isinstance(error, ConflictError) else "warning"
                at = {"projection": self.name, "reason": error.message, "next_s": self._wait_s}
                OUTAGES.failed("projection.waits", self.name, level, **at)
            self._reason = error.message
        except (UsageError, ProjectionError) as error:
            self._stop(error)
        self.close()
        return 0

    @property
    def serves(self) -> bool:
        return self._serving is not None and not self.stopped

    def close(self) -> None:
        """Close the readers of the log; the next turn opens the generations again."""
        for follower in (self._serving, self._building):
            if follower is not None:
                follower.close()
        self._serving = self._building = None
        self._looked_s = -self._refresh_s

    def _stop(self, error: RefoldError) -> None:
        self.stopped, self._looked_s = error.message, self._clock()
        _log.error("projection.stopped", projection=self.name, reason=error.message, hint=error.hint)
        # Where the log is another one, nothing is written: the rows belong to a log that may come back.
        if isinstance(error, ProjectionError):
            for follower in (self._serving, self._building):
                if follower is not None:
                    reason = f"{error.message}\n{error.fields['traceback']}"
                    follower.store.commit(ViewChanges((), notes={"stopped": reason}))

    def _restarts(self) -> bool:
        """Clear the halt and return True if a newer generation exists (`refold projection rebuild`)."""
        if self._clock() - self._looked_s < self._refresh_s:
            return False
        self._looked_s = self._clock()
        if max(self._database.generations(self.name), default=0) <= self._newest:
            return False
        self.stopped, self._looked_s = "", -self._refresh_s
        return True

    def _turn(self, timeout_s: float) -> int:
        if self._clock() - self._looked_s >= self._refresh_s:
            self._open_generations()
        count = self._serve(lambda serving: serving.advance(timeout_s)) or 0
        if self._building is not None:
            # A log that grows all the time is never read to its end: where it ended before this turn will do.
            bounds = self._source.bounds() if self._near else None
            built = self._building.advance(0 if count else timeout_s)
            self._near = built < MOST_RECORDS
            if bounds is not None and not any(lags(self._building.positions, bounds).values()):
                self._switch(self._building)
            count += built
        return count

    def _serve(self, work: Callable[[Follower], int | None]) -> int | None:
        """Advance the generation in use; close it if this log does not fit it and another is being built."""
        if self._serving is None:
            return None
        try:
            return work(self._serving)
        except UsageError as error:
            if self._building is None:
                raise
            self._leave_serving(error)
            return None

    def _leave_serving(self, error: UsageError) -> None:
        _log.warning("projection.left", projection=self.name, generation=self._number, reason=error.message)
        if self._serving is not None:
            self._serving.close()
        self._serving = None

    def _open_generations(self) -> None:
        """Open the existing generations; make one if none has this version."""
        if not self._database.lock(self.name):
            raise ConflictError(f"another process keeps the views of {self.name} up to date")
        serving, building = self._tidied()
        if not self._is_current(serving) and not building:
            building = max(serving, self._newest) + 1
            self._database.create(self.name, building, self.tables, self.begun())
            self._newest = building
        if self._building is None or self._next != building:
            self._building, self._next = self._open(building) if building else None, building
            self._near = False
        if self._serving is None or self._number != serving:
            self._number, self._serving = serving, None
            if self._is_current(serving):
                self._open_serving(building)
        self._looked_s = self._clock()

    def _open_serving(self, building: int) -> None:
        try:
            self._serving = self._open(self._number, self._send)
            if self._serving.rows is not None:
                self._serving.rows.begin()
        except UsageError as error:
            # Users read it as it stands until the next one is built; with no such one the projection halts.
            if not building:
                raise
            self._leave_serving(error)

    def _tidied(self) -> tuple[int, int]:
        """Drop all other generations; return the numbers in use and being built, 0 for none."""
        # A crash can leave a replaced one undropped. A build of another version cannot go on: its tables differ.
        states = self._database.generations(self.name)
        self._newest = max(states, default=0)
        serving = next((number for number, state in states.items() if state == "serving"), 0)
        building = self._newest if self._newest != serving and self._is_current(self._newest) else 0
        for number in states.keys() - {serving, building}:
            self._database.drop(self.name, number)
        return serving, building

    @property
    def tables(self) -> tuple[ViewTable, ...]:
        return Projector.tables_of(self.projection)

    def begun(self) -> dict[str, str]:
        return {"log": self._source.identity(), **made_by(self.projection)}

    def _is_current(self, number: int) -> bool:
        """True if a generation was made by this version of the projection, with its inputs."""
        if not number:
            return False
        return self._database.store(self.name, number).notes().items() >= made_by(self.projection).items()

    def _open(self, number: int, send: SendRows | None = None) -> Follower:
        store = self._database.store(self.name, number)
        if store.notes().get("stopped"):  # its code may have changed
            store.commit(ViewChanges((), notes={"stopped": ""}))
        rows = RunRows(store, send, self._in_use) if send else None
        return Follower(self.projection, store, self._source, clock=self._clock, rows=rows)

    def _in_use(self) -> ViewReader:
        return self._database.store(self.name, serving(self._database, self.name))

    def _switch(self, building: Follower) -> None:
        if (serving := self._serving) is not None:
            ends = {place: max(at, serving.positions.get(place, 0)) for place, at in building.positions.items()}
            self._serve(lambda follower: follower.reach(ends))
            building.reach(ends)
        if (serving := self._serving) is not None:
            with serving.store.snapshot() as view:
                # A process whose lock has passed on may have applied more to it: its erasures would count twice.
                if any(serving.positions.get(place) != at for place, at in view.positions().items()):
                    raise ConflictError(f"another process has moved generation {self._number} of {self.name}")
                building.store.commit(carried(self.projection, view, building))
        old, number = self._number, self._next
        if old and self._send:
            gone = {REPLACED: " ".join(self._gone(old, building.store))}
            building.store.commit(ViewChanges((), moves=fenced(building.positions), notes=gone))
        self._database.switch(self.name, number, self.projection.tables)
        counts = dict(building.projector.counts)
        _log.info("projection.switched", projection=self.name, generation=number, records=counts)
        self.close()
        if old:
            self._database.drop(self.name, old)

    def _gone(self, old: int, store: ViewReader) -> list[str]:
        """Return published runs that no longer exist: a halted generation has missed their erasure."""
        gone = {str(row[0]) for row in self._database.store(self.name, old).scan(RUN_IDS)}
        return sorted(gone.difference(str(row[0]) for row in store.scan(RUN_IDS)))


def made_by(projection: Projection) -> dict[str, str]:
    return {"version": str(projection.version), "inputs": projection.inputs}


def carried(projection: Projection, serving: ViewReader, building: Follower) -> ViewChanges:
    """Return changes that copy erased runs' parts in sums to a generation at the same position."""
    changes = ViewChanges(projection.tables, moves=fenced(building.positions))
    for table in projection.tables:
        if table.sums:
            own, stored = (
                {row[: table.keys]: row for row in view.scan(table) if row[table.keys - 1]}
                for view in (building.store, serving)
            )
            changes.rows[table] = dict.fromkeys((*own, *stored))
            changes.sums[table] = {key: [int(amount) for amount in row[table.keys :]] for key, row in stored.items()}
    return changes


def verify(
    projection: Projection,
    database: ViewDatabase,
    scratch: ViewDatabase,
    source: LogSource,
    progress: Callable[[int, int], object] = lambda done, whole: None,
) -> ProjectionVerified:
    """Fold the log again up to the position of a live view, and compare all rows. **Raises** NotFoundError;
    ConflictError for rows of another version or other prices. `progress` receives the records read and their total."""
    number = serving(database, projection.name)
    with database.store(projection.name, number).snapshot() as view:
        _check_made(projection, view)
        until = view.positions()
        starts = {place: start for place, (start, _) in source.bounds().items()}
        tables = {table: _digest(table, view, starts) for table in projection.tables}
        slot = KeptProjection(projection, scratch, source)
        scratch.create(projection.name, 1, slot.tables, slot.begun())
        again = Follower(projection, scratch.store(projection.name, 1), source)
        whole = sum(until.values())
        while any(again.positions[place] < end for place, end in until.items()):
            again.advance(0.2, until)
            progress(sum(again.positions[place] for place in until), whole)
        again.close()
        pairs = {table: (digest, _digest(table, again.store, starts)) for table, digest in tables.items()}
        differing = (table for table, (own, other) in pairs.items() if own != other)
        differences = [row for table in differing for row in _differences(table, (view, again.store), starts)]
    return ProjectionVerified(
        projection=projection.name,
        generation=number,
        equal=not differences,
        tables=[
            TableDigest(table=table.name, view=f"{own:032x}", log=f"{other:032x}", equal=own == other)
            for table, (own, other) in pairs.items()
        ],
        differences=differences,
    )


def _check_made(projection: Projection, view: ViewReader) -> None:
    notes = view.notes()
    for name, own in made_by(projection).items():
        if own != (stored := notes.get(name, "")):
            raise ConflictError(
                f"the view of {projection.name} was made by {name} {stored or 'none'}, and here is {own or 'none'}",
                hint="verify with the same --app and packages, or build it anew: `refold projection rebuild`",
            )


def serving(database: ViewDatabase, projection: str) -> int:
    """Return the number of the generation in use. **Raises** NotFoundError."""
    for number, state in database.generations(projection).items():
        if state == "serving":
            return number
    hint = "`refold serve projections` builds it; `refold projection list` shows all"
    raise NotFoundError(f"no generation of projection {projection} is in use", hint=hint)


def _digest(table: ViewTable, store: ViewReader, starts: Mapping[Place, int]) -> int:
    return rows_digest(table, _comparable(table, store, starts, in_order=False))


def _comparable(
    table: ViewTable, store: ViewReader, starts: Mapping[Place, int], *, in_order: bool = True
) -> Iterator[ViewRow]:
    rows = store.scan(table, in_order=in_order)
    if table.fading:
        topic, partition, offset = (table.places[name] for name in table.fading)
        return (row for row in rows if row[offset] >= starts.get((row[topic], row[partition]), 0))  # type: ignore[arg-type, operator]
    # No log has the parts of erased runs in sums.
    return (row for row in rows if not (table.sums and row[table.keys - 1]))


def _differences(
    table: ViewTable, stores: tuple[ViewReader, ViewReader], starts: Mapping[Place, int]
) -> Iterator[RowDifference]:
    """Iterate over differing rows in key order. Sums of 0 equal missing ones."""
    sides = (_keyed_rows(table, store, starts, side) for side, store in enumerate(stores))
    for key, rows in groupby(merge(*sides, key=itemgetter(0)), key=itemgetter(0)):
        by_side = {side: row for _, side, row in rows}
        if (own := by_side.get(0)) != (other := by_side.get(1)):
            row = own or other
            run = str(row[table.run_place]) if row and "run_id" in table.places else ""
            view, log = _by_column(table, own), _by_column(table, other)
            yield RowDifference(table=table.name, key=[*map(_json_value, key)], run_id=run, view=view, log=log)


def _by_column(table: ViewTable, row: ViewRow | None) -> dict[str, object] | None:
    return None if row is None else dict(zip(table.names, map(_json_value, row), strict=True))


def _json_value(value: Scalar) -> object:
    return value.hex() if isinstance(value, bytes) else value


def _keyed_rows(
    table: ViewTable, store: ViewReader, starts: Mapping[Place, int], side: int
) -> Iterator[tuple[ViewRow, int, ViewRow]]:
    for row in _comparable(table, store, starts):
        if not table.sums or any(row[table.keys :]):
            yield row[: table.keys], side, row


MANY_RECORDS = 1_000
"""Records after which an idle process returns memory: a rebuild leaves 30 MiB."""


class Pace:
    """Rests of projections that have caught up: none for the few records of a run after a quiet time, `PACE_S` in a
    steady stream, whose records share commits."""

    def __init__(self) -> None:
        self._spent_s = self._at_s = 0.0

    def rest_s(self, now_s: float, work_s: float) -> float:
        """Return the seconds to rest after a batch that took this CPU time."""
        self._spent_s = max(0.0, self._spent_s - SHARE * (now_s - self._at_s)) + work_s
        self._spent_s, self._at_s = min(self._spent_s, BURST_S + SHARE * PACE_S), now_s
        return max(0.0, self._spent_s - BURST_S) / SHARE


def keep_all(
    slots: Collection[KeptProjection], stop: Callable[[], bool], stand: Callable[[str], None] = lambda _: None
) -> None:
    """Update projections until `stop`. Each round reports those halted or behind, or an empty text, to `stand`."""
    read, pace = MANY_RECORDS, Pace()
    while not stop():
        begun_s = time.thread_time()
        busy = sum(slot.turn(0.0) for slot in slots)
        if not busy:
            if read >= MANY_RECORDS:
                read = 0
                give_back()
            busy = sum(slot.turn(0.1 / len(slots)) for slot in slots)
        read += busy
        stand(_late_names(slots, busy))
        if 0 < busy < MOST_RECORDS:
            # CPU time: on a busy machine, and while a batch waits for its first record, time passes without work.
            time.sleep(pace.rest_s(time.monotonic(), time.thread_time() - begun_s))
    for slot in slots:
        slot.close()


def _late_names(slots: Collection[KeptProjection], busy: int) -> str:
    late = ", ".join(slot.name for slot in slots if not slot.serves) or "it" * (busy >= MOST_RECORDS)
    return f"{late} has not caught up, or stands still" if late else ""
