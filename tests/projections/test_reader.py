"""A run that is read from rows is the run that the log gives."""

from __future__ import annotations

import pytest

from refold.core.errors import NotFoundError
from refold.core.ids import RunId
from refold.operations.runs import Runs
from refold.projections.reader import EntriesReader
from refold.projections.shipped import tables
from refold.views.history import Run
from refold.views.run import events_of, info_of
from tests.projections.logs import Viewed, folded, recorded, recovered, simulated

LOGS = [recorded()["everything"], *recovered("retried").values(), *map(simulated, range(10))]


def shown(run: Run) -> tuple[object, ...]:
    """All that users see of a run, but for the records that do not count."""
    info = info_of(run).model_dump(exclude={"void_records", "hold"})
    places = [(each.record[:5], each.record.at_ms, each.id) for each in run.records]  # type: ignore[index]
    return info, events_of(run), places


@pytest.mark.parametrize("number", range(len(LOGS)))
def test_a_run_from_rows_is_the_run_of_the_log(number: int) -> None:
    viewed = Viewed.of(LOGS[number])
    runs = folded(viewed.log)

    assert runs
    for name, run in runs.items():
        read = Runs(EntriesReader(viewed.store, tables.ENTRIES, name)).get(name)
        assert shown(read) == shown(run)
        assert read.state == run.state


def test_a_run_that_has_no_rows_is_not_found() -> None:
    viewed = Viewed.of(simulated(1))

    with pytest.raises(NotFoundError, match="there is no run nobody"):
        Runs(EntriesReader(viewed.store, tables.ENTRIES, RunId("nobody"))).get("nobody")
    with pytest.raises(NotFoundError, match="records of run-log alone"):
        EntriesReader(viewed.store, tables.ENTRIES, RunId("nobody")).partitions("dead-letter")
