"""Real planners and code that would take them along: others wait once, not for long; a wrong deploy fails nothing."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refold.cli.commands.provision import Provision
from refold.client.operations.runs import Runs
from refold.client.reading.history import Run
from refold.core.ids import RunId
from refold.core.messages import RunRequest, RunSignal
from refold.dev.stack import DevStack, ServiceProcess
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.runtime.settings import KafkaSettings
from tests.cli.terminal import refold
from tests.waiting import busy, eventually, under_load

PLANNERS = ("planner-1", "planner-2")
HANG_MS = round(4_000 * busy())
WAIT_S = 120.0

APP = """
import asyncio
from refold import App, Context

app = App("hostile")

class Mute(Exception):
    def __str__(self):
        raise SystemExit

@app.tool(effect="pure")
def echo(n: int) -> int:
    return n

@app.agent
async def nice(ctx: Context, n: int) -> int:
    return await ctx.call(echo, n)

@app.agent
async def waiter(ctx: Context) -> int:
    CHANGE
    await ctx.wait_for("go")
    return await ctx.call(echo, 1)

@app.agent
async def spins(ctx: Context) -> None:
    while True:
        pass

@app.agent
async def exits(ctx: Context) -> None:
    raise SystemExit(2)

@app.agent
async def mute(ctx: Context) -> None:
    raise Mute

@app.agent
async def notes(ctx: Context) -> None:
    while True:
        ctx.note("again")

@app.agent
async def bomb(ctx: Context) -> None:
    await asyncio.gather(bomb(ctx), bomb(ctx))
"""


class Stage:
    """A platform with two planners and one executor, on a folder, with an app that can be deployed anew."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "hostile_app.py"
        self.write("pass")
        needs = Provision(("default",), folder / "keys")
        serve, app = (sys.executable, "-m", "refold", "serve"), ("--app", f"{self.file}:app")
        trust = {"REFOLD_TRUST": f"@{needs.file('trust')}"}
        env = {"REFOLD_PLANNER__HANG_MS": str(HANG_MS), **trust}
        services = [ServiceProcess(name, (*serve, "planner", *app, "--member", name), env) for name in PLANNERS]
        services.append(ServiceProcess("executor", (*serve, "executor", *app), trust))
        self.stack = DevStack(folder, services=services, prepare=needs.prepare)

    def write(self, change: str) -> None:
        """The app as it is to be deployed."""
        self.file.write_text(APP.replace("CHANGE", change))

    def deploy(self, change: str) -> None:
        """Puts other code there, and planners that run it in the place of those that do not."""
        self.write(change)
        before = self.pids()
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: all(self.pids().get(name, pid) != pid for name, pid in before.items()), within=WAIT_S)

    def pids(self) -> dict[str, int]:
        """The planners that live."""
        found = self.stack.supervisor.pids()
        return {name: found[name][0] for name in PLANNERS if found[name]}

    def runs(self) -> dict[str, Run]:
        """All runs."""
        reader = KafkaLogReader(KafkaSettings(bootstrap=self.stack.kafka))
        return {run.state.run_id: run for run in Runs(reader).all()}

    def say(self, *words: str) -> Any:
        """What a command says, run in this process."""
        result = refold(*words, "--data", str(self.folder), "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout) if result.stdout.startswith("{") else result.stdout

    def finish(self, runs: list[str], status: str = "completed") -> float:
        """Waits until these runs have this status; says how long that took, in seconds."""
        began = time.monotonic()
        eventually(
            lambda: {run: state for run in runs if (state := self._status(run)) != status} == {},
            within=WAIT_S,
            what=f"{len(runs)} runs are {status}",
        )
        return time.monotonic() - began

    def _status(self, run: str) -> str:
        found = self._seen().get(run)
        return found.status if found else ""

    def _seen(self) -> dict[str, Run]:
        now = time.monotonic()
        if now - getattr(self, "_at", 0.0) > 0.3:
            self._at, self._known = now, self.runs()
        return self._known


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("hostile"))
    with made.stack:
        warm = [f"warm-{n}" for n in range(4)]
        for n, run in enumerate(warm):
            made.say("run", "start", "nice", "--id", run, "--input", f'{{"n":{n}}}')
        made.finish(warm)
        yield made


@pytest.mark.parametrize(
    ("agent", "status"),
    [
        *(pytest.param(agent, "failed", marks=pytest.mark.long) for agent in ("mute", "notes", "bomb")),
        ("exits", "failed"),
        ("spins", "stalled"),
    ],
)
def test_others_wait_once_and_not_for_long(stage: Stage, agent: str, status: str) -> None:
    others = [f"beside-{agent}-{n}" for n in range(8)]

    stage.say("run", "start", agent, "--id", f"bad-{agent}")
    for n, run in enumerate(others):
        stage.say("run", "start", "nice", "--id", run, "--input", f'{{"n":{n}}}')
    took = stage.finish(others)
    stage.finish([f"bad-{agent}"], status)

    assert took < under_load(10.0)

    later = [f"after-{agent}-{n}" for n in range(8)]
    for n, run in enumerate(later):
        stage.say("run", "start", "nice", "--id", run, "--input", f'{{"n":{n}}}')
    assert stage.finish(later) < under_load(5.0)


def test_a_quarantined_run_is_listed_with_its_stack_and_ended_by_a_human(stage: Stage) -> None:
    shown = stage.say("run", "show", "bad-spins")
    listed = stage.say("run", "list", "--status", "stalled")
    pids = stage.pids()

    ended = stage.say("run", "cancel", "bad-spins", "--as-failed", "--reason", "it never ends")

    assert (shown["status"], shown["hold"]["kind"], shown["hold"]["reason"]) == ("stalled", "quarantined", "hang")
    assert "in spins" in shown["hold"]["detail"]
    assert "bad-spins" in str(listed)
    assert ended["status"] == "failed"
    assert stage.pids() == pids


def test_a_wrong_deploy_that_is_rolled_back_fails_no_run(stage: Stage) -> None:
    runs = [f"live-{n}" for n in range(50)]
    publisher = KafkaPublisher(KafkaSettings(bootstrap=stage.stack.kafka), partitions=4, source="test")
    for run in runs:
        publisher.send(RunRequest(RunId(run), "waiter"))
    stage.finish(runs, "suspended")

    stage.deploy('ctx.note("new")')
    for run in runs:
        publisher.send(RunSignal(RunId(run), "go-1", "signal", "null", "ann", name="go"))
    stage.finish(runs, "stalled")
    stage.deploy("pass")
    stage.finish(runs)
