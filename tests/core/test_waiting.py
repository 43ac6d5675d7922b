"""Signals and waits: who gets what, once, and what those hear who come too late."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refold.core.errors import FoldError
from refold.core.events import (
    Event,
    MatchFailed,
    RunCompleted,
    RunRetried,
    SignalDropped,
    SignalReceived,
    WaitEnded,
    WaitExpired,
    WaitStarted,
)
from refold.core.planning import waiting
from refold.core.planning.decide import ENDED_MS, decide
from refold.core.planning.pausing import RequestedAt
from refold.core.planning.verdict import Ignore, Refuse
from refold.core.run.mailbox import signal_bytes
from tests.core.histories import (
    NOW,
    RULES,
    RUN,
    Log,
    examples,
    random_input,
    random_reaction,
    start,
    started,
    told,
)


def words(log: Log) -> list[str]:
    """The names of all events since the start."""
    return [type(event).__name__ for _, entry in log.entries[1:] for event in entry.events]


def refused(verdict: object) -> tuple[str, str]:
    assert isinstance(verdict, Refuse)
    return verdict.code, verdict.reason


class TestSignals:
    def test_a_signal_goes_to_the_wait_that_is_open(self) -> None:
        log = started()
        step = log.wait()

        verdict = log.feed(told(data={"n": 1}))

        received = SignalReceived("s-1", "go", '{"n":1}', "bob")
        assert verdict == [received, WaitEnded(step, "s-1")]
        assert log.live.outcomes[step][:2] == (NOW, received)
        assert not log.live.open
        assert not log.live.mail.kept

    def test_a_signal_that_comes_before_the_wait_is_kept_for_it(self) -> None:
        log = started()

        verdict = log.feed(told())
        step = log.wait()

        assert verdict == [SignalReceived("s-1", "go", "null", "bob")]
        assert log.entries[-1][1].events == [WaitStarted(step, "go"), WaitEnded(step, "s-1")]

    def test_a_signal_that_comes_before_the_run_starts_is_kept(self) -> None:
        log = Log()
        log.feed(start(not_before_ms=NOW + 1_000))

        log.feed(told())

        assert log.live.status == "pending"
        assert list(log.live.mail.kept) == ["s-1"]

    def test_the_same_signal_again_is_the_same_signal_kept_or_taken(self) -> None:
        log = started()
        log.feed(told())

        kept = log.feed(told())
        log.wait()
        taken = log.feed(told())
        log.wait()

        assert isinstance(kept, Ignore)
        assert isinstance(taken, Ignore)
        assert words(log) == ["SignalReceived", "WaitStarted", "WaitEnded", "WaitStarted"]

    def test_another_signal_of_the_same_id_is_refused(self) -> None:
        log = started()
        log.feed(told())
        kept = log.feed(told(data=2))
        log.wait()
        taken = log.feed(told(name="stop"))

        assert refused(kept)[0] == refused(taken)[0] == "conflict"

    def test_two_equal_waits_take_a_signal_each_in_the_order_of_asking(self) -> None:
        log = started()
        first, second = log.wait(), log.wait()

        one = log.feed(told("s-1"))
        other = log.feed(told("s-2"))
        third = log.feed(told("s-3"))

        assert isinstance(one, list)
        assert isinstance(other, list)
        assert one[-1] == WaitEnded(first, "s-1")
        assert other[-1] == WaitEnded(second, "s-2")
        assert third == [SignalReceived("s-3", "go", "null", "bob")]

    def test_kept_signals_are_taken_in_the_order_in_which_they_came(self) -> None:
        log = started()
        for number in (3, 1, 2):
            log.feed(told(f"s-{number}"))

        waits = [log.wait() for _ in range(3)]

        assert [log.live.mail.taken[f"s-{number}"] for number in (3, 1, 2)] == waits

    def test_two_waits_of_one_turn_do_not_take_the_same_signal(self) -> None:
        log = started()
        log.feed(told("s-1"))
        log.feed(told("s-2"))

        first, _ = waiting.find_kept(log.live, WaitStarted(1, "go"), ())
        second, _ = waiting.find_kept(log.live, WaitStarted(2, "go"), {"s-1"})

        assert first
        assert second
        assert (first.signal_id, second.signal_id) == ("s-1", "s-2")

    def test_a_signal_of_another_name_is_kept_beside_the_wait(self) -> None:
        log = started()
        log.wait("go")

        assert log.feed(told(name="stop")) == [SignalReceived("s-1", "stop", "null", "bob")]
        assert log.live.status == "suspended"

    def test_no_history_lets_a_signal_be_taken_twice(self) -> None:
        log = started()
        first, second = log.wait(), log.wait()
        log.feed(told())

        with pytest.raises(FoldError):
            log.append([WaitEnded(second, "s-1")])
        with pytest.raises(FoldError):
            log.append([SignalReceived("s-1", "go", "null")])
        with pytest.raises(FoldError):
            log.append([WaitEnded(first, "s-1")])

    def test_what_comes_for_a_run_that_is_over_is_refused_unless_it_may_have_ended_it(self) -> None:
        log = started()
        log.append([RunCompleted("null")])

        late = decide(log.state, told(), NOW + 5_000, RULES, sent=RequestedAt(NOW + ENDED_MS))
        again = decide(log.state, told(), NOW + 5_000, RULES, sent=RequestedAt(NOW - 1))

        assert refused(late) == ("closed", f"run {RUN} is completed: nothing waits for this any more")
        assert isinstance(again, Ignore)


class TestMatch:
    def test_a_wait_takes_only_what_it_matches(self) -> None:
        log = started()
        picky, any_ = log.wait(match="data.n == 2"), log.wait()

        one = log.feed(told("s-1", data={"n": 1}))
        two = log.feed(told("s-2", data={"n": 2}))

        assert isinstance(one, list)
        assert isinstance(two, list)
        assert one[-1] == WaitEnded(any_, "s-1")
        assert two[-1] == WaitEnded(picky, "s-2")

    @pytest.mark.parametrize("match", ["actor == 'bob'", "signal_id.startsWith('s-')", "data.items.exists(i, i == 2)"])
    def test_a_match_sees_the_data_the_actor_and_the_id(self, match: str) -> None:
        log = started()
        step = log.wait(match=match)

        verdict = log.feed(told(data={"items": [1, 2]}))

        assert isinstance(verdict, list)
        assert verdict[-1] == WaitEnded(step, "s-1")

    @pytest.mark.parametrize("data", [None, {"m": 1}, "text", [1], {"n": "x" * 70_000}])
    def test_a_match_without_a_value_never_matches_and_that_is_told_once(self, data: object) -> None:
        log = started()
        step = log.wait(match="data.n > 1")

        first = log.feed(told("s-1", data=data))
        second = log.feed(told("s-2", data=data))

        assert isinstance(first, list)
        assert isinstance(second, list)
        assert [type(event) for event in first] == [SignalReceived, MatchFailed]
        assert [type(event) for event in second] == [SignalReceived]
        failure = log.live.open[step].failure
        assert failure is not None
        assert failure.code == "match_failed"

    def test_a_lone_surrogate_and_what_else_cel_cannot_take_match_nothing(self) -> None:
        log = started()
        step = log.wait(match="data.n == 1")

        verdict = log.feed(replace(told(), actor="\ud800"))

        assert isinstance(verdict, list)
        assert [type(event) for event in verdict] == [SignalReceived, MatchFailed]
        assert log.live.open[step].phase == "wait"

    def test_it_is_told_once_of_what_was_kept_too(self) -> None:
        log = started()
        for number in range(3):
            log.feed(told(f"s-{number}"))

        log.wait(match="data.n > 1")

        assert words(log)[3:] == ["WaitStarted", "MatchFailed"]

    def test_a_match_that_says_no_leaves_the_signal_for_another_wait(self) -> None:
        log = started()
        log.feed(told(data={"n": 1}))

        log.wait(match="data.n == 2")
        step = log.wait(match="data.n == 1")

        assert dict(log.live.mail.taken) == {"s-1": step}


class TestRoom:
    def test_signals_that_nobody_waits_for_are_kept_up_to_a_limit_and_that_is_an_event_once(self) -> None:
        one = signal_bytes(SignalReceived("s-0", "go", '"data"', "bob"))
        log = Log(rules=replace(RULES, signal_bytes=2 * one))
        log.feed(start())

        verdicts = [log.feed(told(f"s-{number}", data="data")) for number in range(4)]

        assert verdicts[2] == [SignalDropped("s-2", "go", one, "bob")]
        assert refused(verdicts[3])[0] == "no_room"
        assert log.live.mail.bytes == 2 * one

    def test_a_wait_makes_room_and_what_was_dropped_may_come_again(self) -> None:
        one = signal_bytes(SignalReceived("s-0", "go", "null", "bob"))
        log = Log(rules=replace(RULES, signal_bytes=one))
        log.feed(start())
        log.feed(told("s-0"))
        log.feed(told("s-1"))
        log.wait()

        assert log.feed(told("s-1")) == [SignalReceived("s-1", "go", "null", "bob")]
        assert log.live.mail.bytes == one

    def test_what_a_wait_takes_at_once_needs_no_room(self) -> None:
        log = Log(rules=replace(RULES, signal_bytes=0))
        log.feed(start())
        log.wait()

        assert words(log) == ["WaitStarted"]
        assert isinstance(log.feed(told(data="x" * 1_000)), list)
        assert words(log) == ["WaitStarted", "SignalReceived", "WaitEnded"]


class TestTime:
    def test_a_wait_expires_not_before_its_time(self) -> None:
        log = started()
        step = log.wait(until_ms=NOW + 10)
        due = log.due(step)

        log.now += 9
        early = log.feed(due)
        log.now += 1
        in_time = log.feed(due)

        assert isinstance(early, Ignore)
        assert in_time == [WaitExpired(step)]
        assert not log.live.mail.waits

    def test_what_comes_after_a_wait_has_expired_is_kept_for_the_next(self) -> None:
        log = started()
        log.wait(until_ms=NOW + 10)
        log.now += 10

        # Its time is over, though nobody has written that so far.
        assert log.feed(told()) == [SignalReceived("s-1", "go", "null", "bob")]

    def test_a_callback_expires(self) -> None:
        log = started()
        log.callback(until_ms=NOW + 10)
        log.now += 10

        assert log.feed(log.due()) == [WaitExpired(1)]


@examples
@example(193486)  # a retry forgot which waits had not been asked
@example(1955)  # a signal that a retry gives back is taken by another wait
@given(st.integers(0, 2**32))
def test_whatever_comes_each_signal_is_taken_once_and_none_lies_beside_a_wait_that_it_matches(seed: int) -> None:
    rng, log = random.Random(seed), started()
    for _ in range(60):
        log.now += rng.choice([0, 1, 20_000])
        log.feed(random_input(log, rng))
        random_reaction(log, rng)

    history: list[Event] = [event for _, entry in log.entries for event in entry.events]
    came = {event.signal_id: event for event in history if isinstance(event, SignalReceived)}
    waits = {event.step: event for event in history if isinstance(event, WaitStarted)}
    mail, retried = log.live.mail, [place for place, event in enumerate(history) if isinstance(event, RunRetried)]
    ended = {
        place: (event.step, event.signal_id) for place, event in enumerate(history) if isinstance(event, WaitEnded)
    }
    given_back = {place for place, (step, name) in ended.items() if mail.taken.get(name) != step}
    assert all(place < max(retried, default=0) for place in given_back)  # of steps that a retry has left behind
    taken = [pair for place, pair in ended.items() if place not in given_back]
    assert len({step for step, _ in taken}) == len({name for _, name in taken}) == len(taken)
    assert all(came[name].name == waits[step].name for step, name in taken)
    assert {*mail.kept, *mail.taken} == set(came)
    assert mail.bytes == sum(signal_bytes(came[name]) for name in mail.kept)
    assert {step for steps in mail.waits.values() for step in steps} == {
        step for step, opened in log.live.open.items() if opened.phase == "wait"
    }
    for steps in mail.waits.values():
        for step in steps:
            kept = [each.signal for each in mail.kept.values() if each.signal.name == waits[step].name]
            later = log.live.open[step].due_ms or 0 < mail.behind <= step
            assert later or all(waiting.matches(waits[step], each) is not True for each in kept)
