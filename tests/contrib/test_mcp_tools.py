"""Tools of an app's MCP server in an agent of pydantic-ai: calls of the tool itself, without its envelope."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from refold import App, UsageError
from refold.contrib.pydantic_ai import app_tools, durable, mcp_tools
from refold.testing import AgentRun, replay, run
from tests.contrib.ruled import agent_of, heard
from tests.contrib.thinking import Model, calls, says, scripted
from tests.mcp.scripts import Scripted, described


def clerk(place: Path, model: Model | FunctionModel, **options: Any) -> tuple[App, Scripted]:
    """An app with a server, and the agent `a` that has its tools."""
    app, server = App("desk"), Scripted(place / "files")
    files = server.server(**{"effects": {"read_file": "pure"}, **options})
    app.include(files)
    durable(app, agent_of(model, toolsets=[mcp_tools(files)]))
    return app, server


def asked_of_server(ended: AgentRun) -> list[tuple[str, Any]]:
    return [(call.tool, call.args["arguments"]) for call in ended.calls if call.tool.startswith("files.")]


def test_a_model_is_offered_what_the_server_has_and_calls_are_of_the_tool_itself(tmp_path: Path) -> None:
    offered: list[dict[str, Any]] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        offered.append({tool.name: tool.parameters_json_schema for tool in info.function_tools})
        return script.answer(messages, info)

    script = scripted(calls(("read_file", {"path": "x"})), says("read"))
    app, server = clerk(tmp_path, FunctionModel(answer, model_name="offered"))

    ended = run(app, "a", prompt="go")

    assert ended.value == "read"
    schema = described("any")["inputSchema"]
    assert offered[0] == {"read_file": schema, "write_file": schema}
    assert asked_of_server(ended) == [("files.read_file", {"path": "x"})]
    assert [each["arguments"] for each in server.calls] == [{"path": "x"}]
    assert heard(script) == [("done", "success")]
    replay(app, ended)


@pytest.mark.parametrize("verdict", ["approve", "reject"])
def test_what_the_server_requires_people_for_is_one_question(tmp_path: Path, verdict: Any) -> None:
    model = scripted(calls(("write_file", {"path": "x"})), says("done"))
    app, server = clerk(tmp_path, model, required=["write_file"])

    ended = run(app, "a", decisions={"files.write_file": verdict}, prompt="go")

    assert ended.value == "done"
    assert len(server.calls) == (verdict == "approve")
    assert heard(model)[0][1] == {"approve": "success", "reject": "failed"}[verdict]


def test_a_model_is_told_what_went_wrong_and_offered_what_the_server_has_by_now(tmp_path: Path) -> None:
    turns: list[Callable[[], None]] = [
        lambda: server.does("fail"),
        lambda: server.has(described("read_file", "It reads."), described("other.tool")),
        lambda: server.does("finish"),
    ]
    offered: list[list[str]] = []
    script = scripted(
        calls(("read_file", {"path": "a"})),
        calls(("read_file", {"path": "b"})),
        calls(("other_tool", {"path": "c"})),
        says("done"),
    )

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        offered.append(sorted(tool.name for tool in info.function_tools))
        if turns:
            turns.pop(0)()
        return script.answer(messages, info)

    app, server = clerk(tmp_path, FunctionModel(answer, model_name="told"))

    ended = run(app, "a", prompt="go")

    assert ended.value == "done"
    assert offered == [["read_file", "write_file"]] * 2 + [["other_tool", "read_file"]] * 2
    parts = [part for turn in script.asked[-1] for part in turn.parts]
    told = [str(part.content) for part in parts if isinstance(part, ToolReturnPart)]
    assert told[0] == "no such file"
    assert "files.read_file" in told[1]
    assert told[2] == "done"
    assert asked_of_server(ended)[-1] == ("files.other.tool", {"path": "c"})


def test_tools_of_a_server_are_no_tools_of_the_app(tmp_path: Path) -> None:
    app, _ = clerk(tmp_path, scripted())

    with pytest.raises(UsageError, match=r"files.read_file is a tool of the MCP server files: .*mcp_tools"):
        app_tools(app, "files.read_file")


def test_a_name_that_providers_refuse_is_offered_without_its_dots() -> None:
    app, model = App("desk"), scripted(calls(("stock_count", {"item": "egg"})), says("done"))

    @app.tool(name="stock.count", effect="pure")
    def count(item: str) -> int:
        return len(item)

    durable(app, agent_of(model, toolsets=[app_tools(app, "stock.count")]))
    ended = run(app, "a", prompt="go")

    assert [call.tool for call in ended.calls if "count" in call.tool] == ["stock.count"]
    assert heard(model) == [(3, "success")]


def test_an_approval_that_no_executor_would_ask_for_is_refused_when_the_agent_is_registered(tmp_path: Path) -> None:
    app, server = App("desk"), Scripted(tmp_path / "files")
    app.include(files := server.server())

    @app.tool(effect="pure")
    def price(item: str) -> int:
        return len(item)

    for toolset in (mcp_tools(files), app_tools(app, "price")):
        with pytest.raises(UsageError, match="around tools that no executor asks about"):
            durable(app, agent_of(scripted(), toolsets=[toolset.approval_required()]))


def test_a_server_is_asked_in_runs_alone(tmp_path: Path) -> None:
    files = Scripted(tmp_path / "files").server()

    with pytest.raises(UsageError, match="the MCP server files is asked outside a run"):
        asyncio.run(agent_of(scripted(), toolsets=[mcp_tools(files)]).run("go"))
