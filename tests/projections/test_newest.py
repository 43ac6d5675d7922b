"""The list of the newest runs is that of all runs, cut: whatever lies in the log, and however the runs are chosen."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import pytest

from refold.client.operations.runs import STATES, RunQuery, Runs
from refold.client.reading.history import Run
from refold.client.reading.run import ending_of, row_of
from refold.console.projections.runs import runs_query
from refold.core.ids import RunId
from refold.core.run.state import ENDED
from refold.core.topics import RUN_LOG
from refold.engine.ports.log import Record
from tests.projections.logs import simulated
from tests.projections.viewed import Log, Viewed

SEEDS = (1, 2, 3, 5, 8)


def disturbed(log: Log, seed: int) -> Log:
    """The same with the first entries of a run copied behind its last, and another run's turned around."""
    own = [each for each in log if each.topic == RUN_LOG and each.key and each.value is not None]
    names = sorted({(each.key or b"").partition(b"/")[0] for each in own})
    copied, turned = names[seed % len(names)], names[(seed + 1) % len(names)]
    first = [each for each in own if each.key and each.key.startswith(copied + b"/")][:2]
    moved = [each for each in own if each.key and each.key.startswith(turned + b"/")]
    rest = [each for each in log if each not in moved]
    numbers = {each.partition: itertools.count() for each in log if each.topic == RUN_LOG}
    return Log(_numbered([*rest, *reversed(moved), *first], numbers), log.number)


def _numbered(records: list[Record], numbers: Mapping[int, Iterator[int]]) -> Iterator[Record]:
    for each in records:
        yield each._replace(offset=next(numbers[each.partition])) if each.topic == RUN_LOG else each


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("state", ["", "completed", "failed", "running", "suspended", "doubt"])
@pytest.mark.parametrize("seed", SEEDS)
def test_newest_runs_are_those_of_all(seed: int, state: str, limit: int) -> None:
    whole = simulated(seed)
    agent = next((run.state.request.agent for run in Runs(whole).all() if run.state.request), "")
    for log, by in itertools.product((whole, disturbed(whole, seed)), ("", agent)):
        runs, query = Runs(log), RunQuery(agent=by, state=state, limit=limit)
        everyone = runs.all()
        meant = [run for run in everyone if query.matches(run)]

        newest = runs.newest(query)

        assert [row_of(run) for run in newest.runs] == [row_of(run) for run in meant[-limit:]]
        assert (newest.meant, newest.total) == (len(meant), len(everyone))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_query_selects_the_same_runs_of_a_log_and_of_a_view(seed: int) -> None:
    log = simulated(seed)
    runs, view, chosen = Runs(log).all(), Viewed.of(log).store, set[RunId]()
    for query in queries(runs):
        of_log = {run.state.run_id for run in runs if query.matches(run)}
        of_view = {RunId(str(row[0])) for row in view.query(runs_query(query))}

        assert of_view == of_log, query
        chosen |= of_log
    assert chosen == {run.state.run_id for run in runs}


def queries(runs: list[Run]) -> Iterator[RunQuery]:
    """Queries by each field that a log can answer, with values that some runs have."""
    yield from (RunQuery(state=state) for state in (*STATES, *ENDED))
    for run in runs:
        row, ending = row_of(run), ending_of(run).failed
        yield RunQuery(agent=row.agent, labels=tuple(row.labels.items()))
        yield RunQuery(session=row.sessions[0] if row.sessions else "", code=ending.code if ending else "")
        yield RunQuery(since_ms=row.at_ms, sort="at_ms")
