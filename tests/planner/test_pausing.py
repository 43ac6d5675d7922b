"""A run that is paused: its planner lets nothing out and forgets nothing, through any crash and for any time."""

from __future__ import annotations

import pytest

from refold.core.ids import call_id
from tests.planner.clocked import DAY, NOW, Rig

HOUR = DAY // 24
RUN = "r-1"


def waiting(agent: str = "looking", given: object = None) -> Rig:
    """A run that waits for whatever it does first."""
    rig = Rig()
    rig.start(RUN, agent, given if given is not None else {"what": "it"})
    return rig.run(1_000)


def said(rig: Rig, *kinds: str) -> Rig:
    """Operators say this, one after the other at once."""
    for number, kind in enumerate(kinds):
        rig.operate(RUN, kind, {"reason": "look"}, name=f"{kind}-{number}-{rig.now}")
    return rig.run(1_000)


def went(rig: Rig) -> list[tuple[str, int, bool]]:
    """The attempts that were ordered, and whether each was said to have been before."""
    return [(request.tool, request.attempt, request.again) for request in rig.requests()]


def test_what_comes_is_kept_and_the_code_has_it_when_the_run_goes_on() -> None:
    rig = said(waiting(), "pause")
    [request] = rig.take()
    rig.answer(request)
    rig.run(1_000)
    kept = rig.kinds(RUN)[-2:]

    said(rig, "resume")

    assert kept == ["RunSuspended", "CallCompleted"]
    assert rig.kinds(RUN)[-2:] == ["RunUnpaused", "RunCompleted"]
    assert len(rig.requests()) == 1


@pytest.mark.parametrize("between", [0, 1, 2, 3])
def test_a_result_between_a_pause_and_its_end_is_lost_by_no_turn(between: int) -> None:
    rig = waiting("buying", {})
    [request] = rig.take()
    rig.operate(RUN, "pause", name="p")
    for _ in range(between):
        rig.turn()
    rig.answer(request)
    for _ in range(between):
        rig.turn()
    rig.operate(RUN, "resume", name="q")
    rig.say_go(RUN)
    rig.run(2 * HOUR)

    assert rig.kinds(RUN).count("CallCompleted") == 1
    assert rig.kinds(RUN).count("SleepEnded") == 1


def test_time_stands_still_and_goes_on_from_now() -> None:
    rig = said(waiting("napping", {"seconds": 3_600}), "pause")
    rig.run(DAY)
    paused = rig.kinds(RUN)[-1]

    said(rig, "resume")

    assert paused == "RunPaused"
    assert rig.kinds(RUN)[-1] == "RunCompleted"
    assert rig.history(RUN)[0].at_ms >= NOW + DAY


def test_time_that_is_not_over_goes_on_to_its_end() -> None:
    rig = said(waiting("napping", {"seconds": 3_600}), "pause", "resume")

    before = rig.kinds(RUN)[-1]
    rig.run(HOUR)

    assert before == "RunUnpaused"
    assert rig.kinds(RUN)[-1] == "RunCompleted"
    assert rig.history(RUN)[0].at_ms >= NOW + HOUR


def test_a_run_that_is_paused_before_it_begins_begins_when_it_goes_on() -> None:
    rig = Rig()
    rig.operate(RUN, "pause")
    rig.start(RUN, "looking", {"what": "it"})
    rig.run(DAY)
    before = rig.kinds(RUN), went(rig)

    said(rig, "resume")

    assert before == (["RunRequested", "RunPaused"], [])
    assert went(rig) == [("look", 1, False)]


@pytest.mark.parametrize("status", ["unknown", "failed"])
def test_no_further_attempt_goes_out_until_the_run_goes_on(status: str) -> None:
    rig = said(waiting(), "pause")
    [request] = rig.take()
    rig.answer(request, status)
    rig.run(DAY)
    before = went(rig)

    said(rig, "resume")

    assert before == [("look", 1, False)]
    assert went(rig) == [("look", 1, False), ("look", 2, False)]


def test_what_nobody_answers_is_asked_again_when_the_run_goes_on() -> None:
    rig = said(waiting(), "pause")
    rig.take()  # executors have passed it, and say nothing
    rig.run(DAY)
    before = went(rig)

    said(rig, "resume").run(HOUR // 60)

    assert before == [("look", 1, False)]
    assert went(rig)[:2] == [("look", 1, False), ("look", 1, True)]
    rig.answer(rig.take()[0])
    rig.run(1_000)
    assert rig.kinds(RUN)[-1] == "RunCompleted"


@pytest.mark.parametrize("crash", [False, True])
def test_an_order_that_was_not_sent_before_the_pause_goes_out_once_after_it(crash: bool) -> None:
    rig = waiting("buying", {})
    rig.answer(*rig.take())
    rig.run(HOUR)
    rig.say_go(RUN)
    rig.signal(RUN, "pause", name="p")
    rig.run(DAY)
    before = rig.kinds(RUN)[-4:], [request.tool for request in rig.requests()]
    if crash:
        rig.successor()
        rig.run(DAY)

    rig.signal(RUN, "resume", name="q")
    rig.run(5_000)

    assert before == (["CallDispatched", "RunResumed", "RunPaused", "RunSuspended"], ["look"])
    assert went(rig) == [("look", 1, False), ("pay", 1, crash)]
    rig.answer(*rig.take())
    rig.run(1_000)
    assert rig.kinds(RUN)[-1] == "RunCompleted"


def test_an_order_of_which_nobody_knows_whether_it_is_there_is_not_sent_again_meanwhile() -> None:
    rig = Rig()
    rig.silent = 1
    rig.start(RUN, "looking", {"what": "it"})
    while not rig.requests():
        rig.turn()
    rig.operate(RUN, "pause")
    rig.run(DAY)
    before = went(rig)

    said(rig, "resume")

    assert before[0] == ("look", 1, False)
    assert went(rig)[len(before) :] in ([], [("look", 1, True)])
    for request in rig.take()[:1]:
        rig.answer(request)
    rig.run(1_000)
    assert rig.kinds(RUN)[-1] == "RunCompleted"


@pytest.mark.parametrize("agent", ["looking", "napping", "called", "told"])
def test_a_successor_keeps_a_run_paused(agent: str) -> None:
    given: dict[str, dict[str, object]] = {"looking": {"what": "it"}, "napping": {"seconds": 60}}
    rig = said(waiting(agent, given.get(agent, {})), "pause")
    rig.run(DAY)  # its entries are in the snapshot
    before, orders = rig.kinds(RUN), went(rig)

    rig.successor()
    rig.run(DAY)

    assert (rig.kinds(RUN), went(rig)) == (before, orders)
    said(rig, "resume")
    assert rig.history(RUN)[0].paused == ()


def test_signals_and_answers_are_taken_meanwhile() -> None:
    rig = said(waiting("told", {}), "pause")
    rig.say_go(RUN)
    rig.run(1_000)
    before = rig.kinds(RUN)[-2:]

    said(rig, "resume")

    assert before == ["SignalReceived", "WaitEnded"]
    assert rig.kinds(RUN)[-1] == "RunCompleted"


def test_a_paused_run_is_cancelled_and_its_call_closed() -> None:
    rig = said(waiting(), "pause", "cancel")

    assert [outcome.status for outcome in rig.outcomes()] == ["cancelled"]
    assert rig.closed() == [call_id(RUN, 3)]


def test_pausing_twice_and_resuming_twice_is_like_once() -> None:
    rig = said(waiting(), "pause", "pause", "resume", "resume")

    assert [kind for kind in rig.kinds(RUN) if "aused" in kind] == ["RunPaused", "RunUnpaused"]
    assert rig.letters() == []


def test_a_run_that_nobody_knows_is_not_paused_and_somebody_hears_of_it() -> None:
    rig = Rig()
    rig.operate(RUN, "pause")
    rig.run(DAY)

    assert [letter.code for letter in rig.letters()] == ["unknown_run"]
