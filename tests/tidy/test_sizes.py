"""Nothing is too large to be read in one go."""

from __future__ import annotations

import ast
import statistics

from tests.tidy.repository import python, text

MODULE_WALL, FUNCTION_WALL = 400, 70
MEDIAN_MODULE = 180


def functions(source: str) -> dict[str, int]:
    """The lines of every function of a module, by name and line."""
    return {
        f"{node.name}:{node.lineno}": (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_module_stays_below_the_wall() -> None:
    sizes = {str(path): len((text(path) or "").splitlines()) for path in python()}

    assert {path: lines for path, lines in sizes.items() if lines > MODULE_WALL} == {}


def test_every_function_stays_below_the_wall() -> None:
    sizes = {f"{path}:{name}": lines for path in python() for name, lines in functions(text(path) or "").items()}

    assert {name: lines for name, lines in sizes.items() if lines > FUNCTION_WALL} == {}


def test_a_function_beyond_the_wall_would_be_seen() -> None:
    source = "def long():\n" + "    x = 1\n" * FUNCTION_WALL

    assert functions(source) == {"long:1": FUNCTION_WALL + 1}


def test_the_median_module_is_short() -> None:
    sizes = [len((text(path) or "").splitlines()) for path in python() if path.parts[0] == "services"]

    assert statistics.median(size for size in sizes if size > 5) <= MEDIAN_MODULE
