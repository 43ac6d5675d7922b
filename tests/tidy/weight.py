"""Weight of code: decisions and parameters of functions, attributes set from outside, modules with one importer."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache

Function = ast.FunctionDef | ast.AsyncFunctionDef
MOST_DECISIONS, MOST_PARAMETERS = 15, 6

_ONE_DECISION = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.Assert, ast.match_case)


def functions(tree: ast.AST, above: str = "") -> Iterator[tuple[str, Function]]:
    """Every function of a module with its dotted name: methods, and functions inside functions too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{above}.{node.name}" if above else node.name
            if not isinstance(node, ast.ClassDef):
                yield name, node
            yield from functions(node, name)
        else:
            yield from functions(node, above)


def own(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function without those of the functions and classes inside it."""
    ahead: list[ast.AST] = list(function.body)
    while ahead:
        node = ahead.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            ahead += ast.iter_child_nodes(node)


@cache
def decisions(function: Function) -> int:
    """One, and one for each branch, loop, handler, assertion and comprehension, and for each operand of and/or.

    Operands count because a long condition in one line reads as the branches that it stands for.
    """
    count = 1
    for node in own(function):
        if isinstance(node, _ONE_DECISION):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
    return count


def parameters(function: Function) -> int:
    """Named parameters, without `self` and `cls`."""
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def set_from_outside(tree: ast.Module) -> Iterator[str]:
    """Attributes that code sets of another object, as `lane.clock`: of anything but `self.x` and `cls.x`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            own_one = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not own_one:
                yield ast.unparse(node)


def lonely(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules that one module alone imports, one of their own room."""
    users: dict[str, set[str]] = defaultdict(set)
    for name, uses in graph.items():
        for used in uses:
            users[used].add(name)

    def room(name: str) -> str:
        return name.partition(".")[0]

    return [name for name in graph if "." in name and len(users[name]) == 1 and room(min(users[name])) == room(name)]
