"""A running `refold dev`, and commands against it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from typer.testing import CliRunner, Result

from refold.cli.main import app
from refold.cli.platform import quiet
from tests.tidy.repository import ROOT
from tests.waiting import eventually


@dataclass
class Dev:
    """A running `refold dev`: its folder and its process."""

    data: Path
    process: subprocess.Popen[str]

    @property
    def state(self) -> dict[str, Any]:
        """What dev.json says."""
        found: dict[str, Any] = json.loads((self.data / "dev.json").read_text())
        return found

    def pid(self, service: str) -> int:
        """The process of a service, once there is one."""
        pids: list[int] = eventually(lambda: self.state["processes"][service])
        return pids[0]

    def kill(self, service: str) -> int:
        """Kills a service as `kill -9` does; returns the pid of its successor."""
        pid = self.pid(service)
        os.kill(pid, signal.SIGKILL)
        return int(eventually(lambda: next(iter(set(self.state["processes"][service]) - {pid}), 0)))

    def effects(self, run: str) -> list[str]:
        """What a run did to the world."""
        return [line for line in (self.data / "effects").read_text().splitlines() if line.split()[0] == run]

    def refold(self, *words: str, code: int = 0, given: str | None = None) -> Result:
        """A command against this platform, which must end with this code."""
        result = refold(*words, "--data", str(self.data), given=given)
        assert result.exit_code == code, result.output
        return result

    def lines(self, *words: str) -> list[Any]:
        """What a command says with --json that prints a value a line."""
        return [json.loads(line) for line in self.refold(*words, "--json").stdout.splitlines()]

    def read(self, *words: str, code: int = 0) -> Any:
        """What a command says with --json."""
        return json.loads(self.refold(*words, "--json", code=code).stdout)


@contextmanager
def served(served_app: Path, data: Path, *options: str, **more: str) -> Iterator[Dev]:
    """`refold dev` for an app, as a user starts it, with more in its environment. In the end it must end well."""
    command = [sys.executable, "-m", "refold", "dev", str(served_app), "--data", str(data), *options]
    with (data / "dev.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **more}, stdout=log, stderr=subprocess.STDOUT, text=True
        )
    try:
        eventually(lambda: process.poll() is not None or (data / "dev.json").exists(), within=90, what="refold dev")
        assert process.poll() is None, (data / "dev.log").read_text()
        yield Dev(data, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, (data / "dev.log").read_text()
    finally:
        process.kill()
        process.wait()


def refold(*words: str, given: str | None = None) -> Result:
    """A command, run in this process: of what other threads log nothing comes between its words."""
    quiet()
    result = CliRunner().invoke(app, list(words), input=given)
    structlog.reset_defaults()
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
