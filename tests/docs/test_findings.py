"""Tables of findings: each row names a test or a play that failed before, and the test or play is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

_NAMED = re.compile(r"`(tests/[\w/]+\.py)::([^`]+)`")
_ROW = re.compile(r"\| ((?:[NRH]\d+)(?:, [NRH]\d+)*) \|")

LABELS = {"security.md": {*(f"N{number}" for number in range(1, 21)), "R5", "R11"}}
"""What a page has a row of, at least."""


def rows(page: str) -> dict[str, list[tuple[str, str]]]:
    """The findings of a page with the tests that their rows name."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    found = [(match[1], _NAMED.findall(line)) for line in lines if (match := _ROW.match(line))]
    return {label: tests for labels, tests in found for label in labels.split(", ")}


@cache
def names(path: Path) -> frozenset[str]:
    """What a file calls a test: its functions, and the texts of plays, a part that is filled in as `...`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            found.add(node.name)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Play":
            text = node.args[0]
            if isinstance(text, ast.Constant):
                found.add(str(text.value))
            elif isinstance(text, ast.JoinedStr):
                found.add("".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in text.values))
    return frozenset(found)


@pytest.mark.parametrize("page", LABELS)
def test_every_test_that_a_table_of_findings_names_is_there(page: str) -> None:
    named = [each for tests in rows(page).values() for each in tests]

    assert [f"{file}::{name}" for file, name in named if name not in names(ROOT / file)] == []


@pytest.mark.parametrize("page", LABELS)
def test_every_finding_has_a_row_with_a_test(page: str) -> None:
    found = rows(page)

    assert LABELS[page] <= found.keys()
    assert [label for label, tests in found.items() if not tests] == []
