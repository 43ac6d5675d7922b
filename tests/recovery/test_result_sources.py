"""The source of a result and the time of its attempt, as executors report them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.core.ids import CallId, RunId
from refold.core.messages import ToolRequest
from refold.engine.executor.settings import ExecutorSettings
from tests.recovery.executor_rig import Rig

CALL = ToolRequest(CallId("r1/3"), RunId("r1"), 1, 1, 0, "fire", "{}", "key", "keyed", 3_000)


def executed(effect: str) -> Rig:
    """An executor whose tool has run for 250 ms from the time 1,001,000."""
    rig = Rig()
    rig.now_ms = 1_000_990
    rig.ask(replace(CALL, effect=effect))
    rig.now_ms += 240
    rig.end(result='"ok"')
    return rig


@pytest.mark.parametrize("effect", ["pure", "keyed", "probed", "once"])
def test_a_tool_that_ran_reports_when_it_began_and_how_long_it_took(effect: str) -> None:
    (result,) = executed(effect).results

    assert (result.status, result.how) == ("completed", "")
    assert (result.began_ms, result.took_ms) == (1_001_000, 250)


@pytest.mark.parametrize("status", ["failed", "broken", "unknown"])
def test_an_attempt_without_a_result_reports_its_time_too(status: str) -> None:
    rig = Rig()
    rig.now_ms = 1_000_990
    rig.ask(CALL)
    rig.now_ms += 240

    rig.end(status)

    assert [(result.status, result.began_ms, result.took_ms) for result in rig.results] == [(status, 1_001_000, 250)]


@pytest.mark.parametrize("effect", ["pure", "keyed", "probed", "once"])
def test_a_second_request_is_answered_by_the_ledger_with_the_times_of_the_first_attempt(effect: str) -> None:
    rig = executed(effect)
    rig.now_ms += 60_000

    rig.ask(replace(CALL, effect=effect, again=True))

    first, second = rig.results
    assert (first.how, second.how) == ("", "stored")
    assert replace(second, how="") == first
    assert len(rig.started) == 1


def test_a_result_that_a_dead_process_left_in_the_outbox_is_published_as_that_of_the_tool() -> None:
    rig = Rig()
    rig.ask(CALL)
    rig.silent = True
    rig.end(result='"ok"')
    other = rig.successor()

    other.turn(after_ms=2_000)
    other.turn(after_ms=100)

    assert rig.results == []
    assert {(result.status, result.how) for result in other.results} == {("completed", ""), ("completed", "stored")}
    assert len({replace(result, how="") for result in other.results}) == 1


def probing() -> Rig:
    """An executor that has just asked the status hook of a call, whose first executor has died."""
    rig = Rig()
    rig.ask(replace(CALL, effect="probed"))
    other = rig.successor()
    other.now_ms = rig.now_ms
    for _ in range(1_000):
        if other.started:
            break
        other.turn(after_ms=100)
    assert [start.probe for start in other.started] == [True]
    return other


def test_a_hook_that_says_it_happened_is_the_source_of_the_result() -> None:
    rig = probing()
    began_ms = rig.now_ms

    rig.now_ms += 90
    rig.end("happened", '"it did"')

    (result,) = rig.results
    assert (result.status, result.result, result.how) == ("completed", '"it did"', "probed")
    assert (result.began_ms, result.took_ms) == (began_ms, 100)


def test_a_tool_that_runs_after_its_hook_has_said_no_is_its_own_source() -> None:
    rig = probing()
    rig.end("did_not_happen")
    assert [start.probe for start in rig.started] == [True, False]

    rig.end(result='"ok"')

    (result,) = rig.results
    assert (result.status, result.how, result.took_ms) == ("completed", "", 310)


def test_a_result_after_the_timeout_is_late_and_has_its_whole_time() -> None:
    rig = Rig(ExecutorSettings())
    rig.ask(CALL)
    rig.turn(after_ms=3_000)
    timeout = rig.results[-1]

    rig.end(result='"ok"')

    result = rig.results[-1]
    assert (timeout.status, timeout.took_ms) == ("unknown", 3_000)
    assert (result.status, result.late, result.how) == ("completed", True, "")
    assert result.began_ms == timeout.began_ms
    assert result.took_ms > 3_000


def test_a_call_that_was_never_begun_has_no_time() -> None:
    rig = Rig()
    rig.ask(replace(CALL, attempt=3))
    rig.end("failed")

    rig.ask(replace(CALL, attempt=2))

    result = rig.results[-1]
    assert (result.attempt, result.status, result.began_ms, result.took_ms) == (2, "unknown", 0, 0)
