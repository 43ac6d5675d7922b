"""Which function acts, and on what, is never a word beside its arguments: a hijacked planner orders as it likes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent, RunContext
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from refold import App, TerminalError, UsageError
from refold.contrib.pydantic_ai import CallOptions
from refold.contrib.pydantic_ai.approvals import without_answer
from refold.contrib.pydantic_ai.operations import OperationTool
from refold.core.errors import MalformedError
from refold.core.events import CallProposed
from refold.core.ids import RunId
from refold.core.run.intents import Call
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.core.wire.conversation import whole_request
from refold.engine.planner.agents.agent_host import edited_by_operator
from refold.lab.forks.record import LogRow
from refold.sdk.frames import failure_of
from refold.sdk.heartbeat import Heartbeat
from refold.testing import replay, run
from tests.contrib.ruled import PURE, agent_of, app_of
from tests.contrib.thinking import calls, says, scripted
from tests.forks.recording import fork

SHOP = "a__function_toolset__<agent>.call_tool:"
Ran = list[tuple[str, Any]]


def shop(ran: Ran) -> App:
    """An app whose agent may look at prices freely, and charge after an approval alone."""
    agent = Agent(scripted(calls(("price", {"amount": 1})), says("done")).model, name="a", deps_type=dict[str, str])

    @agent.tool(metadata=PURE)
    def price(ctx: RunContext[dict[str, str]], amount: int) -> str:
        ran.append(("price", (amount, ctx.deps)))
        return "cheap"

    @agent.tool_plain(requires_approval=True)
    def charge(amount: int) -> str:
        ran.append(("charge", amount))
        return "charged"

    return app_of(agent)


def ordered(app: App, tool: str, args: dict[str, Any]) -> Any:
    """Does what an executor does for an order with these arguments, after its gate let it pass."""
    attempt = app.tools[tool].run(canonical.dumps(args), idempotency_key="k", heartbeat=Heartbeat())
    return asyncio.run(cast(Coroutine[Any, Any, Any], attempt))


def proposed(app: App, tool: str, **given: Any) -> dict[str, Any]:
    """The arguments with which an honest planner orders the tool."""
    found = next(
        each
        for each in run(app, "a", prompt="go", **given).events
        if isinstance(each, CallProposed) and each.tool == tool
    )
    args: dict[str, Any] = json.loads(found.args)
    return args


def test_no_two_tools_have_one_handler() -> None:
    app = shop([])
    handlers = [tool._handler for tool in app.tools.values() if isinstance(tool, OperationTool)]
    handlers = [each for each in handlers if each is not without_answer]  # which acts for nobody

    assert len({id(each) for each in handlers}) == len(handlers) > 2
    assert {SHOP + "price", SHOP + "charge"} <= app.tools.keys()


@pytest.mark.parametrize("named", [{"tool_name": "charge"}, {"tool": {"name": "charge", "as": {"name": "charge"}}}])
def test_the_arguments_of_an_order_name_no_other_function(named: dict[str, Any]) -> None:
    ran: Ran = []
    app = shop(ran)
    args = proposed(app, SHOP + "price", deps={"account": "1"})
    assert not {"tool_name", "tool"} & args["$run"].keys()
    ran.clear()

    with pytest.raises(TerminalError) as refused:
        ordered(app, SHOP + "price", {**args, "$run": {**args["$run"], **named}})

    assert refused.value.fields["code"] == "unauthorised"
    assert ran == []
    ordered(app, SHOP + "price", args)
    assert ran == [("price", (1, {"account": "1"}))]


def test_a_function_that_needs_an_approval_does_not_act_without_one_whatever_gate_let_it_pass() -> None:
    ran: Ran = []
    app = shop(ran)
    args = proposed(app, SHOP + "price")

    with pytest.raises(TerminalError, match="needs an approval"):
        ordered(app, SHOP + "charge", {**args, "amount": 500})

    assert ("charge", 500) not in ran


def test_all_that_a_call_acts_on_stands_in_its_arguments() -> None:
    large = {"account": "ACME", "notes": "x" * 5_000}

    args = proposed(shop([]), SHOP + "price", deps=large)

    assert args["$run"]["deps"] == large
    assert args["amount"] == 1


def money(ran: Ran) -> FunctionToolset[Any]:
    """Tools of which one charges."""
    tools = FunctionToolset[Any](id="money")

    @tools.tool_plain(metadata=PURE)
    def charge(amount: int) -> str:
        ran.append(("charge", amount))
        return "charged"

    return tools


def small(ctx: RunContext[Any], definition: Any, args: dict[str, Any]) -> bool:
    """True for amounts that people look at."""
    return bool(args["amount"] > 100)


AROUND: dict[str, Callable[[FunctionToolset[Any]], AbstractToolset[Any]]] = {
    "always": lambda tools: tools.approval_required(),
    "below a prefix": lambda tools: tools.prefixed("p").approval_required(),
    "by a condition": lambda tools: tools.approval_required(small),
    "filtered": lambda tools: tools.filtered(lambda ctx, definition: True).approval_required(small),
}


@pytest.mark.parametrize("how", AROUND)
def test_approval_required_around_a_toolset_holds_in_the_executor(how: str) -> None:
    ran: Ran = []
    app = app_of(agent_of(scripted(says("done")), toolsets=[AROUND[how](money(ran))]))
    context = proposed(shop([]), SHOP + "price")["$run"]

    with pytest.raises(TerminalError, match="needs an approval"):
        ordered(app, "a__function_toolset__money.call_tool:charge", {"amount": 500, "$run": context})

    assert ran == []


def test_a_condition_that_lets_a_call_pass_lets_it_pass_in_the_executor() -> None:
    ran: Ran = []
    app = app_of(agent_of(scripted(says("done")), toolsets=[money(ran).approval_required(small)]))
    context = proposed(shop([]), SHOP + "price")["$run"]

    ordered(app, "a__function_toolset__money.call_tool:charge", {"amount": 5, "$run": context})

    assert ran == [("charge", 5)]


def test_a_condition_that_raises_asks() -> None:
    ran: Ran = []
    app = app_of(agent_of(scripted(says("done")), toolsets=[money(ran).approval_required(lambda *_: 1 / 0 > 0)]))
    context = proposed(shop([]), SHOP + "price")["$run"]

    with pytest.raises(TerminalError, match="needs an approval"):
        ordered(app, "a__function_toolset__money.call_tool:charge", {"amount": 5, "$run": context})


def test_a_condition_that_an_executor_cannot_ask_is_refused_where_the_agent_is_registered() -> None:
    tools = money([]).prefixed("p").approval_required(small)

    with pytest.raises(UsageError, match="a condition that executors cannot ask"):
        app_of(agent_of(scripted(says("done")), toolsets=[tools]))


def late_tools(ran: Ran) -> App:
    """An app whose agent has a dynamic toolset: one tool needs an approval, the other needs none."""
    agent = agent_of(scripted(calls(("look", {"amount": 5})), says("done")))

    @agent.toolset(id="late")
    def late(ctx: RunContext[Any]) -> FunctionToolset[Any]:
        tools = FunctionToolset[Any]()

        @tools.tool_plain(requires_approval=True)
        def charge(amount: int) -> str:
            ran.append(("charge", amount))
            return "charged"

        @tools.tool
        def look(ctx: RunContext[Any], amount: int) -> str:
            ran.append((str(ctx.tool_name), amount))
            return "seen"

        return tools

    return app_of(agent)


LATE = "a__dynamic_toolset__late.call_tool"
SCHEMA = {"type": "object", "properties": {"amount": {"type": "integer"}}}
DEFINITION = {"name": "charge", "kind": "function", "parameters_json_schema": SCHEMA}


def test_a_tool_of_a_dynamic_toolset_that_needs_an_approval_does_not_act_without_one() -> None:
    ran: Ran = []
    context = proposed(shop([]), SHOP + "price")["$run"]

    with pytest.raises(TerminalError, match="needs an approval"):
        ordered(late_tools(ran), f"{LATE}:charge", {"amount": 500, "$run": context})

    assert ran == []


@pytest.mark.parametrize("named", ["look", "charge"])
@pytest.mark.parametrize("tool", [f"{LATE}:look", LATE])
def test_an_order_of_one_tool_of_a_dynamic_toolset_runs_no_other(tool: str, named: str) -> None:
    ran: Ran = []
    context = proposed(shop([]), SHOP + "price")["$run"]
    order = {"args": {"amount": 500}, "amount": 500, "$name": named, "$tool": DEFINITION, "$run": context}

    with pytest.raises(TerminalError) as refused:
        ordered(late_tools(ran), tool, order)

    assert (refused.value.fields["code"], ran) == ("unauthorised", [])


@pytest.mark.parametrize("named", [{"tool_name": "charge"}, {"tool": {"name": "charge"}}])
def test_the_context_of_a_dynamic_toolset_names_no_other_function(named: dict[str, Any]) -> None:
    ran: Ran = []
    app = late_tools(ran)
    args = proposed(app, f"{LATE}:look")
    ran.clear()

    with pytest.raises(TerminalError) as refused:
        ordered(app, f"{LATE}:look", {**args, "$run": {**args["$run"], **named}})

    assert (refused.value.fields["code"], ran) == ("unauthorised", [])
    assert args.keys() == {"amount", "$run"}
    ordered(app, f"{LATE}:look", args)
    assert ran == [("look", 5)]


def test_a_history_in_which_the_arguments_name_the_function_is_replayed() -> None:
    old = Path(__file__).with_name("named_in_arguments.json")

    state = replay(late_tools([]), old)

    assert isinstance(step := state.steps[2], CallProposed)
    assert (step.tool, json.loads(step.args)["$name"], state.status) == (LATE, "look", "completed")


FAR = "a__mcp_server__far.call_tool"


def far_tools(effects: Path) -> App:
    """An app whose agent has a toolset of a server with the tools `look` and `burn`."""
    server = [str(Path(__file__).parent.parent / "security" / "far.py")]
    transport = StdioTransport(sys.executable, server, env={"EFFECTS": str(effects)}, keep_alive=False)
    return app_of(agent_of(scripted(says("done")), toolsets=[MCPToolset(transport, id="far")]))


@pytest.mark.parametrize("named", [None, {"$name": "burn"}, {"$name": "look"}, {"$tool": {"name": "burn"}}])
def test_an_order_of_one_tool_of_a_server_runs_no_other(tmp_path: Path, named: dict[str, Any] | None) -> None:
    args = {"label": "x", "$run": proposed(shop([]), SHOP + "price")["$run"], **(named or {})}

    with nullcontext() if named is None else pytest.raises(TerminalError, match="the arguments hold"):
        ordered(far_tools(tmp_path), f"{FAR}:look", args)

    effects = tmp_path / "effects"
    assert (effects.read_text() if effects.exists() else "") == ("" if named else "look x\n")


def test_a_tool_that_a_server_has_not_is_not_called(tmp_path: Path) -> None:
    args = {"label": "x", "$run": proposed(shop([]), SHOP + "price")["$run"]}

    with pytest.raises(TerminalError, match="has no tool forge"):
        ordered(far_tools(tmp_path), f"{FAR}:forge", args)

    assert not (tmp_path / "effects").exists()


def late_charge(ran: Ran) -> App:
    """An app whose agent has a dynamic toolset, in which a tool says for itself that people decide on it."""
    agent = agent_of(scripted(calls(("charge", {"amount": 500})), says("done")))

    @agent.toolset(id="late")
    def late(ctx: RunContext[Any]) -> FunctionToolset[Any]:
        tools = FunctionToolset[Any]()

        @tools.tool_plain(metadata={"refold": CallOptions(approval="required")})
        def charge(amount: int) -> str:
            ran.append(("charge", amount))
            return "charged"

        return tools

    return app_of(agent)


def test_options_of_one_tool_of_a_dynamic_toolset_are_refused_as_no_executor_knows_them() -> None:
    ran: Ran = []
    ended = run(late_charge(ran), "a", prompt="go")

    assert ended.failure is not None
    assert "tool charge of agent a has options of its own" in ended.failure.message
    assert ran == []


def test_an_executor_runs_no_tool_of_a_dynamic_toolset_that_says_that_it_needs_an_approval() -> None:
    ran: Ran = []
    context = proposed(shop([]), SHOP + "price")["$run"]

    with pytest.raises(TerminalError, match="needs an approval"):
        ordered(late_charge(ran), "a__dynamic_toolset__late.call_tool:charge", {"amount": 500, "$run": context})

    assert ran == []


@pytest.mark.parametrize("part", ["$run", "settings", "parameters", "model"])
def test_a_request_to_a_model_is_under_its_digest_with_settings_tools_and_context(part: str) -> None:
    agent = Agent(scripted(calls(("peek", {})), says("done")).model, name="a", model_settings={"temperature": 0.1})

    @agent.tool_plain(metadata={"refold": CallOptions(effect="pure")})
    def peek() -> int:
        return 1

    steps = [each for each in run(app_of(agent), "a", prompt="go").events if isinstance(each, CallProposed)]
    asked = json.loads(steps[0].args)
    whole_request(asked, {})
    changed = {
        "$run": {**asked["$run"], "deps": {"as": "root"}},
        "settings": {"temperature": 2},
        "parameters": {**asked["parameters"], "function_tools": []},
        "model": "another",
    }

    with pytest.raises(TerminalError, match="its digest is another"):
        whole_request({**asked, part: changed[part]}, {})


OPERATORS: dict[str, dict[str, Any]] = {
    "no context": {},
    "the same": {"$run": {"deps": {"account": "1"}}},
    "other deps": {"$run": {"deps": {"account": "2"}}},
    "no deps": {"$run": {}},
    "another function": {"$run": {"deps": {"account": "1"}}, "$name": "charge"},
}


@pytest.mark.parametrize("how", OPERATORS)
def test_an_operator_edits_arguments_and_not_the_context_of_a_call(how: str) -> None:
    asked = canonical.dumps({"amount": 1, "$run": {"deps": {"account": "1"}}})
    edit = canonical.dumps({"amount": 500, **OPERATORS[how]})
    call, state = shop([]).tools[SHOP + "price"].call(asked), RunState(RunId("r-1"))
    state.retried = state.retried._replace(edit=(1, edit, call.tool, "zoe"))

    if how in ("no context", "the same"):
        edited, before = edited_by_operator(state, call, 1)
        assert isinstance(edited, Call)
        assert (json.loads(edited.args), before) == ({**json.loads(asked), "amount": 500}, asked)
    else:
        with pytest.raises(MalformedError, match="nothing that begins with") as refused:
            edited_by_operator(state, call, 1)
        assert failure_of(refused.value).code == "edit"


def test_a_fork_edits_arguments_and_not_the_context_of_a_call() -> None:
    app = shop([])
    done = run(app, "a", prompt="go", deps={"account": "1"})
    asked = next(each.args for each in done.calls if each.tool == SHOP + "price")
    family = {RunId("r-1"): [LogRow(place, *record) for place, record in enumerate(done.records)]}

    reports = [fork(app, family, "r-1", 7, edits={2: text}) for text in ('{"amount":500}', '{"amount":5,"$name":"x"}')]

    assert [[each.args for each in report.stopped] for report in reports] == [[{**asked, "amount": 500}], []]
    assert (reports[1].status, reports[1].verdict) == (("completed", "failed"), "other")
