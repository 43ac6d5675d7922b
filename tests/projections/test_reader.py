"""A run that is read from rows is the run that the log gives."""

from __future__ import annotations

import pytest

from refold.client.reading.history import Run, at_seq
from refold.client.reading.run import events_of, info_of
from refold.console.projections.projector import HEADS
from refold.console.projections.runs import ViewedRuns
from tests.projections.logs import recorded, recovered, simulated
from tests.projections.viewed import Log, Viewed, folded

COUNT = 32
"""Logs that are read: here, so that collecting the tests makes none."""


def nth(number: int) -> Log:
    """One of the logs."""
    if number < 10:
        return simulated(number)
    return [recorded()["everything"], *recovered("retried").values()][number - 10]


def test_all_logs_are_read() -> None:
    assert len(recovered("retried")) == COUNT - 11


def shown(run: Run) -> tuple[object, ...]:
    """All that users see of a run, but for the records that do not count."""
    info = info_of(run).model_dump(exclude={"void_records", "hold"})
    places = [(each.record[:5], each.record.at_ms, each.id) for each in run.records]  # type: ignore[index]
    return info, events_of(run), places


def cannot_be_told(viewed: Viewed, run: str) -> bool:
    """Only the log can tell the history of a run that stalls."""
    return bool(viewed.store.rows(HEADS, [(run,)])[run,][HEADS.places["reason"]])


@pytest.mark.parametrize("number", range(COUNT))
def test_a_run_from_rows_is_the_run_of_the_log(number: int) -> None:
    viewed = Viewed.of(nth(number))
    runs = folded(viewed.log)

    assert runs
    for name, run in runs.items():
        read = ViewedRuns(viewed.store).find(name)
        if read is None:
            assert cannot_be_told(viewed, name)
            continue
        assert shown(read) == shown(run)
        assert read.state == run.state


@pytest.mark.parametrize("number", range(0, COUNT, 4))
def test_a_run_at_any_event_is_the_run_cut_off_there(number: int) -> None:
    viewed = Viewed.of(nth(number))

    for name, run in folded(viewed.log).items():
        for seq in {1, 2, run.state.head.seq // 2 or 1, run.state.head.seq - 1 or 1, run.state.head.seq}:
            read = ViewedRuns(viewed.store).find(name, min(seq, run.state.head.seq))
            if read is None:
                assert cannot_be_told(viewed, name)
                continue
            assert shown(read) == shown(at_seq(run, min(seq, run.state.head.seq)))


@pytest.mark.parametrize("number", range(0, COUNT, 4))
def test_points_that_are_folded_at_once_are_those_that_are_folded_alone(number: int) -> None:
    viewed = Viewed.of(nth(number))

    for name, run in folded(viewed.log).items():
        last = run.state.head.seq
        seqs = [last, 1, last // 2 or 1, last // 2 or 1, last - 1 or 1]
        points = ViewedRuns(viewed.store).points(name, seqs)
        if not points:
            assert cannot_be_told(viewed, name)
            continue
        alone = [at_seq(run, seq) for seq in seqs]
        assert [shown(point) for point in points] == [shown(each) for each in alone]
        assert [point.state for point in points] == [each.state for each in alone]
        assert [point.timeline.__dict__ for point in points] == [each.timeline.__dict__ for each in alone]


def test_a_run_that_has_no_rows_is_none() -> None:
    assert ViewedRuns(Viewed.of(simulated(1)).store).find("nobody") is None
