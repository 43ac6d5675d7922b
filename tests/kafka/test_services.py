"""Each service under its own principal alone: it becomes ready, reads and writes, and outlives restarts of brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.adapters.kafka.reader import KafkaLogReader
from refold.core.topics import RUN_INSIGHT
from refold.embedded.valkey import EmbeddedValkey
from tests.kafka.secured import SecuredCluster
from tests.kafka.services import SERVICES, Services
from tests.waiting import eventually


@pytest.fixture(scope="module")
def services(
    secured_cluster: SecuredCluster, valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Services]:
    """Give a platform whose services run, each with its own rights and no others."""
    made = Services(secured_cluster, valkey, tmp_path_factory.mktemp("services"), "alone.")
    with made.receiver:
        made.furnish()
        made.start()
        yield made
        made.close()


def test_each_service_is_ready_reads_and_writes_with_its_own_rights(services: Services) -> None:
    services.await_ready()
    insights = KafkaLogReader(services.cluster.settings("operator", services.prefix))

    started = services.api("/api/runs?wait=20", {"agent": "both", "input": {"word": "hi", "ask": True}})
    run = started["run_id"]
    question = eventually(lambda: [q for q in services.api("/api/approvals") if q["run_id"] == run], every=0.2)[0]
    services.api(f"/api/approvals/{question['approval_id']}/votes", {"action": "approve"})
    shown = eventually(lambda: (r := services.api(f"/api/runs/{run}"))["status"] == "completed" and r, every=0.2)

    assert shown["result"] == ["hi", "hi", "hi"]
    eventually(lambda: [span for span in services.receiver.spans if span.said.get("refold.run.id") == run])
    eventually(lambda: next(iter(insights.scan(RUN_INSIGHT)), None), every=0.5)
    assert list(services.running) == list(SERVICES)
    assert not services.ended
