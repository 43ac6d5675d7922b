"""Insights count on a cluster with rights, as the principal that may write their topic and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.prefill import finished

from refold.core.ids import RunId, home
from refold.core.topics import RUN_INSIGHT, RUN_LOG, RUN_SNAPSHOT
from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.acls import may_write
from refold.engine.adapters.kafka.reader import KafkaLogReader
from tests.kafka.secured import SecuredCluster
from tests.projections.killing import Projecting
from tests.waiting import eventually

PREFIX = "insightful."
MINUTE = 1_790_000_000_000 // 60_000


@pytest.mark.long
def test_insights_count_with_their_own_rights(
    secured_cluster: SecuredCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secured_cluster.furnish(PREFIX)
    settings, planner = (secured_cluster.settings(role, PREFIX) for role in ("insights", "planner"))
    producer = clients.producer(planner, "planner")
    for key, value in finished(RunId("run-1"), MINUTE * 60_000):
        producer.produce(PREFIX + RUN_LOG, value, key, home(RunId("run-1"), settings.partitions))
    assert producer.flush(60) == 0
    monkeypatch.setenv("REFOLD_KAFKA__OPTIONS", json.dumps(settings.options))
    reader = KafkaLogReader(secured_cluster.settings("operator", PREFIX))

    running = Projecting(settings, "", tmp_path, "insights")
    try:
        running.await_start()
        eventually(lambda: f"agent/{MINUTE}/ten".encode() in {each.key for each in reader.scan(RUN_INSIGHT)})
    finally:
        running.kill()

    assert may_write(settings, RUN_INSIGHT)
    assert not may_write(settings, RUN_LOG)
    assert not may_write(settings, RUN_SNAPSHOT)
