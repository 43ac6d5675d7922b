"""Rules of durable agents that pydantic-ai's own engines are judged by: models, runs, people and what looks on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic_ai import Agent, CancellationToken, CompactionPart, DeferredToolRequests, ModelRetry, RunContext
from pydantic_ai.capabilities import AbstractCapability, RequestInput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import DeferredToolResults, ToolDefinition
from pydantic_ai.toolsets import ExternalToolset
from pydantic_ai.usage import UsageLimits

from refold import App, Context
from refold.contrib.pydantic_ai import RefoldDurability
from refold.core.events import SleepStarted
from refold.testing import AgentRun, answer, run, start
from tests.contrib.ruled import PLANNED, PURE, Pausing, agent_of, app_of, code, heard, units, words
from tests.contrib.thinking import Model, calls, says, scripted

TOOL = "a__function_toolset__<agent>.call_tool"

Code = Callable[[Agent[Any, Any]], Any]


def within(agent: Agent[Any, Any], what: Code, *more: Any) -> AgentRun:
    """A run whose code does this with the agent."""
    app = app_of(agent, *more)

    @app.agent
    async def outer(ctx: Context) -> Any:
        return await what(agent)

    return run(app, "outer")


# Who is who.


def test_ids_of_runs_and_conversations_are_the_same_in_every_replay() -> None:
    async def several(agent: Agent[Any, Any]) -> list[tuple[str, bool]]:
        first, second = await asyncio.gather(agent.run("1"), agent.run("2"))
        own = await agent.run("3", run_id="own", conversation_id="mine")
        again = await agent.run("4", message_history=first.all_messages())
        assert (own.conversation_id, again.conversation_id) == ("mine", first.conversation_id)
        assert first.conversation_id != second.conversation_id
        return [each.run_id for each in (first, second, own, again)]  # type: ignore[misc]

    ended = within(agent_of(Model(lambda turn, messages: says("ok"))), several)

    assert ended.value == ["r-1/1", "r-1/2", "own", "r-1/3"]


# What models answer.


def test_an_answer_that_a_filter_has_emptied_ends_the_run_by_name() -> None:
    filtered = scripted(ModelResponse(parts=[], finish_reason="content_filter"))

    assert code(run(app_of(agent_of(filtered)), "a", prompt="go")) == "ContentFilterError"


def test_a_refusal_in_words_is_an_answer() -> None:
    refusal = scripted(ModelResponse(parts=[TextPart("I will not.")], finish_reason="content_filter"))

    assert run(app_of(agent_of(refusal)), "a", prompt="go").value == "I will not."


def test_an_empty_answer_is_asked_for_again_and_then_ends_the_run() -> None:
    nothing = ModelResponse(parts=[])

    assert run(app_of(agent_of(scripted(nothing, says("ok")))), "a", prompt="go").value == "ok"
    assert code(run(app_of(agent_of(scripted(nothing, nothing))), "a", prompt="go")) == "UnexpectedModelBehavior"


def test_a_call_that_is_cut_off_goes_back_to_the_model() -> None:
    cut = ModelResponse(parts=[ToolCallPart("act", '{"a": "b', tool_call_id="1")], finish_reason="length")
    model = scripted(cut, says("ok"))
    agent = agent_of(model)
    agent.tool_plain(act)

    assert run(app_of(agent), "a", prompt="go").value == "ok"
    assert heard(model)[0][1] == "retried"


def act(a: str) -> str:
    return a


def test_an_output_that_its_validator_refuses_is_asked_for_again_as_often_as_it_says() -> None:
    agent = agent_of(scripted(*[says("no")] * 9), retries=2)

    @agent.output_validator
    def never(said: str) -> str:
        raise ModelRetry("again")

    ended = run(app_of(agent), "a", prompt="go")

    assert (code(ended), len(ended.calls)) == ("UnexpectedModelBehavior", 3)
    assert "Exceeded maximum output retries (2)" in words(ended)


@pytest.mark.parametrize("model", ["second", TestModel(), "nobody:knows"], ids=["known", "instance", "unknown"])
def test_a_run_asks_for_models_by_the_names_that_were_given(model: Any) -> None:
    async def ask(agent: Agent[Any, Any]) -> Any:
        return (await agent.run("go", model=model)).output

    known = RefoldDurability(models={"second": scripted(says("second")).model})
    ended = within(agent_of(scripted(says("first"))), ask, known)

    if model == "second":
        assert ended.value == "second"
    else:
        assert (code(ended), ended.calls) == ("UserError", [])
        assert "was not registered" in words(ended) or "Unknown model: nobody:knows" in words(ended)


# Turns that a model breaks off.


def test_a_turn_that_is_broken_off_is_gone_on_with_by_calls_of_its_own() -> None:
    model = Pausing(2, delay=30.0)

    ended = run(app_of(agent_of(model)), "a", prompt="go")

    assert (ended.value, units(ended)) == ("end", ["model.request"] * 3)
    assert sum(isinstance(event, SleepStarted) for event in ended.events) == 2
    assert model.withdrawn == []


def test_a_broken_off_turn_that_fails_is_withdrawn_once() -> None:
    model = Pausing(1, fails=ModelHTTPError(400, "pausing", body="no"))

    ended = run(app_of(agent_of(model)), "a", prompt="go")

    assert (code(ended), units(ended)[2:]) == ("ModelHTTPError", ["model.cancel_suspended_response"])
    assert model.withdrawn == ["turn-1"]


def test_a_broken_off_turn_that_nobody_waits_for_any_more_is_withdrawn_once() -> None:
    async def briefly(agent: Agent[Any, Any]) -> Any:
        async with asyncio.timeout(60):
            return await agent.run("go")

    model = Pausing(99, delay=25.0)

    ended = within(agent_of(model), briefly)

    assert (code(ended), units(ended)[-1]) == ("TimeoutError", "model.cancel_suspended_response")
    assert model.withdrawn == ["turn-1"]


# Shorter conversations.


def test_a_conversation_is_made_shorter_by_a_call() -> None:
    class Compacts(FunctionModel):
        async def compact_messages(self, asked: Any, *, instructions: str | None = None) -> ModelResponse:
            return ModelResponse(parts=[CompactionPart(content="short")], model_name="compacts")

    class Often(AbstractCapability[Any]):
        async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
            *before, last = request_context.messages
            if before:
                short = await request_context.model.compact_messages(request_context)
                request_context.messages = [*before, short, last]
            return request_context

    model = scripted(calls(("act", {"a": "b"})), says("unasked"), says("done"))
    agent = agent_of(Compacts(model.answer), capabilities=[Often()])
    agent.tool_plain(act)

    ended = run(app_of(agent), "a", prompt="go")

    assert units(ended)[2:] == ["model.compact_messages", "model.request"]
    assert model.asked[-1][-2].parts == [CompactionPart(content="short")]


# Who looks on.


async def _words(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    if len(messages) == 1:
        yield {0: DeltaToolCall("act", '{"a": "b"}', tool_call_id="call-1")}
    else:
        yield "do"
        yield "ne"


async def _streamed(agent: Agent[Any, Any]) -> Any:
    async with agent.run_stream("go") as result:
        return [text async for text in result.stream_text(debounce_by=None)]


async def _told(agent: Agent[Any, Any]) -> Any:
    async with agent.run_stream_events("go") as events:
        return sorted({type(event).__name__ async for event in events})


async def _by_nodes(agent: Agent[Any, Any]) -> Any:
    async with agent.iter("go") as nodes:
        return [type(node).__name__ async for node in nodes]


TOLD = ("AgentRunResult", "FinalResult", "FunctionToolCall", "FunctionToolResult", "PartEnd", "PartStart")
NODES = ("UserPrompt", "ModelRequest", "CallTools", "ModelRequest", "CallTools")


@pytest.mark.parametrize(
    ("what", "found"),
    [
        (_streamed, ["done"]),  # what the log has, and so it is there at once
        (_told, [f"{name}Event" for name in TOLD]),
        (_by_nodes, [*(f"{name}Node" for name in NODES), "End"]),
    ],
)
def test_a_run_may_be_looked_at_from_the_code_around_it(what: Code, found: list[str]) -> None:
    model = scripted(calls(("act", {"a": "b"})), says("done"))
    agent = agent_of(FunctionModel(model.answer, stream_function=_words))
    agent.tool_plain(act, metadata=PURE)  # type: ignore[call-overload]

    assert within(agent, what).value == found


def test_run_sync_is_refused_by_name() -> None:
    async def blocking(agent: Agent[Any, Any]) -> Any:
        return agent.run_sync("go").output

    ended = within(agent_of(scripted(says("done"))), blocking)

    assert (code(ended), ended.calls) == ("usage", [])
    assert "AbstractAgent.run_sync runs a loop of its own" in words(ended)
    assert "`await` and `run(...)`" in words(ended)


def test_a_handler_of_events_is_told_each_once_and_in_executors() -> None:
    told = list[str]()

    async def note(ctx: RunContext[Any], events: Any) -> None:
        async for event in events:
            told.append(type(event).__name__)

    agent = agent_of(FunctionModel(stream_function=_words))
    agent.tool_plain(act, metadata=PURE)  # type: ignore[call-overload]

    ended = run(app_of(agent, RefoldDurability(event_stream_handler=note)), "a", prompt="go")

    assert ended.value == "done"
    assert units(ended).count("event_stream_handler") == 2
    once = ("FunctionToolCallEvent", "FunctionToolResultEvent", "FinalResultEvent")
    assert [told.count(name) for name in once] == [1, 1, 1]


# Limits.


@pytest.mark.parametrize(
    ("limit", "requests"),
    [({"request_limit": 2}, 2), ({"tool_calls_limit": 1}, 2), ({"total_tokens_limit": 60}, 2)],
)
def test_a_limit_ends_the_run_by_name(limit: dict[str, int], requests: int) -> None:
    agent = agent_of(scripted(*[calls(("act", {"a": "b"}))] * 9))
    agent.tool_plain(act)

    ended = run(app_of(agent, usage_limits=UsageLimits(**limit)), "a", prompt="go")

    assert (code(ended), units(ended).count("model.request")) == ("UsageLimitExceeded", requests)


async def _timed(agent: Agent[Any, Any]) -> Any:
    return (await agent.run("go", timeout=5)).output


async def _cancelled(agent: Agent[Any, Any]) -> Any:
    token = CancellationToken()
    asyncio.get_running_loop().call_later(5, token.cancel)
    return (await agent.run("go", cancellation_token=token)).output


@pytest.mark.parametrize(("what", "why"), [(_timed, "RunTimedOut"), (_cancelled, "RunCancelled")])
def test_an_agent_is_given_up_by_the_time_of_the_log(what: Code, why: str) -> None:
    agent = agent_of(scripted(calls(("act", {}))))

    @agent.tool_plain(metadata=PLANNED)
    async def act() -> None:
        await asyncio.sleep(3600)

    assert code(within(agent, what)) == why


# People in the loop.


def shipping(model: Model, **more: Any) -> tuple[App, list[str]]:
    """An app whose agent ships by somebody else, and the tokens with which that is answered."""
    tokens = list[str]()

    def post(ctx: RunContext[Any], requests: DeferredToolRequests, token: str) -> None:
        tokens.append(token)

    ship = ToolDefinition(name="ship", parameters_json_schema={"type": "object"})
    far = ExternalToolset[Any]([ship], id="far")
    return app_of(agent_of(model, toolsets=[far], capabilities=[RequestInput(post)], **more)), tokens


TWO = calls(("ship", {"n": 0}), ("ship", {"n": 1}))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"calls": {"other": 1}}, "IDs not in this `DeferredToolRequests.calls`: ['other']"),
        ({"calls": {"call-ship-0": 1, "call-ship-1": 2, "other": 3}}, "not in this `DeferredToolRequests.calls`"),
        ({"approvals": {"call-ship-0": True}}, "not in this `DeferredToolRequests.approvals`"),
        ({"calls": {"call-ship-0": 1}}, "`DeferredToolRequests` is not among output types"),
        ({}, "`DeferredToolRequests` is not among output types"),
    ],
)
def test_an_answer_that_is_not_to_what_was_asked_ends_the_run_by_name(said: Any, why: str) -> None:
    app, tokens = shipping(scripted(TWO))
    waiting = start(app, "a", prompt="go").finish()

    waiting.answer(tokens[0], said).finish()

    assert code(waiting) == "UserError"
    assert why in words(waiting)


def test_what_is_not_answered_is_the_output_of_an_agent_that_has_it_among_its_outputs() -> None:
    app, tokens = shipping(scripted(TWO), output_type=[str, DeferredToolRequests])
    waiting = start(app, "a", prompt="go").finish()

    waiting.answer(tokens[0], {"calls": {"call-ship-0": 1}}).finish()

    assert [call.tool_call_id for call in waiting.value.calls] == ["call-ship-1"]


def test_several_calls_are_decided_each_by_itself() -> None:
    model = scripted(calls(("act", {"a": "x"}), ("ship", {}), ("other", {"a": "y"})), says("done"))
    ship = ToolDefinition(name="ship", parameters_json_schema={"type": "object"})
    agent = agent_of(model, toolsets=[ExternalToolset[Any]([ship], id="far")])
    agent.tool_plain(requires_approval=True)(act)
    agent.tool_plain(requires_approval=True, name="other")(act)

    said = {f"{TOOL}:act": "approve", f"{TOOL}:other": "reject", "a__deferred.external": answer(7)}
    ended = run(app_of(agent), "a", decisions=said, prompt="go")

    assert ended.value == "done"
    assert heard(model) == [("x", "success"), (7, "success"), ("tester-1 said no", "denied")]


def test_results_of_calls_that_a_history_does_not_wait_for_end_the_run_by_name() -> None:
    pending = [
        ModelRequest(parts=[UserPromptPart("go")]),
        ModelResponse(parts=[ToolCallPart("ship", {}, tool_call_id="call-1")]),
    ]

    async def other(agent: Agent[Any, Any]) -> Any:
        return await agent.run(message_history=pending, deferred_tool_results=DeferredToolResults(calls={"other": 1}))

    ended = within(agent_of(scripted(says("done"))), other)

    assert (code(ended), ended.calls) == ("UserError", [])
    assert "Expected: {'call-1'}, got: {'other'}" in words(ended)
