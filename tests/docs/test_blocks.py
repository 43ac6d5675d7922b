"""What the pages show can be run: Python here, shell against a real stack in `test_live`."""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path

import pytest

from refold.cli.commands import COMMANDS
from refold.client import policies
from refold.core.approval.catalog import Roles
from refold.core.wire.canonical import dumps, idempotency_key
from refold.testing import run
from tests.docs.blocks import ROOT, Block, blocks, everywhere

RUN_HERE = {"python", "yaml"}
RUN_LIVE = {"bash"}
NOT_RUN = {"mermaid", "console", "json", "text", "dockerfile"}
"""A picture, a transcript, data, and an image, which make compose builds. Anything else nothing would look at."""


def named(block: Block) -> str:
    return block.name


def test_there_are_blocks_of_every_kind() -> None:
    found = {block.language for block in everywhere()}

    assert found >= RUN_HERE | RUN_LIVE | {"mermaid"}
    assert found <= RUN_HERE | RUN_LIVE | NOT_RUN


@pytest.mark.parametrize("block", everywhere("python"), ids=named)
def test_a_python_block_runs_by_itself(block: Block, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(block.text)

    assert runpy.run_path(str(script))


@pytest.mark.parametrize("block", everywhere("yaml"), ids=named)
def test_a_policy_and_roles_are_such_as_can_be_published(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "block.yaml"
    file.write_text(block.text)
    content = policies.load_file(file)

    if "rules" in content:
        assert policies.problems_of({file.name: content}) == []
    else:
        assert Roles.parse(content).by_role


@pytest.mark.parametrize("block", everywhere("bash") + everywhere("console"), ids=named)
def test_a_shell_block_is_valid_and_names_only_commands_that_exist(block: Block) -> None:
    text = "\n".join(re.sub(r"^\$ ", "", line) for line in block.text.splitlines())
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known = commands()

    assert checked.returncode == 0, checked.stderr
    for words in re.findall(r"(?:^|[;&|(] *)refold ([^\n|;&#]*)", text, re.MULTILINE):
        assert known & {" ".join(words.split()[:n]) for n in (1, 2)}, f"refold {words} is not a command"
    for target in re.findall(r"^make ([a-z]+)", text, re.MULTILINE):
        assert target in targets


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda p: p.name)
def test_commands_in_the_prose_exist(path: Path) -> None:
    prose = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)

    for words in re.findall(r"`refold ([^`]+)`", prose):
        if words in groups():
            continue
        assert commands() & {" ".join(words.split()[:n]) for n in (1, 2)}, f"refold {words} is not a command"


def test_the_agent_of_the_readme_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.py").write_text(blocks(ROOT / "README.md", "python")[0].text)
    module = runpy.run_path("report.py", run_name="report")

    done = run(module["app"], "report", paths=["report.py", "report.py"])

    words = 2 * len((tmp_path / "report.py").read_text().split())
    (written,) = tmp_path.glob("report-*.txt")
    assert written.read_text() == f"{words} words in 2 files"
    assert done.value == written.name


def test_the_key_of_the_guide_is_that_of_the_code(tmp_path: Path) -> None:
    (block,) = (each for each in everywhere("python") if "def idempotency_key" in each.text)
    script = tmp_path / "key.py"
    script.write_text(block.text)
    shown = runpy.run_path(str(script))["idempotency_key"]

    for arguments in ({"path": "report.py"}, {}, {"b": [1, True, None], "a": {"\u00e4": '\u2028"\\'}}):
        key = idempotency_key(environment="prod", run="r:7", step=12, tool="pay", args=dumps(arguments))
        assert shown("prod", "r:7", 12, "pay", arguments) == key


def groups() -> set[str]:
    """The words that commands begin with."""
    return {command.partition(" ")[0] for command in commands() if " " in command}


def commands() -> set[str]:
    """Every command, with the words that call it."""
    return {" ".join(words) for words, _ in COMMANDS.walk()}
