"""What counts as paid where nobody knows, or where an answer does not say what it took."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from refold import Budget
from refold.core.events import CallHeld
from refold.core.messages import ToolResult
from refold.core.run.account import Amount, usage_of
from refold.engine.executor.outcome import ToolRun, outcome_of
from refold.engine.ports.effects import ToolEnded
from tests.planner.paid import Paid, ended, made
from tests.planner.test_budgets import CALL, outcome


def test_what_two_executors_had_and_nobody_knows_of_counts_twice() -> None:
    world = Paid(made(Budget(usd="1")), lambda asked: replace(ended(asked, "unknown"), again=True))

    world.start("r", "thinker", times=1)
    world.pump()

    assert world.account("r").total == Amount(3_000, 2 * CALL, 1)


def test_that_nothing_came_of_it_takes_nothing_back_from_whoever_had_it_before() -> None:
    world = Paid(made(Budget(usd="1")), lambda asked: replace(ended(asked, "failed"), again=True))

    world.start("r", "thinker", times=1)
    world.pump()

    assert world.account("r").total == Amount(1_500, CALL, 1)


@pytest.mark.parametrize("status", ["failed", "unknown", "broken", "completed"])
def test_an_executor_that_takes_a_request_over_says_so_whatever_comes_of_it(status: str) -> None:
    world = Paid(made(Budget(usd="1")))
    world.start("r", "thinker", times=1)
    world.pump()

    def says(*, takeover: bool) -> ToolResult:
        return outcome_of(world.made[0], ToolEnded(1, status), ToolRun("e", takeover))

    assert [says(takeover=True).again, says(takeover=False).again] == [True, False]


@pytest.mark.parametrize("said", ['{"usage":{}}', '{"usage":{"model":"m"}}', '{"usage":[]}', '{"usage":1'])
def test_an_answer_that_names_no_number_does_not_say_that_it_took_nothing(said: str) -> None:
    assert usage_of(said) is None


def test_what_an_answer_took_is_read_whatever_else_it_says() -> None:
    said = '{"text":"\\ud83d","usage":{"model":"m","input_tokens":7}}'

    assert usage_of(said) == {"model": "m", "input_tokens": 7}


def test_of_a_held_call_that_went_out_before_an_operator_who_gives_it_up_knows_nothing() -> None:
    world = Paid(made(Budget(calls=10, soft=0.15, then="ask")), lambda asked: ended(asked, "unknown"))
    world.start("r", "looker", times=1)
    world.pump()
    world.later(60_000)
    world.pump()

    assert [(event.attempt, event.failure.code) for event in world.told("r", CallHeld)] == [(1, "budget_calls")]
    world.operate("r", "resolve", step=1, attempt=1, verdict="give_up")
    world.pump()

    assert json.loads(outcome(world, "r").result) == ["given_up"]
