"""The service is killed while a log grows, and loses its newest state: its figures end equal to the fold of the log."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from confluent_kafka import TopicPartition

from refold.console.gateway.figures import LiveFigures
from refold.console.insights.figures import Insights
from refold.console.insights.service import GROUP
from refold.console.sql.opening import open_views
from refold.core.events import CallCompleted, CallFailed, CallProposed, RunCompleted, RunRequested
from refold.core.messages import RunInsight
from refold.core.run.log import LogFold
from refold.core.topics import RUN_INSIGHT, RUN_LOG
from refold.core.wire import codec
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.ports.log import Record
from refold.engine.runtime.settings import KafkaSettings
from tests.projections.killing import Load, Projecting, platform
from tests.waiting import eventually

Figures = Counter[tuple[str, int, str, str]]
"""Counts by kind, minute, name of the agent or tool, and name of the figure."""
_AGENT = {RunRequested: "requested", RunCompleted: "completed", CallProposed: "calls"}
_TOOL = {CallCompleted: "completed", CallFailed: "failed"}


def of_log(settings: KafkaSettings) -> Figures:
    """The same figures, by the fold that all readers of the log share, without tables."""
    fold, found = LogFold(), Figures()
    agents, tools = dict[str, str](), dict[tuple[str, int], str]()
    for record in KafkaLogReader(settings).scan(RUN_LOG):
        judged = fold.feed(record.key, record.value)
        for entry in (each.entry for each in (judged, *judged.linked) if not judged.void):
            assert entry is not None
            for event in entry.events:
                if isinstance(event, RunRequested):
                    agents[entry.run_id] = event.agent
                if isinstance(event, CallProposed):
                    tools[entry.run_id, event.step] = event.tool
                minute = entry.at_ms // 60_000
                if figure := _AGENT.get(type(event)):
                    found["agent", minute, agents[entry.run_id], figure] += 1
                if (figure := _TOOL.get(type(event))) and isinstance(event, CallCompleted | CallFailed):
                    found["tool", minute, tools[entry.run_id, event.step], figure] += 1
    return found


def of_topic(settings: KafkaSettings) -> Figures:
    """The figures that programs of others read."""
    last = {record.key: record.value for record in KafkaLogReader(settings).scan(RUN_INSIGHT)}
    found = Figures()
    for value in filter(None, last.values()):
        insight = codec.decode(RunInsight, value)
        at = insight.kind, insight.at_ms // 60_000, insight.name
        counts = {name: getattr(insight, name) for name in ("requested", "completed", "failed", "calls")}
        found.update({(*at, name): count for name, count in counts.items() if count})
    return found


class Service:
    """`refold serve insights` in a folder, which has its state."""

    def __init__(self, settings: KafkaSettings, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        self.log, self._file = folder / "insights.log", folder / "insights.db"

    def start(self) -> Projecting:
        """Start it, and wait until it reads."""
        running = Projecting(self._settings, "", self._folder, "insights")
        running.await_start()
        return running

    @property
    def position(self) -> int:
        """How many records its figures contain."""
        with closing(open_views(f"sqlite:///{self._file}")) as database:
            return sum(database.store(Insights.name, 1).positions().values())

    @property
    def committed(self) -> int:
        """Where its group is."""
        topic = self._settings.prefix + RUN_LOG
        with closing(clients.consumer(self._settings, GROUP)) as consumer:
            places = [TopicPartition(topic, number) for number in range(self._settings.partitions)]
            return sum(max(0, each.offset) for each in consumer.committed(places))

    def keep(self) -> None:
        """Copy the state, as a backup does."""
        with closing(sqlite3.connect(self._file)) as source, closing(sqlite3.connect(self._folder / "kept.db")) as kept:
            source.backup(kept)

    def lose(self) -> None:
        """Put the copy in place of the state: the group is ahead of it then."""
        for name in ("insights.db", "insights.db-wal", "insights.db-shm"):
            (self._folder / name).unlink(missing_ok=True)
        shutil.copy(self._folder / "kept.db", self._file)

    @property
    def gaps(self) -> int:
        """How many gaps it has seen, and filled."""
        return self.log.read_text().count("insights.gap")


def killed(kafka: EmbeddedKafka, folder: Path, kills: int) -> int:
    """Kill the service at random moments under load; at each third its state is an older one then. Returns the gaps."""
    settings = platform(kafka.bootstrap, f"insights-{os.urandom(3).hex()}")
    service, rng = Service(settings, folder), Random(kills)
    with Load(settings) as load:
        for number in range(kills):
            running = service.start()
            begun = service.position
            if number % 5:  # else it is killed while it takes its partitions
                eventually(partial(lambda at: service.position > at, begun))
            if loses := number % 3 == 1:
                service.keep()
                kept = service.position
                eventually(partial(lambda at: service.committed > at, kept))
            time.sleep(rng.random())
            running.kill()
            if loses:
                service.lose()
        load.stop()
    running = service.start()
    try:
        wanted = of_log(settings)
        eventually(lambda: of_topic(settings) == wanted, every=0.5)
        assert sum(wanted.values()) > 1_000
        calls = sum(number for (_, _, _, figure), number in wanted.items() if figure == "calls")
        with followed(settings) as shown:
            eventually(lambda: sum(each.calls for each in shown.latest()) == calls, what="the page has them all")
    finally:
        assert running.end() == 0
    print(f"{kills} kills, {len(load.runs)} runs: {service.gaps} gaps seen and filled")  # noqa: T201 - a figure of the campaign
    return service.gaps


@contextmanager
def followed(settings: KafkaSettings) -> Iterator[LiveFigures]:
    """Figures of the topic; the thread that follows it ends with this block, as its broker does soon after."""
    ended, threads = threading.Event(), set[threading.Thread]()

    def read() -> Iterator[Record | None]:
        threads.add(threading.current_thread())
        with closing(cast(Any, KafkaLogReader(settings).tail(RUN_INSIGHT))) as records:
            yield from takewhile(lambda _: not ended.is_set(), records)

    try:
        yield LiveFigures(read)
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_the_service_ends_well_on_a_signal_before_its_loop_runs_and_after(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    service = Service(platform(kafka.bootstrap, f"insights-{os.urandom(3).hex()}"), tmp_path)

    assert service.start().end() == 0

    running = service.start()
    eventually(lambda: handles_signals(running.process.pid), what="the loop of Faust")
    assert running.end() == 0


def handles_signals(pid: int) -> bool:
    """True once SIGUSR1 has a handler: Faust sets it with that of SIGTERM."""
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1)


def test_figures_of_a_service_that_is_killed_are_those_of_the_log(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    assert killed(kafka, tmp_path, 3) > 0


@pytest.mark.campaign
@pytest.mark.timeout(1_800)
def test_figures_after_thirty_kills_are_those_of_the_log(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    assert killed(kafka, tmp_path, 30) >= 10
