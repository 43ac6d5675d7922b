"""`run-view` has the rows of runs, also after a projector that was killed between its commit and the topic."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from benchmarks.prefill import finished

from refold.console.projections.service import KeptProjection, serving
from refold.console.projections.shipped.projection import Shipped
from refold.console.projections.shipped.tables import RUNS
from refold.console.sql.opening import open_views
from refold.core.ids import RunId, home, parse_log_key
from refold.core.messages import RunErased, RunView
from refold.core.run.erased import erased_key
from refold.core.tables import ViewRow
from refold.core.topics import RUN_LOG, RUN_SNAPSHOT, RUN_VIEW
from refold.core.wire import codec
from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.acls import may_write
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.kafka.source import KafkaLogSource
from refold.engine.adapters.kafka.writer import TableTopic
from refold.engine.runtime.settings import KafkaSettings
from tests.kafka.secured import SecuredCluster
from tests.waiting import eventually

PREFIX = "rowed."
AT_MS = 1_790_000_000_000


def project(settings: KafkaSettings, url: str, *, dies: bool) -> None:
    """Keep the view until it has caught up; or die once a batch is committed, before Kafka has its rows."""
    source = KafkaLogSource(settings)
    database, topic = open_views(url), TableTopic(settings, RUN_VIEW, source.partitions)

    def kill(values: Mapping[RunId, bytes | None]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    slot = KeptProjection(Shipped(), database, source, send=kill if dies else topic.write)

    def caught_up() -> bool:
        slot.turn(0.1)
        there = database.generations(Shipped.name)
        if "serving" not in there.values():
            return False
        positions = database.store(Shipped.name, max(there)).positions()
        return all(positions.get(place, 0) >= end for place, (_, end) in source.bounds().items())

    eventually(caught_up)
    slot.turn(0.1)  # a generation that has just come into use is written whole
    slot.close()
    database.close()


def in_process(settings: KafkaSettings, url: str, *, dies: bool) -> int | None:
    """The exit code of a process that projects."""
    process = multiprocessing.get_context("spawn").Process(target=project, args=(settings, url), kwargs={"dies": dies})
    process.start()
    process.join(90)
    return process.exitcode


def written(settings: KafkaSettings) -> list[ViewRow]:
    """The rows that a reader has who knows the last value of each key."""
    last = {record.key: record.value for record in KafkaLogReader(settings).scan(RUN_VIEW)}
    views = [codec.decode(RunView, value) for _, value in sorted(last.items(), key=str) if value is not None]
    return [tuple(getattr(view, name) for name in RUNS.names) for view in views]


def kept(url: str) -> list[ViewRow]:
    database = open_views(url)
    try:
        return list(database.store(Shipped.name, serving(database, Shipped.name)).scan(RUNS))
    finally:
        database.close()


@pytest.fixture(scope="module")
def planner(secured_cluster: SecuredCluster) -> KafkaSettings:
    """Give the settings of who writes the log."""
    secured_cluster.furnish(PREFIX)
    return secured_cluster.settings("planner", PREFIX)


@pytest.mark.long
def test_a_killed_projector_leaves_no_row_unwritten(
    secured_cluster: SecuredCluster, planner: KafkaSettings, tmp_path: Path
) -> None:
    viewer, reader = (secured_cluster.settings(role, PREFIX) for role in ("viewer", "operator"))
    url = f"sqlite:///{tmp_path / 'views.db'}"
    producer = clients.producer(planner, "planner")
    keys: list[bytes] = []

    def append(run: str) -> None:
        for key, value in finished(RunId(run), AT_MS):
            keys.append(key)
            producer.produce(PREFIX + RUN_LOG, value, key, home(run, planner.partitions))
        assert producer.flush(60) == 0

    append("run-1")
    assert in_process(viewer, url, dies=False) == 0
    assert written(reader) == kept(url) != []

    append("run-2")
    assert in_process(viewer, url, dies=True) == -signal.SIGKILL
    assert len(written(reader)) == 1 < len(kept(url)), "it died between the commit and the topic"
    assert in_process(viewer, url, dies=False) == 0
    assert written(reader) == kept(url)
    assert len(kept(url)) == 2

    at = home("run-1", planner.partitions)
    marker = codec.encode(RunErased(RunId("run-1")))
    producer.produce(PREFIX + RUN_SNAPSHOT, marker, erased_key(RunId("run-1")), at)
    assert producer.flush(60) == 0
    for key in keys:
        if (parts := parse_log_key(key)) and parts[0] == "run-1":
            producer.produce(PREFIX + RUN_LOG, None, key, at)
    assert producer.flush(60) == 0
    assert in_process(viewer, url, dies=True) == -signal.SIGKILL
    assert in_process(viewer, url, dies=False) == 0
    assert [row[0] for row in written(reader)] == ["run-2"]
    assert written(reader) == kept(url)
    (last,) = [each.value for each in KafkaLogReader(reader).scan(RUN_VIEW) if each.key == b"run-1"][-1:]
    assert last is None


def test_no_service_writes_or_reads_it(secured_cluster: SecuredCluster, planner: KafkaSettings) -> None:
    assert may_write(secured_cluster.settings("viewer", PREFIX), RUN_VIEW)
    assert not may_write(secured_cluster.settings("client", PREFIX), RUN_VIEW)
