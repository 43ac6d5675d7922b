"""The skill for coding agents runs as it stands, with the messages that it quotes; `refold docs` prints every page."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from refold import App, UsageError
from refold.cli.commands import COMMANDS
from refold.testing import run
from tests.cli.terminal import refold
from tests.docs.blocks import ROOT, SKILL, Block, blocks

TEXT = SKILL.read_text()
SEEN = (ROOT / "tests/golden/seen/run-show.txt").read_text()
MODULES = """
import asyncio, os, random, secrets, socket, subprocess, threading, time, urllib.request, uuid
from datetime import UTC, datetime
from pathlib import Path
from refold import App, Context

app = App("refused")
x = None

@app.tool(effect="pure")
def act() -> None:
    pass
"""


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    table = re.findall(r"^\| .*", TEXT.partition(f"## {heading}")[2].partition("\n## ")[0], re.MULTILINE)
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table[1:]]


REFUSED = [
    (code, message)
    for cells, message in rows("Agent code: what is refused, and the message")
    for code in re.findall(r"`([^`]+)`", cells)
]
PAGES = ["skill", *(str(path.relative_to(ROOT / "docs"))[:-3] for path in (ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with the files of the skill, each under the name in its first line."""
    made = tmp_path_factory.mktemp("skill")
    for block in [*blocks(SKILL, "python"), *blocks(SKILL, "yaml")]:
        path = made / file_of(block)
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.text)
    return made


def file_of(block: Block) -> str:
    return block.text.partition("\n")[0].removeprefix("# ")


def test_the_skill_is_one_that_coding_agents_load_and_finish() -> None:
    front = yaml.safe_load(TEXT.split("---\n")[1])

    assert front["name"] == SKILL.parent.name
    assert 0 < len(front["description"]) <= 1024
    assert set(front) == {"name", "description"}
    assert len(TEXT.splitlines()) <= 300


def test_its_programs_run_and_its_tests_pass(folder: Path) -> None:
    programs = [file_of(block) for block in blocks(SKILL, "python")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]

    tested = subprocess.run(command, cwd=folder, env=clean(), capture_output=True, text=True, check=False)

    assert tested.returncode == 0, tested.stdout
    assert len(programs) >= 4
    for name in (name for name in programs if not name.startswith("test_")):
        assert isinstance(runpy.run_path(str(folder / name))["app"], App)


def test_its_policy_asks_about_what_it_says(folder: Path) -> None:
    policy = yaml.safe_load((folder / "policies/money.yaml").read_text())
    app = runpy.run_path(str(folder / "shop.py"))["app"]
    scripts = {"pay": "p-1", "refund": "refunded"}

    small = run(app, "order", policy=policy, tools=scripts, customer="ada", items=["pen"])
    large = run(app, "order", policy=policy, tools=scripts, customer="ada", items=["pen"] * 5)

    assert small.history.count("ApprovalRequested") == 1  # the refund
    assert large.history.count("ApprovalRequested") == 2


MISTAKES = """
import library
from refold import App, Context

app = App("mistakes")

@app.tool(effect="pure")
def act(n: int = 0) -> int:
    return n

@app.tool(effect="keyed")
def pay(*, idempotency_key: str) -> None:
    pass

@app.agent
async def unawaited(ctx: Context) -> None:
    ctx.call(act)

@app.agent
async def acting(ctx: Context) -> None:
    library.connect()

@app.agent
async def unordered(ctx: Context) -> None:
    for name in set("abcdefghij"):
        ctx.checkpoint(name)

@app.agent
async def waiting(ctx: Context) -> None:
    await ctx.wait_for("go")

@app.agent
async def paying(ctx: Context) -> None:
    await ctx.call(pay)
"""


SHOW = """
import json
from mistakes import app
from refold.testing import crash_matrix, run

def shown(agent):
    try:
        crash_matrix(app, agent, {}) if agent == "paying" else run(app, agent).value
    except (Exception, AssertionError) as error:
        return str(error)

print(json.dumps({agent: shown(agent) for agent in app.agents}))
"""


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Give the message of each agent's mistake, of a process that finds its module in the folder that it runs in."""
    made = tmp_path_factory.mktemp("mistakes")
    (made / "library.py").write_text("import socket\n\n\ndef connect():\n    socket.socket()\n")
    (made / "mistakes.py").write_text(MISTAKES)
    command = [sys.executable, "-c", SHOW]
    env = clean() | {"PYTHONHASHSEED": "0"}  # by chance another seed may give the same order
    done = subprocess.run(command, cwd=made, env=env, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("unawaited", 'the agent never awaited its call act({"n":0})'),
        ("acting", "an agent did something that a replay would do again (socket.__new__): put it into a tool"),
        ("unordered", "in a process with another hash seed step "),
        ("waiting", "the agent waits for step 1 (wait): wait for go"),
        ("paying", "pay (keyed) acted 2 times with the executor killed between the effect and the log hearing of it"),
        ("paying", ": it does not use its idempotency_key"),
    ],
)
def test_a_mistake_that_a_test_finds_has_the_message_that_it_quotes(
    agent: str, message: str, messages: dict[str, str]
) -> None:
    assert message in messages[agent]
    assert message in " ".join(TEXT.split())


def test_a_keyed_tool_without_its_key_is_refused_in_these_words() -> None:
    with pytest.raises(UsageError) as refused:

        @App("keyless").tool(effect="keyed")
        def pay(amount: int) -> int:
            return amount

    message = "tool pay is keyed and takes no idempotency_key"
    assert message in str(refused.value)
    assert message in TEXT


def clean() -> dict[str, str]:
    """The environment without settings of this test run."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("REFOLD_", "PYTEST_"))}


@pytest.mark.parametrize(("code", "message"), REFUSED, ids=[code for code, _ in REFUSED])
def test_what_an_agent_must_not_do_is_refused_in_these_words(code: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "refused.py").write_text(f"{MODULES}\n@app.agent\nasync def a(ctx: Context) -> None:\n    {code}\n")

    with pytest.raises(UsageError) as refused:
        App.load(str(tmp_path / "refused.py"))

    assert message in str(refused.value)
    assert str(refused.value).startswith("agent a ")


@pytest.mark.parametrize("cells", rows("When a run does not go on"), ids=lambda cells: cells[0])
def test_what_a_run_shows_that_waits_is_what_is_printed(cells: list[str]) -> None:
    for shown in re.findall(r"`([^`]+)`", cells[0]):
        code = (ROOT / "services/refold/engine/planner/agents/agent_host.py").read_text()
        words = re.sub(r"[A-Z]{2,}.*|: step 1.*", "", shown).strip()
        assert words in SEEN or f'"{words}"' in code, shown


def test_the_commands_that_it_names_exist() -> None:
    known = {words for words, _ in COMMANDS.walk()}
    groups = {words[0] for words in known}

    for line in re.findall(r"`refold ([a-z][^`]*)`", TEXT) + re.findall(r"^\$ refold (.*)", TEXT, re.MULTILINE):
        words = tuple(line.split())
        assert known & {words[:1], words[:2]} or (words == words[:1] and words[0] in groups), line


def test_every_page_is_listed_and_printed() -> None:
    listed = {row["page"] for row in json.loads(refold("docs", "--json").stdout)}

    assert listed == set(PAGES)
    assert refold("docs").stdout == (ROOT / "docs/llms.txt").read_text()
    for page in PAGES:
        printed = refold("docs", page).stdout
        assert printed == (SKILL if page == "skill" else ROOT / "docs" / f"{page}.md").read_text()
    assert refold("docs", "Schedules.md").stdout == refold("docs", "guides/schedules").stdout
    assert json.loads(refold("docs", "faq", "--json").stdout)["page"] == "faq"


def test_a_page_that_is_not_there_is_an_error_with_the_next_command() -> None:
    result = refold("docs", "nowhere")

    assert result.exit_code == 3
    assert "no page nowhere\n  next: `refold docs` lists all" in result.stderr


def test_the_list_of_pages_is_that_of_the_docs() -> None:
    contents = runpy.run_path(str(ROOT / "docs/site/pages.py"))["contents"]()

    assert (ROOT / "docs/llms.txt").read_text() == contents, "run `python docs/site/pages.py`"
