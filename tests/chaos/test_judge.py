"""The judge catches every lie that is planted in a true story."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from refold.core.events import (
    CallCompleted,
    CallDispatched,
    CallFailed,
    CallProposed,
    Cause,
    Entry,
    Event,
    Failure,
    RetryPolicy,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRequested,
    RunStarted,
    SleepEnded,
    SleepStarted,
)
from refold.core.ids import log_key
from refold.core.messages import DeadLetter, RunOutcome, ToolRequest
from refold.core.wire import codec
from tests.chaos.judge import Evidence, Verdict, judge
from tests.chaos.raw import Raw
from tests.chaos.world import said_early

CAUSE = Cause("run-requested", 0, 0)
POISON = ("run-requested", 0, 1)
EFFECT = {
    "run": "r1",
    "label": "c1",
    "key": "k",
    "effect": "once",
    "applied": True,
    "value": 1,
    "waited_ms": 2,
    "at": 0.004,
}


def entries(*parts: list[Event]) -> list[Raw]:
    """The run log of r1 with these entries, chained as they should be."""
    records: list[Raw] = []
    seq, prev = 1, b""
    for offset, events in enumerate(parts):
        entry = Entry("r1", seq, prev, 1, CAUSE, "planner-1", bytes([offset]), events)
        name, value = codec.encode_entry(entry)
        records.append(Raw(0, offset, log_key("r1", seq, name), value, 1))
        seq, prev = seq + len(events), name
    return records


def proposed(effect: str = "once") -> list[Event]:
    call = CallProposed(1, "fire", '{"label":"c1","plan":"ok","run":"r1"}', "k", "default", effect, 1, RetryPolicy())
    return [RunRequested("errand", "{}", "d", "s"), RunStarted(), call, CallDispatched(1, 1, 9)]


def ended(result: str = "1") -> list[Event]:
    return [CallCompleted(1, 1, result), RunCompleted("[1]")]


def outcome(seq: int = 6) -> Raw:
    return Raw(0, 0, b"r1", codec.encode(RunOutcome("r1", "completed", "errand", "[1]", None, seq, CAUSE, 1)))


def letter(topic: str, partition: int, offset: int) -> Raw:
    return Raw(
        0, 0, b"p", codec.encode(DeadLetter(topic, partition, offset, "malformed", "no", b"", b"", "planner-1", 1))
    )


def request() -> Raw:
    return Raw(0, 0, b"r1/3", codec.encode(ToolRequest("r1/3", "r1", 1, 1, 0, "fire", "{}", "k", "once", 1)))


def truth(**other: Any) -> Evidence:
    """A story in which nothing is wrong, but for what is said otherwise."""
    story = Evidence(
        acked={"r1": b""},
        maybe=set(),
        cancelled=set(),
        poison={POISON},
        effects=[EFFECT],
        run_log=entries(proposed(), ended()),
        outcomes=[outcome(), outcome()],
        letters=[letter(*POISON)],
        requests=[request(), Raw(0, 1, b"r1/3", None)],
    )
    return dataclasses.replace(story, **other)


def test_a_true_story_is_clean() -> None:
    verdict = judge(truth())

    assert verdict.problems() == {}
    assert verdict.counts["effects.once"] == 1


FAILED: list[Event] = [CallFailed(1, 1, Failure("timeout", "")), RunCompleted("[1]")]
LIES: dict[str, tuple[Callable[[], Evidence], str]] = {
    "a request is gone": (lambda: truth(acked={"r1": b"", "r2": b""}), "lost"),
    "an outcome is missing": (lambda: truth(outcomes=[]), "lost"),
    "two outcomes differ": (lambda: truth(outcomes=[outcome(), outcome(seq=7)]), "lost"),
    "an outcome is not the log's": (lambda: truth(outcomes=[outcome(seq=7)]), "wrong"),
    "a poison has no dead letter": (lambda: truth(letters=[]), "lost"),
    "a good input is a dead letter": (lambda: truth(letters=[letter(*POISON), letter("run-requested", 0, 0)]), "wrong"),
    "an effect happened twice": (lambda: truth(effects=[EFFECT, {**EFFECT, "value": 2}]), "twice"),
    "a key changed with the attempt": (
        lambda: truth(
            effects=[{**EFFECT, "effect": "keyed"}, {**EFFECT, "effect": "keyed", "key": "k2", "applied": False}],
            run_log=entries(proposed("keyed"), ended()),
        ),
        "twice",
    ),
    "an effect that nobody proposed": (lambda: truth(effects=[EFFECT, {**EFFECT, "label": "c9"}]), "wrong"),
    "a result without its effect": (lambda: truth(effects=[]), "wrong"),
    "a result of something else": (lambda: truth(run_log=entries(proposed(), ended("2"))), "wrong"),
    "a timeout taken for a failure": (lambda: truth(run_log=entries(proposed(), FAILED)), "unlisted"),
    "a run that is not over": (lambda: truth(run_log=entries(proposed())), "stuck"),
    "a call that is still asked for": (lambda: truth(requests=[request()]), "wrong"),
}


@pytest.mark.parametrize("lie", LIES)
def test_the_judge_catches(lie: str) -> None:
    story, kind = LIES[lie]

    verdict: Verdict = judge(story())

    assert kind in verdict.problems()


HOUR_MS = 3_600_000


def dated(records: list[Raw], *appended: int) -> list[Raw]:
    """The same records, appended at other moments."""
    return [record._replace(at_ms=at_ms) for record, at_ms in zip(records, appended, strict=True)]


def napping(slept_ms: int, until_ms: int = 301) -> list[Raw]:
    """A run that was to sleep for 300 ms."""
    request = RunRequested("errand", '{"nap_ms":300}', "d", "s")
    asleep: list[Event] = [request, RunStarted(), SleepStarted(1, until_ms)]
    return dated(entries(asleep, [SleepEnded(1), RunCompleted("[]")]), 1, 1 + slept_ms)


@pytest.mark.parametrize("kind", ["keyed", "probed"])
@pytest.mark.parametrize(("wiped", "excused"), [([2.0], True), ([0.0], False), ([9.0], False)])
def test_an_effect_behind_a_wipe_is_told_from_a_lie_about_a_failure(
    kind: str, wiped: list[float], excused: bool
) -> None:
    effect = {**EFFECT, "effect": kind}

    verdict = judge(truth(effects=[effect], run_log=entries(proposed(kind), FAILED), wiped=wiped))

    assert ("unlisted" not in verdict.problems()) is excused
    assert verdict.counts["failed_and_done_behind_a_wipe"] == excused


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        pytest.param(napping(100), "wrong", id="a sleep was too short"),
        pytest.param(napping(340, until_ms=101), "wrong", id="a sleep is counted from a moment that never was"),
        pytest.param(napping(HOUR_MS), "stuck", id="a sleep was far too long"),
        pytest.param(dated(entries(proposed(), ended()), 1, HOUR_MS), "stuck", id="a run stood still for an hour"),
        pytest.param(dated(entries(proposed(), ended()), 1, -HOUR_MS), "wrong", id="an entry comes from the future"),
    ],
)
def test_the_judge_looks_at_the_clock(log: list[Raw], kind: str) -> None:
    assert kind in judge(truth(run_log=log, effects=[])).problems()


def test_a_sleep_of_the_right_length_is_none_of_its_business() -> None:
    story = truth(run_log=napping(340), effects=[], requests=[], outcomes=[outcome(seq=5)])

    assert "stuck" not in judge(story).problems()
    assert judge(story).counts["sleeps"] == 1


def test_a_run_that_failed_is_wrong_unless_its_agent_gives_up() -> None:
    log = entries(proposed(), [CallCompleted(1, 1, "1"), RunFailed(Failure("agent_error", ""))])

    assert any("r1 failed" in problem for problem in judge(truth(run_log=log)).wrong)
    assert not any("r1 failed" in problem for problem in judge(truth(run_log=log, failing={"r1"})).wrong)
    assert any("gives up" in problem for problem in judge(truth(failing={"r1"})).wrong)


def test_what_may_be_repeated_is_repeated_a_few_times_and_never_long_after_its_end() -> None:
    log, pure = entries(proposed("pure"), ended()), {**EFFECT, "effect": "pure"}

    few = judge(truth(run_log=log, effects=[pure] * 3))
    many = judge(truth(run_log=log, effects=[pure] * 9))
    late = judge(truth(run_log=log, effects=[pure, {**pure, "at": 60.0}]))
    open_until = [request(), Raw(0, 1, b"r1/3", None, 50_000)]
    taken_over = judge(truth(run_log=log, effects=[pure, {**pure, "at": 60.0}], requests=open_until))
    claimed = {**EFFECT, "effect": "keyed", "at": 60.0}
    keyed = judge(truth(run_log=entries(proposed("keyed"), ended()), effects=[claimed], requests=open_until))

    assert taken_over.problems() == {}, "its order was withdrawn after 50 s"
    assert "wrong" in keyed.problems(), "the ledger has its claim"
    assert few.problems() == {}
    assert few.counts["pure_repeats"] == 2
    assert "wrong" in many.problems()
    assert "wrong" in late.problems()


def test_what_a_cancelled_run_was_told_has_to_be_true_as_well() -> None:
    log = entries(proposed(), [CallCompleted(1, 1, "99")], [RunCancelled("", "user")])

    verdict = judge(truth(run_log=log, cancelled={"r1"}))

    assert any("has the result 99" in problem for problem in verdict.wrong)


def test_a_late_effect_of_a_stalled_process_is_told_from_a_mistake() -> None:
    late = {**EFFECT, "effect": "probed", "value": 2, "waited_ms": 4_000}
    log = entries(proposed("probed"), ended())

    stalled = judge(truth(effects=[{**EFFECT, "effect": "probed"}, late], run_log=log))
    twice = judge(truth(effects=[{**EFFECT, "effect": "probed"}, {**late, "waited_ms": 3}], run_log=log))

    assert stalled.problems() == {}
    assert stalled.counts["twice_by_stall"] == 1
    assert "twice" in twice.problems()


def test_a_record_that_does_not_extend_the_head_is_void() -> None:
    log = entries(proposed(), ended())
    rival = entries([*proposed(), RunCompleted('"rival"')])[0]
    changed = log[1]._replace(offset=7, value=(log[1].value or b"")[:-1] + b"?")

    verdict = judge(truth(run_log=[log[0], rival._replace(offset=1), *log[1:], changed]))

    assert verdict.problems() == {}
    assert verdict.counts["void.raced"] == 1
    assert verdict.counts["void.hash"] == 1


def test_what_is_said_before_a_run_is_asked_for_may_be_dead() -> None:
    said = Raw(0, 7, b"r1/s-0", b"{}", 4)
    asked = Raw(0, 0, b"r1", b"{}", 5)

    assert said_early({"run-requested": [asked], "run-signalled": [said], "run-operated": []}) == {
        ("run-signalled", 0, 7)
    }
    late = {"run-requested": [asked], "run-signalled": [], "run-operated": [said._replace(at_ms=6)]}
    assert said_early(late) == set()


@pytest.mark.parametrize("early", [True, False])
def test_a_signal_of_an_unknown_run_is_wrong_unless_it_was_early(early: bool) -> None:
    place = ("run-signalled", 0, 7)
    told = DeadLetter(*place, "unknown_run", "no", b"r1/s-0", b"", "planner-1", 1)
    found = truth(letters=[letter(*POISON), Raw(0, 1, b"p", codec.encode(told))], early={place} if early else set())

    assert ("wrong" in judge(found).problems()) is not early
