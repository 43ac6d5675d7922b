"""`refold dev --light`: one process that is killed in the middle of its calls, and started again on its file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.cli.terminal import Dev, refold
from tests.waiting import eventually, under_load

APP = """
import time
from pathlib import Path

from refold import DID_NOT_HAPPEN, App, Context

app = App("light")
here = Path(__file__).parent


def leave(line: str) -> None:
    with (here / "lines").open("a") as lines:
        lines.write(line + "\\n")


def act(name: str, key: str) -> str:
    leave(f"begun {name}")
    hold("before", name)
    leave(f"effect {name} {key}")
    hold("after", name)
    return name


def hold(when: str, name: str) -> None:
    while (here / f"hold-{when}-{name}").exists():
        time.sleep(0.02)


def is_done(key: str) -> bool:
    return f" {key}" in (here / "lines").read_text()


def happened(*, idempotency_key: str) -> object:
    return "seen" if is_done(idempotency_key) else DID_NOT_HAPPEN


@app.tool(effect="pure")
def reads() -> str:
    leave("begun reads")
    hold("before", "reads")
    return "read"


@app.tool(effect="keyed")
def pays(*, idempotency_key: str) -> str:
    leave("asked pays")
    return "paid before" if is_done(idempotency_key) else act("pays", idempotency_key)


@app.tool(effect="probed", probe=happened)
def moves(*, idempotency_key: str) -> str:
    return act("moves", idempotency_key)


@app.tool(effect="once")
def fires(*, idempotency_key: str) -> str:
    return act("fires", idempotency_key)


@app.agent
async def steps(ctx: Context) -> list[str]:
    return [await ctx.call(reads), await ctx.call(pays), await ctx.call(moves), await ctx.call(fires)]


@app.agent
async def quick(ctx: Context) -> str:
    return await ctx.call(reads)
"""
KILLS = ("before reads", "before pays", "after pays", "before moves", "after moves", "after fires")
"""Where the process stands when it is killed: in a call, before its effect or after it."""


class Light:
    """An app under `refold dev --light` in a folder, which is killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "app.py").write_text(APP)
        (folder / "lines").touch()
        (folder / "data").mkdir()

    def start(self) -> float:
        """Start the process; return the seconds until it served."""
        begun, command = (
            time.monotonic(),
            [sys.executable, "-m", "refold", "dev", "app.py", "--light", "--data", "data"],
        )
        output = self.folder / "dev.log"
        lease = {"REFOLD_EXECUTOR__CHAINED_LEASE_MS": "3000"}
        with output.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env={**os.environ, **lease}, stdout=log, stderr=log, text=True
            )
        self.dev = Dev(self.folder / "data", self.process)
        eventually(
            lambda: self.process.poll() is not None or "ready after" in output.read_text(), within=60, every=0.01
        )
        assert self.process.poll() is None, output.read_text()
        return time.monotonic() - begun

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def count(self, words: str) -> int:
        return sum(line.startswith(words) for line in (self.folder / "lines").read_text().splitlines())

    def ended(self, run: str) -> bool:
        return bool(self.dev.read("run", "show", run)["status"] == "completed")


@pytest.fixture
def light(tmp_path: Path) -> Iterator[Light]:
    """Give an app that is not started."""
    light = Light(tmp_path)
    yield light
    light.kill()


@pytest.mark.timeout(300)
def test_a_kill_in_any_call_doubles_no_effect_and_leaves_doubts_to_people(light: Light) -> None:
    for kill in KILLS:
        (light.folder / f"hold-{kill.replace(' ', '-')}").touch()
    light.start()
    light.dev.refold("run", "start", "steps", "--id", "s-1")
    for kill in KILLS:
        when, name = kill.split()
        words = f"{'begun' if when == 'before' else 'effect'} {name}"
        eventually(partial(light.count, words), within=60, what=words)
        light.kill()
        (light.folder / f"hold-{when}-{name}").unlink()
        light.start()

    asked = eventually(lambda: light.dev.read("approval", "list"), within=60, what="the doubt of the last call")
    light.kill()
    light.start()
    assert light.dev.read("run", "show", "s-1")["status"] == "suspended"
    light.dev.refold("run", "resolve", asked[0]["approval"], "--happened", '"it did"', "--actor", "ann")
    eventually(lambda: light.ended("s-1"), within=60, what="the end of the run")

    assert light.dev.read("run", "show", "s-1")["result"] == ["read", "paid before", "seen", "it did"]
    assert {name: light.count(f"effect {name}") for name in ("pays", "moves", "fires")} == {
        "pays": 1, "moves": 1, "fires": 1
    }  # fmt: skip
    assert (light.count("begun fires"), light.count("asked pays"), light.count("begun reads")) == (1, 3, 2)


@pytest.mark.timeout(300)
def test_commands_pages_and_doctor_reach_it_and_a_stop_ends_it_well(light: Light) -> None:
    seconds = [light.start()]
    dev = light.dev
    started = dev.read("run", "start", "quick", "--id", "q-1", "--wait")
    pages = eventually(lambda: _page(dev, "/api/runs"), within=60, what="the pages")
    findings = json.loads(refold("doctor", "--data", str(dev.data), "--json").stdout)
    status = dev.read("dev", "status")
    text = (light.folder / "dev.log").read_text()
    light.process.send_signal(signal.SIGINT)

    assert started["result"] == "read"
    assert "q-1" in pages
    assert [f["verdict"] for f in findings["findings"] if f["check"] in ("light", "kafka", "redis")] == ["warning"]
    assert status["addresses"][0]["answers"]
    assert "one process and one file, to try things out" in text
    assert light.process.wait(60) == 0
    assert not (dev.data / "dev.json").exists()
    seconds.append(light.start())
    assert light.dev.read("run", "show", "q-1")["result"] == "read"
    assert min(seconds) < under_load(2.0), seconds


def _page(dev: Dev, path: str) -> str:
    with suppress(OSError), urlopen(f"{dev.state['gateway']}{path}", timeout=5) as answer:
        return str(answer.read().decode())
    return ""
