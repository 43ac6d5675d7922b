"""When a run stops to wait and when it goes on is said by events, exactly when it changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.events import (
    CallCompleted,
    CallDispatched,
    CallProposed,
    Event,
    NoteRecorded,
    RetryPolicy,
    RunCompleted,
    RunFailed,
    RunResumed,
    RunStarted,
    RunSuspended,
    SleepEnded,
    SleepStarted,
    StatusSet,
)
from refold.core.run.fold import evolve
from refold.core.run.pausing import CODE, REASONS, status_after, status_change
from refold.core.run.state import WAITING, OpenStep, Status
from tests.core import approvals
from tests.core.histories import (
    BOOM,
    JUDGED,
    NOW,
    Log,
    asking,
    calling,
    examples,
    operation,
    random_log,
    resolve,
    start,
    started,
)

seeds = st.integers(0, 2**32)
SOON = NOW + 60_000


def signal_sent(log: Log) -> Log:
    """The same log, of which entries tell from now on."""
    log.tells = True
    return log


def last(log: Log) -> Event:
    return log.entries[-1][1].events[-1]


@examples
@given(seeds)
def test_the_status_by_events_alone_is_that_of_the_fold_after_every_entry(seed: int) -> None:
    log, said, state = random_log(seed), "pending", None

    for name, entry in log.entries:
        state, said = evolve(state, entry, name), status_after(said, entry.events)  # type: ignore[arg-type]

        assert said == state.status


@examples
@given(seeds)
def test_an_entry_tells_a_change_once_and_nothing_else(seed: int) -> None:
    statuses, said = list[Status](["pending"]), list[Event]()
    log, state = random_log(seed), None
    for name, entry in log.entries:
        state = evolve(state, entry, name)
        statuses.append(state.status)
        said += [event for event in entry.events if isinstance(event, RunSuspended | RunResumed)]

    changes = {("pending", "suspended"), ("running", "suspended"), ("suspended", "running"), ("failed", "suspended")}
    assert len(said) == sum(pair in changes for pair in pairwise(statuses))


def test_every_wait_has_a_reason() -> None:
    assert set(REASONS) == WAITING


def test_a_sleep_suspends_until_its_time_and_that_wakes() -> None:
    log = signal_sent(started())

    log.append([SleepStarted(1, NOW + 1_500)])
    suspended = last(log)
    log.append([SleepEnded(1), NoteRecorded(2, "thought", "1"), *_call(3)])

    assert suspended == RunSuspended("sleep", "2023-11-14T22:13:21.500Z")
    assert last(log) == RunResumed("2023-11-14T22:13:21.500Z")


def test_a_time_beyond_all_calendars_is_named_all_the_same() -> None:
    log = signal_sent(started())

    log.append([SleepStarted(1, 2**62)])

    assert last(log) == RunSuspended("sleep", f"{2**62} ms")


def test_a_question_suspends_by_its_id_and_the_answer_wakes_by_it() -> None:
    log = Log(rules=JUDGED, tells=True)
    log.feed(start())
    log.propose("keyed")
    approval = log.live.waits_for(1)
    suspended = last(log)

    log.feed(approvals.decided(log.live, 1, "approve", now=log.now))

    assert suspended == RunSuspended("approval", approval)
    assert last(log) == RunResumed(approval)


def test_a_doubt_suspends_by_its_call_and_what_is_said_of_it_wakes() -> None:
    log = signal_sent(calling("keyed"))

    log.feed(log.result(status="doubt"))
    suspended = last(log)
    log.feed(operation("resolve", resolve("did_not_happen")))

    assert suspended == RunSuspended("doubt", "run-1/3")
    assert last(log) == RunResumed("run-1/3")


def test_a_wait_between_attempts_suspends_by_its_call() -> None:
    log = signal_sent(calling("keyed"))

    log.feed(log.result(status="unknown"))
    suspended = last(log)
    log.now = log.live.open[1].due_ms
    log.feed(log.due())

    assert suspended == RunSuspended("backoff", "run-1/3")
    assert last(log) == RunResumed("run-1/3")


def test_what_others_have_to_do_is_named_before_what_time_does() -> None:
    log = signal_sent(asking("keyed"))

    log.append([SleepStarted(2, NOW + 5)])
    approval = log.live.waits_for(1)
    log.tells = False
    log.append([*_call(3)])
    log.tells = True
    log.append([CallCompleted(3, 1, "1")])

    assert last(log) == RunSuspended("approval", approval)


def test_of_several_times_the_first_is_named() -> None:
    log = signal_sent(started())

    log.append([SleepStarted(1, NOW + 9_000), SleepStarted(2, NOW + 1_000)])

    assert last(log) == RunSuspended("sleep", "2023-11-14T22:13:21.000Z")


def test_a_run_that_goes_on_and_waits_again_in_one_entry_says_nothing() -> None:
    log = signal_sent(started())
    log.append([SleepStarted(1, NOW + 1)])

    log.append([SleepEnded(1), StatusSet("again"), SleepStarted(2, NOW + 2)])

    assert last(log) == SleepStarted(2, NOW + 2)


@pytest.mark.parametrize("end", [RunCompleted("1"), RunFailed(BOOM)])
def test_a_run_that_ends_does_not_go_on_before(end: Event) -> None:
    log = signal_sent(started())
    log.append([SleepStarted(1, NOW + 1)])

    log.append([SleepEnded(1), end])

    assert last(log) == end


def test_code_that_was_held_is_what_wakes() -> None:
    log = signal_sent(started())
    log.append([SleepStarted(1, NOW + 1), SleepStarted(2, NOW + 9)])
    log.append([SleepEnded(1)])

    log.append(_call(3))

    assert last(log) == RunResumed(CODE)


def test_a_start_says_itself_that_the_run_runs() -> None:
    log = started()

    assert status_change(None, log.live, [RunStarted()]) == []


def test_many_open_steps_cost_no_more_than_a_few() -> None:
    log = started()
    log.append([SleepStarted(step, NOW + step) for step in range(1, 5_001)])
    state, looked_at = log.live, [0]

    class Counted:
        def items(self) -> Iterator[tuple[int, OpenStep]]:
            for item in state.open.items():
                looked_at[0] += 1
                yield item

    counted = replace(state, open=Counted())  # type: ignore[arg-type]

    assert isinstance(status_change(None, counted, [])[0], RunSuspended)
    assert looked_at[0] < 100


def _call(step: int) -> list[Event]:
    call = CallProposed(step, "push", "{}", "key", "default", "keyed", 30_000, RetryPolicy())
    return [call, CallDispatched(step, 1, SOON)]
