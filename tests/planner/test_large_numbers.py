"""Numbers that no record can hold, from whoever may send some: they end no planner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from refold import Budget, Context
from refold.core.events import CallBilled, RunFailed, Spendable
from refold.core.ids import RunId
from refold.core.messages import RunOutcome, RunRequest, ToolRequest, ToolResult
from refold.core.run.account import COUNTED_MOST
from refold.core.topics import RUN_COMPLETED
from refold.core.wire import codec
from refold.engine.ports.log import Outgoing
from refold.sdk import loop
from tests.planner.paid import Paid, completed, made, usage

LARGEST = (1 << 63) - 1


def lies(tokens: int) -> Any:
    def answer(asked: ToolRequest) -> ToolResult:
        return completed(asked, usage(read=tokens, written=tokens))

    return answer


@pytest.mark.parametrize("tokens", [(1 << 53) - 1, LARGEST, (1 << 64) - 1])
def test_a_result_that_says_it_took_more_than_there_is_uses_up_the_budget_and_no_more(tokens: int) -> None:
    world = Paid(made(Budget(usd="1")), lies(tokens))

    world.start("r", "thinker", times=3)
    world.pump()

    [billed] = world.told("r", CallBilled)
    assert billed.nano_usd == COUNTED_MOST
    end = world.state("r").end
    assert isinstance(end, RunFailed)
    assert end.failure.code == "budget_usd"


def test_a_family_whose_results_lie_adds_up_to_what_a_record_can_hold() -> None:
    world = Paid(made(), lies(LARGEST))

    world.start("r", "boss", hands=5, times=5)
    world.pump()

    told = [codec.decode(RunOutcome, each.value or b"") for each in world.broker.log(RUN_COMPLETED, 0).records]
    [used] = [each.used for each in told if each.run_id == "r"]
    assert used is not None
    assert (used.tokens, used.nano_usd, used.calls) == (COUNTED_MOST, COUNTED_MOST, 25)


@pytest.mark.parametrize("number", [LARGEST, -LARGEST - 1])
def test_a_request_with_the_largest_numbers_ends_no_planner(number: int) -> None:
    budget = Spendable(tokens=number, nano_usd=number, calls=number, ms=number, soft_percent=number)
    request = RunRequest(RunId("r"), "looker", '{"times":2}', "eve", deadline_ms=number, budget=budget)
    world = Paid(made())

    world.broker.write(Outgoing("run-requested", 0, b"r", codec.encode(request), (), 0))
    world.pump()
    world.start("r-2", "looker", times=2)
    world.pump()

    assert world.state("r").over
    assert world.state("r-2").status == "completed"


async def careless(ctx: Context) -> Any:
    """Asks for a call of its own making."""
    return await loop.step(replace(ctx.find("look").call('{"n":1}'), timeout_ms=1 << 70))


def test_an_event_with_a_number_that_cannot_be_written_fails_its_run_alone() -> None:
    app = made()
    app.agent(careless)
    world = Paid(app)

    world.start("r", "careless")
    world.pump()

    end = world.state("r").end
    assert isinstance(end, RunFailed)
    assert end.failure.code == "unwritable"
