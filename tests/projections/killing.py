"""`refold serve projections` and `gateway` as processes that are killed, a log that grows, and streams of its runs."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil  # type: ignore[import-untyped]
from benchmarks.prefill import finished
from confluent_kafka import Producer

from refold.console.projections.following import lags
from refold.console.projections.service import serving, shipped, verify
from refold.console.projections.shipped import tables
from refold.console.projections.shipped.projection import Shipped
from refold.console.sql.opening import open_views
from refold.core.ids import RunId, home
from refold.core.topics import RUN_LOG
from refold.engine.adapters.kafka.source import KafkaLogSource
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.ports.tables import ViewReader
from refold.engine.runtime.settings import KafkaSettings
from tests.contract.table_benches import Bench
from tests.waiting import GIVE_UP_S, eventually

SLOTS, RATE = 12, 80
"""Runs that are under way at a time, and records a second."""
CALLS, ENTRIES, EVENTS = 10, 11, 33
"""Of a finished run."""


@dataclass
class Load:
    """Writes histories of finished runs to a run log, some at a time, until told to stop. `runs` are complete then."""

    settings: KafkaSettings
    runs: list[RunId] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Complete the runs that have begun, and begin no more."""
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        producer = Producer({"bootstrap.servers": self.settings.bootstrap, "linger.ms": 5})
        topic, rng = self.settings.prefix + RUN_LOG, Random(1)
        open_: list[tuple[RunId, Iterator[tuple[bytes, bytes]]]] = []
        while open_ or not self._stop.is_set():
            while len(open_) < SLOTS and not self._stop.is_set():
                run = RunId(f"load-{len(self.runs):06}")
                self.runs.append(run)
                open_.append((run, finished(run, time.time_ns() // 1_000_000)))
            at = rng.choice(open_)
            if (pair := next(at[1], None)) is None:
                open_.remove(at)
                continue
            producer.produce(topic, pair[1], pair[0], home(at[0], self.settings.partitions))
            producer.poll(0)
            if not self._stop.is_set():
                self._stop.wait(1 / RATE)
        producer.flush()


class Projecting:
    """`refold serve projections`, or another service, in a process of its own."""

    def __init__(self, settings: KafkaSettings, url: str, folder: Path, *service: str) -> None:
        service = service or ("projections",)
        self._log = folder / f"{service[0]}.log"
        self._begun = self._log.stat().st_size if self._log.exists() else 0
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "REFOLD_KAFKA__BOOTSTRAP": settings.bootstrap,
            "REFOLD_KAFKA__PREFIX": settings.prefix,
            "REFOLD_KAFKA__PARTITIONS": str(settings.partitions),
            "REFOLD_VIEWS__URL": url,
        }
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "refold", "serve", *service]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)

    @property
    def began(self) -> bool:
        """True once it has begun to read."""
        with self._log.open("rb") as log:
            log.seek(self._begun)
            return b"service.started" in log.read()

    def await_start(self) -> None:
        """Wait until it has begun. **Raises** AssertionError if it has ended."""
        eventually(lambda: self.began or self.process.poll() is not None, every=0.1)
        assert self.process.poll() is None, self._log.read_text()

    @property
    def rss_mib(self) -> float:
        """Its memory."""
        return float(psutil.Process(self.process.pid).memory_info().rss / (1 << 20))

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Tell it to end; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@contextmanager
def projecting(settings: KafkaSettings, url: str, folder: Path) -> Iterator[Projecting]:
    """The same until the block ends."""
    running = Projecting(settings, url, folder)
    try:
        yield running
    finally:
        running.kill()


def platform(bootstrap: str, name: str) -> KafkaSettings:
    """Topics of a test."""
    settings = KafkaSettings(bootstrap=bootstrap, prefix=f"{name}.", partitions=4)
    Topics(settings).apply()
    return settings


def strike(settings: KafkaSettings, bench: Bench, folder: Path, kills: int, rng: Random) -> None:
    """Kill the projector at random moments, mostly while it works."""
    for _ in range(kills):
        running = Projecting(settings, bench.url, folder)
        running.await_start()
        time.sleep(rng.random() * 0.5)
        running.kill()


@dataclass
class Listening:
    """Clients that follow streams of runs to their ends, a new run each time, through a gateway that comes and goes.

    `seen` has the ids that came, by run; `resumed` counts connections that went on behind an id.
    """

    load: Load
    port: int
    clients: int = 8
    seen: dict[RunId, list[int]] = field(default_factory=dict)
    resumed: int = 0

    def __enter__(self) -> Listening:
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._follow, daemon=True) for _ in range(self.clients)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Waits for streams that have begun: their runs end with the load, unless the test failed before."""
        self._stop.set()
        for thread in self._threads if kind is None else ():
            thread.join(GIVE_UP_S)
            assert not thread.is_alive(), "a stream has not come to its end"

    def _follow(self) -> None:
        while not self._stop.is_set():
            run = self.load.runs[-1] if self.load.runs else None
            ids: list[int] = []
            if run is None or self.seen.setdefault(run, ids) is not ids:
                self._stop.wait(0.05)
                continue
            while not self._is_over(run, ids):
                time.sleep(0.05)

    def _is_over(self, run: RunId, ids: list[int]) -> bool:
        """Reads a stream for as long as it lasts; true if nothing follows."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", f"/api/runs/{run}/stream", headers={"Last-Event-ID": str(ids[-1])} if ids else {})
            answer = connection.getresponse()
            if answer.status == 200:
                self.resumed, number = self.resumed + bool(ids), 0
                for line in iter(answer.readline, b""):
                    if line.startswith(b"id: "):
                        number = int(line[4:])
                    elif line == b"\n" and number:  # the message is whole
                        ids.append(number)
                        number = 0
            return answer.status == 204
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def caught_up(settings: KafkaSettings, bench: Bench) -> bool:
    """True if the view in use has all that the log has."""
    there = bench.views.generations(Shipped.name)
    if list(there.values()) != ["serving"]:
        return False
    positions = bench.views.store(Shipped.name, max(there)).positions()
    return not any(lags(positions, KafkaLogSource(settings).bounds()).values())


def differs(settings: KafkaSettings, bench: Bench, folder: Path) -> list[object]:
    """What `refold projection verify` finds."""
    scratch = open_views(f"sqlite:///{folder / 'scratch.db'}")
    try:
        (ours,) = shipped()
        return list(verify(ours, bench.views, scratch, KafkaLogSource(settings)).differences)
    finally:
        scratch.close()


def miscounted(store: ViewReader, runs: list[RunId]) -> list[str]:
    """What is there twice or not at all, counted without the product."""
    found, entries = [], dict[object, list[tuple[int, int]]]()
    for row in store.scan(tables.ENTRIES):
        entries.setdefault(row[0], []).append((int(row[1]), int(row[2])))
    if entries.keys() != set(runs):
        found.append(f"{len(entries)} runs, not {len(runs)}")
    for run, spans in entries.items():
        ends = [0, *(last for _, last in spans)]
        if [first for first, _ in spans] != [end + 1 for end in ends[:-1]] or ends[-1] != EVENTS:
            found.append(f"{run} has the entries {spans}")
    for name, each in (("calls", CALLS), ("completed", CALLS), ("runs_requested", 1), ("runs_completed", 1)):
        days = sum(int(row[tables.DAILY.places[name]]) for row in store.scan(tables.DAILY))
        if days != each * len(runs):
            found.append(f"{name} of all days: {days}, not {each * len(runs)}")
    return found


def store_of(bench: Bench) -> ViewReader:
    """The view in use."""
    return bench.views.store(Shipped.name, serving(bench.views, Shipped.name))
