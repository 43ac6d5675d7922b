"""The stage of the demo: a fake cloud, a whole platform on a temporary folder, and what kills its processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from refold.cli.apps import app_pools
from refold.cli.commands.dev import dev_services
from refold.cli.commands.provision import Provision
from refold.core.errors import RefoldError, TimedOutError
from refold.dev import process
from refold.dev.stack import DevStack, Listeners, ServiceProcess

Tell = Callable[[str], None]
WAIT_S = 30.0
EXAMPLES = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Kill:
    """A process that was killed, why then, and the one that took its place."""

    service: str
    moment: str
    at_ms: int
    pid: int
    successor: int


class Cloud:
    """The fake cloud of the example: the world outside, a process of its own with a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "cloud.jsonl"
        log = folder / "logs" / "cloud.log"
        script = str(EXAMPLES / "fake_cloud.py")
        self._process = process.spawn([sys.executable, script, "--port", "0", "--file", str(self.file)], log=log)
        self.address = _line(log, "FAKE_CLOUD=", "the fake cloud did not start")

    def counts(self) -> dict[str, dict[str, int]]:
        """Effects made and repetitions recognised, by action."""
        found: dict[str, dict[str, int]] = self._ask("GET", "/counts")
        return found

    def hold(self, action: str) -> None:
        """From now on the action takes place and its answer is held back."""
        self._ask("POST", f"/hold/{action}")

    def wait_held(self, action: str) -> None:
        """Waits until the action has taken place and its answer is held back."""
        deadline = time.monotonic() + WAIT_S
        while not self._ask("GET", f"/held/{action}")["held"]:
            if time.monotonic() > deadline:
                raise TimedOutError(f"{action} has not happened after {WAIT_S:g} s")

    def release(self, action: str) -> None:
        """Lets answers go."""
        self._ask("POST", f"/release/{action}")

    def effects(self, action: str) -> list[dict[str, Any]]:
        """What an operator finds when looking at the receiver: the effects of an action, with their answers."""
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        return [line["answer"] for line in lines if line["kind"] == "effect" and line["action"] == action]

    def stop(self) -> None:
        """Ends the cloud."""
        process.kill(self._process)

    def _ask(self, method: str, path: str) -> Any:
        with urlopen(Request(self.address + path, method=method), timeout=20) as response:
            return json.loads(response.read())


class Stage:
    """Cloud and platform. `tell` gets a line for everything that happens to a process."""

    def __init__(self, folder: Path, app: str, tell: Tell, progress: Callable[[str, int, int], None]) -> None:
        self.folder, self._tell = folder, tell
        self.kills: list[Kill] = []
        needs = Provision(app_pools(app), folder / "keys")
        self.cloud = Cloud(folder)
        # The lease of a `once` call is 10 s: so long would everybody wait for a doubt. Half of it is still far above
        # what a first claim takes on a broker that has just started (1 s), or the executor would let it go.
        env = {"FAKE_CLOUD": self.cloud.address, "REFOLD_EXECUTOR__CHAINED_LEASE_MS": "5000"}
        served = dev_services(app, needs)
        services = [ServiceProcess(service.name, service.argv, {**service.env, **env}) for service in served]
        self._environment = {**os.environ, "REFOLD_TRUST": f"@{needs.file('trust')}"}
        self.stack = DevStack(folder, services, prepare=needs.prepare, listeners=Listeners(progress=progress))

    def __enter__(self) -> Stage:
        try:
            self.stack.start()
        except BaseException:
            self.cloud.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stack.stop()
        finally:
            self.cloud.stop()

    def kill(self, service: str, moment: str) -> None:
        """Kills a service as `kill -9` does, and waits for its successor."""
        pid = self._pid(service)
        os.kill(pid, signal.SIGKILL)
        at_ms = time.time_ns() // 1_000_000
        self._tell(f"[bold red]kill -9 {service} {pid}[/] {moment}")
        deadline = time.monotonic() + WAIT_S
        while (successor := self._pid(service)) in (0, pid):
            if time.monotonic() > deadline:
                raise TimedOutError(f"the supervisor has not restarted the {service}")
            time.sleep(0.01)
        self.kills.append(Kill(service, moment, at_ms, pid, successor))
        self._tell(f"[green]the supervisor has started {service} {successor} in its place[/]")

    def outside(self, program: str, *args: str) -> Any:
        """Runs a program of examples/outside, which knows nothing of Refold; returns the JSON that it prints."""
        script = EXAMPLES / "outside" / program
        return self.run([sys.executable, str(script), "--kafka", self.stack.kafka, *args])

    def command(self, *args: str) -> Any:
        """Runs a `refold` command in a fresh process; returns the JSON that it prints."""
        return self.run([sys.executable, "-m", "refold", *args, "--kafka", self.stack.kafka, "--json"])

    def run(self, argv: list[str]) -> Any:
        """**Raises** RefoldError when the program fails."""
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=60, cwd=self.folder, env=self._environment
        )
        if done.returncode != 0:
            raise RefoldError(f"`{' '.join(argv[1:])}` ended with {done.returncode}", hint=done.stderr.strip()[-400:])
        return json.loads(done.stdout)

    def _pid(self, service: str) -> int:
        return next(iter(self.stack.supervisor.pids()[service]), 0)


class Accident(threading.Thread):
    """What happens to the processes while the run goes on. `error` is what went wrong with the accident itself."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="accident", daemon=True)
        self._work = work
        self.error: Exception | None = None

    def run(self) -> None:
        """Runs the work; an error waits for `check`."""
        try:
            self._work()
        except (RefoldError, OSError) as error:
            self.error = error

    def check(self) -> None:
        """**Raises** what went wrong so far."""
        if self.error is not None:
            raise self.error


def _line(log: Path, start: str, otherwise: str) -> str:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines() if log.exists() else []:
            if line.startswith(start):
                return line.removeprefix(start)
        time.sleep(0.02)
    raise RefoldError(otherwise, hint=process.tail(log))
