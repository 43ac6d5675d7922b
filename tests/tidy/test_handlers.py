"""No handler serves two tools, in any integration: the name that was ordered, judged and claimed selects the code."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import RequestInput
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

from refold import App, Context
from refold.contrib.mcp import MCPServer
from refold.contrib.mcp.server import ServerTool
from refold.contrib.pydantic_ai import app_tools, durable
from refold.contrib.pydantic_ai.approvals import without_answer
from refold.contrib.pydantic_ai.operations import OperationTool
from refold.sdk.tool import ToolDef


def everything() -> App:
    """An app with tools of its own, of an MCP server, an agent in memory and two agents of pydantic-ai."""
    app = App("everything")
    for name in ("read", "write"):
        app.tool(name=name, effect="once")(_plain())
    app.include(MCPServer("far", command=["far"], effects={"look": "pure", "act": "once"}))

    @app.agent(durability="memory")
    async def brief(ctx: Context) -> None: ...

    shared = FunctionToolset[Any](id="shared")
    for name in ("one", "two"):
        shared.add_function(_plain(), name=name)
    for name in ("first", "second"):
        asking = RequestInput[Any](_ask)
        tools = [shared.approval_required(), app_tools(app, "read")]
        agent = Agent(TestModel(), name=name, toolsets=tools, capabilities=[asking])
        for own in ("three", "four"):
            agent.tool_plain(name=own)(_plain())

        @agent.toolset(id="late")
        def late(ctx: RunContext[Any]) -> FunctionToolset[Any]:
            return FunctionToolset()

        durable(app, agent)
    return app


def _plain() -> Any:
    async def act(n: int) -> int:
        return n

    return act


async def _ask(ctx: RunContext[Any], requests: Any, token: str) -> None: ...


def handler(tool: ToolDef) -> Any:
    """The code that an executor runs for a tool, with all that is bound to it."""
    if isinstance(tool, OperationTool):
        return _bound(tool._handler)
    return _bound(tool.body_with if isinstance(tool, ServerTool) else tool._body.function)


def _bound(code: Any) -> Any:
    if isinstance(code, partial):
        given = (each if isinstance(each, str) else id(each) for each in code.args)
        return (_bound(code.func), *given)
    return id(code)


def test_no_handler_serves_two_tools() -> None:
    tools = everything().tools
    handlers = {name: handler(tool) for name, tool in tools.items() if handler(tool) != id(without_answer)}

    assert len(set(handlers.values())) == len(handlers)
    of_functions = {name for name in handlers if ".call_tool:" in name}
    assert len(of_functions) == 2 * 4
    assert {"read", "write", "far.look", "far.act", "agent:brief"} <= handlers.keys()
