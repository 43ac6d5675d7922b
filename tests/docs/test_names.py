"""What the pages name is there: files, symbols, links, settings, topics."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from refold.core.approval import policy
from refold.core.approval.condition import VARIABLES
from refold.engine.adapters.kafka.acls import PRINCIPAL_ROLES
from refold.engine.runtime.settings import PREFIX, Settings
from tests.chaos.test_judge import LIES
from tests.docs.blocks import ROOT, blocks, pages
from tests.fuzz.test_forgeries import HOLES
from tests.sim.bugs.bugs import BUGS

PACKAGE = ROOT / "services" / "refold"
_SYMBOL = re.compile(r"`([\w/]+\.py):([\w.]+)`")
_FILE = re.compile(r"`([\w/.-]+\.(?:py|lua|yaml|yml|lock|md))`")
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([\w-]+))?\)")
OF_THE_READER = {"report.py", "backup.py", "roles.yaml"}
"""Files that a page tells its reader to save."""

SHOWN = {None: "", True: "true", False: "false", (): "[]"}
"""Defaults that one would write otherwise into the environment."""


@cache
def symbols(path: Path) -> frozenset[str]:
    """What a module defines: functions, classes and their methods, constants."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {node.name} | {f"{node.name}.{i.name}" for i in node.body if isinstance(i, ast.FunctionDef)}
            found |= {f"{node.name}.{i.name}" for i in node.body if isinstance(i, ast.AsyncFunctionDef)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(found)


def test_the_life_of_a_run_names_only_what_the_code_has() -> None:
    text = (ROOT / "docs" / "concepts" / "life-of-a-run.md").read_text()
    named = _SYMBOL.findall(text)

    missing = [f"{file}:{name}" for file, name in named if name not in symbols(PACKAGE / file)]

    assert len(named) > 30
    assert missing == []


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_every_file_that_a_page_names_exists(path: Path) -> None:
    named = [*_FILE.findall(path.read_text()), *(file for file, _ in _SYMBOL.findall(path.read_text()))]

    missing = [name for name in named if not any((base / name).exists() for base in (ROOT, PACKAGE))]

    assert set(missing) <= OF_THE_READER


@pytest.mark.parametrize("path", [*pages(), ROOT / "CHANGELOG.md"], ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target, anchor in _LINK.findall(re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)):
        if target.startswith("https://"):
            continue
        there = (path.parent / target).resolve() if target else path
        assert there.exists(), f"{path.name} links to {target}"
        if anchor:
            assert anchor in anchors(there), f"{path.name} links to {target}#{anchor}"


def test_the_settings_table_has_every_setting_with_its_default() -> None:
    rows = re.findall(r"^\| `(REFOLD_\w+)` \| (?:`([^`]*)`)? ?\|", operating(), re.MULTILINE)

    assert dict(rows) == dict(defaults(Settings, PREFIX))


def test_the_pages_on_policies_have_every_variable_and_every_field() -> None:
    text = (ROOT / "docs" / "guides" / "policies.md").read_text()
    tables = [re.findall(r"^\| (`[^|]*`) \|", part, re.MULTILINE) for part in re.split(r"\n\n", text)]
    (file,), (required,), (variables,) = (
        [set(re.findall(r"`([\w.]+)`", " ".join(rows))) for rows in tables if any(f"`{name}`" in row for row in rows)]
        for name in ("recheck", "quorum", "run.depth")
    )

    assert file == set(policy.POLICY_FIELDS)
    assert required == set(policy.REQUIREMENT_FIELDS)
    assert variables == set(VARIABLES)


def test_the_page_on_acls_has_every_role() -> None:
    text = (ROOT / "docs" / "guides" / "keys-and-acls.md").read_text()

    assert tuple(re.findall(r"^\| `(\w+)(?:\.POOL)?` \|", text, re.MULTILINE)) == PRINCIPAL_ROLES


def test_the_page_on_reliability_counts_what_is_planted() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()

    for planted, what in ((BUGS, "planted bugs"), (LIES, "planted lies"), (HOLES, "holes are planted")):
        assert f"{len(planted)} {what}" in " ".join(text.split())


def test_the_picture_of_the_topics_has_those_that_are_made() -> None:
    topics = yaml.safe_load((ROOT / "infra" / "topics.yaml").read_text())["topics"]
    (picture,) = blocks(ROOT / "docs" / "concepts" / "life-of-a-run.md", "mermaid")
    drawn = set(re.findall(r'\[\("?([a-z.-]+)"?\)\]', picture.text))

    assert drawn == {name.replace("*", "pool") for name in topics} - {"catalog"}


def test_the_folder_map_has_every_room() -> None:
    rows = re.findall(r"^\| (`[^|]*`) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    mapped = {name for row in rows for name in re.findall(r"`([\w/]+)`", row)}
    rooms = {f"services/refold/{path.name}" for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}

    assert rooms <= mapped
    assert all((ROOT / name).exists() for name in mapped)


def test_decisions_are_numbered_and_have_the_four_parts() -> None:
    files = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))

    assert [int(path.name[:4]) for path in files] == list(range(1, len(files) + 1))
    for path in files:
        text = path.read_text()
        assert text.startswith(f"# {int(path.name[:4])}. ")
        for part in ("**Context**", "**Decision**", "**Rejected**", "**Consequence**"):
            assert part in text, f"{path.name} has no {part}"


def anchors(path: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def operating() -> str:
    return (ROOT / "docs" / "guides" / "operating.md").read_text()


def defaults(room: type[BaseModel], prefix: str) -> list[tuple[str, str]]:
    """Every setting by its name in the environment, with the default as one would write it there."""
    found: list[tuple[str, str]] = []
    for name, field in room.model_fields.items():
        value, key = field.default, f"{prefix}{name.upper()}"
        if isinstance(value, BaseModel):
            found += defaults(type(value), f"{key}__")
        else:
            found.append((key, next((text for known, text in SHOWN.items() if value is known), str(value))))
    return found
