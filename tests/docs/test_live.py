"""What the pages tell a reader to type, typed: against a real broker, Valkey and services, with the kills.

`REFOLD_WRITE_OUTPUTS=1 pytest tests/docs/test_live.py -k readme` writes what was printed into the pages.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.docs.blocks import ROOT, Block, blocks, everywhere, outputs, replace
from tests.waiting import eventually

GUIDES = ROOT / "docs" / "guides"
FIRST, CLASSES, OPERATING = (GUIDES / f"{name}.md" for name in ("first-agent", "effect-classes", "operating"))
APPROVING, POLICIES, KEYS = (GUIDES / f"{name}.md" for name in ("approving", "policies", "keys-and-acls"))
OUTSIDE, CLIENT = (GUIDES / f"{name}.md" for name in ("outside-producers-and-consumers", "client"))
WRITES = bool(os.environ.get("REFOLD_WRITE_OUTPUTS"))
LONGER = "sleep(5)", 'sleep((5,12)[ctx.run_id=="r-1"])'
"""The nap in which a reader kills: a busy machine types slowly. The program keeps its number of words."""
SETTINGS_ARE_VALID = "\npython -c 'from refold.engine.runtime.settings import load; load()'\n"


@dataclass(frozen=True)
class Stack:
    """A `refold dev` as a reader has it: a folder, in which everything is typed."""

    folder: Path

    @property
    def kafka(self) -> str:
        """The address in its dev.json."""
        address: str = json.loads((self.folder / ".refold" / "dev.json").read_text())["kafka"]
        return address

    def type(self, text: str) -> str:
        """Runs a block as a script that stops at the first failure; returns what it printed.

        Settings that it exports must be valid ones.
        """
        if "export REFOLD_" in text:
            text += SETTINGS_ARE_VALID
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def type_when_asked(self, text: str) -> str:
        """Types a block once people are asked what it names: its reader would look again after a moment.

        On a terminal they would be shown the question and say that they mean it; a script names it.
        """
        for name in sorted(set(re.findall(r"refold approval \w+ ([\w.-]+-\d[\d.]*/\d+)", text))):
            asked = eventually(partial(self.asked, name), within=60)
            text = re.sub(rf"(refold approval (?!show)[\w-]+) {name}\b", rf"\1 {asked}", text)
        return self.type(text)

    def type_while_asleep(self, text: str) -> str:
        """Types a block, and its kill once the run of the line before is asleep, as its reader would."""
        start, found, kill = text.partition("refold dev kill")
        said = self.type(start)
        if found:
            eventually(lambda: "suspended" in self.type("refold run list --json"), what="a run that sleeps")
            said += self.type(found + kill)
        return said

    def asked(self, call: str) -> str:
        """The id of what people are asked about a call; nothing if they are not."""
        show = ["refold", "approval", "show", call, "--json"]
        done = subprocess.run(show, cwd=self.folder, env=environment(), capture_output=True, check=False)
        return "" if done.returncode else str(json.loads(done.stdout)["approval"])


def environment() -> dict[str, str]:
    """A shell with `.venv` activated and no settings."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    return {**clean, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@contextmanager
def developing(page: Path, folder: Path) -> Iterator[Stack]:
    """Starts `refold dev` as the page says, on an example or on the page's app, saved under the name that it says."""
    (command,) = (block.text.strip() for block in blocks(page, "bash") if is_dev(block))
    (folder / "examples").symlink_to(ROOT / "examples")
    if not (folder / command.split()[-1]).exists():
        code = blocks(page, "python")[0].text
        (folder / command.split()[-1]).write_text(code if WRITES else code.replace(*LONGER))
    # exec: the shell would not pass the signal on
    dev = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=folder, env=environment(), stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: (folder / ".refold" / "dev.json").exists() or dev.poll() is not None, within=60)
        assert dev.poll() is None, "refold dev ended"
        yield Stack(folder)
    finally:
        dev.send_signal(signal.SIGINT)
        ended = dev.wait(timeout=60)
    assert ended == 0


def is_dev(block: Block) -> bool:
    return re.fullmatch(r"refold dev \S+\.py\n", block.text) is not None


def typed(page: Path) -> list[Block]:
    """What is to be typed beside a running `refold dev`."""
    return [block for block in blocks(page, "bash") if not is_dev(block)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with developing(ROOT / "README.md", tmp_path_factory.mktemp("readme")) as running:
        yield running


def test_no_shell_block_is_left_out() -> None:
    shown = (ROOT / "README.md", FIRST, CLASSES, OPERATING, OUTSIDE, CLIENT, APPROVING, POLICIES, KEYS)
    here = {block for page in shown for block in blocks(page, "bash")}

    assert set(everywhere("bash")) == here


def test_every_block_of_the_readme_does_what_it_says(stack: Stack) -> None:
    said = {block: stack.type_while_asleep(block.text) for block in typed(ROOT / "README.md")}
    shown = outputs(ROOT / "README.md")
    if WRITES:
        for block, printed in reversed(shown):  # from the end, so that the lines of those before stay where they are
            replace(printed, said[block])

    words = len((stack.folder / "report.py").read_text().split())
    reports = [path.read_text() for path in stack.folder.glob("report-*.txt")]
    assert reports == [f"{words} words in 1 files"]
    assert len(said) == 3
    assert len(shown) == 2
    for (block, _), (_, printed) in zip(shown, outputs(ROOT / "README.md"), strict=True):
        assert settled(printed.text) == settled(said[block])


def settled(printed: str) -> list[str]:
    """Lines without what differs from run to run: moments, durations, waits, digests, processes, offsets."""
    changing = [r"\boffset \d+", r"\d{4}-\d\d-\d\d [\d:]+ UTC", r"\b(\d+ m )?[\d.]+ m?s\b", r"\b[0-9a-f]{32}\b"]
    changing += [r"\b\d+(?= \(SIG)", r"\S+(?= goes on from seq)"]
    awaited = re.compile(r", waited [\d.]+ m?s for a planner")  # only where a loaded machine made it wait a second
    return [re.sub("|".join(changing), "...", awaited.sub("", line)).rstrip() for line in printed.splitlines()]


@pytest.mark.parametrize(
    "block", [*typed(CLASSES), *typed(OPERATING), *typed(OUTSIDE), *typed(CLIENT)], ids=lambda block: block.name
)
def test_a_block_of_the_guides_works_on_a_running_stack(stack: Stack, block: Block) -> None:
    stack.type(block.text)


def test_the_code_for_outsiders_starts_awaits_and_folds_a_run(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "schemas").symlink_to(ROOT / "schemas")
    monkeypatch.chdir(tmp_path)
    functions: dict[str, Any] = {}
    for number, block in enumerate(blocks(OUTSIDE, "python")):
        (tmp_path / f"block{number}.py").write_text(block.text)
        functions |= run_path(f"block{number}.py")

    functions["start"](stack.kafka, "r-9", "report", {"paths": ["report.py"]})
    outcome = functions["wait"](stack.kafka, "r-9")
    entries = list(functions["accepted"](raw_log(stack.kafka), functions["decode"]))

    events = [event for entry in entries if entry["run_id"] == "r-9" for event in entry["events"]]
    told = [json.loads(line) for line in stack.type("refold run events r-9 --json").splitlines()]
    assert outcome["status"] == "completed"
    assert [name for name, _ in events] == [f"refold.{row['type']}" for row in told]
    assert outcome["seq"] == len(events)


@pytest.mark.long
def test_the_first_agent_runs_as_its_guide_says(tmp_path: Path) -> None:
    with developing(FIRST, tmp_path) as stack:
        said = [stack.type(block.text) for block in typed(FIRST)]

    assert '"status": "completed"' in said[0]
    assert [path.read_text() for path in (tmp_path / "copies").iterdir()] == ["hello\n"]
    assert "completed" in said[1]


@pytest.mark.long
def test_people_decide_as_the_guides_say(tmp_path: Path) -> None:
    with developing(APPROVING, tmp_path) as stack:
        approving = [stack.type_when_asked(block.text) for block in typed(APPROVING)]
        decided = (stack.folder / ".refold" / "incident" / "settings.toml").read_text()
        policies = [stack.type(block.text) for block in typed(POLICIES)]
        keys = [stack.type(block.text) for block in typed(KEYS)]

    assert "reject by ada" in approving[2]
    assert "edit by bob" in approving[3]
    assert "pool_size = 50" in decided
    assert "everything agrees" in approving[-1]
    assert "require -> require" in policies[0]
    assert "\u2192" in policies[1]
    assert "is in force" in policies[2]
    assert "revoked" in keys[1]


def raw_log(kafka: str) -> list[tuple[bytes, bytes | None]]:
    """Keys and values of the run log, read by a plain consumer."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "raw", "enable.auto.commit": False})
    try:
        partitions = consumer.list_topics("refold.run-log").topics["refold.run-log"].partitions
        found: list[tuple[bytes, bytes | None]] = []
        for number in partitions:
            place = TopicPartition("refold.run-log", number)
            position, end = consumer.get_watermark_offsets(place)
            consumer.assign([TopicPartition("refold.run-log", number, position)])
            while position < end:
                for message in consumer.consume(500, 1.0):
                    position = (message.offset() or 0) + 1
                    found.append((message.key() or b"", message.value()))
        return found
    finally:
        consumer.close()
