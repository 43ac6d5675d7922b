"""What an agent has of a server, and what its run records: tools by name, calls bound to what was listed, questions."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from refold import App, CallFailed, Context
from refold.contrib.mcp import MCPServer, ToolFailure, ToolOutput
from refold.core.approval.question import context_edited
from refold.core.events import ApprovalRequested, CallDoubted, CallProposed, NoteRecorded
from refold.core.wire import canonical
from refold.testing import AgentRun, answer, edit, replay, run, start
from tests.approval.driving import request
from tests.mcp.scripts import Era, Scripted, described

ASKS: dict[str, Any] = {
    "rules": [
        {"name": "writes", "when": 'tool.name == "files.write_file"', "require": {"approvers": ["role:lead"]}},
        {"name": "questions", "when": 'tool.name == "mcp.files.input"', "require": {"approvers": ["ada"]}},
        {"name": "rest", "when": "true", "allow": True},
    ]
}
FREE: dict[str, Any] = {**ASKS, "rules": ASKS["rules"][1:]}


def desk(place: Path, era: Era = "session", **options: Any) -> tuple[App, Scripted]:
    """An app whose agents use a scripted server."""
    app, scripted = App("desk"), Scripted(place / "files", era)
    files = scripted.server(timeout=timedelta(seconds=20), **{"effects": {"read_file": "pure"}, **options})
    app.include(files)

    @app.agent
    async def use(ctx: Context, tool: str, path: str) -> dict[str, Any]:
        tools = await files.tools(ctx)
        output = await tools[tool](path=path)
        return {"text": output.text, "failed": isinstance(output, ToolFailure), "data": output.structured}

    @app.agent
    async def twice(ctx: Context) -> list[str]:
        first = await files.tools(ctx)
        try:
            await first["write_file"](path="a")
        except CallFailed as failed:
            again = await files.tools(ctx)
            return [failed.fields["code"], *again]
        return []

    return app, scripted


def proposed(result: AgentRun) -> list[CallProposed]:
    return [event for event in result.events if isinstance(event, CallProposed)]


def test_a_tool_is_called_by_its_own_name_and_the_list_is_in_the_history(tmp_path: Path) -> None:
    app, _ = desk(tmp_path)

    result = run(app, "use", tool="read_file", path="a")

    assert result.value == {"text": "done", "failed": False, "data": None}
    listed, call = proposed(result)
    assert [(each.tool, each.effect, each.pool) for each in (listed, call)] == [
        ("mcp.files.tools", "pure", "mcp"),
        ("files.read_file", "pure", "mcp"),
    ]
    args = canonical.parse(call.args)
    assert args["arguments"] == {"path": "a"}
    assert len(args["$manifest"]) == 64
    replay(app, result)


@pytest.mark.parametrize(
    ("configured", "annotations", "effect"),
    [
        ({}, {}, "once"),
        ({}, {"readOnlyHint": True, "idempotentHint": True}, "once"),
        ({"write_file": "pure"}, {}, "pure"),
        ({"write_file": "pure"}, {"readOnlyHint": False}, "once"),
        ({"write_file": "pure"}, {"destructiveHint": True}, "once"),
        ({"write_file": "pure"}, {"destructiveHint": False}, "pure"),
        ({"write_file": "keyed"}, {"readOnlyHint": False}, "keyed"),
        ({"write_file": "keyed"}, {"idempotentHint": False}, "once"),
        ({"read_file": "pure"}, {"readOnlyHint": True}, "once"),
    ],
)
def test_what_a_server_says_makes_a_tool_stricter_and_never_laxer(
    tmp_path: Path, configured: dict[str, Any], annotations: dict[str, bool], effect: str
) -> None:
    app, files = desk(tmp_path, effects=configured)
    files.has(described("write_file", **annotations))

    result = run(app, "use", tool="write_file", path="a")

    assert proposed(result)[1].effect == effect


def test_what_an_executor_enforces_is_configured_whatever_a_planner_says() -> None:
    files = MCPServer("files", url="http://127.0.0.1:1/mcp", effects={"read_file": "pure"})
    app = App("desk")
    app.include(files)

    facts = {name: app.find(name).facts for name in ("files.read_file", "files.whatever")}

    assert [facts[name].effect for name in facts] == ["pure", "once"]
    assert {each.pool for each in facts.values()} == {"mcp"}


def test_another_command_address_or_credential_is_another_version() -> None:
    def version(**options: Any) -> str:
        found = MCPServer("files", **options).tool("files.read_file")
        assert found is not None
        return found.facts.version

    made = [
        version(command=["files", "a"]),
        version(command=["files", "b"]),
        version(url="http://127.0.0.1:1/mcp"),
        version(url="http://127.0.0.1:1/mcp", headers={"x": "1"}),
    ]

    assert version(command=["files", "a"]) == made[0]
    assert len(set(made)) == 4


def test_a_failure_is_a_value_and_the_call_is_made_once(tmp_path: Path) -> None:
    app, files = desk(tmp_path)
    files.does("fail")

    result = run(app, "use", tool="read_file", path="a")

    assert result.value == {"text": "no such file", "failed": True, "data": None}
    assert len(files.calls) == 1


def test_a_call_whose_server_died_is_in_doubt_and_never_sent_again(tmp_path: Path) -> None:
    app, files = desk(tmp_path)
    files.does("die")

    result = run(app, "use", tool="write_file", path="a")

    assert [event.failure.code for event in result.events if isinstance(event, CallDoubted)] == ["unanswered"]
    assert len(files.calls) == 1
    result.resolve(2, "happened", {"content": [{"type": "text", "text": "it did"}], "failed": False})
    assert result.value["text"] == "it did"


def test_a_pure_call_whose_server_died_is_made_again(tmp_path: Path) -> None:
    app, files = desk(tmp_path)
    files.does("die-once")

    result = run(app, "use", tool="read_file", path="a")

    assert result.value["text"] == "done"
    assert len(files.calls) == 2


def test_a_changed_tool_is_refused_and_a_shorter_list_is_noted(tmp_path: Path) -> None:
    app, files = desk(tmp_path)
    waits = start(app, "twice")
    waits.settle(1)
    files.has(described("write_file", "Writes more."))

    result = waits.finish()

    assert result.value == ["manifest_changed", "write_file"]
    [note] = [event for event in result.events if isinstance(event, NoteRecorded)]
    assert (note.kind, json.loads(note.data)) == (
        "mcp.tools",
        {"server": "files", "gone": ["read_file"], "changed": ["write_file"]},
    )
    assert files.calls == []
    replay(app, result)


def test_a_decision_for_a_tool_is_none_for_what_the_server_makes_of_it_later(tmp_path: Path) -> None:
    app, files = desk(tmp_path)
    waits = start(app, "use", policy=ASKS, tool="write_file", path="a")
    waits.settle(1)
    [asked] = [event for event in waits.events if isinstance(event, ApprovalRequested)]
    files.has(described("write_file", "Writes, and tells."))

    result = waits.finish()

    assert asked.rule == "writes"
    assert result.failure is not None
    assert result.failure.code == "manifest_changed"
    assert files.calls == []


def test_a_question_of_the_server_waits_for_people_and_goes_back_with_their_answer(tmp_path: Path) -> None:
    app, files = desk(tmp_path, "stateless")
    files.does("ask")

    result = run(
        app,
        "use",
        policy=FREE,
        decisions={"mcp.files.input": answer({"branch": "main"})},
        tool="write_file",
        path="a",
    )

    responses, state = json.loads(result.value["text"])
    assert responses == {"q1": {"action": "accept", "content": {"branch": "main"}}}
    assert state == "opaque"
    assert [each.tool for each in proposed(result)[1:]] == ["files.write_file", "mcp.files.input", "files.write_file"]
    question = canonical.parse(proposed(result)[2].args)
    assert (question["tool"], question["message"]) == ("write_file", "which?")
    replay(app, result)


def test_people_may_decline(tmp_path: Path) -> None:
    app, files = desk(tmp_path, "stateless")
    files.does("ask")

    result = run(app, "use", policy=FREE, decisions={"mcp.files.input": "reject"}, tool="write_file", path="a")

    assert json.loads(result.value["text"])[0] == {"q1": {"action": "decline"}}


def test_a_question_that_nobody_may_answer_is_no_answer(tmp_path: Path) -> None:
    app, files = desk(tmp_path, "stateless")
    files.does("ask")

    nobody = {
        **FREE,
        "rules": [{"name": "no", "when": 'tool.name == "mcp.files.input"', "deny": "ask me"}, *FREE["rules"]],
    }
    result = run(app, "use", policy=nobody, tool="write_file", path="a")

    assert result.failure is not None
    assert result.failure.message == "mcp.files.input failed: ask me"
    assert len(files.calls) == 1


def test_people_may_let_a_call_out_with_other_arguments(tmp_path: Path) -> None:
    app, files = desk(tmp_path)
    waits = start(app, "use", policy=ASKS, tool="write_file", path="a")
    waits.settle(1)
    asked = canonical.parse(proposed(waits)[1].args)
    waits._decisions["files.write_file"] = edit(**{**asked, "arguments": {"path": "b"}})

    assert waits.finish().value["text"] == "done"
    assert [each["arguments"] for each in files.calls] == [{"path": "b"}]


def test_a_tool_that_is_required_to_be_decided_on_is_configured_so(tmp_path: Path) -> None:
    app, files = desk(tmp_path, required=["write_file"])

    nobody = run(app, "use", policy=FREE, tool="write_file", path="a")
    people = run(app, "use", policy={**FREE, "fallback": {"approvers": ["ada"]}}, tool="write_file", path="b")

    assert nobody.failure is not None
    assert "never runs without a decision" in nobody.failure.message
    assert [event.rule for event in people.events if isinstance(event, ApprovalRequested)] == ["rest"]
    assert [each["arguments"] for each in files.calls] == [{"path": "b"}]


def test_an_agent_in_memory_calls_what_is_pure_and_nothing_else(tmp_path: Path) -> None:
    app, files = desk(tmp_path)
    server = app.tools.sources[0]
    assert isinstance(server, MCPServer)

    @app.agent(durability="memory", pool="mcp")
    async def look(ctx: Context, tool: str) -> str:
        tools = await server.tools(ctx)
        return (await tools[tool](path="a")).text

    assert run(app, "look", tool="read_file").value == "done"
    refused = run(app, "look", tool="write_file").failure
    assert refused is not None
    assert "write_file is once" in refused.message
    assert len(files.calls) == 1


def test_a_question_is_answered_and_not_allowed(tmp_path: Path) -> None:
    app, files = desk(tmp_path, "stateless")
    files.does("ask")

    result = run(app, "use", policy=FREE, tool="write_file", path="a")

    assert result.failure is not None
    assert "is answered, not allowed" in result.failure.message


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("ask-model", "files asks for sampling/createMessage, which nobody gives it"),
        ("ask-url", "files asks for an elicitation by url, which nobody gives it"),
        ("ask-much", "files asks for more than 10 questions, or 65,536 characters of them, which nobody gives it"),
        ("ask-long", "files asks for more than 10 questions, or 65,536 characters of them, which nobody gives it"),
    ],
)
def test_a_server_gets_no_model_no_browser_and_no_crowd(tmp_path: Path, does: str, words: str) -> None:
    app, files = desk(tmp_path, "stateless")
    files.does(does)

    result = run(app, "use", policy=FREE, tool="write_file", path="a")

    assert result.value == {"text": words, "failed": True, "data": None}


def test_a_server_that_wants_to_be_asked_again_is_asked_after_a_while(tmp_path: Path) -> None:
    app, files = desk(tmp_path, "stateless")
    files.does("ask-again")

    result = run(app, "use", policy=FREE, tool="write_file", path="a")

    assert result.value["text"] == "at last"
    assert len(files.calls) == 2


def test_a_server_that_never_stops_asking_is_told_so(tmp_path: Path) -> None:
    app, files = desk(tmp_path, "stateless")
    files.does("ask-always")

    result = run(app, "use", policy=FREE, decisions={"mcp.files.input": answer({})}, tool="write_file", path="a")

    assert result.value["text"] == "files has asked 10 times, and gives no result"


def test_a_server_is_scripted_like_any_tool(tmp_path: Path) -> None:
    app, files = desk(tmp_path)
    listed = {
        "protocol": "2026-07-28",
        "instructions": "",
        "tools": [{"name": "read_file", "description": "", "schema": {}, "annotations": {}, "digest": "d"}],
        "left_out": [],
    }
    given = {"content": [{"type": "text", "text": "scripted"}], "failed": False}

    result = run(app, "use", tools={"mcp.files.tools": listed, "files.read_file": given}, tool="read_file", path="a")

    assert result.value["text"] == "scripted"
    assert files.pids == []


def test_outputs_have_their_texts() -> None:
    image = {"type": "image", "data": "", "mimeType": "image/png"}

    assert ToolOutput([{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}]).text == "a\nb"


def test_an_edit_leaves_what_the_server_has_said_alone(tmp_path: Path) -> None:
    app, _ = desk(tmp_path)
    call = proposed(run(app, "use", tool="read_file", path="a"))[1]
    asked = replace(request(), args=call.args)

    assert [name for name in canonical.parse(call.args) if not name.startswith("$")] == ["arguments"]
    assert not context_edited(asked, call.args.replace('"a"', '"b"'))
    for name in ("manifest", "answers", "state"):
        other = {**canonical.parse(call.args), f"${name}": "other"}
        assert "begins with $" in context_edited(asked, canonical.dumps(other))
