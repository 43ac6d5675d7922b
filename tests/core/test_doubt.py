"""Every transition of `decide`, by example: calls of which nobody knows what became."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.core.events import (
    CallCompleted,
    CallDispatched,
    CallFailed,
    CallRenewed,
    DoubtResolved,
    Failure,
    LateResultRecorded,
    RunFailed,
    RunRetried,
    StepGivenUp,
)
from refold.core.planning.decide import decide
from refold.core.planning.pausing import RequestedAt
from refold.core.planning.verdict import Again, Ignore, Refuse
from tests.core.histories import BOOM, NOW, RULES, calling, doubting, operation, resolve


class TestDoubt:
    def test_a_late_result_settles_it(self) -> None:
        log = doubting()

        assert log.feed(log.result(late=True)) == [CallCompleted(1, 1, '"done"', "late")]

    def test_a_late_word_that_nothing_happened_settles_it(self) -> None:
        log = doubting()

        events = log.feed(log.result(status="failed", late=True, retryable=False))

        assert events == [CallFailed(1, 1, BOOM)]

    def test_a_late_word_that_it_happened_badly_settles_it(self) -> None:
        log = doubting()

        assert log.feed(log.result(status="broken", late=True)) == [CallFailed(1, 1, BOOM, acted=True)]

    @pytest.mark.parametrize("effect", ["once", "keyed", "probed"])
    def test_a_call_that_was_given_up_in_doubt_is_not_tried_again_when_its_executor_says_nothing_happened(
        self, effect: str
    ) -> None:
        log = doubting(effect)
        log.append([StepGivenUp(1)])

        assert log.feed(log.result(status="failed", late=True)) == [CallFailed(1, 1, BOOM)]

    @pytest.mark.parametrize("effect", ["keyed", "probed"])
    def test_a_call_that_was_given_up_in_doubt_is_not_tried_again_when_people_say_nothing_happened(
        self, effect: str
    ) -> None:
        log = doubting(effect)
        log.append([StepGivenUp(1)])

        events = log.feed(operation("resolve", resolve("did_not_happen")))

        failed = CallFailed(1, 1, Failure("given_up", "nobody waits for it"))
        assert events == [DoubtResolved(1, 1, "did_not_happen", "op"), failed]

    def test_a_second_doubt_is_ignored(self) -> None:
        log = doubting()

        assert isinstance(log.feed(log.result(status="doubt", late=True)), Ignore)

    def test_nothing_is_due_while_it_lasts(self) -> None:
        log = doubting()

        assert isinstance(log.feed(log.due()), Ignore)

    def test_a_human_says_that_it_happened(self) -> None:
        log = doubting()

        events = log.feed(operation("resolve", resolve("happened", result={"a": 1}, comment="I saw it")))

        assert events == [
            DoubtResolved(1, 1, "happened", "op", "I saw it"),
            CallCompleted(1, 1, '{"a":1}'),
        ]

    def test_a_human_says_that_it_did_not_and_it_is_tried_again(self) -> None:
        log = doubting("keyed")
        deadline = NOW + 30_000 + 10_000

        events = log.feed(operation("resolve", resolve("did_not_happen")))

        assert events == [DoubtResolved(1, 1, "did_not_happen", "op"), CallDispatched(1, 2, deadline)]

    def test_a_human_gives_up(self) -> None:
        log = doubting()

        _, event = log.feed(operation("resolve", resolve("give_up")))  # type: ignore[misc]

        assert isinstance(event, CallFailed)
        assert event.failure.code == "given_up"

    def test_the_same_word_again_is_ignored_and_another_is_a_conflict(self) -> None:
        log = doubting("keyed")
        log.feed(operation("resolve", resolve("did_not_happen")))

        assert isinstance(log.feed(operation("resolve", resolve("did_not_happen"))), Ignore)
        assert isinstance(log.feed(operation("resolve", resolve("happened"))), Refuse)

    @pytest.mark.parametrize(("sent_ms", "holds"), [(NOW - 1, False), (NOW, True), (None, True)])
    def test_what_was_said_before_the_doubt_is_no_answer_to_it(self, sent_ms: int | None, holds: bool) -> None:
        log = doubting("keyed")

        sent = None if sent_ms is None else RequestedAt(sent_ms)
        verdict = decide(log.live, operation("resolve", resolve("did_not_happen")), NOW + 9, RULES, sent=sent)

        assert isinstance(verdict, list) is holds

    @pytest.mark.parametrize(
        "data",
        [
            "null",
            "7",
            "{",
            resolve("perhaps"),
            resolve("happened", attempt=True),
            resolve("happened", step="1"),
            resolve("happened", attempt=2),
            resolve("happened", step=2),
        ],
    )
    def test_a_resolution_that_does_not_fit_is_refused(self, data: str) -> None:
        assert isinstance(doubting().feed(operation("resolve", data)), Refuse)

    def test_what_is_not_in_doubt_is_not_resolved(self) -> None:
        assert isinstance(calling().feed(operation("resolve", resolve("happened"))), Refuse)

    def test_after_a_human_ordered_it_anew_the_key_window_is_new(self) -> None:
        log = calling("keyed", window_ms=100_000)
        log.feed(log.result(status="doubt"))
        log.now += 120_000
        log.feed(operation("resolve", resolve("did_not_happen")))
        log.now = log.due().due_ms

        assert log.feed(log.due()) == Again(1), "the receiver has not seen the key at all"


class TestLateResultsAgainstAHuman:
    def test_the_same_result_is_ignored(self) -> None:
        log = doubting()
        log.feed(operation("resolve", resolve("happened", result="done")))

        assert isinstance(log.feed(log.result(late=True)), Ignore)

    def test_another_result_is_recorded_once(self) -> None:
        log = doubting("keyed")
        log.feed(operation("resolve", resolve("happened", result="mine")))

        events = log.feed(log.result(late=True))

        assert events == [LateResultRecorded(1, 1, "completed", '"done"', contradicts=True)]
        assert isinstance(log.feed(log.result(late=True)), Ignore)

    def test_of_an_attempt_one_late_result_is_recorded_whatever_its_executor_says(self) -> None:
        log = doubting("keyed")
        log.feed(operation("resolve", resolve("happened", result="mine")))

        told = [log.feed(replace(log.result(late=True), result=f'"{n}"')) for n in range(9)]

        assert [isinstance(each, Ignore) for each in told] == [False, *[True] * 8]

    @pytest.mark.parametrize("status", ["completed", "broken"])
    def test_it_happened_although_given_up(self, status: str) -> None:
        log = doubting("keyed")
        log.feed(operation("resolve", resolve("give_up")))

        (event,) = log.feed(log.result(status=status, late=True))  # type: ignore[misc]

        assert isinstance(event, LateResultRecorded)
        assert isinstance(log.feed(log.result(status=status, late=True)), Ignore)

    def test_it_happened_while_it_is_run_again(self) -> None:
        log = doubting("keyed")
        log.feed(operation("resolve", resolve("did_not_happen")))

        events = log.feed(log.result(late=True))

        assert events == [
            LateResultRecorded(1, 1, "completed", '"done"', contradicts=True),
            CallCompleted(1, 1, '"done"', "late"),
        ]

    def test_it_happened_badly_while_it_is_run_again(self) -> None:
        log = doubting("keyed")
        log.feed(operation("resolve", resolve("did_not_happen")))

        (event,) = log.feed(log.result(status="broken", late=True))  # type: ignore[misc]

        assert isinstance(event, LateResultRecorded)
        assert log.live.open[1].phase == "dispatched"
        assert isinstance(log.feed(log.result(status="broken", late=True)), Ignore)

    def test_equal_results_of_both_attempts_mean_that_it_happened_twice(self) -> None:
        log = doubting("keyed")
        log.feed(operation("resolve", resolve("did_not_happen")))
        log.feed(log.result(attempt=2))

        (event,) = log.feed(log.result(attempt=1, late=True))  # type: ignore[misc]

        assert isinstance(event, LateResultRecorded)
        assert event.contradicts

    def test_a_result_that_no_human_overruled_is_ignored(self) -> None:
        log = doubting()
        log.feed(operation("resolve", resolve("did_not_happen")))
        log.feed(log.result(attempt=2))

        assert isinstance(log.feed(log.result(attempt=2, result='"other"')), Ignore)
        assert isinstance(log.feed(log.result(attempt=1, status="failed", late=True)), Ignore)

    @pytest.mark.parametrize(("status", "recorded"), [("broken", False), ("completed", True)])
    def test_of_a_call_that_a_retry_has_asked_for_anew_only_a_result_contradicts(
        self, status: str, recorded: bool
    ) -> None:
        """What else its first attempts came to, the run has failed by: read again, it says nothing new."""
        log = calling("keyed")
        first = log.result(status=status)
        log.feed(log.result(status="broken"))
        log.append([RunFailed(BOOM)])
        log.append([RunRetried("ops", from_step=0, again=[1]), CallRenewed(1)])
        log.append([CallDispatched(1, 2, log.now + 1)])
        log.feed(log.result(status="doubt", attempt=2))
        log.feed(operation("resolve", resolve("happened", attempt=2, result="mine")))

        assert isinstance(log.feed(first), list) == recorded
