"""Each service under its own principal alone: it becomes ready, reads and writes, and outlives restarts of brokers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from refold.core.errors import UnreachableError
from refold.core.ids import RunId
from refold.core.messages import RunRequest
from refold.core.topics import RUN_COMPLETED, RUN_INSIGHT
from refold.dev.valkey import EmbeddedValkey
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader
from tests.embedded.secured import ADMIN
from tests.kafka.secured import PARTITIONS, SecuredCluster
from tests.kafka.services import APP, SERVICES, Services
from tests.waiting import eventually

EVERY_S = 0.5
"""Time between two requests of the load: what a machine with two cores does beside ten services and three brokers."""


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

    run = services.run("hi", ask=True)
    question = eventually(lambda: [q for q in services.api("/api/approvals") if q["run_id"] == run], every=0.2)[0]
    services.api(f"/api/approvals/{question['approval']}/votes", {"action": "approve"})
    shown = eventually(lambda: (r := services.api(f"/api/runs/{run}"))["status"] == "completed" and r, every=0.2)

    assert shown["result"] == ["hi", "hi", "hi"]
    eventually(lambda: [span for span in services.receiver.spans if span.said.get("refold.run.id") == run])
    eventually(lambda: next(iter(insights.scan(RUN_INSIGHT)), None), every=0.5)
    assert list(services.running) == list(SERVICES)
    assert not services.ended
    assert services.complaints("authorization failed|redis.unsafe") == {}


def test_services_that_are_trusted_apart_are_not_served_by_one_process(services: Services) -> None:
    for role, forbidden in (("planner", "tool-completed"), ("executor.default", "run-log")):
        # The command fails, and says why.
        with pytest.raises(AssertionError, match=f"trusted apart: this login may not write {forbidden}"):
            services.refold(role, "serve", "all", "--app", str(APP))


class Load:
    """Runs that a client asks for, one after the other, until the block ends. `asked` are those that were taken."""

    def __init__(self, services: Services) -> None:
        self._services, self.asked = services, list[str]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self) -> None:
        settings, number = self._services.cluster.settings("client", self._services.prefix), 0
        publisher = KafkaPublisher(settings, partitions=PARTITIONS)
        while not self._over.wait(EVERY_S):
            number += 1
            run = f"load-{id(self)}-{number}"
            with suppress(UnreachableError):
                publisher.send(RunRequest(RunId(run), "both", json.dumps({"word": "x"})), timeout_s=60)
                self.asked.append(run)

    @property
    def missing(self) -> set[str]:
        """Runs that were asked for and have no outcome."""
        reader = KafkaLogReader(self._services.cluster.settings("client", self._services.prefix))
        return set(self.asked) - {(record.key or b"").decode() for record in reader.scan(RUN_COMPLETED)}

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def restart(services: Services, load: Load, number: int, *, cleanly: bool) -> None:
    """Restart a broker, and wait until runs that were asked for afterwards have an outcome."""
    node = services.cluster.kafka.nodes[number]
    node.stop() if cleanly else node.kill()
    node.start()
    assert not services.ended, services.ended
    before = len(load.asked)
    eventually(lambda: len(load.asked) > before + 2, what="requests that are taken")
    services.await_ready()


def check(services: Services, load: Load) -> None:
    """All that was asked for has an outcome, nobody has ended, and the commands of operators tell the truth."""
    assert "nothing else about our topics" in services.refold(ADMIN, "topics", "acls", "--app", str(APP))
    assert (
        services.refold("operator", "topics", "apply", "--check", "--app", str(APP))
        == "all topics are as they should be\n"
    )
    eventually(lambda: not load.missing, every=0.5, what="the outcomes of all runs")
    assert not services.ended, services.ended
    assert services.complaints("authorization failed|wrong credentials|topics apply") == {}


def test_no_service_ends_when_each_broker_is_restarted_under_load(services: Services) -> None:
    services.await_ready()

    with Load(services) as load:
        for number in range(3):
            restart(services, load, number, cleanly=number == 1)

    check(services, load)


@pytest.mark.campaign
@pytest.mark.timeout(5_400)
def test_no_service_ends_in_36_restarts_of_brokers_under_load(services: Services) -> None:
    services.await_ready()

    with Load(services) as load:
        for turn in range(12):
            for number in range(3):
                restart(services, load, number, cleanly=turn % 3 == 2)

    check(services, load)
