"""Views read a cluster with rights as the principal that may write nothing."""

from __future__ import annotations

import pytest
from benchmarks.prefill import finished

from refold.console.projections.service import KeptProjection, verify
from refold.console.projections.shipped.projection import Shipped
from refold.core.ids import RunId, home
from refold.core.topics import (
    APPROVAL_REQUESTED,
    APPROVAL_VOTED,
    CATALOG,
    DEAD_LETTER,
    RUN_LOG,
    RUN_REQUESTED,
    RUN_SNAPSHOT,
)
from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.acls import may_write
from refold.engine.adapters.kafka.source import KafkaLogSource
from refold.engine.runtime.settings import KafkaSettings
from tests.kafka.secured import SecuredCluster
from tests.projections.memory_views import MemoryViewDatabase
from tests.waiting import eventually

PREFIX = "viewed."


@pytest.fixture(scope="module")
def viewer(secured_cluster: SecuredCluster) -> KafkaSettings:
    """Give the settings of the principal, on topics of this file's own with a run in them."""
    secured_cluster.furnish(PREFIX)
    settings = secured_cluster.settings("planner", PREFIX)
    producer = clients.producer(settings, "planner")
    run = RunId("run-1")
    for key, value in finished(run, 1_790_000_000_000):
        producer.produce(PREFIX + RUN_LOG, value, key, home(run, settings.partitions))
    assert producer.flush(60) == 0
    return secured_cluster.settings("viewer", PREFIX)


def test_a_view_is_built_and_verified_with_the_rights_of_a_viewer(viewer: KafkaSettings) -> None:
    source, database = KafkaLogSource(viewer), MemoryViewDatabase()
    kept = KeptProjection(Shipped(), database, source)

    eventually(lambda: kept.turn(0.1) == 0 and database.generations("refold") == {1: "serving"})
    kept.close()

    assert [row[0] for row in database.public["runs"].scan(Shipped.runs)] == ["run-1"]
    assert verify(Shipped(), database, MemoryViewDatabase(), source).equal


TOPICS = (RUN_LOG, RUN_SNAPSHOT, RUN_REQUESTED, APPROVAL_REQUESTED, APPROVAL_VOTED, CATALOG, DEAD_LETTER)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_viewer_writes_nothing(viewer: KafkaSettings, topic: str) -> None:
    assert not may_write(viewer, topic)
