"""What views have to contain when a case is over and they have caught up: what the log contains, and no erased run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from refold.console.projections.projector import HEADS, Projector
from refold.console.projections.service import KeptProjection, serving, verify
from refold.console.projections.shipped.projection import Shipped
from refold.console.projections.shipped.tables import DEAD_LETTER_ROWS, RUNS
from refold.core.messages import RunView
from refold.core.tables import ViewRow, ViewTable
from refold.core.topics import DEAD_LETTERS, RUN_SNAPSHOT
from refold.core.wire import codec
from refold.engine.ports.tables import rows_digest
from refold.sdk.projection import Projection
from tests.projections.judges import differences
from tests.projections.memory_views import MemoryViewDatabase, MemoryViewStore
from tests.projections.viewed import Viewed, folded, of_broker
from tests.simulator.world.surroundings import Surroundings
from tests.simulator.world.views import Outcomes, Views, priced

SHOWN = 3


def objections(views: Views) -> Iterator[str]:
    """Compare the views with the log, with a second account of their sums, and with views that are built anew."""
    views.settle()
    yield from views.wrong
    if views.wrong:
        return
    for projection in (priced(), views.outcomes()):
        yield from _unequal(views, projection)
    store = _store(views, Shipped.name)
    found = differences(Viewed(of_broker(views.world.broker), priced(), store))
    yield from (f"view: {each}" for each in found[:SHOWN])
    yield from _sums(views)
    yield from _named(views)
    yield from _published(views)
    yield from _rebuilt(views)
    yield from _published(views)


def _store(views: Views, name: str) -> MemoryViewStore:
    return views.database.store(name, serving(views.database, name))


def _unequal(views: Views, projection: Projection) -> Iterator[str]:
    compared = verify(projection, views.database, MemoryViewDatabase(), views.source())
    for each in compared.differences[:SHOWN]:
        yield f"view: {each.table} {each.key} is {each.view}, and by the log {each.log}"


def _sums(views: Views) -> Iterator[str]:
    """Sums of live runs are those of their rows, and with those of erased runs what all have added that were seen."""
    store, number = _store(views, Outcomes.name), serving(views.database, Outcomes.name)
    live, whole = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for tool, erased, n, total in store.scan(Outcomes.by_tool):
        amounts = Counter({(str(tool), "n"): int(n), (str(tool), "total"): int(total)})
        whole.update(amounts)
        if not erased:
            live.update(amounts)
    rows = Counter[tuple[str, str]]()
    for _, seq, tool in store.scan(Outcomes.rows):
        rows.update({(str(tool), "n"): 1, (str(tool), "total"): int(seq)})
    if +live != rows:
        yield f"sums: of live runs they are {+live}, and by their rows {rows}"
    known = views.sums[number]
    views.counts["views.erased"] += bool(known.erased)
    if +whole != +known.whole:
        yield f"sums: with erased runs they are {+whole}, and {+known.whole} was added"


def _named(views: Views) -> Iterator[str]:
    """Rows that name an erased run. Its head stays as long as its marker does, or for ever if the log has lost that."""
    world = views.world
    lost = any(world.broker.log(*place).cuts for place in views.places if place[0] == RUN_SNAPSHOT)
    # Whoever asks for an erased run once more is refused, and that letter lies in the log.
    again = {record[:3] for record in of_broker(world.broker) if record.topic in DEAD_LETTERS}
    alive = folded(of_broker(world.broker))
    for run in sorted(world.erasures.ever - alive.keys()):
        named = re.compile(rf"(?<![\w.\-]){re.escape(run)}(?![\w.\-])")
        for projection in (Shipped, Outcomes):
            store = _store(views, projection.name)
            for of in Projector.tables_of(projection()):
                if of == HEADS and (lost or run in world.erasures.marked):
                    continue
                for row in store.scan(of):
                    if not (of == DEAD_LETTER_ROWS and row[1:4] in again) and _names(row, named, run, world):
                        yield f"view: run {run} is erased, and a row of {of.name} names it: {row[: of.keys]}"


def _names(row: ViewRow, named: re.Pattern[str], run: str, world: Surroundings) -> bool:
    """True if a row names a run, and is not of a fork of it, which is a run of its own."""
    if world.erasures.forked(run, str(row[0]).partition("/")[0]):
        return False
    texts = (value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in row)
    return any(named.search(text) for text in texts)


def _published(views: Views) -> Iterator[str]:
    """The topic `run-view` has the rows of runs, and tombstones of all others that it ever had."""
    rows = {row[0]: row for row in _store(views, Shipped.name).scan(RUNS)}
    views.counts["views.buried"] += sum(value is None for value in views.topic.values())
    for run, value in views.topic.items():
        said = None if value is None else tuple(_columns(codec.decode(RunView, value)))
        if said != rows.pop(run, None) and run not in views.stale:
            yield f"run-view: of {run} it has {said!r}"
    yield from (f"run-view: it has nothing of {run!r}" for run in rows)


def _columns(view: RunView) -> Iterator[object]:
    """The columns of a row that was published."""
    return (getattr(view, name) for name in RUNS.names)


def _rebuilt(views: Views) -> Iterator[str]:
    """A view that is built anew has equal rows, and what erased runs have added."""
    before = {slot.name: _digests(views, slot) for slot in views.slots}
    for slot in views.slots:
        views.rebuild(slot)
    views.settle()
    yield from views.wrong
    for slot in views.slots:
        for name, digest in _digests(views, slot).items():
            if digest != before[slot.name][name]:
                yield f"view: {name} is another after a rebuild"


def _digests(views: Views, slot: KeptProjection) -> dict[str, int]:
    store = _store(views, slot.name)
    tables: list[ViewTable] = list(slot.projection.tables)
    return {table.name: rows_digest(table, store.scan(table)) for table in tables}
