"""The tree of commands: what each group lists, what help shows, and that its examples are valid."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from refold.cli.commands import COMMANDS, RENAMED
from refold.cli.groups import CommandGroup, Later
from tests.cli.terminal import refold
from tests.tidy.repository import ROOT

Words = tuple[str, ...]

TREE = dict(COMMANDS.walk())
HEAVY = (
    "importlib.metadata",
    "confluent_kafka",
    "fastavro",
    "pydantic",
    "redis",
    "rich.console",
    "yaml",
    "refold.sdk.app",
)
SERVICES = (
    *("all", "planner", "executor", "approval", "archivist", "projections", "gateway", "telemetry", "insights"),
    "sources",
)
WITHOUT_JSON: set[Words] = {("dev",), ("setup",), ("completion",)}
WITHOUT_JSON |= {("serve", service) for service in SERVICES}
"""Processes in the foreground, and what is one line anyway. Every other command prints data with `--json`."""


def listing(group: CommandGroup, *words: str) -> list[tuple[Words, CommandGroup]]:
    """The groups of the tree, each with the words that call it."""
    found = [(words, group)]
    for name, there in group.commands.items():
        found += listing(there, *words, name) if isinstance(there, CommandGroup) else []
    return found


def loaded(words: Words) -> Any:
    """A command as the parser has it."""
    return Later(words[-1], TREE[words]).load()


def target(line: str) -> Words:
    """The command that a line calls, of its longest words; empty without one."""
    words = tuple(line.split())
    return next((words[:count] for count in (3, 2, 1) if words[:count] in TREE), ())


def lines() -> list[tuple[str, str]]:
    """Each `refold ...` in code, help, hints, docs, examples and deployment, with its file."""
    places = (
        "README.md",
        "docker-compose.yml",
        "Makefile",
        ".ci",
        "services",
        "docs",
        "skills",
        "examples",
        "infra",
        "benchmarks",
    )
    listed = subprocess.run(["git", "ls-files", *places], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in listed.split() if not name.endswith((".png", ".svg"))]
    return [
        (str(path.relative_to(ROOT)), " ".join(line.split()))
        for path in paths
        for line in re.findall(r"\brefold\s+((?:[a-z][a-z-]*[ \n]*)+(?:--[a-z-]+)?)", path.read_text())
    ]


def test_there_are_at_most_eighty_four_commands() -> None:
    assert len(TREE) <= 84


@pytest.mark.parametrize(("old", "new"), RENAMED.items(), ids=RENAMED)
def test_an_old_name_answers_with_the_new_one_and_does_nothing(old: str, new: str) -> None:
    for more in ((), ("x",), ("--help",)):
        result = refold(*old.split(), *more)

        assert (result.exit_code, result.stdout) == (2, "")
        assert f"refold {old} is now {new}\n" in result.stderr
    assert tuple(old.split()) not in TREE


@pytest.mark.parametrize("new", sorted({new for new in RENAMED.values() if "refold " in new} - {"refold --version"}))
def test_a_new_name_is_a_command_with_that_option(new: str) -> None:
    line = new.removeprefix("refold ")
    options = {option for each in loaded(target(line)).params for option in each.opts}

    assert set(re.findall(r"--[a-z-]+", line)) <= options


def test_no_text_names_a_command_by_its_old_name() -> None:
    of = [(file, line) for file, line in lines() for old in RENAMED if f"{line} ".startswith(f"{old} ")]

    assert of == []


def test_every_command_that_a_text_names_exists() -> None:
    """A line that begins with a group goes on with one of its commands, unless it is about the group."""
    groups = {words[0] for words in (*TREE, *map(str.split, RENAMED)) if len(words) > 1}
    named = [(file, line) for file, line in lines() if line.split()[0] in groups and len(line.split()) > 1]

    assert len(named) > 100
    assert {(file, line) for file, line in named if not target(line)} == set()


def test_help_loads_nothing_that_is_slow() -> None:
    program = f"import sys, refold.cli.main; print([name for name in {HEAVY} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


@pytest.mark.parametrize(("words", "group"), listing(COMMANDS), ids=str)
def test_a_group_lists_each_of_its_commands_in_its_panel(words: Words, group: CommandGroup) -> None:
    shown = refold(*words, "--help").stdout

    panels = group.panels or {"Commands": " ".join(group.commands)}
    assert sorted(" ".join(panels.values()).split()) == sorted(group.commands)
    for panel, names in panels.items():
        inside = shown.partition(f"─ {panel} ─")[2].partition("╰")[0]
        assert {name for name in names.split() if not re.search(rf"^│ {name} ", inside, re.MULTILINE)} == set()


@pytest.mark.parametrize("words", TREE, ids=" ".join)
def test_a_command_is_summed_up_in_its_group_as_in_its_own_help(words: Words) -> None:
    told = " ".join((TREE[words].function.__doc__ or "").split())

    assert told.startswith(TREE[words].summary.removesuffix("."))


@pytest.mark.parametrize("words", TREE, ids=" ".join)
def test_the_example_of_a_command_is_what_it_takes(words: Words) -> None:
    loaded(words).make_context("refold", shlex.split(TREE[words].example))


@pytest.mark.parametrize("words", TREE, ids=" ".join)
def test_help_names_what_to_write_and_no_types_of_python(words: Words) -> None:
    result = refold(*words, "--help")

    assert result.exit_code == 0
    assert f"Usage: refold {' '.join(words)} " in result.stdout
    assert f"Example: refold {' '.join(words)}" in result.stdout
    assert re.findall(r"<\w+|\brange\b|x>=|\[\[|\{[A-Z]|default: \(", result.stdout) == []


@pytest.mark.parametrize("words", TREE, ids=" ".join)
def test_every_command_has_json_but_those_in_the_foreground(words: Words) -> None:
    options = {option for each in loaded(words).params for option in each.opts}

    assert ("--json" in options) is (words not in WITHOUT_JSON)


@pytest.mark.parametrize("words", TREE, ids=" ".join)
def test_data_is_the_folder_of_a_dev_wherever_it_is(words: Words) -> None:
    named = [each for each in loaded(words).params if "--data" in each.opts]

    assert all(each.envvar == "REFOLD_DATA" for each in named)


@pytest.mark.parametrize(
    ("words", "meant"),
    [("run cancle", "cancel"), ("rnu", "run"), ("dev stats", "status")],
)
def test_a_typo_is_answered_with_what_was_meant(words: str, meant: str) -> None:
    result = refold(*words.split())

    assert result.exit_code == 2
    assert re.search(rf"[Dd]id you mean '?(`refold dev )?{meant}", result.output)


PRESSED = """
eval "$(refold completion bash)"
COMP_WORDS=($LINE); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE=$LINE COMP_POINT=${#LINE}
_refold_completion refold
echo "${COMPREPLY[@]}"
"""
"""What bash does with the script at a press of Tab behind `$LINE`."""


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("refold run re", {"resume", "retry", "resolve", "repair"}),
        ("refold comp", {"completion"}),
        ("refold run start --wa", {"--wait"}),
    ],
)
def test_bash_completes_commands_and_options(line: str, offered: set[str]) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    done = subprocess.run(
        ["bash", "-c", PRESSED],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": path, "LINE": line},
    )

    assert set(done.stdout.split()) == offered, done.stderr


@pytest.mark.parametrize(("shell", "begin"), [("zsh", "#compdef refold"), ("fish", "complete --command refold")])
def test_other_shells_have_a_script_too(shell: str, begin: str) -> None:
    assert refold("completion", shell).stdout.startswith(begin)


def test_a_shell_without_completion_is_refused_with_those_that_have_it() -> None:
    result = refold("completion", "tcsh")

    assert result.exit_code == 2
    assert "refold completion bash | zsh | fish" in result.stderr


def test_completion_after_an_old_name_prints_no_traceback() -> None:
    env = {**os.environ, "_REFOLD_COMPLETE": "complete_bash", "COMP_WORDS": "refold run fork ", "COMP_CWORD": "3"}

    done = subprocess.run([Path(sys.executable).parent / "refold"], capture_output=True, text=True, env=env)

    assert (done.returncode, done.stderr) == (0, "")
