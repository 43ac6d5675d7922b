"""Projections in tests: tables that an app's projections make of the histories of runs."""

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

from refold.console.projections.projector import Projector, WholeRun
from refold.console.sql.opening import view_in_memory
from refold.core.errors import UsageError
from refold.core.ids import RunId
from refold.core.tables import ViewTable
from refold.core.topics import RUN_LOG
from refold.engine.ports.log import Record
from refold.sdk.app import App
from refold.sdk.projection import Projection
from refold.testing.agents import AgentRun

Rows = dict[str, list[dict[str, Any]]]


def project(app: App, *histories: AgentRun) -> Rows:
    """Return the rows that the app's projections make of these runs and their children, by table, in order of their
    keys. **Raises** UsageError if the app has no projection, or two runs have the same id; ProjectionError, which names
    run and event, if an `apply` raises."""
    if not app.projections:
        raise UsageError(f"app {app.name} has no projection", hint="put @app.projection on a subclass of Projection")
    runs = [run for history in histories for run in history.family]
    counts = Counter(run.state.run_id for run in runs)
    if twice := next((name for name, times in counts.items() if times > 1), None):
        hint = 'give each its own: AgentRun(app, "order", {...}, name="r-2")'
        raise UsageError(f"two runs have the id {twice}", hint=hint)
    pairs = enumerate(chain.from_iterable(run.records for run in runs))
    records = [Record(RUN_LOG, 0, at, *pair, list) for at, pair in pairs]
    rows: Rows = {}
    for projection in app.projections.values():
        rows |= _rows(projection(), records)
    return rows


def _rows(projection: Projection, records: list[Record]) -> Rows:
    with view_in_memory(Projector.tables_of(projection)) as store:
        Projector(projection, store, _Nowhere()).apply(records, {(RUN_LOG, 0): (0, len(records))})
        return {table.name: [_row_by_name(table, row) for row in store.scan(table)] for table in projection.tables}


def _row_by_name(table: ViewTable, row: tuple[Any, ...]) -> dict[str, Any]:
    return {name: value for name, value in zip(table.names, row, strict=True) if not (table.sums and name == "erased")}


class _Nowhere:
    partitions = 1

    def home(self, run: RunId) -> int:
        return 0

    def read(self, runs: Collection[RunId], ends: Mapping[int, int]) -> Mapping[RunId, WholeRun]:
        raise AssertionError("the history of a test is in order")
