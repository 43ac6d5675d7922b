"""Rules of durable agents: toolsets of pydantic-ai for MCP servers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from fastmcp.client.transports import StdioTransport
from pydantic_ai.mcp import MCPToolset

from refold import App, UsageError
from refold.contrib.pydantic_ai import CallOptions, RefoldDurability, durable
from refold.core.events import ApprovalRequested, CallProposed
from refold.testing import run
from tests.contrib.ruled import agent_of, app_of, heard, units
from tests.contrib.thinking import calls, says, scripted

SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("far")


@server.tool()
def add(a: int, b: int) -> int:
    open({place!r}, "a").write("add\\n")
    return a + b


server.run()
"""
CALL = "mcp_server__far.call_tool:add"


def toolset(place: Path) -> Any:
    """A server that is started for each unit that needs it, and notes what it has done."""
    (place / "server.py").write_text(SERVER.format(place=str(place / "did")))
    (place / "did").touch()
    transport = StdioTransport(command=sys.executable, args=[str(place / "server.py")], keep_alive=False)
    return MCPToolset(transport, id="far")


@pytest.mark.parametrize("verdict", ["approve", "reject"])
def test_a_toolset_of_a_server_is_listed_and_called_in_executors(tmp_path: Path, verdict: Any) -> None:
    model = scripted(calls(("add", {"a": 1, "b": 2})), says("done"))
    asks = RefoldDurability[Any](
        toolsets={"far": CallOptions(effect="keyed", keyed_by="arguments", approval="required")}
    )
    agent = agent_of(model, toolsets=[toolset(tmp_path)])

    ended = run(app_of(agent, asks), "a", decisions={f"a__{CALL}": verdict}, prompt="go")

    assert ended.value == "done"
    assert units(ended) == ["mcp_server__far.get_tools", "model.request", CALL, "model.request"]
    [call] = [event for event in ended.events if isinstance(event, CallProposed) and event.tool == f"a__{CALL}"]
    assert call.effect == "keyed"
    assert sum(isinstance(event, ApprovalRequested) for event in ended.events) == 1
    assert heard(model)[0][1] == {"approve": "success", "reject": "denied"}[verdict]
    assert (tmp_path / "did").read_text() == {"approve": "add\n", "reject": ""}[verdict]


def test_a_toolset_of_a_server_without_an_id_is_refused() -> None:
    with pytest.raises(UsageError, match=r"need to have a unique `id`.*MCPToolset"):
        durable(App("rules"), agent_of(scripted(), toolsets=[MCPToolset("http://127.0.0.1:9/mcp")]))
