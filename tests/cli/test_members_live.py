"""What is deployed on a real platform: members come, are killed, and leave."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from refold.client import Client
from tests.cli.conftest import APP
from tests.cli.terminal import Dev
from tests.waiting import eventually


def members(dev: Dev, kind: str) -> set[str]:
    """The members that report to serve something."""
    return {by["member"] for row in dev.read("worker", "list", f"--{kind}") for by in row["members"]}


def row(dev: Dev, kind: str, name: str) -> dict[str, Any]:
    """What is reported of an agent or of a tool, when it is."""
    column = kind.removesuffix("s")
    found: dict[str, Any] = eventually(
        lambda: next((each for each in dev.read("worker", "list", f"--{kind}") if each[column] == name), None),
        what=f"a report of {name}",
    )
    return found


@contextmanager
def another(dev: Dev, service: str, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A second process of a service beside those of `refold dev`, from when it has reported."""
    command = [sys.executable, "-m", "refold", "serve", service, "--app", str(APP), "--member", name]
    log = (dev.data / f"{name}.log").open("wb")
    process = subprocess.Popen(
        [*command, "--data", str(dev.data)], env={**os.environ, "EFFECTS": str(dev.data)}, stdout=log, stderr=log
    )
    try:
        kind = "agents" if service == "planner" else "tools"
        eventually(lambda: name in members(dev, kind), what=f"a report of {name}")
        yield process
    finally:
        process.kill()
        process.wait()
        log.close()


def test_members_report_what_they_serve(dev: Dev) -> None:
    agent, tool = row(dev, "agents", "marks"), row(dev, "tools", "mark")

    assert agent["manifest"]["code"]
    assert (tool["pool"], tool["effect"], tool["arguments"]["type"]) == ("default", "keyed", "object")
    with Client(data=str(dev.data)) as client:
        assert "marks" in {each.agent for each in client.agents()}
        assert "mark" in {each.tool for each in client.tools()}


@pytest.mark.long
def test_a_member_that_leaves_takes_its_report_back_and_a_killed_one_does_not(dev: Dev) -> None:
    with another(dev, "planner", "planner-left") as process:
        process.terminate()
        assert process.wait() == 0
        assert "planner-left" not in members(dev, "agents")

    with another(dev, "executor", "executor-left") as process:
        process.terminate()
        assert process.wait() == 0
        assert "executor-left" not in members(dev, "tools")

    with another(dev, "executor", "executor-killed") as process:
        process.kill()
        process.wait()
        assert "executor-killed" in members(dev, "tools")


def test_a_killed_member_reports_again_when_it_is_back(dev: Dev) -> None:
    (before,) = row(dev, "agents", "marks")["members"]

    dev.kill("planner")

    eventually(lambda: [by["started_ms"] for by in row(dev, "agents", "marks")["members"]] > [before["started_ms"]])
