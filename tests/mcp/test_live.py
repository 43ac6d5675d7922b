"""A server on a real platform: executor and server are killed while it acts, and people answer what it asks."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.terminal import Dev, served
from tests.embedded.processes import lives
from tests.mcp.scripts import Scripted
from tests.tidy.repository import ROOT
from tests.waiting import eventually


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Scripted:
    return Scripted(tmp_path_factory.mktemp("server") / "files", "stateless")


@pytest.fixture(scope="module")
def dev(files: Scripted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    data = tmp_path_factory.mktemp("dev")
    lease = {"REFOLD_EXECUTOR__CHAINED_LEASE_MS": "4000"}
    with served(ROOT / "tests/mcp/app.py", data, PLACE=str(files.place), PYTHONPATH=str(ROOT), **lease) as running:
        yield running
    eventually(lambda: not any(map(lives, files.pids)))


def start(dev: Dev, run: str, tool: str, *words: str) -> Any:
    given = json.dumps({"tool": tool, "path": run})
    return dev.read("run", "start", "use", "--id", run, "--input", given, *words)


def calls_of(files: Scripted, run: str) -> int:
    return sum(each["arguments"] == {"path": run} for each in files.calls)


@pytest.mark.long
def test_a_pure_call_is_made_again_when_its_executor_was_killed(dev: Dev, files: Scripted) -> None:
    files.does("hang")
    start(dev, "pure-1", "read_file")
    eventually(lambda: calls_of(files, "pure-1") == 1)
    server = files.pids[-1]

    dev.kill("executor")
    files.does("")

    assert start(dev, "pure-1", "read_file", "--wait")["result"] == "done"
    assert calls_of(files, "pure-1") == 2
    eventually(lambda: not lives(server))


@pytest.mark.long
@pytest.mark.parametrize("killed", ["executor", "server"])
def test_a_call_that_may_have_happened_is_a_question_and_is_not_sent_again(
    dev: Dev, files: Scripted, killed: str
) -> None:
    run = f"once-{killed}"
    files.does("hang")
    start(dev, run, "write_file")
    eventually(lambda: calls_of(files, run) == 1)

    if killed == "executor":
        dev.kill("executor")
    else:
        os.kill(files.pids[-1], signal.SIGKILL)
    files.does("")

    def listed() -> Any:
        return next((row for row in dev.read("run", "list", "--status", "doubt") if row["run_id"] == run), None)

    [question] = eventually(listed, what="a call in doubt")["approvals"]
    told = json.dumps({"content": [{"type": "text", "text": "written"}], "failed": False})
    dev.refold("run", "resolve", question, "--happened", told, "--actor", "ada")

    assert start(dev, run, "write_file", "--wait")["result"] == "written"
    assert calls_of(files, run) == 1


def test_a_question_of_the_server_waits_while_everything_is_killed(dev: Dev, files: Scripted) -> None:
    files.does("ask")
    start(dev, "ask-1", "write_file")
    [asked] = eventually(lambda: dev.read("approval", "list", "--run", "ask-1"), what="the question")

    for service in ("executor", "planner", "approval"):
        dev.kill(service)
    dev.refold("approval", "answer", asked["approval"], '{"branch": "main"}', "--actor", "ada")

    answers, state = json.loads(start(dev, "ask-1", "write_file", "--wait")["result"])
    assert answers == {"q1": {"action": "accept", "content": {"branch": "main"}}}
    assert state == "opaque"
    assert calls_of(files, "ask-1") == 2
