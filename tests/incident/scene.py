"""The incident on a platform of its own, with all in it that can be killed, and the people around it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from refold.cli.apps import app_pools
from refold.cli.commands.dev import dev_services
from refold.cli.commands.provision import Provision
from refold.client.operations.approvals import Answered, Approvals
from refold.client.operations.runs import Runs
from refold.client.reading.history import Run
from refold.core.approval.signature import trusted
from refold.dev.stack import DevStack, Servers, ServiceProcess
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.runtime import keys
from refold.engine.runtime.settings import KafkaSettings
from tests.chaos.stack import log_lines
from tests.cli.terminal import refold
from tests.embedded.cluster import QUICK_SESSION
from tests.waiting import eventually

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "incident"
APP = f"{EXAMPLE / 'app.py'}:app"
COUNT = {"planner": 1, "executor": 2, "approval": 1}
"""Processes by service: one executor is for tools, the other one for what models are asked."""
WAIT_S = 60.0
LEASE_MS = 4_000
"""Of the edit: so long a killed executor's successor waits before it asks the file. The default of 10 s tells no more,
and half of this still covers a first claim on a broker that has just started."""


class Scene:
    """Broker, Valkey and the three services of `refold dev`, on a folder; people speak by the command line."""

    def __init__(self, folder: Path, provider: str) -> None:
        self.folder, self.shop, self.kills = folder, folder / "shop", 0
        needs = Provision(app_pools(APP), folder / "keys", EXAMPLE / "policies")
        env = {"INCIDENT_FOLDER": str(self.shop), "REFOLD_EXECUTOR__CHAINED_LEASE_MS": str(LEASE_MS)}
        env["INCIDENT_BASE_URL"] = provider
        services = [
            ServiceProcess(service.name, service.argv, {**service.env, **env}) for service in dev_services(APP, needs)
        ]
        self.stack = DevStack(
            folder, services=services, prepare=needs.prepare, servers=Servers(properties=QUICK_SESSION)
        )
        self._vote_key, self._public_root = needs.file("vote"), needs.file("trust")

    def open(self) -> None:
        """Connects to the platform, which runs by now."""
        settings = KafkaSettings(bootstrap=self.stack.kafka)
        self.reader = KafkaLogReader(settings)
        self.runs = Runs(self.reader)
        self._publisher = KafkaPublisher(settings, partitions=self.runs.partitions, source="incident")
        self.approvals = Approvals(
            self.reader, trusted(self._public_root.read_text().strip()), partitions=self.runs.partitions
        )

    # What is done to it

    def kill(self, *names: str) -> None:
        """Kills services as `kill -9` does, all at once, and waits for their successors; what is down stays down."""
        found = self.stack.supervisor.pids()
        victims = {name: found[name] for name in names or COUNT}
        for pid in (pid for pids in victims.values() for pid in pids):
            os.kill(pid, signal.SIGKILL)
            self.kills += 1

        def replaced() -> bool:
            now = self.stack.supervisor.pids()
            return all(len(now[name]) == COUNT[name] and not {*now[name]} & {*pids} for name, pids in victims.items())

        eventually(replaced, within=WAIT_S, what=f"{', '.join(victims)} are started again")

    def kill_again(self, times: int) -> None:
        """Kills everything, waits for successors, and again."""
        for _ in range(times):
            self.kill()

    def down(self, name: str) -> AbstractContextManager[None]:
        """Kills a service and keeps it down while the block runs."""
        self.kills += COUNT[name]
        return self.stack.supervisor.down(name)

    # What people do

    def ask(self, run: str) -> None:
        """Asks for the run, in bob's name."""
        self.read("run", "start", "incident", "--id", run, "--input", '{"service": "shop"}', "--requester", "bob")

    def terminal(self, *words: str) -> subprocess.Popen[str]:
        """Starts a command in another terminal."""
        command = [sys.executable, "-m", "refold", *words, "--data", str(self.folder), "--json"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)

    def read(self, *words: str) -> Any:
        """What a command says, run in this process."""
        result = refold(*words, "--data", str(self.folder), "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def vote(self, approval: str, actor: str, action: str) -> Answered:
        """A vote with the platform's own key, in anybody's name, past the checks of the command line.

        **Raises** what the approval service says of a vote that is void.
        """
        question = self.approvals.get(approval).request.question
        vote = replace(self.approvals.vote(approval, action, question=question, actor="dan"), actor=actor)
        position = self.approvals.send(vote, keys.load(self._vote_key), self._publisher)
        return self.approvals.answered(vote, position, WAIT_S)

    def wait_asked(self, approval: str) -> None:
        """Waits until people can see an approval: it is in the run's log first, and then asked for."""
        eventually(lambda: self.approvals.read().find(approval), within=WAIT_S, what=f"{approval} is asked")

    def wait_serving(self, name: str) -> None:
        """Waits until the living process of a service has all partitions: from then on it answers what comes."""
        log = self.folder / "logs" / f"{name}.log"

        def serving() -> bool:
            found: dict[int, int] = {}
            pid = 0
            for line in log_lines(log):
                pid = line["pid"] if line["event"] == "service.started" else pid
                found[pid] = found.get(pid, 0) + (line["event"] == "partition.assigned")
            return any(found.get(pid, 0) >= self.runs.partitions for pid in self.stack.supervisor.pids()[name])

        eventually(serving, within=WAIT_S, what=f"{name} serves all partitions")

    def wait_votes(self, approval: str, count: int) -> None:
        """Waits until so many votes on an approval lie in the log, whether or not anybody counts them."""

        def there() -> bool:
            names = [(record.key or b"").decode() for record in self.reader.scan("approval-voted")]
            return sum(name.startswith(f"{approval}/") for name in names) >= count

        eventually(there, within=WAIT_S, what=f"{count} votes on {approval}")

    # What is seen

    def watch(self, run: str) -> Watch:
        """The run, record by record, whatever is killed meanwhile."""
        return Watch(self.runs.follow(run))

    @property
    def settings(self) -> str:
        """The file that is to be changed."""
        return (self.shop / "settings.toml").read_text()

    def made(self) -> tuple[int, int]:
        """Which file lies there: it is replaced as a whole, so a second edit of it would leave another one."""
        found = (self.shop / "settings.toml").stat()
        return found.st_ino, found.st_mtime_ns

    def changes(self) -> list[str]:
        """What the shop itself has noted of changes."""
        log = self.shop / "changes.log"
        return log.read_text().splitlines() if log.exists() else []


class Watch:
    """A run as its records arrive."""

    def __init__(self, follow: Iterator[tuple[Run, object]]) -> None:
        self._follow = follow

    def until(self, there: Callable[[Run], T | None], what: str) -> T:
        """The first thing that the condition finds in the run."""
        deadline = time.monotonic() + WAIT_S
        for run, _ in self._follow:
            found = there(run)
            if found:
                return found
            if time.monotonic() > deadline:
                told = [(line.name, line.status) for line in run.timeline.steps]
                raise AssertionError(f"{what} is not there after {WAIT_S:g} s: {run.state.status}, {told}")
        raise AssertionError("a tail goes on for ever")

    def completed(self, tool: str, count: int = 1) -> int:
        """Waits until so many calls of a tool are over with a result."""

        def done(run: Run) -> int:
            return sum(line.name == tool and line.status == "completed" for line in run.timeline.steps) >= count

        return self.until(done, f"the result of {tool}")

    def asked(self, count: int = 1) -> str:
        """Waits for the run's so manieth approval; returns its id."""

        def asked(run: Run) -> str:
            names = [ask.approval_id for line in run.timeline.steps for ask in line.approvals]
            return names[count - 1] if len(names) >= count else ""

        return self.until(asked, f"approval {count}")

    def decided(self, verdict: str) -> bool:
        """Waits until the run has accepted a decision of this kind."""

        def decided(run: Run) -> bool:
            return verdict in [ask.verdict for line in run.timeline.steps for ask in line.approvals]

        return self.until(decided, f"the decision: {verdict}")

    def over(self) -> Run:
        """Waits until the run is over."""
        return self.until(lambda run: run if run.state.over else None, "the end of the run")


def answer(command: subprocess.Popen[str]) -> Any:
    """What a command says, once it has ended well."""
    said, error = command.communicate(timeout=2 * WAIT_S)
    assert command.returncode == 0, said + error
    return json.loads(said)
