"""Where things lie, and what they are called."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.order import LONGEST, TESTS
from tests.tidy.repository import ROOT, python, text, tracked

TOP = {
    *("services", "schemas", "infra", "tests", "examples", "docs", "skills", "benchmarks"),
    *("docker-compose.yml", "pyproject.toml", "README.md", "CONTRIBUTING.md"),
    *("Makefile", "CHANGELOG.md", "LICENSE", "requirements.lock"),
}
NAMELESS = {"utils", "util", "helpers", "helper", "common", "manager", "managers", "misc", "base"}
ABOUT_THE_WORK = re.compile(r"(?i)(plan|report|todo|notes|status|progress|handoff|summary)\.(md|txt|rst)\Z")
COPY = re.compile(r"_v\d+\Z|_(old|new|copy|final)\Z")


def misnamed(path: Path) -> bool:
    """Whether a name does not say what is in it: a drawer, a copy, a file about the work."""
    words = {word for part in path.with_suffix("").parts for word in re.split(r"[_-]", part.lower())}
    return bool(words & NAMELESS or COPY.search(path.stem) or ABOUT_THE_WORK.search(path.name))


def test_the_top_level_has_the_names_of_the_design_and_no_others() -> None:
    names = {path.parts[0] for path in tracked()}

    assert {name for name in names if not name.startswith(".")} - TOP == set()


def test_services_holds_the_one_package() -> None:
    assert {path.parts[1] for path in tracked() if path.parts[0] == "services"} == {"refold"}


def test_every_name_says_what_is_in_it() -> None:
    assert [str(path) for path in tracked() if misnamed(path)] == []


@pytest.mark.parametrize("path", ["services/refold/utils.py", "tests/test_helpers.py", "x/wire_v2.py", "docs/PLAN.md"])
def test_a_name_that_says_nothing_would_be_seen(path: str) -> None:
    assert misnamed(Path(path))


def test_no_module_takes_the_name_of_one_of_pythons_own() -> None:
    """Beside an application it would be imported in its stead: the application's folder comes first on `sys.path`."""
    loose = [path for path in python() if path.parts[0] in ("tests", "examples")]

    assert [str(path) for path in loose if path.stem in sys.stdlib_module_names] == []


def test_a_planner_loads_nothing_of_the_client_the_lab_and_the_console() -> None:
    program = (
        "import refold.cli.commands.serve.planner, sys; print(*sorted(m for m in sys.modules if m[:7] == 'refold.'))"
    )

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    rooms = Counter(name.split(".")[1] for name in loaded)
    assert set(rooms) == {"core", "engine", "sdk", "cli"}, rooms
    assert rooms.total() <= 190, loaded


def test_the_tests_of_a_room_are_there_and_each_folder_belongs_to_one() -> None:
    rooms = {path.parts[2] for path in python() if path.parts[:2] == ("services", "refold") and len(path.parts) > 3}
    lines = re.findall(r"^(\w+) := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    places = {room: listed.split() for room, listed in lines if room in rooms}

    assert places.keys() == rooms
    assert [place for listed in places.values() for place in listed if not (TESTS / place).exists()] == []
    folders = {path.parts[1] for path in python() if path.parts[0] == "tests" and path.name.startswith("test_")}
    assert folders - {place.partition("/")[0] for listed in places.values() for place in listed} == {"chaos", "tidy"}


def test_every_module_and_room_tells_what_it_is_for() -> None:
    modules = [path for path in python() if path.parts[0] in ("services", "examples", "benchmarks")]

    assert [str(path) for path in modules if not ast.get_docstring(ast.parse(text(path) or ""))] == []


def test_no_test_is_hidden_by_a_later_one_of_the_same_name() -> None:
    hidden: dict[str, int] = {}
    for path in python():
        tree = ast.parse(text(path) or "")
        for scope in [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]:
            names = Counter(node.name for node in scope if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
            hidden |= {f"{path}:{name}": n for name, n in names.items() if n > 1 and name.startswith("test_")}

    assert hidden == {}


def test_every_file_that_is_to_begin_early_is_there() -> None:
    assert [name for name in LONGEST if not (TESTS / name).is_file()] == []
