"""The services on three real brokers, each with nothing but its own rights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import TopicPartition

from refold.client.operations.workers import workers
from refold.core.errors import UsageError
from refold.core.messages import RunRequest
from refold.core.topics import tool_requested
from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.log import KafkaEventLog
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.ports.log import Assigned, Outgoing, Record
from refold.engine.runtime.settings import KafkaSettings
from tests.kafka.secured import PARTITIONS, SecuredCluster, membership
from tests.waiting import eventually

SERVICES = "services."


Settings = Callable[[str], KafkaSettings]


@pytest.fixture(scope="module")
def services(secured_cluster: SecuredCluster) -> Settings:
    """Give the settings of a role under a prefix for services that work."""
    secured_cluster.furnish(SERVICES)
    return lambda role: secured_cluster.settings(role, SERVICES)


class Member:
    """A member of its group with the rights of its role and no others; it is there when it has all partitions."""

    def __init__(self, settings: KafkaSettings, role: str) -> None:
        self.settings, self.group = settings, membership(role).group
        self.log = KafkaEventLog(settings, membership(role))
        self._numbers: set[int] = set()
        self._records: list[Record] = []
        eventually(lambda: len(self.take()._numbers) == PARTITIONS, what=f"the partitions of the {role}")

    def write(self, topic: str, value: bytes | None = b"{}", *, partition: int = 0) -> int | None:
        """Append a record; the offset that it was acknowledged at."""
        (delivery,) = self.log.append([Outgoing(topic, partition, b"r-1/1", value, [], 1)])
        return delivery.offset

    def read(self, topic: str) -> Record:
        """The first record of a topic."""

        def first() -> Record | None:
            return next((record for record in self.take()._records if record.topic == topic), None)

        return eventually(first, what=f"a record of {topic}")

    def commit(self, record: Record) -> None:
        """Commit the position after a record, and see that the group has it."""
        place = TopicPartition(self.settings.prefix + record.topic, record.partition)
        self.log.commit({(record.topic, record.partition): record.offset + 1})
        with closing(clients.consumer(self.settings, self.group)) as asker:

            def is_there() -> bool:
                self.take()
                return asker.committed([place], timeout=60)[0].offset == record.offset + 1

            eventually(is_there, what="the commit")

    def take(self) -> Member:
        """Take what came."""
        taken = self.log.take(100, 0.02)
        for change in taken.rebalances:
            if isinstance(change, Assigned):
                self._numbers.add(change.partition)
                for topic, start in change.starts.items():
                    self.log.read(topic, change.partition, start)
        self._records += taken.records
        return self


@pytest.fixture
def join(services: Settings) -> Iterator[Callable[[str], Member]]:
    """Give what lets a service join its group."""
    members: list[Member] = []

    def joined(role: str) -> Member:
        members.append(Member(services(role), role))
        return members[-1]

    yield joined
    for member in members:
        member.log.close()


def test_a_planner_reads_requests_and_writes_the_log_with_its_own_rights(
    services: Settings, join: Callable[[str], Member]
) -> None:
    client = KafkaPublisher(services("client"), partitions=PARTITIONS)
    sent = client.send(RunRequest("r-1", "deploy", "{}"))
    planner = join("planner")

    request = planner.read("run-requested")
    written = planner.write("run-log", partition=request.partition)
    planner.commit(request)

    assert (request.partition, request.offset) == sent
    assert written is not None
    assert planner.log.end("run-log", request.partition) == written + 1
    assert planner.read("run-log").offset == 0
    for topic in ("tool-requested.default", "tool-requested.model", "approval-requested", "run-completed"):
        assert planner.write(topic) is not None
    assert [record.value for record in KafkaLogReader(services("client")).scan("run-log")] == [b"{}"]


def test_an_executor_claims_and_answers_with_its_own_rights(services: Settings, join: Callable[[str], Member]) -> None:
    assert join("planner").write("tool-requested.default") is not None
    executor = join("executor.default")

    request = executor.read("tool-requested.default")
    claimed, completed = executor.write("tool-claimed.default"), executor.write("tool-completed.default")
    executor.commit(request)

    assert None not in (claimed, completed)
    assert executor.read("tool-claimed.default").offset == 0


def test_an_approval_service_reads_votes_and_decides_with_its_own_rights(
    services: Settings, join: Callable[[str], Member]
) -> None:
    for role, topic in (("approver", "approval-voted"), ("authority", "catalog")):
        KafkaPublisher(services(role), partitions=PARTITIONS).send_raw(topic, 0, key=b"a", value=b"{}", headers=[])
    assert join("planner").write("approval-requested") is not None
    approval = join("approval")

    request = approval.read("approval-requested")
    seen = [approval.read(topic).value for topic in ("approval-voted", "catalog")]
    decided = approval.write("approval-decided")
    approval.commit(request)

    assert seen == [b"{}", b"{}"]
    assert decided is not None
    assert approval.read("approval-decided").offset == decided


@pytest.mark.parametrize(
    ("role", "topic"),
    [
        ("planner", "approval-decided"),
        ("planner", "tool-completed.default"),
        ("executor.default", "run-log"),
        ("approval", "catalog"),
    ],
)
def test_a_service_that_writes_what_is_not_its_own_ends_and_says_why(
    join: Callable[[str], Member], role: str, topic: str
) -> None:
    member = join(role)

    with pytest.raises(UsageError, match=f"write to {SERVICES}{topic}.*grant this principal the ACLs"):
        member.write(topic)


def test_a_client_that_reads_what_is_not_for_it_is_told(services: Settings) -> None:
    with pytest.raises(UsageError, match="grant this principal the ACLs"):
        list(KafkaLogReader(services("client")).scan("tool-completed.default"))


@pytest.mark.parametrize("role", ["operator", "viewer", "gateway"])
def test_who_shows_workers_may_ask_for_all_that_is_shown_and_reads_no_orders(services: Settings, role: str) -> None:
    topic = tool_requested("default")
    publisher = KafkaPublisher(services("planner"), partitions=PARTITIONS, source="test")
    publisher.send_raw(topic, 0, key=b"r-9/1", value=b"call", headers=())

    found = workers(services(role))

    (pool,) = (each for each in found.groups if (each.role, each.pool) == ("executor", "default"))
    assert (pool.waiting > 0, 0 <= pool.oldest_s < 600) == (True, True)
    if role != "operator":
        with pytest.raises(UsageError):
            next(KafkaLogReader(services(role)).scan(topic))
