"""Every place in which a tool or a function is looked up by a name, with the name: none is a field of its arguments.

Whoever adds a look-up adds it here, and says by that where the name comes from. The name that is ordered, judged,
claimed, decided on and run is one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import refold

PACKAGE = Path(refold.__file__).parent
APART = ("cli/", "testing/", "client/", "engine/archive/", "console/gateway/", "console/pages/", "console/projections/")
"""Rooms that show tools, or stand in for executors in tests."""

TABLES = frozenset({"tools", "functions", "_by_function"})
OWNERS = frozenset({"app", "_app", "ctx", "context", "_context", "own", "known", "found"})
PLACES = {
    "engine/adapters/tools/memory.py MemoryRun._check": {"call.tool"},
    "engine/adapters/tools/toolbox.py Toolbox._prepare": {"request.tool"},
    "engine/approval/question.py as_judged": {"request.tool"},
    "engine/approval/question.py unfit": {"request.tool"},
    # Names of a listing of the server become names of tools.
    "contrib/mcp/server.py RemoteTools.__init__": {"f'{server.name}.{name}'"},
    "contrib/mcp/server.py MCPServer.declared": {"f'{self.name}.{name}'"},
    "contrib/pydantic_ai/approvals.py _request_result": {"question_tool_name(agent, requests.kind(call.tool_call_id))"},
    # The end of the ordered tool's name: `handle_function` is bound to it.
    "contrib/pydantic_ai/durability.py RefoldDurability._approval_missing": {"params.name"},
    "contrib/pydantic_ai/durability.py RefoldDurability._function_tool": {
        "backend.namer.operation_name(unit)",
        "backend.namer.operation_name(checks)",
    },
    "contrib/pydantic_ai/operations.py RefoldBackend.register.handle_function": {"name"},
    "contrib/pydantic_ai/operations.py RefoldBoundOperation.__call__": {
        "self._namer.tool_name(unit.operation_id, params)"
    },
    "contrib/pydantic_ai/tools.py app_tools": {"name", "offered"},
    "contrib/pydantic_ai/transports.py RefoldTransports.function_call.load": {"name"},
    "contrib/pydantic_ai/transports.py RefoldTransports.mcp_call.load": {"name"},
    "contrib/pydantic_ai/durability.py RefoldWaiter._hand_out_token": {
        "_token_tool_name(self._contexts.name, cast(Any, function.func).__self__)"
    },
    "core/approval/authority.py Authority.judge": {"call.tool"},
    "core/approval/policy_check.py vouched": {"request.tool"},
    "core/approval/policy_check.py unasked": {"order.tool"},
    "core/planning/asking.py _ask": {"call.tool"},
    "engine/executor/gate.py Gate._undecided": {"request.tool"},
    "engine/executor/gate.py Gate.effect": {"request.tool"},
    "engine/executor/gate.py Gate.key_forgotten": {"request.tool"},
    "engine/executor/gate.py Gate.needs_decision": {"request.tool"},
    "engine/executor/gate.py Gate.refusal": {"request.tool"},
    "engine/executor/gate.py Gate.unsettled": {"request.tool"},
    "lab/forks/engine.py Fork._substitute": {"tool"},
    "sdk/app.py App.find": {"tool"},
    "sdk/app.py App.manifest": {"tool"},
    "sdk/app.py App.staged": {"tool.name"},
    "sdk/app.py App.version": {"name"},
    "sdk/memory.py MemoryAgent._check": {"named"},
    "sdk/plan.py _validate": {"step.tool"},
    "sdk/sources.py FactsTable.__getitem__": {"name"},
    "sdk/sources.py ToolTable._of_source": {"name"},
}


def test_every_place_that_selects_a_tool_names_the_field_by_which_it_does() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE)
        if name.is_relative_to("client/reading") or not name.as_posix().startswith(APART):
            for place, key in _selections(ast.parse(path.read_text()), ""):
                found.setdefault(f"{name.as_posix()} {place}", set()).add(key)

    assert found == PLACES


def test_a_selection_by_a_field_of_the_arguments_is_seen() -> None:
    by = "wire['$name']"
    code = f"def act(wire, app):\n    return app.tools[{by}], app.find({by}), app.tools.get({by})"

    assert list(_selections(ast.parse(code), "")) == [("act", by)] * 3


def _selections(node: ast.AST, place: str) -> Iterator[tuple[str, str]]:
    """Where names select tools, and the expressions of the names."""
    for child in ast.iter_child_nodes(node):
        if (key := _key_of(child)) is not None and not isinstance(key, ast.Constant | ast.Slice):
            yield place, ast.unparse(key)
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from _selections(child, f"{place}.{child.name}".lstrip(".") if named else place)  # type: ignore[attr-defined]


def _key_of(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.Subscript):
        return node.slice if _last(node.value).lstrip("_") in TABLES | {"by_function"} and _is_read(node) else None
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
        return None
    method, owner = node.func.attr, node.func.value
    of_table = method == "get" and (_last(owner) in TABLES or "get_tools" in ast.unparse(owner))
    of_app = method == "find" and _last(owner) in OWNERS
    return node.args[0] if of_table or of_app or method in ("load_for", "tool") else None


def _is_read(node: ast.Subscript) -> bool:
    return isinstance(node.ctx, ast.Load)


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
