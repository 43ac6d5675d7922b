"""Every transition of `decide`, by example."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.core.events import (
    AttemptFailed,
    CallCompleted,
    CallDispatched,
    CallDoubted,
    CallFailed,
    NoteRecorded,
    RunCancelled,
    RunCompleted,
    RunRequested,
    RunStarted,
    SleepEnded,
    SleepStarted,
)
from refold.core.planning.budgets import answer_ms, dispatch
from refold.core.planning.decide import MAX_RETRY_AFTER_MS, decide
from refold.core.planning.matrix import backoff_ms
from refold.core.planning.verdict import Again, Due, Ignore, Park, Refuse
from tests.core.histories import BOOM, NOW, RULES, RUN, Log, call, calling, doubting, signal, start, started


class TestStart:
    def test_a_request_makes_a_run_that_starts_at_once(self) -> None:
        events = Log().feed(start(requester="ann", labels={"team": "x"}))

        assert events == [
            RunRequested("deploy", "{}", start().digest, "seed", requester="ann", labels={"team": "x"}),
            RunStarted("test"),
        ]

    def test_what_came_before_the_run_is_heard_before_it_starts(self) -> None:
        log = Log()

        events = log.feed(replace(start(), waits=True))
        started = log.feed(Due(RUN, 0, NOW))

        assert isinstance(events, list)
        assert [type(event) for event in events] == [RunRequested]
        assert started == [RunStarted("test")]

    def test_a_request_for_later_waits(self) -> None:
        log = Log()

        events = log.feed(start(not_before_ms=NOW + 5))

        assert isinstance(events, list)
        assert [type(event) for event in events] == [RunRequested]
        assert log.live.status == "pending"

    @pytest.mark.parametrize(("at", "starts"), [(NOW + 4, False), (NOW + 5, True)])
    def test_a_run_for_later_starts_when_its_time_has_come(self, at: int, starts: bool) -> None:
        log = Log()
        log.feed(start(not_before_ms=NOW + 5))
        log.now = at

        verdict = log.feed(Due(RUN, 0, NOW))

        assert (verdict == [RunStarted("test")]) is starts

    def test_the_same_request_again_is_ignored(self) -> None:
        assert isinstance(started().feed(start()), Ignore)

    def test_a_request_with_other_input_is_refused(self) -> None:
        verdict = started().feed(start(input="[1]"))

        assert isinstance(verdict, Refuse)
        assert verdict.code == "conflict"

    def test_what_is_about_an_unknown_run_is_parked(self) -> None:
        known = calling()

        assert isinstance(decide(None, signal("cancel"), NOW, RULES), Park)
        assert isinstance(decide(None, known.result(), NOW, RULES), Park)


class TestResult:
    def test_a_result_completes_the_call(self) -> None:
        log = calling()

        assert log.feed(log.result()) == [CallCompleted(1, 1, '"done"')]

    def test_a_second_result_is_ignored(self) -> None:
        log = calling()
        log.feed(log.result())

        assert isinstance(log.feed(log.result(result='"other"')), Ignore)

    def test_a_result_of_an_earlier_attempt_completes_the_call_too(self) -> None:
        log = calling()
        log.feed(log.result(status="failed"))
        log.now = log.due().due_ms
        log.feed(log.due())

        assert log.feed(log.result(attempt=1)) == [CallCompleted(1, 1, '"done"')]

    @pytest.mark.parametrize("effect", ["pure", "keyed", "probed", "once"])
    def test_a_failure_before_the_effect_is_tried_again(self, effect: str) -> None:
        log = calling(effect)
        wait = backoff_ms(call().retry, 1, f"{RUN}/1")

        assert log.feed(log.result(status="failed")) == [AttemptFailed(1, 1, BOOM, False, NOW + wait)]

    def test_the_tool_may_ask_for_its_own_delay(self) -> None:
        log = calling()

        assert log.feed(log.result(status="failed", retry_after_ms=7)) == [AttemptFailed(1, 1, BOOM, False, NOW + 7)]

    def test_no_delay_of_a_tool_is_beyond_a_year(self) -> None:
        log = calling()

        events = log.feed(log.result(status="failed", retry_after_ms=2**63 - 1))

        assert events == [AttemptFailed(1, 1, BOOM, False, NOW + MAX_RETRY_AFTER_MS)]

    def test_a_failure_that_is_not_retryable_ends_the_call(self) -> None:
        log = calling()

        assert log.feed(log.result(status="failed", retryable=False)) == [CallFailed(1, 1, BOOM)]

    def test_the_last_attempt_ends_the_call(self) -> None:
        log = calling(attempts=1)

        assert log.feed(log.result(status="failed")) == [CallFailed(1, 1, BOOM)]

    @pytest.mark.parametrize("effect", ["keyed", "probed"])
    def test_an_unknown_outcome_is_tried_again_where_that_is_safe(self, effect: str) -> None:
        log = calling(effect)

        (event,) = log.feed(log.result(status="unknown", retryable=False))  # type: ignore[misc]

        assert isinstance(event, AttemptFailed)
        assert event.unknown
        assert log.live.open[1].may_have_happened

    def test_an_unknown_outcome_of_a_pure_call_is_only_a_failure(self) -> None:
        log = calling("pure", attempts=1)

        assert log.feed(log.result(status="unknown")) == [CallFailed(1, 1, BOOM)]

    def test_an_unknown_outcome_of_a_once_call_is_a_doubt(self) -> None:
        log = calling("once")

        assert log.feed(log.result(status="unknown")) == [CallDoubted(1, 1, BOOM)]

    @pytest.mark.parametrize("effect", ["keyed", "probed"])
    def test_an_unknown_outcome_of_the_last_attempt_is_a_doubt(self, effect: str) -> None:
        log = calling(effect, attempts=1)

        assert log.feed(log.result(status="unknown")) == [CallDoubted(1, 1, BOOM)]

    def test_a_failure_after_an_unknown_outcome_leaves_it_unknown(self) -> None:
        log = calling("keyed", attempts=2)
        log.feed(log.result(status="unknown"))
        log.now = log.due().due_ms
        log.feed(log.due())

        assert log.feed(log.result(status="failed", attempt=2)) == [CallDoubted(1, 2, BOOM)]

    def test_a_failure_of_a_call_that_waited_in_its_queue_is_certain(self) -> None:
        log = calling("keyed", attempts=1)
        log.now = log.due().due_ms
        log.feed(log.due())

        assert log.feed(log.result(status="failed")) == [CallFailed(1, 1, BOOM)]

    def test_a_declared_doubt_is_one_whatever_the_policy(self) -> None:
        log = calling("pure")

        assert log.feed(log.result(status="doubt")) == [CallDoubted(1, 1, BOOM)]

    def test_a_broken_result_fails_the_call_for_good(self) -> None:
        log = calling()

        assert log.feed(log.result(status="broken")) == [CallFailed(1, 1, BOOM, acted=True)]

    @pytest.mark.parametrize("status", ["failed", "unknown", "doubt", "broken"])
    def test_a_failure_of_another_attempt_is_ignored(self, status: str) -> None:
        log = calling()

        assert isinstance(log.feed(log.result(status=status, attempt=2)), Ignore)

    def test_a_failure_without_a_reason_gets_one(self) -> None:
        log = calling(attempts=1)

        (event,) = log.feed(log.result(status="failed", failure=None))  # type: ignore[misc]

        assert isinstance(event, CallFailed)
        assert event.failure.message == "the executor gave no reason"

    @pytest.mark.parametrize("name", ["nonsense", "run-1/", "run-1/x", "run-1/03", "run-1/0", "/3"])
    def test_a_result_without_a_call_id_is_refused(self, name: str) -> None:
        log = calling()

        verdict = log.feed(replace(log.result(), call_id=name))

        assert isinstance(verdict, Refuse)
        assert verdict.code == "malformed"

    @pytest.mark.parametrize("seq", [1, 4, 99])
    def test_a_result_for_what_is_no_call_is_refused(self, seq: int) -> None:
        log = calling()
        log.append([NoteRecorded(2, "thought", "1")])

        verdict = log.feed(replace(log.result(), call_id=f"{RUN}/{seq}"))

        assert isinstance(verdict, Refuse)
        assert verdict.code == "unknown_call"

    def test_a_result_of_a_step_that_had_this_number_before_is_refused(self) -> None:
        log = calling()

        verdict = log.feed(replace(log.result(), step=2))

        assert isinstance(verdict, Refuse)
        assert verdict.code == "unknown_call"

    def test_a_status_that_does_not_exist_is_refused(self) -> None:
        log = calling()

        assert isinstance(log.feed(log.result(status="splendid")), Refuse)


class TestLate:
    """What an executor says whom another has overtaken."""

    @pytest.mark.parametrize("effect", ["pure", "keyed", "probed"])
    @pytest.mark.parametrize("status", ["failed", "unknown"])
    def test_its_failure_says_nothing_of_whoever_acts_now(self, effect: str, status: str) -> None:
        log = calling(effect)

        assert isinstance(log.feed(log.result(status=status, late=True, retryable=False)), Ignore)
        assert log.feed(log.result()) == [CallCompleted(1, 1, '"done"')]

    def test_its_result_is_the_result(self) -> None:
        log = calling()

        assert log.feed(log.result(late=True)) == [CallCompleted(1, 1, '"done"', "late")]

    def test_a_late_word_of_a_status_hook_is_that_of_the_hook(self) -> None:
        log = calling("probed")

        assert log.feed(log.result(late=True, how="probed")) == [CallCompleted(1, 1, '"done"', "probed")]

    def test_nobody_acts_now_where_a_human_has_to_be_asked(self) -> None:
        log = calling("once")

        assert log.feed(log.result(status="failed", late=True, retryable=False)) == [CallFailed(1, 1, BOOM)]

    def test_what_happened_badly_has_happened(self) -> None:
        log = calling()

        assert log.feed(log.result(status="broken", late=True)) == [CallFailed(1, 1, BOOM, acted=True)]


class TestTime:
    def test_an_unanswered_call_goes_out_again_without_an_entry(self) -> None:
        log = calling()
        log.now = log.due().due_ms

        verdicts = [log.feed(log.due()) for _ in range(4)]

        assert verdicts == [Again(1)] * 4
        assert len(log.entries) == 2

    def test_an_unanswered_call_waits_longer_every_time(self) -> None:
        waits = [answer_ms(call(), times, RULES) - 30_000 for times in range(5)]

        assert waits == [10_000, 20_000, 40_000, 40_000, 40_000]

    def test_after_the_backoff_the_next_attempt_goes_out(self) -> None:
        log = calling()
        log.feed(log.result(status="failed"))
        log.now = log.due().due_ms

        assert log.feed(log.due()) == [CallDispatched(1, 2, log.now + 30_000 + 10_000)]

    def test_nothing_happens_early_or_for_a_deadline_that_was_moved(self) -> None:
        log = calling()
        first = log.due()
        log.now = first.due_ms - 1
        assert isinstance(log.feed(first), Ignore)

        log.now += 1
        assert log.feed(first) == Again(1)

        log.feed(log.result(status="failed", retry_after_ms=60_000))
        assert isinstance(log.feed(first), Ignore)

    def test_a_sleep_ends(self) -> None:
        log = started()
        log.append([SleepStarted(1, NOW + 9)])
        log.now += 9

        assert log.feed(log.due()) == [SleepEnded(1)]

    @pytest.mark.parametrize("failed", [True, False])
    def test_what_could_arrive_after_the_key_window_is_not_tried_again(self, failed: bool) -> None:
        log = calling("keyed", window_ms=60_000)
        if failed:
            log.feed(log.result(status="unknown", retry_after_ms=30_001))
        else:
            log.now += 30_001
        log.now = max(log.now, log.due().due_ms)

        (event,) = log.feed(log.due())  # type: ignore[misc]

        assert isinstance(event, CallDoubted)
        assert event.failure.code == "key_window"

    def test_what_arrives_within_the_key_window_is_tried_again(self) -> None:
        log = calling("keyed", window_ms=60_000)
        log.feed(log.result(status="unknown", retry_after_ms=30_000))
        log.now = log.due().due_ms

        (event,) = log.feed(log.due())  # type: ignore[misc]

        assert isinstance(event, CallDispatched)

    def test_the_first_wait_is_the_timeout_and_the_grace(self) -> None:
        assert dispatch(call(), 1, NOW, RULES) == CallDispatched(1, 1, NOW + 40_000)


class TestEnd:
    @pytest.mark.parametrize("log", [started(), calling(), doubting()], ids=["running", "calling", "suspended"])
    def test_a_run_is_cancelled_from_anywhere(self, log: Log) -> None:
        assert log.feed(signal("cancel", '{"reason":"enough"}')) == [RunCancelled("enough", "ann")]

    def test_a_run_that_is_still_pending_is_cancelled(self) -> None:
        log = Log()
        log.feed(start(not_before_ms=NOW + 5))

        assert log.feed(signal("cancel")) == [RunCancelled("", "ann")]
        assert isinstance(log.feed(Due(RUN, 0, NOW)), Ignore)

    def test_after_the_end_everything_is_ignored(self) -> None:
        log = calling()
        late = log.result()
        log.append([RunCompleted("null")])

        for what in (late, signal("cancel"), Due(RUN, 1, NOW), start()):
            assert isinstance(log.feed(what), Ignore)

    def test_a_signal_that_does_not_exist_is_refused(self) -> None:
        assert isinstance(started().feed(signal("sing")), Refuse)


class TestSource:
    """Where a result came from, as its executor reports it."""

    @pytest.mark.parametrize("how", ["", "stored", "probed"])
    def test_the_source_and_the_time_of_a_result_are_recorded(self, how: str) -> None:
        log = calling()

        events = log.feed(log.result(how=how, began_ms=NOW - 70, took_ms=50))

        assert events == [CallCompleted(1, 1, '"done"', how, NOW - 70, 50)]

    @pytest.mark.parametrize("how", ["late", "cached", "STORED", "x" * 10_000])
    def test_a_source_that_an_executor_made_up_is_recorded_as_none(self, how: str) -> None:
        log = calling()

        assert log.feed(log.result(how=how)) == [CallCompleted(1, 1, '"done"')]

    @pytest.mark.parametrize(("began_ms", "took_ms"), [(-1, 5), (NOW, -5), (2**62, 5), (NOW, 2**62)])
    def test_times_that_cannot_be_are_recorded_as_unknown(self, began_ms: int, took_ms: int) -> None:
        log = calling()

        events = log.feed(log.result(how="stored", began_ms=began_ms, took_ms=took_ms))

        assert events == [CallCompleted(1, 1, '"done"', "stored")]
