"""Progress of projections, read from their database and the log."""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from refold.client.reading.projection import ProjectionGeneration, ProjectionInfo, ProjectionPosition
from refold.console.projections.following import lags, misplaced
from refold.console.projections.shipped.tables import APPROVALS, DEAD_LETTER_ROWS, HOLDS, STEPS
from refold.core.errors import ConflictError, NotFoundError
from refold.core.redaction import public_url
from refold.engine.ports.log import LogSource, Place
from refold.engine.ports.tables import Query, ViewDatabase, ViewReader, Where

SAMPLE_S = 1.0


def status_of(name: str, database: ViewDatabase, url: str, source: LogSource) -> ProjectionInfo:
    """Return the progress of a projection; one that is behind is measured for a second. **Raises** NotFoundError."""
    if not (numbers := database.generations(name)):
        names = ", ".join(database.projections()) or "none yet"
        hint = f"`refold serve projections` builds it; there is {names}"
        raise NotFoundError(f"there is no projection {name}", hint=hint)
    begun, before = time.monotonic(), _positions_before(name, database, numbers)
    # The log after the positions that are judged by it: the other way round, a view under load is ahead of its log.
    bounds, log = source.bounds(), source.identity()
    if any(sum(lags(positions, bounds).values()) for positions in before.values()):
        time.sleep(SAMPLE_S)
    generations = []
    for number, state in database.generations(name).items():
        try:
            store = database.store(name, number)
            notes, positions = store.notes(), store.positions()
        except (ConflictError, NotFoundError):
            continue
        reason = stands_still(notes, before.get(number, {}), log, bounds)
        lag = sum(lags(positions, bounds).values())
        read = sum(positions.values()) - sum(before.get(number, positions).values())
        rate = read / max(0.001, time.monotonic() - begun)
        generations.append(
            ProjectionGeneration(
                generation=number,
                state="stopped" if reason else "serving" if state == "serving" else "building",
                version=int(notes.get("version", "0")),
                lag=lag,
                rate=round(rate, 1),
                left_s=round(lag / rate, 1) if rate else 0.0,
                reason=reason,
                positions=_position_rows(positions, bounds),
            )
        )
    return ProjectionInfo(projection=name, database=public_url(url), bytes=database.bytes(), generations=generations)


def _positions_before(name: str, database: ViewDatabase, numbers: Iterable[int]) -> dict[int, Mapping[Place, int]]:
    before: dict[int, Mapping[Place, int]] = {}
    for number in numbers:
        with suppress(ConflictError, NotFoundError):  # a rebuild has just replaced it
            before[number] = database.store(name, number).positions()
    return before


def needs_of(view: ViewReader, since_ms: int) -> dict[str, int]:
    """Return the numbers of runs, calls and questions that need people, and of dead letters since `since_ms`."""
    steps = {"doubts": steps_in(view, "doubt"), "held": steps_in(view, "held")}
    letters = Query(DEAD_LETTER_ROWS, (Where("at_ms", ">=", since_ms),))
    questions = view.count(Query(APPROVALS, (Where("open", "=", 1),)))
    return {"stalled": view.count(Query(HOLDS)), **steps, "questions": questions, "dead_letters": view.count(letters)}


def steps_in(view: ViewReader, status: str) -> int:
    return view.count(Query(STEPS, (Where("status", "=", status),)))


def stands_still(
    notes: Mapping[str, str], positions: Mapping[Place, int], log: str, bounds: Mapping[Place, tuple[int, int]]
) -> str:
    return notes.get("stopped", "") or misplaced(notes, positions, log, bounds)


def _position_rows(positions: Mapping[Place, int], bounds: Mapping[Place, tuple[int, int]]) -> list[ProjectionPosition]:
    return [
        ProjectionPosition(topic=topic, partition=number, position=at, end=max(at, end))
        for (topic, number), (_, end) in sorted(bounds.items())
        for at in [positions.get((topic, number), 0)]
    ]
