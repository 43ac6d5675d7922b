"""The demo, as `make demo` runs it: it fails unless everything that it shows has really held."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import httpx
import pytest


def demo(*words: str) -> str:
    """Runs the demo; returns what it printed."""
    command = [sys.executable, "-m", "examples.demo", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_killed_twice_nothing_happens_twice() -> None:
    found: dict[str, Any] = json.loads(demo("--json"))

    assert found["ok"]
    assert all(found["checks"].values())
    assert [kill["service"] for kill in found["kills"]] == ["executor", "planner"]
    effects = {step["tool"]: (step["effects"], step["recognised"]) for step in found["steps"]}
    assert effects["update_load_balancer"] == (1, 1)
    assert effects["switch_mesh"] == (1, 0)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/runs/demo-\w+", found["page"])


@pytest.mark.long
def test_the_page_stays_open_until_it_is_stopped() -> None:
    command = [sys.executable, "-m", "examples.demo", "--stay"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as staying:
        assert staying.stdout is not None
        said = next(line for line in staying.stdout if "stays open until" in line)
        page = httpx.get(said.split()[-1])
        os.killpg(staying.pid, signal.SIGINT)  # as a terminal does
        rest = staying.stdout.read()
        assert staying.wait(60) == 0

    assert "completed" in page.text
    assert rest.split()[-1].startswith("http://127.0.0.1:")


@pytest.mark.long
def test_what_nobody_can_know_a_human_settles() -> None:
    told = demo("--once")

    assert "CallDoubted" in told
    assert "refold run resolve" in told
    assert "nothing happened twice, nothing was lost" in told
    assert "✘" not in told
