"""The processes of a campaign: broker, Valkey, recorder and services, on one folder, under the supervisor."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from refold.embedded.children import Exit
from refold.embedded.ports import free_port
from refold.embedded.stack import DevStack, ServiceProcess
from tests.chaos.rules import Keys
from tests.chaos.world import Outside

ROOT = Path(__file__).parents[2]
PATH = f"{ROOT / 'services'}:{ROOT}"
"""Services run this very checkout, whichever one is installed."""

PREFIX = "chaos."
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
        kafka_properties: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.port = folder, free_port()
        self.effects = folder / "effects.jsonl"
        self.exits: list[Exit] = []
        record = (sys.executable, "-m", "tests.chaos.recorder", str(self.port), str(self.effects))
        self.keys = Keys.new(folder / "keys")
        self.names = [f"{kind}-{number}" for number in range(1, pairs + 1) for kind in KINDS]
        services = [ServiceProcess("recorder", record, {"PYTHONPATH": PATH})]
        services += [ServiceProcess(name, command(name), self.environment(PREFIX)) for name in self.names]
        self.dev = DevStack(
            folder,
            services=services,
            prepare=prepare,
            on_exit=self.exits.append,
            kafka_properties=kafka_properties,
        )

    @property
    def outside(self) -> Outside:
        """What worlds on this stack share."""
        return Outside(self.port, self.effects, self.keys)

    def pid(self, name: str) -> int | None:
        """The living process of a name."""
        found = self.dev.supervisor.pids().get(name, [])
        return found[0] if found else None

    def environment(self, prefix: str) -> dict[str, str]:
        """What a service is told besides the addresses. Short times, so that much happens in a minute."""
        return {
            "PYTHONPATH": PATH,
            "CHAOS_RECORDER": str(self.port),
            "REFOLD_APPROVAL__KEY": str(self.keys.file),
            "REFOLD_KAFKA__PREFIX": prefix,
            "REFOLD_KAFKA__SESSION_TIMEOUT_MS": str(SESSION_MS),
            "REFOLD_REDIS__PREFIX": prefix.rstrip("."),
            "REFOLD_PLANNER__REDISPATCH_MS": "2000",
            "REFOLD_PLANNER__PARK_MS": "20000",
            "REFOLD_EXECUTOR__SLOTS": "60",
        }

    def log_lines(self) -> Iterator[dict[str, Any]]:
        """What the services have logged, line by line; a line that a kill cut off is passed over."""
        for name in self.names:
            yield from log_lines(self.folder / "logs" / f"{name}.log")

    def __enter__(self) -> Self:
        self.dev.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.dev.stop()


def command(name: str) -> tuple[str, ...]:
    """The command line of a service; a name is its kind and a number."""
    kind = name.partition("-")[0]
    return (sys.executable, "-m", "refold", "serve", kind, "--app", "tests.chaos.app:app", "--member", name)


def log_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON lines of a log file."""
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            found = json.loads(line)
        except ValueError:
            found = {"event": "text", "line": line}
        if isinstance(found, dict):
            yield found
