"""A paused run: nothing goes out of it and nothing is lost by it, whoever has paused it and however often."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.events import (
    ApprovalDecided,
    AttemptFailed,
    CallCompleted,
    CallDispatched,
    DoubtResolved,
    Event,
    RunCancelled,
    RunFailed,
    RunPaused,
    RunResumed,
    RunStarted,
    RunSuspended,
    RunUnpaused,
    SignalReceived,
    SleepEnded,
    SleepStarted,
    WaitEnded,
    WaitExpired,
)
from refold.core.messages import RunOperation, RunSignal
from refold.core.planning.decide import decide
from refold.core.planning.pausing import RequestedAt
from refold.core.planning.verdict import Due, Ignore, Refuse, Ruling
from refold.core.run.fold import evolve
from refold.core.run.pausing import blocked, inherited, own
from refold.core.run.state import RunState, Step
from tests.core import approvals
from tests.core.histories import (
    JUDGED,
    NOW,
    RUN,
    Log,
    asking,
    calling,
    doubting,
    examples,
    operation,
    random_log,
    resolve,
    signal,
    start,
    started,
    told,
)

LOOK = '{"reason":"look first"}'
PAUSED = RunPaused("op", "look first")
OVER = RunUnpaused("op")


def paused(log: Log) -> Log:
    """The same run, paused by an operator."""
    assert log.feed(operation("pause", LOOK)) == [PAUSED]
    return log


def said(log: Log, word: RunOperation | RunSignal, sent_ms: int, offset: int = 0) -> Ruling:
    """A word on a run that lay in its topic since then, there."""
    verdict = decide(log.state, word, log.now, log.rules, sent=RequestedAt(sent_ms, offset))
    if isinstance(verdict, list):
        log.append(verdict)
    return verdict


def test_a_paused_run_says_so_and_that_it_goes_on() -> None:
    log = calling()
    log.tells = True

    paused(log)
    stands = log.live.status, blocked(log.live)
    resumed = log.feed(operation("resume"))

    assert stands == ("suspended", ("paused", "op"))
    assert resumed == [OVER]
    assert [entry.events for _, entry in log.entries[-2:]] == [
        [PAUSED, RunSuspended("paused", "op")],
        [OVER, RunResumed("op")],
    ]


@pytest.mark.parametrize("kind", ["pause", "cancel"])
def test_a_reason_is_a_reason_and_no_megabyte(kind: str) -> None:
    log = calling()

    refused = log.feed(operation(kind, json.dumps({"reason": "x" * 4_097})))

    assert isinstance(refused, Refuse)
    assert refused.code == "malformed"
    assert isinstance(log.feed(operation(kind, json.dumps({"reason": "x" * 4_096}))), list)


def test_what_is_suspended_and_paused_stays_suspended_without_a_word() -> None:
    log = asking()
    log.tells = True

    paused(log)
    paused_on = blocked(log.live)
    log.feed(operation("resume"))

    kinds = [type(event) for _, entry in log.entries for event in entry.events]
    assert paused_on == ("paused", "op")
    assert not {RunSuspended, RunResumed} & {*kinds}
    assert blocked(log.live).reason == "approval"


def test_time_does_nothing_to_a_paused_run_and_what_was_due_is_due_then() -> None:
    log = started()
    log.append([SleepStarted(1, NOW + 1_000)])
    paused(log)
    log.now += 5_000

    kept = log.feed(log.due())
    log.feed(operation("resume"))

    assert isinstance(kept, Ignore)
    assert log.feed(log.due()) == [SleepEnded(1)]


def test_a_run_that_waits_for_its_time_does_not_start() -> None:
    log = Log()
    log.feed(start(not_before_ms=NOW + 1_000))
    paused(log)
    log.now += 5_000

    kept = log.feed(Due(RUN, 0, NOW + 1_000))
    stands = log.live.status
    went = log.feed(operation("resume"))

    assert (type(kept), stands) == (Ignore, "pending")
    assert isinstance(went, list)
    assert [type(event) for event in went] == [RunUnpaused, RunStarted]


def test_a_run_that_is_for_later_still_waits_for_its_time() -> None:
    log = Log()
    log.feed(start(not_before_ms=NOW + 1_000))

    assert paused(log).feed(operation("resume")) == [OVER]
    log.now += 5_000
    assert [type(event) for event in log.feed(Due(RUN, 0, NOW + 1_000))] == [RunStarted]


def test_a_run_whose_deadline_has_passed_meanwhile_ends_and_lets_nothing_out() -> None:
    log = Log(rules=JUDGED)
    log.feed(start(deadline_ms=NOW + 1_000))
    log.propose("keyed")
    paused(log)
    log.feed(approvals.decided(log.live, 1, "approve", now=log.now))
    log.now += 5_000

    went = log.feed(operation("resume"))

    assert isinstance(went, list)
    assert [type(event) for event in went] == [RunUnpaused, RunFailed]
    assert log.live.status == "failed"


def test_no_further_attempt_goes_out() -> None:
    log = calling()
    paused(log)

    failed = log.feed(log.result(status="failed"))
    log.now += 600_000
    kept = log.feed(log.due())
    log.feed(operation("resume"))

    assert isinstance(failed, list)
    assert isinstance(failed[0], AttemptFailed)
    assert isinstance(kept, Ignore)
    sent = log.feed(log.due())
    assert isinstance(sent, list)
    assert isinstance(sent[0], CallDispatched)
    assert sent[0].attempt == 2


def test_what_was_out_may_end_and_the_run_has_it() -> None:
    log = calling()
    paused(log)

    assert log.feed(log.result()) == [CallCompleted(1, 1, '"done"')]
    assert log.live.status == "suspended"


def test_a_call_that_people_let_go_goes_out_when_the_run_goes_on() -> None:
    log = asking()
    paused(log)

    decided = log.feed(approvals.decided(log.live, 1, "approve", now=log.now))
    stands = log.live.open[1].phase
    went = log.feed(operation("resume"))

    assert isinstance(decided, list)
    assert [type(event) for event in decided] == [ApprovalDecided]
    assert stands == "proposed"
    assert isinstance(went, list)
    assert [type(event) for event in went] == [RunUnpaused, CallDispatched]


def test_a_decision_that_has_expired_meanwhile_lets_nothing_out() -> None:
    log = asking()
    paused(log)
    log.feed(approvals.decided(log.live, 1, "approve", now=log.now))
    log.now += 40 * 86_400_000

    went = log.feed(operation("resume"))

    assert isinstance(went, list)
    assert not any(isinstance(event, CallDispatched) for event in went)
    assert log.live.open[1].phase == "approval"


def test_a_call_that_is_settled_as_not_done_goes_out_when_the_run_goes_on() -> None:
    log = doubting("probed")
    paused(log)

    settled = log.feed(operation("resolve", resolve("did_not_happen")))
    log.now += 1_000
    went = log.feed(operation("resume"))

    assert settled == [DoubtResolved(1, 1, "did_not_happen", "op")]
    assert isinstance(went, list)
    assert [type(event) for event in went] == [RunUnpaused, CallDispatched]
    assert log.live.open[1].attempt == 2


def test_a_signal_is_kept_and_a_wait_that_is_past_takes_none() -> None:
    log = started()
    log.wait("go", until_ms=NOW + 1_000)
    log.wait("stop")
    paused(log)
    log.now += 5_000

    late, taken = log.feed(told("s-1", "go")), log.feed(told("s-2", "stop"))
    log.feed(operation("resume"))

    assert late == [SignalReceived("s-1", "go", "null", "bob")]
    assert taken == [SignalReceived("s-2", "stop", "null", "bob"), WaitEnded(2, "s-2")]
    assert log.feed(log.due()) == [WaitExpired(1)]


def test_a_paused_run_is_cancelled() -> None:
    log = paused(calling())

    assert log.feed(operation("cancel")) == [RunCancelled("", "op")]
    assert log.live.status == "cancelled"


def test_who_asked_for_a_run_pauses_it_and_lets_it_go_on() -> None:
    log = calling()

    assert log.feed(signal("pause", LOOK)) == [RunPaused("ann", "look first", "requester")]
    assert log.feed(signal("resume")) == [RunUnpaused("ann", "requester")]


@pytest.mark.parametrize("kind", ["pause", "resume"])
def test_nobody_else_does(kind: str) -> None:
    log = calling()
    if kind == "resume":
        paused(log)

    found = log.feed(replace(signal(kind), actor="bob"))

    assert isinstance(found, Refuse)
    assert found.code == "operators_only"


def test_what_an_operator_has_paused_only_operators_let_go_on() -> None:
    log = calling()
    log.feed(signal("pause"))
    paused(log)

    found = log.feed(signal("resume"))

    assert isinstance(found, Refuse)
    assert found.code == "operators_only"
    assert own(log.live) == PAUSED
    assert log.feed(operation("resume")) == [OVER]
    assert not log.live.paused


def test_an_operator_ends_the_pause_of_who_asked_for_the_run() -> None:
    log = calling()
    log.feed(signal("pause"))

    assert log.feed(operation("resume")) == [OVER]


@pytest.mark.parametrize("says", [operation, signal])
def test_a_pause_that_is_there_is_not_said_again(says: type) -> None:
    assert isinstance(paused(calling()).feed(says("pause")), Ignore)


@pytest.mark.parametrize("says", [operation, signal])
def test_what_is_not_paused_is_not_resumed(says: type) -> None:
    assert isinstance(calling().feed(says("resume")), Ignore)


def test_nothing_is_paused_that_is_over() -> None:
    log = calling()
    log.feed(operation("cancel"))

    assert isinstance(log.feed(operation("pause")), Ignore)


def test_words_that_come_again_after_others_say_nothing() -> None:
    log = calling()
    log.now = NOW + 3_000
    said(log, signal("pause"), NOW + 1)
    said(log, operation("resume"), NOW + 2)

    again = said(log, signal("pause"), NOW + 1)

    assert isinstance(again, Ignore)
    assert not log.live.paused
    assert isinstance(said(log, operation("pause"), NOW + 3), list)


def test_a_word_is_heard_once_though_others_came_in_the_same_moment() -> None:
    log = calling()
    said(log, operation("pause"), NOW, 1)
    said(log, operation("resume"), NOW, 2)

    assert isinstance(said(log, operation("pause"), NOW, 1), Ignore)
    assert isinstance(said(log, operation("pause"), NOW, 3), list)


def test_an_operator_is_heard_though_a_user_has_said_something_since() -> None:
    log = calling()
    said(log, signal("pause"), NOW + 2)

    assert isinstance(said(log, operation("pause"), NOW + 1), list)
    assert isinstance(said(log, signal("resume"), NOW + 3), Refuse)


@given(st.integers(0, 2**32))
@examples
def test_nothing_goes_out_between_a_pause_and_its_end(seed: int) -> None:
    state: RunState | None = None
    for name, entry in random_log(seed, 80).entries:
        before, state = state, evolve(state, entry, name)
        if before is not None and before.paused and state.paused:
            assert not [event for event in entry.events if isinstance(event, _OUT)], entry


_OUT: tuple[type[Event], ...] = (
    *get_args(Step),
    *(RunStarted, CallDispatched, SleepEnded, WaitExpired, RunResumed),
)


@given(st.integers(0, 2**32))
@examples
def test_nothing_is_left_behind_by_a_pause(seed: int) -> None:
    log = random_log(seed, 80)
    if log.state is None or log.live.over or not log.live.paused:
        return

    log.feed(operation("resume"))

    assert not log.live.paused
    assert not [step for step, opened in log.live.open.items() if opened.phase == "proposed"]


def test_a_run_has_a_pause_of_its_own_and_one_of_the_run_above_it() -> None:
    log = paused(calling())
    log.append([RunPaused("boss", "", "parent")])

    log.feed(operation("resume"))
    stands = log.live.paused
    refused = log.feed(operation("resume"))

    assert stands == (RunPaused("boss", "", "parent"),)
    assert (own(log.live), inherited(log.live)) == (None, stands[0])
    assert isinstance(refused, Refuse)
    assert "resume that one" in refused.reason
    log.append([RunUnpaused("boss", "parent")])
    assert log.live.status == "running"
