"""Whoever listens to a run hears each of its records once: of what was before and of what comes, however they meet."""

from __future__ import annotations

import time

import pytest

from refold.client.reading.history import Run
from refold.client.watcher import Watch
from refold.core.errors import ConflictError
from refold.core.ids import RunId
from refold.core.topics import RUN_LOG
from refold.engine.ports.log import Record
from tests.cli.chronicle import Chronicle, completed, ended, proposed, requested

R = RunId("r")


@pytest.fixture
def records() -> list[Record]:
    """Give the records of a run from its beginning to its end."""
    chronicle = Chronicle()
    chronicle.add(R, requested(), proposed(1), completed(1), proposed(2), completed(2), ended())
    return [record for record in chronicle.reader.scan(RUN_LOG) if (record.key or b"").startswith(b"r/")]


def over(run: Run) -> int | None:
    """How many entries the run had when it was over."""
    return len(run.records) if run.state.over else None


@pytest.mark.parametrize(("listens", "read"), [(listens, read) for read in range(7) for listens in range(read + 1)])
def test_the_past_and_the_news_meet_without_a_gap_and_without_a_copy(
    records: list[Record], listens: int, read: int
) -> None:
    """News are heard from record `listens` on, and by the time that the past was read it had `read` records."""
    watch = Watch(R, over, look_back_at=time.monotonic(), fresh=False)

    for record in records[listens:]:
        watch.hear(record)
        watch.judge()
    assert not watch.answer.done()
    end = records[read].offset if read < len(records) else records[-1].offset + 1
    watch.catch_up(records[:read], end)
    watch.judge()

    assert watch.answer.result(0) == len(records)
    assert watch.current.void == []


def test_a_run_that_begins_now_needs_no_past(records: list[Record]) -> None:
    watch = Watch(R, over, look_back_at=float("inf"), fresh=True)

    for record in records:
        watch.hear(record)
        watch.judge()

    assert watch.answer.result(0) == len(records)


def test_a_run_that_was_thought_to_begin_is_read_from_the_past(records: list[Record]) -> None:
    watch = Watch(R, over, look_back_at=time.monotonic(), fresh=True)
    for record in records[3:]:
        watch.hear(record)
    watch.judge()
    assert not watch.answer.done()

    watch.catch_up(records[:4], records[4].offset)
    watch.judge()

    assert watch.answer.result(0) == len(records)


def test_what_a_judge_raises_is_the_answer_and_whoever_has_given_up_hears_nothing(records: list[Record]) -> None:
    def refuses(_: Run) -> int | None:
        raise ConflictError("another run")

    refused, gone = (Watch(R, refuses, look_back_at=0.0, fresh=True) for _ in range(2))
    gone.answer.cancel()
    for watch in (refused, gone):
        watch.hear(records[0])
        watch.judge()
        watch.refuse(ConflictError("late"))

    with pytest.raises(ConflictError, match="another run"):
        refused.answer.result(0)
    assert gone.answer.cancelled()
