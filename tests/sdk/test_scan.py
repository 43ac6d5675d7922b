"""The scan of an agent's code: it refuses direct calls of a tool however they are written, and no correct code."""

from __future__ import annotations

import itertools
import sys
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest

from refold.core.errors import UsageError
from refold.sdk.determinism.scan import check, mark_tool, tools_named


def charge(amount: object = 0, *rest: object, **more: object) -> object:
    """A tool."""
    return amount


mark_tool(charge)  # type: ignore[arg-type]

archive_store = ModuleType("shelf_of_tools")
archive_store.charge = charge  # type: ignore[attr-defined]

# Each callee takes any arguments; `{args}` is what the call is handed.
CALLEES = {
    "a function of the module": ("", "plain({args})"),
    "a local function": ("def local(*a, **k): return a", "local({args})"),
    "a local name": ("local = plain", "local({args})"),
    "a parameter": ("", "given({args})"),
    "a lambda": ("", "(lambda *a, **k: a)({args})"),
    "a loop variable": ("for each in (plain,): pass", "each({args})"),
    "a method": ("", "ctx.call({args})"),
    "a method of an item": ("", "[ctx][0].call({args})"),
    "an item": ("", "[plain][0]({args})"),
    "what a call returns": ("", "maker()({args})"),
    "a class": ("", "Thing({args})"),
    "a builtin": ("", "print({args})"),
    "a variable of a closure": ("", "enclosed({args})"),
    "an attribute of a module": ("", "archive_store.other({args})"),
    "a name that was imported here": ("from shelf_of_tools import other as near", "near({args})"),
}
ARGUMENTS = ("charge, 1", "charge", "1, charge", "amount=charge", "*[charge]", "*(charge, 1), **{{}}", "1, charge, n=2")
TOOLS = {
    "its name": ("", "charge"),
    "an attribute": ("", "archive_store.charge"),
    "an import": ("from shelf_of_tools import charge as mine", "mine"),
    "an alias": ("alias = charge", "alias"),
    "a variable of a closure": ("", "kept"),
}
CALLS = (
    "{tool}()",
    "{tool}(1)",
    "{tool}(plain(1))",
    "{tool}(amount=1)",
    "{tool}(*[1])",
    "{tool}(*[1], **{{}})",
    "plain({tool}(1))",
)


def agent(setup: str, line: str) -> FunctionType:
    """An agent with these lines, made in a closure, in a module of its own."""
    module: dict[str, Any] = {
        "__name__": "generated",
        "charge": charge,
        "archive_store": archive_store,
        "plain": lambda *a, **k: a,
        "maker": lambda: print,
        "Thing": SimpleNamespace,
    }
    source = f"""
def outer(enclosed, kept):
    async def agent(ctx, given, value):
        {setup or "pass"}
        before = value
        await ctx.go(before, {line})
        return enclosed, kept
    return agent
"""
    exec(source, module)
    made: FunctionType = module["outer"](lambda *a, **k: a, charge)
    return made


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    archive_store.other = lambda *a, **k: a  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, archive_store.__name__, archive_store)


@pytest.mark.parametrize("callee", CALLEES)
@pytest.mark.parametrize("inner", CALLEES)
def test_a_tool_that_is_handed_on_is_no_call_of_it(callee: str, inner: str) -> None:
    """`ctx.call(fetch, url(n))`: the tool's name stands before another call, of every kind of callee."""
    setup, call = CALLEES[callee]
    other, nested = CALLEES[inner]
    lines = "\n        ".join(line for line in (setup, other) if line)

    for arguments in (*ARGUMENTS, f"charge, {nested.format(args='2')}"):
        function = agent(lines, call.format(args=arguments.replace("{{}}", "{}")))
        assert check(function, "agent g"), arguments
        assert charge in list(tools_named([function]))


@pytest.mark.parametrize(("tool", "call"), list(itertools.product(TOOLS, CALLS)))
def test_a_tool_that_is_called_is_refused(tool: str, call: str) -> None:
    setup, name = TOOLS[tool]

    with pytest.raises(UsageError, match="calls the tool"):
        check(agent(setup, call.format(tool=name)), "agent g")


@pytest.mark.parametrize("callee", CALLEES)
def test_a_tool_that_is_called_among_the_arguments_is_refused(callee: str) -> None:
    setup, call = CALLEES[callee]

    with pytest.raises(UsageError, match="calls the tool charge itself"):
        check(agent(setup, call.format(args="charge(1), plain(2)")), "agent g")
