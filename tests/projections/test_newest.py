"""The list of the newest runs is that of all runs, cut: whatever lies in the log, and however the runs are chosen."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import pytest

from refold.client.operations.runs import Runs, Selector
from refold.client.reading.history import Run
from refold.client.reading.run import row_of
from refold.core.topics import RUN_LOG
from refold.engine.ports.log import Record
from tests.projections.logs import simulated
from tests.projections.viewed import Log

SEEDS = (1, 2, 3, 5, 8)
ANY = Selector()


def is_status(status: str) -> Callable[[Run], bool]:
    """Whether a run has this status, or is in doubt."""
    return lambda run: status == run.status or (status == "doubt" and bool(row_of(run).in_doubt))


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
@pytest.mark.parametrize("status", ["", "completed", "failed", "running", "suspended", "doubt"])
@pytest.mark.parametrize("seed", SEEDS)
def test_newest_runs_are_those_of_all(seed: int, status: str, limit: int) -> None:
    whole = simulated(seed)
    agent = next((run.state.request.agent for run in Runs(whole).all() if run.state.request), "")
    for log, which in itertools.product((whole, disturbed(whole, seed)), (ANY, Selector(agent=agent))):
        runs = Runs(log)
        everyone = runs.all()
        meant = [run for run in everyone if which.matches(run) and (not status or is_status(status)(run))]

        newest = runs.newest(limit, which.matches, is_status(status) if status else None)

        assert [row_of(run) for run in newest.runs] == [row_of(run) for run in meant[-limit:]]
        assert (newest.meant, newest.total) == (len(meant), len(everyone))
