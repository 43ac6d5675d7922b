"""Agents of pydantic-ai as agents of Refold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext, Tool
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.durable_exec import (
    CapabilityOperationId,
    DurableOperationId,
    EventStreamHandlerId,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    ToolsetCallToolId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
)
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset

from refold import App, Context, UsageError
from refold.contrib.pydantic_ai import CallOptions, RefoldDurability, durable, idempotency_key
from refold.contrib.pydantic_ai.operations import RefoldNamer
from refold.testing import crash_matrix, run, start
from tests.contrib.thinking import calls, says, scripted, shop

PRICE, SELL = "shop__function_toolset__<agent>.call_tool:price", "shop__function_toolset__<agent>.call_tool:sell"
REQUEST = "shop__model.request"


def test_an_agent_runs_as_it_is_and_each_request_and_tool_call_is_a_call_of_the_run() -> None:
    model = scripted(calls(("price", {"item": "egg"})), calls(("sell", {"item": "egg"})), says("one egg, sold"))
    app, _, did = shop(model)

    ended = run(app, "shop", prompt="an egg", deps="Ada")

    assert ended.value == "one egg, sold"
    assert [call.tool for call in ended.calls] == [REQUEST, PRICE, REQUEST, SELL, REQUEST]
    assert did == ["price egg for Ada", "sell egg"]
    assert len(model.asked) == 3


def test_a_tools_arguments_and_result_stand_in_the_log_as_they_are() -> None:
    app, _, _ = shop(scripted(calls(("sell", {"item": "egg", "count": 2})), says("done")))

    sold = next(call for call in run(app, "shop", prompt="two eggs").calls if call.tool == SELL)

    assert {name: value for name, value in sold.args.items() if name != "$run"} == {"item": "egg", "count": 2}
    assert sold.result == "sold 2 egg"


def test_what_a_model_took_stands_in_its_result_in_one_plain_shape() -> None:
    app, _, _ = shop(scripted(says("hello")))

    [asked] = run(app, "shop", prompt="hello").calls

    assert asked.result["usage"].keys() == {
        *("model", "requests", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    }
    assert asked.result["usage"]["model"] == "function:script"
    assert asked.result["usage"]["output_tokens"] > 0


def test_outside_a_run_the_agent_is_an_ordinary_one() -> None:
    model = scripted(calls(("price", {"item": "egg"})), says("3"))
    _, agent, did = shop(model)

    assert agent.run_sync("an egg", deps="Bob").output == "3"
    assert did == ["price egg for Bob"]


def test_tools_that_are_wanted_at_once_are_called_at_once() -> None:
    app, _, did = shop(scripted(calls(*[("price", {"item": item}) for item in ("a", "bb", "ccc")]), says("6")))

    begun = start(app, "shop", prompt="prices", deps="Ada")
    begun.settle(1)
    assert begun.open == [2, 3, 4]
    for step in (4, 3, 2):
        begun.settle(step)

    assert begun.finish().value == "6"
    assert did == ["price ccc for Ada", "price bb for Ada", "price a for Ada"]


def test_an_agent_may_run_in_the_code_of_another_beside_its_own_calls() -> None:
    app, agent, did = shop(scripted(calls(("price", {"item": "egg"})), says("3")))

    @app.tool(effect="pure")
    def customer() -> str:
        return "Eve"

    @app.agent
    async def twice(ctx: Context) -> list[str]:
        name = await ctx.call(customer)
        both = await asyncio.gather(agent.run("one", deps=name), agent.run("two", deps=name))
        return [each.output for each in both]

    ended = run(app, "twice")

    assert ended.value == ["3", "3"]
    assert did == ["price egg for Eve"] * 2
    named = {call.args["$run"].get("run_id") for call in ended.calls if "$run" in call.args}
    assert named - {None} == {"r-1/1", "r-1/2"}


@pytest.mark.parametrize("first", [{"item": "egg", "count": 0}, {"count": 1}])
def test_a_tool_that_asks_its_model_to_try_again_does(first: dict[str, Any]) -> None:
    app, _, _ = shop(scripted(calls(("sell", first)), calls(("sell", {"item": "egg"})), says("ok")))

    ended = run(app, "shop", prompt="an egg")

    assert ended.value == "ok"
    assert [call.result for call in ended.calls if call.tool == SELL][-1] == "sold 1 egg"


class Order(BaseModel):
    item: str
    on: date


def test_an_output_of_a_type_is_the_result_and_validators_run_with_the_agent() -> None:
    made = calls(("final_result", {"item": "egg", "on": "2026-01-02"}))
    agent = Agent(
        scripted(calls(("final_result", {"item": "x", "on": "2026-01-02"})), made).model,
        name="orders",
        output_type=Order,
    )

    @agent.output_validator
    def known(order: Order) -> Order:
        if order.item == "x":
            raise ModelRetry("there is no x")
        return order

    app = App("shop")
    app.agent(agent)

    assert run(app, "orders", prompt="an egg").value == Order(item="egg", on=date(2026, 1, 2))


@dataclass
class Customer:
    name: str
    born: date


def test_deps_reach_tools_as_what_they_are() -> None:
    agent, seen = Agent(scripted(calls(("age", {})), says("old")).model, name="shop", deps_type=Customer), list[Any]()

    @agent.tool(metadata={"refold": CallOptions(effect="pure")})
    def age(ctx: RunContext[Customer]) -> int:
        seen.append((ctx.deps, ctx.run_step, ctx.tool_name))
        return 2026 - ctx.deps.born.year

    app = App("shop")
    app.agent(agent)
    ended = run(app, "shop", prompt="how old?", deps={"name": "Ada", "born": "1815-12-10"})

    assert ended.value == "old"
    assert seen == [(Customer("Ada", date(1815, 12, 10)), 1, "age")]
    assert ended.calls[1].result == 211


def test_wherever_it_is_killed_no_answer_is_paid_for_twice_and_nothing_is_sold_twice() -> None:
    sold = calls(("price", {"item": "egg"}), ("sell", {"item": "egg"}))
    app, _, _ = shop(scripted(sold, says("sold")))

    crash_matrix(app, "shop", {"prompt": "an egg", "deps": "Ada"})


# What cannot be is refused when the agent is built.


def test_an_unknown_word_in_a_tools_metadata_is_refused() -> None:
    agent = Agent(TestModel(), name="shop")

    @agent.tool_plain(metadata={"refold": {"efect": "pure"}})
    def price(item: str) -> int:
        return 1

    with pytest.raises(UsageError, match="tool price of agent shop: efect is no option of a call"):
        durable(App("shop"), agent)


def keyless() -> str:
    """Pays, and nobody could recognise it again."""
    return "paid"


def with_key() -> str:
    """Pays under its key."""
    return f"paid as {idempotency_key()}"


def with_key_of_a_helper() -> str:
    """Pays under the key that another function of its module asks for."""
    return with_key()


KEYED: dict[str, Any] = {"refold": CallOptions(effect="keyed")}
NATURAL: dict[str, Any] = {"refold": CallOptions(effect="keyed", keyed_by="arguments")}


@pytest.mark.parametrize(
    ("function", "metadata", "refused"),
    [
        (keyless, KEYED, True),
        (with_key, KEYED, False),
        (with_key_of_a_helper, KEYED, False),
        (keyless, NATURAL, False),
        (keyless, {}, False),
    ],
)
def test_a_keyed_tool_that_does_not_use_its_key_is_refused(
    function: Callable[[], str], metadata: dict[str, Any], *, refused: bool
) -> None:
    agent = Agent(TestModel(), name="shop", tools=[Tool(function, metadata=metadata)])

    with pytest.raises(UsageError, match="keyed_by='arguments'") if refused else nullcontext():
        durable(App("shop"), agent)


def test_a_dynamic_toolset_gets_no_key_and_is_keyed_by_its_arguments_alone() -> None:
    def declared(options: CallOptions) -> None:
        toolset = DynamicToolset[Any](lambda ctx: FunctionToolset(id="made"), id="tools")
        agent = Agent(TestModel(), name="shop", toolsets=[toolset])
        durable(App("shop"), agent, RefoldDurability(toolsets={"tools": options}))

    with pytest.raises(UsageError, match="keyed_by='arguments'"):
        declared(CallOptions(effect="keyed"))
    declared(CallOptions(effect="keyed", keyed_by="arguments"))


class Socket:
    pass


def test_deps_without_a_json_form_are_refused() -> None:
    with pytest.raises(UsageError, match="deps of agent shop: the type has no JSON form"):
        durable(App("shop"), Agent(TestModel(), name="shop", deps_type=Socket))


def prompted(agent: Agent[None, str]) -> None:
    @agent.instructions
    def today() -> str:
        return f"It is {date.today()}."  # noqa: DTZ011 - what is refused


def told(agent: Agent[None, str]) -> None:
    @agent.system_prompt
    def today() -> str:
        return f"It is {date.today()}."  # noqa: DTZ011 - what is refused


def checked(agent: Agent[None, str]) -> None:
    @agent.output_validator
    def today(said: str) -> str:
        return f"{said} {date.today()}"  # noqa: DTZ011 - what is refused


def prepared(agent: Agent[None, str]) -> None:
    async def today(ctx: RunContext[None], tool: ToolDefinition) -> ToolDefinition | None:
        return tool if date.today().year else None  # noqa: DTZ011 - what is refused

    @agent.tool_plain(prepare=today)
    def price() -> int:
        """What it costs."""
        return 1


@pytest.mark.parametrize("made", [prompted, told, checked, prepared])
def test_code_in_the_planner_that_a_replay_could_not_repeat_is_refused(
    made: Callable[[Agent[None, str]], None],
) -> None:
    agent = Agent(TestModel(), name="shop")
    made(agent)

    with pytest.raises(UsageError, match=r"agent shop uses date.today"):
        durable(App("shop"), agent)


def test_a_processor_of_histories_that_a_replay_could_not_repeat_is_refused() -> None:
    def forget(messages: list[ModelMessage]) -> list[ModelMessage]:
        return messages if date.today().year else []  # noqa: DTZ011 - what is refused

    with pytest.raises(UsageError, match=r"agent shop uses date.today"):
        durable(App("shop"), Agent(TestModel(), name="shop", capabilities=[ProcessHistory(forget)]))


def test_what_an_agent_tells_its_model_is_part_of_its_version() -> None:
    def version(instructions: str) -> str:
        app = App("shop")
        return durable(app, Agent(TestModel(), name="shop", instructions=instructions)).version

    assert version("Sell.") == version("Sell.") != version("Buy.")
    assert "pydantic_ai2" in version("Sell.")


def test_an_agent_or_a_toolset_without_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match="unique `name`"):
        durable(App("shop"), Agent(TestModel()))
    with pytest.raises(UsageError, match="unique `id`"):
        durable(App("shop"), Agent(TestModel(), name="shop", toolsets=[FunctionToolset()]))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model": {"retries": 3}}, "model=: retries is no option"),
        ({"tools": {"effect": "probed"}}, "effect='probed' is not for a tool"),
        ({"toolsets": {"web": {"pol": "x"}}}, "toolsets\\['web'\\]: pol is no option"),
    ],
)
def test_an_unknown_option_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        RefoldDurability(**options)


def test_a_tool_that_comes_later_is_refused_when_it_is_called() -> None:
    app, agent, _ = shop(scripted(calls(("late", {})), says("ok")))

    @agent.tool_plain
    def late() -> None:
        """Nobody has registered it."""

    ended = run(app, "shop", prompt="late", deps="Ada")

    assert ended.failure is not None
    assert "no tool shop__function_toolset__<agent>.call_tool:late" in ended.failure.message


# Names are in histories for ever.

NAMES: list[tuple[DurableOperationId, str]] = [
    (ModelRequestId(model_name="m"), "a__model.request"),
    (ModelRequestId(streaming=True, model_name="m"), "a__model.request_stream"),
    (ModelRequestId("fast", model_name="m"), "a__model.request.fast"),
    (ModelRequestId("fast", streaming=True, model_name="m"), "a__model.request_stream.fast"),
    (ModelCancelSuspendedResponseId(model_name="m"), "a__model.cancel_suspended_response"),
    (ModelCancelSuspendedResponseId("fast", model_name="m"), "a__model.cancel_suspended_response.fast"),
    (ModelCompactMessagesId(model_name="m"), "a__model.compact_messages"),
    (ModelCompactMessagesId("fast", model_name="m"), "a__model.compact_messages.fast"),
    (EventStreamHandlerId(), "a__event_stream_handler"),
    (CapabilityOperationId("c", operation="op"), "a__capability__c.op"),
    (ToolsetGetToolsId("mcp", toolset_id="t"), "a__mcp_server__t.get_tools"),
    (ToolsetGetToolsId("dynamic", toolset_id="t"), "a__dynamic_toolset__t.get_tools"),
    (ToolsetGetInstructionsId("t"), "a__mcp_server__t.get_instructions"),
    (ToolsetValidateToolArgumentsId("function", toolset_id="t"), "a__function_toolset__t.validate_args"),
    (ToolsetValidateToolArgumentsId("dynamic", toolset_id="t"), "a__dynamic_toolset__t.validate_args"),
    (ToolsetCallToolId("function", toolset_id="t"), "a__function_toolset__t.call_tool"),
    (ToolsetCallToolId("mcp", toolset_id="t"), "a__mcp_server__t.call_tool"),
    (ToolsetCallToolId("dynamic", toolset_id="t"), "a__dynamic_toolset__t.call_tool"),
]


@pytest.mark.parametrize(("unit", "name"), NAMES)
def test_a_unit_keeps_its_name(unit: DurableOperationId, name: str) -> None:
    assert RefoldNamer("a").operation_name(unit) == name


@dataclass(frozen=True)
class LaterId:
    capability_id: str
    number: int = 1


def test_a_unit_that_there_is_not_yet_has_a_name_too() -> None:
    assert RefoldNamer("a").operation_name(LaterId("c")) == "a__LaterId__c"  # type: ignore[arg-type]
