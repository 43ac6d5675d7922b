"""The guide has the tables as they are declared, and its example does what it says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from refold.console.projections.shipped import tables
from refold.console.projections.shipped.projection import Shipped
from refold.core import events
from refold.core.tables import ViewTable
from tests.docs.blocks import ROOT, blocks
from tests.projections.histories import begun, call, entries, log_of
from tests.projections.viewed import Viewed

PAGE = ROOT / "docs" / "guides" / "views.md"


def described() -> dict[str, dict[str, str]]:
    """The columns of each table with their types, as the page has them."""
    found: dict[str, dict[str, str]] = {}
    for name, text in re.findall(r"^### `(\w+)`\n(.*?)(?=^##)", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        rows = re.findall(r"^\| (`\w+`(?:(?:, | to )`\w+`)*) \| (\w+) \| \S", text, re.MULTILINE)
        found[name] = {column: kind for columns, kind in rows for column in columns.split(", ")}
    return found


def keys() -> dict[str, tuple[str, ...]]:
    """The key of each table, as the page has it."""
    found = re.findall(r"^### `(\w+)`\n.*?Key: ((?:`\w+`(?:, )?)+)\.", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return {name: tuple(re.findall(r"\w+", key)) for name, key in found}


@pytest.mark.parametrize("table", Shipped.tables, ids=lambda table: table.name)
def test_the_page_has_every_column_of_a_table(table: ViewTable) -> None:
    last = f"b{tables.BUCKETS - 1}"
    declared = {f"`{name}`": kind.__name__ for name, kind in table.columns.items() if not re.fullmatch(r"b\d+", name)}
    if last in table.columns:
        declared[f"`b0` to `{last}`"] = "int"

    assert described()[table.name] == declared
    assert keys()[table.name] == table.key_names


def test_the_page_has_no_other_tables() -> None:
    assert set(described()) == {table.name for table in Shipped.tables}


def test_the_example_of_the_page_counts_refunds(tmp_path: Path) -> None:
    (block,) = blocks(PAGE, "python")
    (tmp_path / "refunds.py").write_text(block.text)
    projection = runpy.run_path(str(tmp_path / "refunds.py"))["Refunds"]()
    made = events.CallProposed(2, "refund", '{"customer":"ann","cents":250}', "k", "p", "once", 1, events.RetryPolicy())
    run: list[list[events.Event]] = [
        [*begun(), *call(1)],
        [events.CallCompleted(1, 1, "1"), made],
        [events.CallCompleted(2, 1, '"ok"')],
    ]

    viewed = Viewed.of(log_of(entries("r-1", *run)), 1, projection=projection)

    assert [(row["customer"], row["cents"]) for row in viewed.rows(projection.refunds)] == [("ann", 250)]
    assert viewed.rows(projection.refunded) == [{"day": "2023-11-14", "erased": 0, "times": 1, "cents": 250}]
