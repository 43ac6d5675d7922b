"""The engine under load: real planner, executor, relay, schemas and validation, as processes of their own."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from benchmarks.measure import latency, memory_mib
from benchmarks.peers.load import STEPS, STEPS_FILE, cpu_seconds
from confluent_kafka import Consumer, Message, Producer

from refold.core.approval.signature import SigningKey, pinned
from refold.core.errors import RefoldError
from refold.core.ids import home
from refold.core.messages import RunOutcome
from refold.core.wire.codec import decode
from refold.dev.kafka import EmbeddedKafka
from refold.dev.supervisor import Child, Supervisor
from refold.dev.valkey import EmbeddedValkey
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.runtime import logging
from refold.engine.runtime.settings import KafkaSettings

ROOT = Path(__file__).parents[1]
APP = "benchmarks.workload:app"
FEW = 1
"""Partitions of each topic: as many as one planner needs. Each that has something to say costs requests of its own."""

SERVICES = ("planner", "executor")
"""The services of a step, each with a process in reserve."""
TOGETHER = ("all",)
"""The same in one process, where a version of Refold can do that."""

AUTHORITY = SigningKey("root-bench", "root", b"b" * 32)
TRUST = {AUTHORITY.kid: AUTHORITY.public()}


class Engine:
    """Planner and executor on a broker and a Redis, with topics of their own. `more`: environment of each service.

    `services`: those to start, `SERVICES` or `TOGETHER`.
    """

    def __init__(
        self,
        bootstrap: str,
        redis_url: str,
        folder: Path,
        *,
        sync: bool,
        app: str = APP,
        partitions: int = FEW,
        services: tuple[str, ...] = SERVICES,
        more: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._app, self._more = app, more or {}
        prefix = f"bench{os.urandom(3).hex()}."
        self.settings = KafkaSettings(bootstrap=bootstrap, prefix=prefix, sync=sync, partitions=partitions)
        self.folder, self.effects = folder, folder / f"{prefix}effects"
        self.steps_file = folder / f"{prefix}steps"
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "PYTHONPATH": str(ROOT),
            "REFOLD_KAFKA__BOOTSTRAP": bootstrap,
            "REFOLD_KAFKA__PREFIX": prefix,
            "REFOLD_KAFKA__PARTITIONS": str(partitions),
            "REFOLD_REDIS__URL": redis_url,
            "REFOLD_REDIS__PREFIX": prefix.rstrip("."),
            "REFOLD_TRUST": pinned(TRUST[AUTHORITY.kid]),
            "BENCHMARK_EFFECTS": str(self.effects),
            STEPS_FILE: str(self.steps_file),
        }
        Topics(self.settings).apply()
        self._supervisor = Supervisor()
        for service in services:
            self.serve(service)
        self.client = Client(self.settings)
        if app == APP:
            self.client.finish(self.client.start("ten", 1), timeout_s=90)

    def serve(self, service: str, *words: str) -> None:
        """Starts a service."""
        reserve = ["--standby"] if service in (*SERVICES, *TOGETHER) else []
        command = [sys.executable, "-m", "refold", "serve", service, *reserve, "--app", self._app, *words]
        environment = {**self.environment, **self._more.get(service, {})}
        self._supervisor.add(Child(service, command, self.folder / f"{service}.log", environment))

    def kill(self, service: str) -> None:
        """`kill -9`; the supervisor starts it again at once."""
        os.kill(self.pid(service), signal.SIGKILL)

    def pid(self, service: str) -> int:
        """The process that runs a service now."""
        return self._supervisor.pids()[service][0]

    def close(self) -> None:
        """Stops the services and closes the client."""
        self._supervisor.stop()
        self.client.close()

    def measure(self, runs: int, load: int, repeat: int) -> dict[str, Any]:
        """Latency of one run at a time, then the rate with 100 runs in flight."""
        self.client.drive("ten", 20, in_flight=1)
        found: dict[str, Any] = {"ms_per_step": latency(self.client.drive("ten", runs, in_flight=1))}
        self.client.drive("ten", min(100, load), in_flight=100)
        rates, cpu = [], cpu_seconds()
        for _ in range(repeat):
            begun = time.perf_counter()
            self.client.drive("ten", load, in_flight=100)
            rates.append(round(load * STEPS / (time.perf_counter() - begun)))
        found["steps_per_s"] = sorted(rates)
        found["cpu_ms_per_step"] = round((cpu_seconds() - cpu) * 1000 / (repeat * load * STEPS), 3)
        found["memory_mib"] = {name: memory_mib([self.pid(name)]) for name in SERVICES}
        return found


@contextmanager
def alone(name: str, *, sync: bool = False, **more: Any) -> Iterator[Engine]:
    """An engine on a broker and a Valkey of its own, whose records may be lost with the machine if it does not `sync`;
    `more` as `Engine`."""
    logging.configure("bench")
    with tempfile.TemporaryDirectory(prefix=f"refold-{name}-") as made:
        folder = Path(made)
        with EmbeddedKafka(folder / "kafka") as kafka, EmbeddedValkey(folder / "valkey") as valkey:
            engine = Engine(kafka.bootstrap, valkey.url, folder, sync=sync, **more)
            try:
                yield engine
            finally:
                engine.close()


class Client:
    """A user: publishes requests as plain JSON, consumes run-completed."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        common = {"bootstrap.servers": settings.bootstrap, "log_level": 0}
        self._producer = Producer({**common, "linger.ms": 0, "acks": "all", "enable.idempotence": True})
        self._consumer = Consumer(
            {**common, "group.id": f"client-{os.getpid()}-{settings.prefix}", "auto.offset.reset": "earliest"}
        )
        self._consumer.subscribe([f"{settings.prefix}run-completed"])

    def close(self) -> None:
        """Leaves."""
        self._consumer.close()

    def start(self, agent: str, runs: int, given: dict[str, Any] | None = None) -> set[bytes]:
        """Asks for runs; returns their ids."""
        tag = os.urandom(4).hex()
        ids = [f"{tag}-{number}" for number in range(runs)]
        for run in ids:
            value = orjson.dumps({"run_id": run, "agent": agent, "input": given})
            place = home(run, self._settings.partitions)
            self._producer.produce(f"{self._settings.prefix}run-requested", value, run, place)
        self._producer.flush()
        return {run.encode() for run in ids}

    def completed(self, timeout_s: float = 0.05) -> list[bytes]:
        """The runs that ended since the last call."""
        return [message.key() for message in self._ended(timeout_s)]  # type: ignore[misc]

    def _ended(self, timeout_s: float) -> list[Message]:
        first = self._consumer.poll(timeout_s)
        messages = [] if first is None else [first, *self._consumer.consume(499, 0)]
        return [message for message in messages if message.error() is None and message.key()]

    def finish(self, runs: set[bytes], *, timeout_s: float) -> float:
        """Waits for all of them; returns the seconds it took. **Raises** TimeoutError, naming one that did not end."""
        left, begun = set(runs), time.perf_counter()
        while left:
            left.difference_update(self.completed())
            if time.perf_counter() - begun > timeout_s:
                raise TimeoutError(f"{len(left)} of {len(runs)} runs did not end in {timeout_s} s, e.g. {left.pop()!r}")
        return time.perf_counter() - begun

    def drive(
        self, agent: str, runs: int, *, in_flight: int, given: dict[str, Any] | None = None, result: str = ""
    ) -> list[float]:
        """Keeps so many runs in flight until all are done; seconds from request to completion of each.

        **Raises** RefoldError if one ends otherwise than completed, or with another result than a `result` that is set.
        """
        begun: dict[bytes, float] = {}
        spans: list[float] = []
        started = 0
        while len(spans) < runs:
            now = time.perf_counter()
            if wanted := min(in_flight - len(begun), runs - started):
                started += wanted
                begun.update(dict.fromkeys(self.start(agent, wanted, given), now))
            for message in self._ended(0.05):
                if (run := message.key()) in begun:
                    spans.append(time.perf_counter() - begun.pop(run))
                    outcome = decode(RunOutcome, message.value() or b"")
                    if outcome.status != "completed" or result not in ("", outcome.result):
                        raise RefoldError(f"{outcome.run_id} is {outcome.status}: {outcome.failure or outcome.result}")
        return spans
