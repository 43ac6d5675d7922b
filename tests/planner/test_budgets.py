"""Budgets: what is reserved before every attempt, on every way, billed after, and holds over a family and any crash."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from refold import Budget
from refold.core import topics
from refold.core.events import (
    BudgetReached,
    CallBilled,
    CallDispatched,
    CallHeld,
    CallRepeated,
    CallReserved,
    ChildBilled,
    ChildCompleted,
    RunFailed,
    Used,
)
from refold.core.messages import RunOutcome, ToolRequest, ToolResult
from refold.core.run.account import Amount
from refold.core.wire import codec
from tests.planner.paid import Paid, completed, ended, made, pays, usage

CALL = 6_000_000
"""What a call of the big model reserves and takes, in billionths of a dollar: 1,000 tokens at $1 and 500 at $10."""


def status(world: Paid, run: str) -> str:
    """What became of a run, and why."""
    state = world.state(run)
    return state.end.failure.code if isinstance(state.end, RunFailed) else state.status


def outcome(world: Paid, run: str) -> RunOutcome:
    """What users are told of a run."""
    records = world.broker.log(topics.RUN_COMPLETED, 0).records
    told = [codec.decode(RunOutcome, record.value or b"") for record in records]
    return next(each for each in reversed(told) if each.run_id == run)


def sent(world: Paid, run: str) -> int:
    """How many attempts of a run went out."""
    return len(world.told(run, CallDispatched))


def test_what_a_call_took_is_in_the_log_and_in_the_outcome() -> None:
    world = Paid(made(Budget(usd="1")))

    world.start("r", "thinker", times=2)
    world.pump()

    assert world.told("r", CallReserved)[0] == CallReserved(1, 1, 1_500, CALL)
    assert [event.nano_usd for event in world.told("r", CallBilled)] == [CALL, CALL]
    told = outcome(world, "r")
    assert (told.stop, told.used) == ("finished", Used(3_000, 2 * CALL, 2))


def test_a_run_without_a_budget_says_nothing_of_one() -> None:
    world = Paid(made())

    world.start("r", "looker", times=2)
    world.pump()

    assert world.state("r").account is None
    assert outcome(world, "r").used is None


def test_a_metered_call_is_counted_where_there_is_no_budget() -> None:
    world = Paid(made())

    world.start("r", "boss", hands=2, times=3)
    world.pump()

    assert outcome(world, "r").used == Used(6 * 1_500, 6 * CALL, 6)


@pytest.mark.parametrize(
    ("budget", "code", "most"),
    [
        (Budget(usd="0.015"), "budget_usd", 2),
        (Budget(tokens=3_100), "budget_tokens", 2),
        (Budget(calls=4), "budget_calls", 4),
    ],
)
def test_a_run_fails_at_the_hard_threshold_before_the_call(budget: Budget, code: str, most: int) -> None:
    world = Paid(made(budget))

    world.start("r", "thinker", times=9)
    world.pump()

    assert (status(world, "r"), sent(world, "r")) == (code, most)
    assert outcome(world, "r").stop == code


def test_what_goes_out_at_once_is_reserved_together() -> None:
    world = Paid(made(Budget(calls=5)))

    world.start("r", "crowd", times=6)
    world.pump()

    assert (status(world, "r"), sent(world, "r")) == ("budget_calls", 0)


def test_a_call_that_took_less_gives_back_what_was_reserved() -> None:
    world = Paid(made(Budget(usd="0.02")), lambda asked: completed(asked, usage(read=100, written=10)))

    world.start("r", "thinker", times=9)
    world.pump()

    assert world.account("r").total == Amount(990, 9 * 200_000, 9)


def test_a_result_that_does_not_say_what_it_took_took_all_that_was_reserved() -> None:
    world = Paid(made(Budget(usd="1")), lambda asked: completed(asked, '{"usage": {"input_tokens": -1}}'))

    world.start("r", "thinker", times=2)
    world.pump()

    assert world.account("r").spent == Amount(3_000, 2 * CALL, 2)


@pytest.mark.parametrize("read", [0, 1 << 60])
def test_what_a_tool_with_a_price_hands_on_says_nothing_of_what_it_took(read: int) -> None:
    world = Paid(made(Budget(usd="10")), lambda asked: completed(asked, usage(read=read, written=0)))

    world.start("r", "buyer", times=1)
    world.pump()

    assert world.account("r").spent == Amount(0, 250_000_000, 1)


def test_every_attempt_reserves_anew_and_a_lost_one_stays_booked() -> None:
    def unsteady(asked: ToolRequest) -> ToolResult:
        return ended(asked, "unknown") if asked.attempt < 3 else pays(asked)

    world = Paid(made(Budget(usd="1")), unsteady)

    world.start("r", "thinker", times=1)
    world.pump()
    for _ in range(3):
        world.later(60_000)
        world.pump()

    assert [each.attempt for each in world.told("r", CallReserved)] == [1, 2, 3]
    assert outcome(world, "r").used == Used(4_500, 3 * CALL, 3, lost_tokens=3_000, lost_nano_usd=2 * CALL)


def test_a_retry_that_does_not_fit_is_not_made() -> None:
    world = Paid(made(Budget(usd="0.011")), lambda asked: ended(asked, "unknown"))

    world.start("r", "thinker", times=1)
    world.pump()
    for _ in range(3):
        world.later(60_000)
        world.pump()

    assert (status(world, "r"), sent(world, "r")) == ("budget_usd", 1)


def test_an_attempt_that_did_nothing_takes_nothing() -> None:
    def unsteady(asked: ToolRequest) -> ToolResult:
        return ended(asked, "failed") if asked.attempt < 3 else pays(asked)

    world = Paid(made(Budget(usd="0.013")), unsteady)

    world.start("r", "thinker", times=1)
    world.pump()
    for _ in range(3):
        world.later(60_000)
        world.pump()

    assert outcome(world, "r").used == Used(1_500, CALL, 3)


def test_an_attempt_that_two_executors_had_may_be_paid_twice() -> None:
    world = Paid(made(Budget(usd="1")), lambda asked: completed(asked, usage(), again=True))

    world.start("r", "thinker", times=1)
    world.pump()

    assert outcome(world, "r").used == Used(3_000, 2 * CALL, 1, lost_tokens=1_500, lost_nano_usd=CALL)


def test_an_answer_that_is_found_again_is_no_longer_lost() -> None:
    world = Paid(made(Budget(usd="1")), lambda asked: ended(asked, "unknown"))
    world.start("r", "thinker", times=1)
    world.pump()
    first = world.made[0]

    world.say(completed(first, usage(written=0)))
    world.pump()

    assert outcome(world, "r").used == Used(1_000, 1_000_000, 1)


def test_a_tool_may_have_a_price() -> None:
    world = Paid(made(Budget(usd="0.60")))

    world.start("r", "buyer", times=3)
    world.pump()

    assert (status(world, "r"), sent(world, "r")) == ("budget_usd", 2)
    assert world.account("r").total == Amount(0, 500_000_000, 2)


def test_a_soft_threshold_is_told_once() -> None:
    world = Paid(made(Budget(calls=10, soft=0.5)))

    world.start("r", "looker", times=10)
    world.pump()

    assert world.told("r", BudgetReached) == [BudgetReached("r", "calls", 6, 10, "warn")]
    assert status(world, "r") == "completed"


def test_a_budget_that_degrades_keeps_what_is_left_for_the_cheaper_way() -> None:
    small = {"model": "test:small", "input_tokens": 1_000, "output_tokens": 500}

    def answer(asked: ToolRequest) -> ToolResult:
        way = reserves(world, asked)
        return completed(asked, usage(**_usage(small)) if way.cheap else usage())

    def reserves(world: Paid, asked: ToolRequest) -> CallReserved:
        said = [e for e in world.told("r", CallReserved) if isinstance(e, CallReserved) and e.step == asked.step]
        return said[-1]

    world = Paid(made(Budget(usd="0.02", soft=0.7, then="degrade")), answer)

    world.start("r", "wise", times=5)
    world.pump()

    assert json.loads(outcome(world, "r").result) == ["big", "big", "degrade", "degrade", "degrade"]
    assert len(world.told("r", BudgetReached)) == 1
    assert world.account("r").total.nano_usd == 2 * CALL + 3 * 350_000


def _usage(said: dict[str, Any]) -> dict[str, Any]:
    return {"model": said["model"], "read": said["input_tokens"], "written": said["output_tokens"]}


def test_a_budget_that_asks_holds_the_call_until_an_operator_lets_it() -> None:
    world = Paid(made(Budget(calls=10, soft=0.3, then="ask")))
    world.start("r", "looker", times=10)
    world.pump()
    held = world.told("r", CallHeld)
    before = sent(world, "r")

    world.operate("r", "resolve", step=4, attempt=0, verdict="did_not_happen")
    world.pump()

    assert [(event.step, event.failure.code) for event in held] == [(4, "budget_calls")]
    assert before == 3
    assert (status(world, "r"), sent(world, "r")) == ("completed", 10)


def test_an_operator_who_gives_a_held_call_up_fails_it() -> None:
    world = Paid(made(Budget(calls=10, soft=0.3, then="ask")))
    world.start("r", "looker", times=4)
    world.pump()

    world.operate("r", "resolve", step=4, attempt=0, verdict="give_up")
    world.pump()

    assert json.loads(outcome(world, "r").result) == ["0", "1", "2", "budget_calls"]


def test_a_held_call_that_is_metered_is_reserved_when_it_goes_out() -> None:
    world = Paid(made(Budget(usd="0.03", soft=0.5, then="ask")))
    world.start("r", "thinker", times=3)
    world.pump()
    held = world.account("r").total

    world.operate("r", "resolve", step=3, attempt=0, verdict="did_not_happen")
    world.pump()

    assert held == Amount(3_000, 2 * CALL, 2)
    assert outcome(world, "r").used == Used(4_500, 3 * CALL, 3)


def test_the_same_call_is_made_so_often_and_then_fails() -> None:
    world = Paid(made(Budget(same=3)))

    world.start("r", "looker", times=5, same=True)
    world.pump()

    assert json.loads(outcome(world, "r").result) == ["0", "0", "0", "repeated", "repeated"]
    assert world.told("r", CallRepeated) == [CallRepeated(4, 4), CallRepeated(5, 5)]
    assert sent(world, "r") == 3


def test_a_family_shares_the_budget_of_the_first() -> None:
    world = Paid(made(Budget(usd="0.032")))

    world.start("r", "boss", hands=3, times=4)
    world.pump()

    taken = sum(sent(world, f"r.{n}") for n in (1, 2, 3))
    assert taken == 5
    assert json.loads(outcome(world, "r").result) == ["budget_usd"] * 3
    assert outcome(world, "r").used == Used(5 * 1_500, 5 * CALL, 5)


def test_what_a_child_took_counts_once_in_the_entry_in_which_its_parent_hears_of_it() -> None:
    world = Paid(made(Budget(calls=4)))

    world.start("r", "follower", times=2)
    world.pump()

    assert world.state("r").status == "completed"
    assert world.account("r").spent.calls == 3


def test_a_child_has_its_own_budget_within_that_of_its_parent() -> None:
    world = Paid(made(Budget(usd="1"), inner=Budget(calls=2)))

    world.start("r", "boss", hands=2, times=3)
    world.pump()

    assert [sent(world, "r.1"), sent(world, "r.2")] == [2, 2]
    assert world.account("r").spent.calls == 4


def test_what_a_child_took_that_nobody_waits_for_counts_for_its_parent() -> None:
    world = Paid(made(Budget(usd="1")), lambda asked: pays(asked) if asked.tool == "think" else None)
    world.start("r", "quitter", hands=2, times=3)
    world.pump()
    looks = [asked for asked in world.made if asked.tool == "look"]
    assert world.told("r", ChildCompleted)

    for asked in looks:
        world.say(completed(asked, "1"))
    world.pump()

    assert world.account("r").spent == Amount(6 * 1_500, 6 * CALL, 7 + 1)


def test_a_child_that_is_cancelled_is_billed_with_what_may_be_paid() -> None:
    world = Paid(made(Budget(usd="1")), lambda asked: None)
    world.start("r", "quitter", hands=2, times=3)
    world.pump()
    (look,) = [asked for asked in world.made if asked.tool == "look"]

    world.say(completed(look, "1"))
    world.pump()

    assert sorted(event.run_id for event in world.told("r", ChildBilled)) == ["r.2", "r.3"]
    assert world.account("r").lost == Amount(3_000, 2 * CALL, 0)


@pytest.mark.parametrize("boots", [1, 2, 3, 5, 8])
def test_a_planner_that_dies_at_any_moment_counts_the_same(boots: int) -> None:
    world = Paid(made(Budget(usd="0.032")))

    world.start("r", "boss", hands=3, times=4)
    for _ in range(boots):
        world.pump(turns=4)
        world.boot()
    world.pump()

    assert sum(sent(world, f"r.{n}") for n in (1, 2, 3)) == 5
    assert outcome(world, "r").used == Used(5 * 1_500, 5 * CALL, 5)


def test_a_retry_gives_a_run_more() -> None:
    world = Paid(made(Budget(calls=2)))
    world.start("r", "looker", times=4)
    world.pump()
    seq = world.state("r").head.seq

    world.operate("r", "retry", seq=seq, calls=4)
    world.pump()

    assert (status(world, "r"), sent(world, "r")) == ("completed", 4)


def test_seconds_of_a_budget_are_a_deadline() -> None:
    world = Paid(made(Budget(time=timedelta(seconds=5))), lambda asked: None)
    world.start("r", "looker", times=1)
    world.pump()
    state = world.state("r")
    assert state.deadline_ms == state.requested_ms + 5_000


def test_a_start_may_make_the_budget_smaller_and_not_larger() -> None:
    world = Paid(made(Budget(calls=3)))
    smaller = {"run_id": "s", "agent": "looker", "input": {"times": 9}, "budget": {"calls": 2, "tokens": 5}}
    larger = {"run_id": "l", "agent": "looker", "input": {"times": 9}, "budget": {"calls": 9}}

    world.ask(smaller)
    world.ask(larger)
    world.pump()

    assert (sent(world, "s"), sent(world, "l")) == (2, 3)
    assert world.account("s").limits.tokens == 5


def test_money_cannot_be_bounded_where_nobody_knows_a_price() -> None:
    app = made(Budget(usd="1"))
    app.prices.own.clear()
    app.prices._price = None
    world = Paid(app)
    app.prices._price = None

    world.start("r", "thinker", times=1)
    world.pump()

    assert (status(world, "r"), sent(world, "r")) == ("no_price", 0)
