"""A deploy of everything under load: what it costs, which is nothing. The pause has no bound here, see the campaign."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from refold.engine.runtime.settings import KafkaSettings
from tests.chaos.operations import ask_to_end
from tests.chaos.rolling import Deploy, deploy
from tests.chaos.stack import PREFIX, Stack
from tests.chaos.world import World
from tests.waiting import eventually


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_deploy_loses_nothing_doubles_nothing_and_charges_no_attempt(tmp_path: Path) -> None:
    found = deploy(Deploy(in_flight=6, dwell_s=2.0, apart_s=0.2, steady_s=0.0), tmp_path)

    assert found.verdict.problems() == {}, json.dumps(found.as_json(), indent=2)
    assert found.charged == []
    assert found.waiting == []
    assert found.restarts == 6
    assert found.steps > 100


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_service_that_is_told_to_end_does_so_though_no_server_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = "broker", "valkey"
    monkeypatch.setenv("REFOLD_KAFKA__DELIVERY_TIMEOUT_MS", "3600000")  # what waits for an answer waits for an hour
    monkeypatch.setenv("REFOLD_EXECUTOR__GRACE_MS", "500")
    worlds: list[World] = []

    def prepare(kafka: str) -> None:
        worlds.append(World(KafkaSettings(bootstrap=kafka, prefix=PREFIX), stack.outside, seed=1))
        worlds[0].open()

    stack = Stack(tmp_path, prepare=prepare, pairs=1)
    with stack:
        (world,) = worlds
        for _ in range(20):
            world.start_run()
        eventually(lambda: len(world.over) > 2, within=120, what="runs end")
        pids = {name: stack.pid(name) or 0 for name in (*stack.names, *away)}
        for name in away:
            os.kill(pids[name], signal.SIGSTOP)
        threading.Event().wait(0.5)  # so that something is under way that nobody answers
        for name in stack.names:
            ask_to_end(pids[name])

        for name in stack.names:
            eventually(lambda: stack.pid(name) != pids[name], within=100, what=f"{name} ends")  # noqa: B023
        for name in away:
            os.kill(pids[name], signal.SIGCONT)
        world.close()
