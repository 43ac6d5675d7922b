"""Partitions without a leader: services wait until one is elected, and go on with all else."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata
from structlog.testing import capture_logs

from refold.core.errors import UnreachableError
from refold.engine.adapters.kafka.log import KafkaEventLog
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.adapters.memory.log import MemoryEventLog
from refold.engine.ports.effects import AskEnd, Effect, Item, LanesNow, News, Now
from refold.engine.ports.log import Assigned, End, Membership, Outgoing, Record, Shrunk, Taken
from refold.engine.runtime.host import ASK_AGAIN_S, LONGEST_AGAIN_S, Host
from refold.engine.runtime.settings import KafkaSettings
from tests.embedded.cluster import KafkaCluster
from tests.waiting import eventually

LED, ORPHAN = 0, 1
VICTIM = 3
"""The node that alone has the second partition of every topic."""
STALE = 2
"""The node that leads a partition without its last records."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Give a cluster with topics of which one copy is all there is."""
    with KafkaCluster(tmp_path_factory.mktemp("orphans")) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        new = [NewTopic(f"refold.{topic}", 2, replica_assignment=[[1], [VICTIM]]) for topic in ("asked", "joined")]
        config = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        new.append(NewTopic("refold.shortened", 1, replica_assignment=[[VICTIM, STALE]], config=config))
        for done in admin.create_topics(new).values():
            done.result(15)
        yield running
        running.kill()


def log_of(cluster: KafkaCluster, topic: str) -> KafkaEventLog:
    return KafkaEventLog(KafkaSettings(bootstrap=cluster.bootstrap), Membership(f"of-{topic}", "a", (topic,)))


def take(log: KafkaEventLog) -> Taken:
    return log.take(100, 0.05)


def assigned(log: KafkaEventLog) -> set[int]:
    return {change.partition for change in take(log).rebalances if isinstance(change, Assigned)}


@pytest.mark.long
def test_a_member_is_told_of_each_partition_when_somebody_leads_it(cluster: KafkaCluster) -> None:
    log = log_of(cluster, "joined")
    cluster.nodes[VICTIM - 1].kill()
    waiting, came = list[str](), set[int]()

    with capture_logs() as lines:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (came and len(waiting) == 2):
            came |= assigned(log)
            waiting = [line["event"] for line in lines if line["event"].startswith("kafka.waiting")]
        before = set(came)
        cluster.nodes[VICTIM - 1].start()
        eventually(lambda: assigned(log) == {ORPHAN}, within=60)

    assert before == {LED}
    assert waiting == ["kafka.waiting", "kafka.waiting_long"]
    assert [line["event"] for line in lines if line["event"] == "kafka.answered"] == ["kafka.answered"]
    log.close()


def test_the_end_of_a_partition_that_nobody_leads_is_not_known_and_others_are(cluster: KafkaCluster) -> None:
    log = log_of(cluster, "asked")
    log.append([Outgoing("asked", ORPHAN, b"k", b"1", (), 0)])
    cluster.nodes[VICTIM - 1].kill()

    with pytest.raises(UnreachableError):
        log.end("asked", ORPHAN)

    assert log.end("asked", LED) == 0
    cluster.nodes[VICTIM - 1].start()
    eventually(lambda: _end(log) == 1, within=60)
    log.close()


def first(cluster: KafkaCluster, topic: str) -> PartitionMetadata:
    """The first partition of a topic, as the cluster tells of it now."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    return admin.list_topics(topic, timeout=15).topics[topic].partitions[0]


def news(taken: Taken) -> list[Record | Shrunk]:
    return [*taken.records, *taken.shrunk]


def write(cluster: KafkaCluster, *values: bytes) -> None:
    """Appends as a process of its own: the one that wrote what is lost may not go on."""
    log = log_of(cluster, "asked")
    log.append([Outgoing("shortened", 0, b"k", value, (), 0) for value in values])
    log.close()


def _end(log: KafkaEventLog) -> int | None:
    try:
        return log.end("asked", ORPHAN)
    except UnreachableError:
        return None


@pytest.mark.long
def test_a_log_that_lost_its_end_and_grew_beyond_what_was_read_is_news(cluster: KafkaCluster) -> None:
    read = list[Record]()
    log, (whole, stale) = log_of(cluster, "shortened"), (cluster.nodes[VICTIM - 1], cluster.nodes[STALE - 1])
    eventually(lambda: assigned(log) == {0}, within=60)
    log.read("shortened", 0, 0)
    write(cluster, b"kept")
    stale.kill()
    eventually(lambda: first(cluster, "refold.shortened").isrs == [VICTIM], within=60)
    write(cluster, b"lost", b"lost too")
    eventually(lambda: read.extend(take(log).records) or len(read) == 3)
    whole.kill()
    stale.launch()
    eventually(lambda: first(cluster, "refold.shortened").leader == STALE, within=60)

    write(cluster, b"1", b"2", b"3", b"4")
    came = eventually(lambda: news(take(log)), within=60)

    assert [record.value for record in read] == [b"kept", b"lost", b"lost too"]
    assert came == [Shrunk("shortened", 0, 5)], "though there are records where it would have read on"
    log.close()
    whole.start()


def test_a_log_in_memory_tells_of_such_a_loss_too() -> None:
    broker = MemoryBroker(("t",), 2)
    log = MemoryEventLog(broker, Membership("g", "a", ("t",)))
    log.take(10, 0)
    for place in (LED, ORPHAN):
        log.read("t", place, 0)
        log.append([Outgoing("t", place, b"k", value, (), 0) for value in (b"kept", b"lost", b"lost too")])
    read = log.take(2, 0).records + log.take(3, 0).records

    for place in (LED, ORPHAN):
        broker.truncate("t", place, 2)
        log.append([Outgoing("t", place, b"k", value, (), 0) for value in (b"1", b"2", b"3")])
    came = news(log.take(10, 0))

    assert [(record.partition, record.offset) for record in read] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert [item.offset if isinstance(item, Record) else item for item in came] == [2, 3, 4, Shrunk("t", LED, 5)]


class Asking:
    """A service that wants to know two ends, once each."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.news: list[News] = []
        self.told: list[Item] = []
        self._asks: list[Effect] = [AskEnd("t", ORPHAN), AskEnd("t", LED)]

    def turn(self, inbox: list[Item], now: Now) -> list[Effect]:
        self.told += inbox
        asks, self._asks = self._asks, []
        return asks

    def next_due_ms(self) -> int | None:
        return None

    def lanes_now(self) -> LanesNow:
        return LanesNow()

    def drain(self) -> bool:
        return True


class Leaderless(MemoryEventLog):
    """Nobody leads a partition before `elected`."""

    elected, asked = False, 0

    def end(self, topic: str, partition: int) -> int:
        self.asked += partition == ORPHAN
        if partition == ORPHAN and not self.elected:
            raise UnreachableError("nobody leads it")
        return super().end(topic, partition)


def test_a_host_asks_again_for_an_end_that_nobody_has_told() -> None:
    log = Leaderless(MemoryBroker(("t",), 2), Membership("g", "a", ("t",)))
    service, stop = Asking(), threading.Event()
    host = threading.Thread(target=Host([service], log).run, args=(stop.is_set,), daemon=True)
    host.start()

    eventually(lambda: End("t", LED, 0) in service.told, within=20 + ASK_AGAIN_S)
    before = list(service.told)
    log.elected = True
    eventually(lambda: End("t", ORPHAN, 0) in service.told, within=20 + ASK_AGAIN_S)
    stop.set()
    host.join(20)

    assert End("t", ORPHAN, 0) not in before
    assert not host.is_alive()


def test_a_host_asks_ever_less_often_for_the_end_of_a_partition_that_nobody_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, clock_s = Leaderless(MemoryBroker(("t",), 2), Membership("g", "a", ("t",))), 0.0
    monkeypatch.setattr("refold.engine.runtime.host.time.monotonic", lambda: clock_s)
    host = Host([Asking()], log)

    for _ in range(3_600):
        clock_s += 1.0
        host.pump([])

    assert 3_600 / LONGEST_AGAIN_S / 2 < log.asked < 3_600 / LONGEST_AGAIN_S * 1.5
