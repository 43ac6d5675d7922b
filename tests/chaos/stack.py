"""The processes of a campaign: broker, Valkey, recorder and services, on one folder, under the supervisor."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from refold.dev.ports import free_port
from refold.dev.stack import DevStack, Listeners, Servers, ServiceProcess
from refold.dev.supervisor import Exit
from tests.chaos.brokers import NAMES as BROKERS
from tests.chaos.brokers import Brokers
from tests.chaos.rules import Keys
from tests.chaos.world import Outside
from tests.embedded.cluster import QUICK_SESSION
from tests.roots import PINNED

ROOT = Path(__file__).parents[2]
PATH = f"{ROOT / 'services'}:{ROOT}"
"""Services run this very checkout, whichever one is installed."""

CLOCKS = Path(__file__).parent / "clocks"
PREFIX = "chaos."
APP = "tests.chaos.app:app"
KINDS = ("planner", "executor", "approval")
SESSION_MS = 6_000
"""The shortest that a broker allows by default: a process that is stopped for longer becomes a zombie."""


class Stack:
    """Pairs of planner, executor and approval service, each a member of its own, and what they need."""

    def __init__(
        self,
        folder: Path,
        *,
        prepare: Callable[[str], None],
        pairs: int = 2,
        kinds: Sequence[str] = KINDS,
        app: str = APP,
        partitions: int = 4,
        brokers: int = 1,
        kafka_properties: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.port, self.partitions = folder, free_port(), partitions
        self.effects = folder / "effects.jsonl"
        self.exits: list[Exit] = []
        record = (sys.executable, "-m", "tests.chaos.recorder", str(self.port), str(self.effects))
        self.keys = Keys.new(folder / "keys")
        self.names = [f"{kind}-{number}" for number in range(1, pairs + 1) for kind in kinds]
        self.deployed = folder / "deployed.json"
        self._brokers = Brokers(folder, kafka_properties, self.exits.append) if brokers > 1 else None
        self.servers = ("valkey", *(BROKERS if self._brokers else ("broker",)))
        services = [ServiceProcess("recorder", record, {"PYTHONPATH": PATH})]
        services += [ServiceProcess(name, command(name, app), self.environment_of(name)) for name in self.names]
        self.dev = DevStack(
            folder,
            services=services,
            servers=Servers(
                kafka=self._brokers.bootstrap if self._brokers else None,
                properties={**QUICK_SESSION, **(kafka_properties or {})},
            ),
            prepare=prepare,
            listeners=Listeners(on_exit=self.exits.append),
        )

    grace = timedelta(seconds=10)

    @property
    def outside(self) -> Outside:
        """What worlds on this stack share."""
        return Outside(self.port, self.effects, self.keys)

    def pid(self, name: str) -> int | None:
        """The living process of a name."""
        at_brokers = self._brokers is not None and name in BROKERS
        supervisor = self._brokers.supervisor if self._brokers and at_brokers else self.dev.supervisor
        found = supervisor.pids().get(name, [])
        return found[0] if found else None

    def works(self, name: str) -> bool:
        """Whether a service has got partitions since its start, as its log says."""
        text = (self.folder / "logs" / f"{name}.log").read_text(errors="replace")
        began = text.rfind(f'"pid": {self.pid(name)}, "event": "service.started"')
        return began >= 0 and '"event": "partition.assigned"' in text[began:]

    def whole(self) -> bool:
        """Whether all brokers are there."""
        return self._brokers is None or self._brokers.whole()

    def leader(self, partition: int) -> str:
        """The broker that leads a partition of the run log now; empty while nobody does."""
        return self._brokers.leader(f"{PREFIX}run-log", partition) if self._brokers else "broker"

    def clock(self, name: str) -> Path:
        """The file that says how wrong the clock of a process is."""
        return self.folder / f"{name}.clock"

    def addresses(self) -> dict[str, str]:
        """What a service has to be told that is started by somebody else."""
        return {"REFOLD_KAFKA__BOOTSTRAP": self.dev.kafka, "REFOLD_REDIS__URL": self.dev.redis}

    def environment_of(self, name: str) -> dict[str, str]:
        """What a service of the campaign itself is told: it may get other code, and a clock that is wrong."""
        own = {"CHAOS_DEPLOYED": str(self.deployed), "CHAOS_CLOCK": str(self.clock(name))}
        return {**self.environment(PREFIX), **own, "PYTHONPATH": f"{CLOCKS}:{PATH}"}

    def environment(self, prefix: str) -> dict[str, str]:
        """What a service is told besides the addresses. Short times, so that much happens in a minute."""
        return {
            "PYTHONPATH": PATH,
            "CHAOS_RECORDER": str(self.port),
            "REFOLD_APPROVAL__KEY": str(self.keys.file),
            "REFOLD_KAFKA__PREFIX": prefix,
            "REFOLD_KAFKA__PARTITIONS": str(self.partitions),
            "REFOLD_TRUST": PINNED,
            "REFOLD_KAFKA__SESSION_TIMEOUT_MS": str(SESSION_MS),
            "REFOLD_REDIS__PREFIX": prefix.rstrip("."),
            "REFOLD_PLANNER__REDISPATCH_MS": "2000",
            "REFOLD_EXECUTOR__SLOTS": "60",
        }

    def log_lines(self) -> Iterator[dict[str, Any]]:
        """What the services have logged, line by line; a line that a kill cut off is passed over."""
        for name in self.names:
            yield from log_lines(self.folder / "logs" / f"{name}.log")

    def __enter__(self) -> Self:
        if self._brokers:
            self._brokers.start()
        try:
            self.dev.start()
        except BaseException:
            self._stop_brokers()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kills what is left: all is judged by then, and how things stop was seen before."""
        try:
            self.dev.supervisor.hurry()
            self.dev.stop()
        finally:
            self._stop_brokers()

    def _stop_brokers(self) -> None:
        if self._brokers:
            self._brokers.supervisor.hurry()
            self._brokers.stop()


def command(name: str, app: str = APP) -> tuple[str, ...]:
    """The command line of a service; a name is its kind and a number."""
    kind = name.partition("-")[0]
    return (sys.executable, "-m", "refold", "serve", kind, "--app", app, "--member", name)


def log_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON lines of a log file."""
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            found = json.loads(line)
        except ValueError:
            found = {"event": "text", "line": line}
        if isinstance(found, dict):
            yield found
