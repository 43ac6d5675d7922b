"""Timers: one for each step that waits for time, none for what is settled."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from refold.core.events import CallCompleted, RunCancelled, SleepStarted
from refold.core.ids import RunId
from refold.engine.planner.intake.timers import Timers
from tests.core.histories import RUN, Log, call, examples, random_log, started

seeds = st.integers(0, 2**32)


def due_by(timers: Timers, log: Log) -> None:
    """The timers of a run are those of its open steps."""
    opened = {} if log.live.over or log.live.paused else log.live.open
    expected = sorted((step.due_ms, n) for n, step in opened.items() if step.due_ms)
    if log.live.status == "pending" and log.live.request and not log.live.paused:
        expected = sorted([*expected, (max(1, log.live.request.not_before_ms), 0)])

    assert [(due.due_ms, due.step) for due in timers.due(10**15)] == expected


@examples
@given(seeds)
def test_what_is_due_is_what_the_state_says_followed_or_rebuilt(seed: int) -> None:
    log, whole, followed, rebuilt = random_log(seed), Log(), Timers(), Timers()
    for _, entry in log.entries:
        whole.append(entry.events)
        followed.follow(whole.live, entry)
    rebuilt.rebuild(whole.live)

    due_by(followed, whole)
    due_by(rebuilt, whole)


def test_the_timers_of_settled_calls_go() -> None:
    timers, log = Timers(), started()
    timers.rebuild(log.live)
    for step in range(1, 2_001):
        log.append([call(step)])
        timers.follow(log.live, log.entries[-1][1])
        log.append([CallCompleted(step, 1, "1")])
        timers.follow(log.live, log.entries[-1][1])

    assert len(timers._heap) < 100
    assert timers.next_ms() is None


def test_the_timers_of_a_cancelled_run_go() -> None:
    timers, log = Timers(), started()
    log.append([SleepStarted(1, 10**14)])
    timers.follow(log.live, log.entries[-1][1])

    log.append([RunCancelled("", "ann")])
    timers.follow(log.live, log.entries[-1][1])

    assert timers.next_ms() is None


def test_a_timer_that_was_moved_fires_once_at_its_new_time() -> None:
    timers, rng, last = Timers(), random.Random(7), 0
    for _ in range(500):
        last = rng.randrange(1, 1_000)
        timers.set(RunId(RUN), 1, last)

    assert [due.due_ms for due in timers.due(2_000)] == [last]
    assert len(timers._heap) < 100
