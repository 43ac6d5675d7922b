"""One `refold dev` for all tests of the command line, started as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.approval.driving import Process, World
from tests.cli.desk import Desk
from tests.cli.policing import cluster, digest, files
from tests.cli.terminal import Dev
from tests.waiting import eventually

__all__ = ["cluster", "digest", "files"]

APP = Path(__file__).with_name("app.py")


@pytest.fixture(scope="session")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """Give a running platform that serves `app.py`; its processes may be killed."""
    data = tmp_path_factory.mktemp("dev")
    (data / "effects").touch()
    environment = {**os.environ, "EFFECTS": str(data), "REFOLD_EXECUTOR__CHAINED_LEASE_MS": "4000"}
    command = [sys.executable, "-m", "refold", "dev", str(APP), "--data", str(data)]
    with (data / "dev.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True)
    running = Dev(data, process)
    try:
        eventually(lambda: process.poll() is not None or (data / "dev.json").exists(), within=90, what="refold dev")
        assert process.poll() is None, (data / "dev.log").read_text()
        yield running
        pids = [pid for pids in running.state["processes"].values() for pid in pids]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, (data / "dev.log").read_text()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def world() -> World:
    """Give the topics of the approval service on a log in memory."""
    return World()


@pytest.fixture
def desk(world: World) -> Desk:
    """Give the place where votes are handed in, with a service that lives."""
    return Desk(world, Process(world).run())
