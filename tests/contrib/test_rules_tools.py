"""Rules of durable agents that pydantic-ai's own engines are judged by: tools, toolsets and what is refused."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent, ModelRetry, RunContext, ToolReturn
from pydantic_ai.capabilities import AbstractCapability, LocalWorkspace, durable_operation
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset

from refold import App, CallFailed, Context, Retry, UsageError
from refold.contrib.pydantic_ai import CallOptions, RefoldDurability, app_tools, durable
from refold.core.events import ApprovalRequested, RunSuspended
from refold.sdk.context import current
from refold.testing import run
from tests.contrib.ruled import PLANNED, PURE, agent_of, app_of, code, heard, units, words
from tests.contrib.thinking import calls, says, scripted

TOOL = "function_toolset__<agent>.call_tool:act"
FAR, LIST = "dynamic_toolset__far.call_tool:act", "dynamic_toolset__far.get_tools"

# Tools that fail.


def test_a_failed_tool_is_told_to_its_model() -> None:
    model = scripted(calls(("act", {})), says("done"))
    agent = agent_of(model)

    @agent.tool_plain
    def act() -> str:
        raise ToolFailed("disk full")

    assert run(app_of(agent), "a", prompt="go").value == "done"
    assert heard(model) == [("disk full", "failed")]


def test_a_tool_that_raises_anything_else_ends_the_run_when_it_may_be_repeated() -> None:
    agent = agent_of(scripted(calls(("act", {}))))

    @agent.tool_plain(metadata=PURE)
    def act() -> str:
        raise ValueError("disk full")

    assert code(run(app_of(agent), "a", prompt="go")) == "ValueError"


def test_a_tool_that_raises_anything_else_is_in_doubt_when_it_may_not() -> None:
    agent = agent_of(scripted(calls(("act", {}))))

    @agent.tool_plain
    def act() -> str:
        raise ValueError("disk full")

    ended = run(app_of(agent), "a", prompt="go")

    assert isinstance(ended.events[-1], RunSuspended)
    assert ended.events[-1].reason == "doubt"


def test_a_capability_may_recover_from_a_failed_call() -> None:
    class Recovers(AbstractCapability[Any]):
        async def on_tool_execute_error(self, ctx: Any, *, error: Exception, **told: Any) -> Any:
            return f"recovered from {type(error).__name__}"

    model = scripted(calls(("act", {})), says("done"))
    agent = agent_of(model, capabilities=[Recovers()])

    @agent.tool_plain(metadata=PURE)
    def act() -> str:
        raise ValueError("disk full")

    assert run(app_of(agent), "a", prompt="go").value == "done"
    assert heard(model) == [(f"recovered from {CallFailed.__name__}", "success")]


def test_a_tool_is_tried_again_by_its_model_as_often_as_it_says() -> None:
    agent = agent_of(scripted(*[calls(("act", {}))] * 9), retries=2)

    @agent.tool_plain
    def act() -> str:
        raise ModelRetry("again")

    ended = run(app_of(agent), "a", prompt="go")

    assert (code(ended), units(ended).count(TOOL)) == ("UnexpectedModelBehavior", 3)
    assert "exceeded max retries count of 2" in words(ended)


def test_an_unknown_tool_is_told_to_its_model() -> None:
    model = scripted(calls(("nothing", {})), says("done"))

    assert run(app_of(agent_of(model)), "a", prompt="go").value == "done"
    assert heard(model)[0][1] == "retried"


def test_a_tool_that_takes_too_long_is_told_to_its_model() -> None:
    model = scripted(calls(("act", {})), says("done"))
    agent = agent_of(model)

    @agent.tool_plain(timeout=0.01, metadata=PURE)
    async def act() -> int:
        await asyncio.sleep(60)
        return 1

    assert run(app_of(agent), "a", prompt="go").value == "done"
    assert heard(model) == [("Timed out after 0.01 seconds.", "retried")]


def test_a_result_without_a_json_form_fails_its_call() -> None:
    agent = agent_of(scripted(calls(("act", {}))))

    @agent.tool_plain
    def act() -> Any:
        return object()

    assert code(run(app_of(agent), "a", prompt="go")) == "bad_result"


@pytest.mark.parametrize("word", ["cancel", "enqueue"])
def test_a_tool_has_no_hold_of_its_run(word: str) -> None:
    agent = agent_of(scripted(calls(("act", {}))))

    @agent.tool(metadata=PURE)
    def act(ctx: RunContext[Any]) -> int:
        getattr(ctx, word)(*["more"] if word == "enqueue" else [])
        return 1

    ended = run(app_of(agent), "a", prompt="go")

    assert code(ended) == "UserError"
    assert re.search(rf"{word}.* is not supported inside a durable call", words(ended))


# What tools say.


def test_what_a_tool_returns_beside_its_value_reaches_the_model() -> None:
    model = scripted(calls(("act", {}), ("draw", {})), says("done"))
    agent = agent_of(model)

    @agent.tool_plain
    def act() -> ToolReturn:
        return ToolReturn(return_value=1, content="see", metadata={"not": "told"})

    @agent.tool_plain
    def draw() -> BinaryContent:
        return BinaryContent(data=b"\x89png", media_type="image/png")

    assert run(app_of(agent), "a", prompt="go").value == "done"
    assert heard(model)[0] == (1, "success")
    assert heard(model)[1][0].data == b"\x89png"
    assert heard(model)[2] == ("see", "")


def test_a_check_of_arguments_is_made_before_the_call() -> None:
    checked = list[int]()

    def check(ctx: RunContext[Any], number: int) -> None:
        checked.append(number)
        if number < 1:
            raise ModelRetry("from one up")

    model = scripted(calls(("act", {"number": 0})), calls(("act", {"number": 1})), says("done"))
    agent = agent_of(model)

    @agent.tool_plain(args_validator=check)
    def act(number: int) -> int:
        return number

    ended = run(app_of(agent), "a", prompt="go")

    assert (ended.value, checked) == ("done", [0, 1])
    assert units(ended).count(TOOL) == 1


def test_a_tool_may_have_arguments_of_any_name() -> None:
    names, took = ("retry", "timeout", "label", "key", "reserve", "tool", "self", "idempotency_key"), list[Any]()
    agent = agent_of(scripted(calls(("act", {name: {"of": name} for name in names})), says("done")))

    @agent.tool_plain
    def act(
        retry: Any, timeout: Any, label: Any, key: Any, reserve: Any, tool: Any, self: Any, idempotency_key: Any
    ) -> None:
        took.extend([retry, timeout, label, key, reserve, tool, self, idempotency_key])

    assert run(app_of(agent), "a", prompt="go").value == "done"
    assert took == [{"of": name} for name in names]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        *[({"item": "egg", word: {"a": 1}}, f"{word}: Extra inputs") for word in ("retry", "timeout", "label", "self")],
        ({"item": "egg", "reserve": {}}, "reserve: Extra inputs"),
        ({"item": 3}, "item: Input should be a valid string"),
        ({}, "item: Field required"),
    ],
)
def test_arguments_that_a_tool_of_the_app_does_not_take_are_asked_for_again(said: dict[str, Any], why: str) -> None:
    app, model = App("rules"), scripted(calls(("price", said)), calls(("price", {"item": "egg"})), says("done"))

    @app.tool(effect="pure")
    def price(item: str) -> int:
        return len(item)

    durable(app, agent_of(model, toolsets=[app_tools(app, "price")]))
    ended = run(app, "a", prompt="go")

    assert ended.value == "done"
    assert [call.args for call in ended.calls if call.tool == "price"] == [{"item": "egg"}]
    assert any(why in str(part.content) for part in model.asked[1][-1].parts)  # type: ignore[union-attr]


def test_a_run_that_a_tool_has_ended_names_the_line_of_the_tool() -> None:
    agent = agent_of(scripted(calls(("act", {}))))

    @agent.tool_plain(metadata={"refold": CallOptions(effect="pure", retry=Retry(attempts=1))})
    def act() -> int:
        return {"a": 1}["b"]

    failure = run(app_of(agent), "a", prompt="go").failure

    assert failure is not None
    assert failure.detail == f"contrib/test_rules_tools.py:{act.__code__.co_firstlineno + 2} in act"


# Toolsets.


def far(*, once: bool = False, asks: bool = False, at: list[bool] | None = None) -> DynamicToolset[Any]:
    """A toolset that is made with the run: its tool asks its model for a number from one up."""

    def make(ctx: RunContext[Any]) -> FunctionToolset[Any]:
        tools: FunctionToolset[Any] = FunctionToolset()
        (at if at is not None else []).append(current() is not None)

        @tools.tool_plain(requires_approval=asks)
        def act(number: int) -> int:
            if number < 1:
                raise ModelRetry("from one up")
            return number + 1

        return tools

    return DynamicToolset(make, id="far", per_run_step=not once)


@pytest.mark.parametrize("once", [False, True])
def test_a_dynamic_toolset_is_listed_and_called_in_executors(once: bool) -> None:
    model, at = scripted(calls(("act", {"number": 0})), calls(("act", {"number": 1})), says("done")), list[bool]()

    ended = run(app_of(agent_of(model, toolsets=[far(once=once, at=at)])), "a", prompt="go")

    assert ended.value == "done"
    assert units(ended) == [LIST, "model.request", FAR, LIST, "model.request", FAR, LIST, "model.request"]
    assert (heard(model), any(at)) == ([(2, "success")], once)


@pytest.mark.parametrize("verdict", ["approve", "reject"])
def test_a_tool_of_a_dynamic_toolset_is_asked_about(verdict: Any) -> None:
    model = scripted(calls(("act", {"number": 1})), says("done"))

    ended = run(app_of(agent_of(model, toolsets=[far(asks=True)])), "a", decisions={f"a__{FAR}": verdict}, prompt="go")

    assert sum(isinstance(event, ApprovalRequested) for event in ended.events) == 1
    assert heard(model)[0][1] == {"approve": "success", "reject": "denied"}[verdict]


def test_a_toolset_that_is_decorated_is_one_of_the_agent() -> None:
    agent = agent_of(scripted(calls(("act", {"number": 1})), says("done")))
    agent.toolset(id="far")(far().toolset_func)

    ended = run(app_of(agent), "a", prompt="go")

    assert units(ended) == [LIST, "model.request", FAR, LIST, "model.request"]


def test_a_toolset_that_comes_after_is_refused_by_name() -> None:
    agent = agent_of(scripted(says("done")), capabilities=[RefoldDurability()])
    agent.toolset(id="far")(far().toolset_func)

    with pytest.raises(UsageError, match=r"DynamicToolset 'far' of agent a has come after its RefoldDurability"):
        app_of(agent)


@pytest.mark.parametrize("kind", ["function", "dynamic"])
def test_a_toolset_that_a_run_brings_is_refused_by_name(kind: str) -> None:
    agent, tools = agent_of(scripted(says("done"))), FunctionToolset[Any](id="far")
    tools.add_function(lambda: 1, name="act")
    app = app_of(agent)

    @app.agent
    async def outer(ctx: Context) -> str:
        return str((await agent.run("go", toolsets=[tools if kind == "function" else far()])).output)

    ended = run(app, "outer")

    assert (code(ended), ended.calls) == ("UserError", [])
    assert "Toolset 'far' cannot be added at runtime with Refold" in words(ended)


# Capabilities, and what they bring.


class Doubles(AbstractCapability[Any]):
    id = "doubles"

    @durable_operation("double")
    async def double(self, ctx: RunContext[Any], number: int) -> int:
        assert current() is None
        return number * 2

    async def before_run(self, ctx: RunContext[Any]) -> None:
        assert await self.double(ctx, 4) == 8


def test_a_durable_method_of_a_capability_is_a_call() -> None:
    ended = run(app_of(agent_of(scripted(says("done")), capabilities=[Doubles()])), "a", prompt="go")

    assert (ended.value, units(ended)) == ("done", ["capability__doubles.double", "model.request"])
    assert ended.calls[0].result["value"] == 8


def test_files_of_a_workspace_are_read_and_written_by_executors(tmp_path: Any) -> None:
    agent = agent_of(scripted(calls(("act", {})), says("done")), capabilities=[LocalWorkspace(tmp_path)])
    said = list[str]()

    @agent.tool(metadata=PLANNED)
    async def act(ctx: RunContext[Any]) -> None:
        await ctx.workspace.write_bytes("a.txt", b"hello")
        said.append(await ctx.workspace.read_text("a.txt"))

    ended = run(app_of(agent), "a", prompt="go")

    assert units(ended).count("capability__workspace.call") == 3
    assert said[0] == (tmp_path / "a.txt").read_text() == "hello"


# What is refused when an agent is built.


def clock(ctx: RunContext[Any]) -> FunctionToolset[Any]:
    return FunctionToolset(id=str(datetime.now()))  # noqa: DTZ005 - what is refused


def two_called_alike() -> None:
    app_of(agent_of(scripted(), toolsets=[FunctionToolset(id="far"), FunctionToolset(id="far")]))


def two_agents() -> None:
    durable(app_of(agent_of(scripted())), agent_of(scripted()))


def twice() -> None:
    agent = agent_of(scripted())
    durable(app_of(agent), agent)


def nameless_dynamic() -> None:
    app_of(agent_of(scripted(), toolsets=[DynamicToolset(lambda ctx: None)]))


def dynamic_by_the_clock() -> None:
    app_of(agent_of(scripted(), toolsets=[DynamicToolset(clock, id="far", per_run_step=False)]))


def without_a_model() -> None:
    durable(App("rules"), Agent(name="a"))


def opted_out_and_not_async() -> None:
    agent = agent_of(scripted())
    agent.tool_plain(metadata=PLANNED)(lambda: 1)  # type: ignore[misc]
    app_of(agent)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (two_called_alike, "Two toolsets have the same `id` 'far'"),
        (two_agents, "app rules has two agents of pydantic-ai that are called a"),
        (twice, "app rules has two agents of pydantic-ai that are called a"),
        (nameless_dynamic, r"need to have a unique `id`.*DynamicToolset\(id=...\)"),
        (dynamic_by_the_clock, "agent a uses datetime.now"),
        (without_a_model, "agent a cannot be durable: An agent needs to have a `model`"),
        (opted_out_and_not_async, "is to run in the planner, and is not async"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_built(build: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        build()
