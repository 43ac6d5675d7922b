"""An agent of pydantic-ai waits for the world: for days, with nothing held, and answered once by who has the token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import AbstractCapability, RequestInput
from pydantic_ai.durable_exec import ExternalEventError
from pydantic_ai.external_events import wait_for_external_event
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolDefinition
from pydantic_ai.toolsets import ExternalToolset

from refold import App, UsageError
from refold.contrib.pydantic_ai import durable, idempotency_key
from refold.testing import AgentRun, crash_matrix, start
from tests.contrib.thinking import Model, calls, says, scripted

DAYS_30 = 30 * 24 * 3_600_000
SHIP = ToolDefinition(name="ship", parameters_json_schema={"type": "object"})
ASK = "desk__external_event.deferred_tool_calls.ask"

Handed = list[tuple[str, DeferredToolRequests]]
Asker = Callable[[RunContext[Any], DeferredToolRequests, str], DeferredToolResults | None]


def desk(model: Model, ask: Asker | None = None, **more: Any) -> tuple[App, Handed]:
    """An app whose agent has a tool that somebody else runs: who was handed which token."""
    handed: Handed = []

    def tell(ctx: RunContext[str], requests: DeferredToolRequests, token: str) -> DeferredToolResults | None:
        handed.append((token, requests))
        return ask(ctx, requests, token) if ask else None

    toolset = ExternalToolset[str]([SHIP], id="far")
    capability = RequestInput[str](tell, **more)
    agent = Agent(model.model, name="desk", deps_type=str, toolsets=[toolset], capabilities=[capability])
    app = App("desk")
    durable(app, agent)
    return app, handed


def shipping() -> Model:
    return scripted(calls(("ship", {"item": "egg"})), says("done"))


def waiting(app: App, **inputs: Any) -> AgentRun:
    """The run, where it waits and nothing else is left to do."""
    return start(app, "desk", prompt="an egg", deps="Ada", **inputs).finish()


def results(handed: Handed, value: Any) -> dict[str, Any]:
    return {"calls": {call.tool_call_id: value for call in handed[-1][1].calls}}


def test_a_run_waits_thirty_days_for_a_result_and_holds_nothing_meanwhile() -> None:
    model = shipping()
    app, handed = desk(model)
    begun = waiting(app)
    assert [begun.state.open[step].phase for step in begun.open] == ["callback"]
    begun.take_over()
    begun.executors.now_ms += DAYS_30

    begun.answer(handed[0][0], results(handed, {"parcel": 7})).finish()

    assert begun.value == "done"
    assert model.asked[-1][-1].parts[0].content == {"parcel": 7}
    assert len(handed) == 1
    assert begun.ran == {"desk__model.request": 2, ASK: 1}


def test_who_asks_knows_the_run() -> None:
    seen = list[Any]()
    app, handed = desk(shipping(), lambda ctx, requests, token: seen.append((ctx.deps, ctx.run_id)))

    waiting(app)

    assert seen == [("Ada", "r-1/1")]
    assert [call.tool_name for call in handed[0][1].calls] == ["ship"]


def test_an_answer_at_once_needs_no_token() -> None:
    model = shipping()
    app, handed = desk(
        model,
        lambda ctx, requests, token: requests.build_results(
            calls={call.tool_call_id: "here" for call in requests.calls}
        ),
    )

    begun = waiting(app)

    assert begun.value == "done"
    assert model.asked[-1][-1].parts[0].content == "here"
    assert begun.answer(handed[0][0], results(handed, "late")).value == "done"


@pytest.mark.parametrize("way", ["timeout", "failure"])
def test_what_nobody_answers_reaches_the_model_as_a_failure(way: str) -> None:
    model = shipping()
    app, handed = desk(model, timeout=timedelta(days=30) if way == "timeout" else None)
    begun = waiting(app)
    if way == "failure":
        begun.answer(handed[0][0], failure="the ship has sunk").finish()

    assert begun.value == "done"
    [told] = model.asked[-1][-1].parts
    assert told.outcome == "failed"
    assert ("the ship has sunk" if way == "failure" else "No resolution arrived within 30 days") in told.content  # type: ignore[operator]


def test_what_is_no_result_is_refused_and_the_run_waits_on() -> None:
    app, handed = desk(shipping())
    begun = waiting(app)

    with pytest.raises(UsageError, match="refused"):
        begun.answer(handed[0][0], {"calls": 7})
    begun.answer(handed[0][0], results(handed, "at last")).finish()

    assert begun.value == "done"


def test_waits_of_one_name_have_tokens_of_their_own() -> None:
    model = scripted(calls(("ship", {"item": "egg"})), calls(("ship", {"item": "ham"})), says("done"))
    app, handed = desk(model)
    begun = waiting(app)
    first = handed[0][0]
    begun.answer(first, results(handed, "one")).finish()
    assert handed[1][0] != first
    with pytest.raises(UsageError):
        begun.answer(first, results(handed, "stolen"))

    begun.answer(handed[1][0], results(handed, "two")).finish()

    assert begun.value == "done"
    assert model.asked[-1][-1].parts[0].content == "two"


def test_wherever_it_is_killed_it_asks_under_one_key() -> None:
    def ask(ctx: RunContext[str], requests: DeferredToolRequests, token: str) -> DeferredToolResults:
        idempotency_key()
        return requests.build_results(calls={call.tool_call_id: "here" for call in requests.calls})

    toolset, app = ExternalToolset[str]([SHIP], id="far"), App("desk")
    durable(app, Agent(shipping().model, name="desk", toolsets=[toolset], capabilities=[RequestInput[str](ask)]))

    crash_matrix(app, "desk", {"prompt": "an egg"})


# A capability that waits by itself.


@dataclass
class Waits(AbstractCapability[Any]):
    ask: Any

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults:
        try:
            found = await wait_for_external_event("parcel", ask=self.ask, timeout=timedelta(days=1))
        except ExternalEventError as error:
            found = str(error)
        return requests.build_results(calls={call.tool_call_id: found for call in requests.calls})


def test_a_capability_waits_with_a_tool_that_hands_out_its_token() -> None:
    app, handed, model = App("desk"), list[str](), shipping()

    @app.tool(effect="pure")
    def post(token: str) -> None:
        handed.append(token)

    agent = Agent(model.model, name="desk", toolsets=[ExternalToolset([SHIP], id="far")], capabilities=[Waits(post)])
    durable(app, agent)
    begun = start(app, "desk", prompt="an egg")
    begun.settle(1)
    begun.settle(min(begun.open, key=lambda step: begun.state.open[step].phase == "callback"))

    begun.answer(handed[0], "parcel 7").finish()

    assert begun.value == "done"
    assert model.asked[-1][-1].parts[0].content == "parcel 7"


def test_what_is_no_tool_cannot_hand_out_a_token() -> None:
    app, seen = App("desk"), list[str]()
    agent = Agent(
        shipping().model, name="desk", toolsets=[ExternalToolset([SHIP], id="far")], capabilities=[Waits(seen.append)]
    )
    durable(app, agent)

    ended = start(app, "desk", prompt="an egg").finish()

    assert ended.failure is not None
    assert "give a function that is a tool" in ended.failure.message
    assert seen == []
