"""An event log to hold to its contract: on memory, and on a real broker with topics of its own."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Protocol

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from refold.engine.adapters.kafka.log import KafkaEventLog
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.adapters.memory.lasting import LastingBroker
from refold.engine.adapters.memory.log import LastingEventLog, MemoryEventLog, MemoryLogReader
from refold.engine.adapters.memory.serving import BrokerSocket
from refold.engine.ports.log import (
    Assigned,
    Delivery,
    EventLog,
    LogReader,
    Membership,
    Outgoing,
    Reached,
    Record,
    Revoked,
    Taken,
)
from refold.engine.runtime.clock import clock_ms
from refold.engine.runtime.settings import LIGHT, KafkaSettings
from tests.waiting import GIVE_UP_S, eventually

INPUTS, MORE, CHAIN = "inputs", "more", "chain"
TOPICS = (INPUTS, MORE, CHAIN)
PARTITIONS = 2
MAX_BYTES = 300_000


def membership(member: str = "a", *, topics: tuple[str, ...] = TOPICS) -> Membership:
    return Membership("group", member, topics, rare=frozenset({MORE, CHAIN} & set(topics)))


class Follower:
    """A log whose reader says from where it reads: on at the group's commits, the chain from its start."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.reads = True

    def take(self, limit: int, timeout_s: float) -> Taken:
        taken = self.log.take(limit, timeout_s)
        for change in taken.rebalances if self.reads else ():
            if isinstance(change, Assigned):
                for topic, start in change.starts.items():
                    offset = start if topic == CHAIN else change.committed.get(topic, start)
                    self.log.read(topic, change.partition, offset)
        return taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)


def outgoing(
    value: bytes | None, *, topic: str = INPUTS, partition: int = 0, key: bytes = b"k", token: int = 0
) -> Outgoing:
    return Outgoing(topic, partition, key, value, [("ce_id", b"1"), ("traceparent", b"00-1")], token)


class Bench(Protocol):
    """Three topics of two partitions each."""

    def log(self, member: str = "a", *, topics: tuple[str, ...] = TOPICS, keep_place: bool = False) -> Follower:
        """A member's process; a second one of a name replaces the first."""
        ...

    def reader(self) -> LogReader: ...

    def leave_a_hole(self, topic: str, partition: int) -> None:
        """Uses offsets up at the end without leaving a record that counts."""
        ...

    def delete(self, topic: str, partition: int, *, below: int) -> None:
        """Deletes the records below an offset."""
        ...

    def expire(self, member: str) -> None:
        """Lets the session of a member that is silent run out."""
        ...

    def close(self) -> None: ...


class MemoryBench:
    def __init__(self) -> None:
        self.broker = MemoryBroker(TOPICS, PARTITIONS, max_bytes=MAX_BYTES, clock_ms=clock_ms)

    def log(self, member: str = "a", *, topics: tuple[str, ...] = TOPICS, keep_place: bool = False) -> Follower:
        return Follower(MemoryEventLog(self.broker, membership(member, topics=topics), keep_place=keep_place))

    def reader(self) -> LogReader:
        return MemoryLogReader(self.broker)

    def leave_a_hole(self, topic: str, partition: int) -> None:
        self.broker.skip(topic, partition, 2)

    def delete(self, topic: str, partition: int, *, below: int) -> None:
        self.broker.delete(topic, partition, below=below)

    def expire(self, member: str) -> None:
        self.broker.expire("group", member)

    def close(self) -> None: ...


class StingyBench(MemoryBench):
    """Polls read as far as chance has it, which is how the simulator polls."""

    def log(self, member: str = "a", *, topics: tuple[str, ...] = TOPICS, keep_place: bool = False) -> Follower:
        log, rng = super().log(member, topics=topics, keep_place=keep_place), Random(member)
        log.cursors.fetch = lambda position, end: rng.randint(position + 1, end)
        return log


class LastingBench(MemoryBench):
    """The broker whose records are in a file; its members wait, and its readers come by its socket."""

    def __init__(self, path: Path) -> None:
        self.broker = self.lasting = LastingBroker(TOPICS, path, PARTITIONS, max_bytes=MAX_BYTES)
        socket = path.with_name("socket")
        BrokerSocket(self.lasting, socket)
        self.settings = KafkaSettings(bootstrap=f"{LIGHT}{socket}", prefix="light.", partitions=PARTITIONS)

    def reader(self) -> LogReader:
        return KafkaLogReader(self.settings)

    def log(self, member: str = "a", *, topics: tuple[str, ...] = TOPICS, keep_place: bool = False) -> Follower:
        return Follower(LastingEventLog(self.lasting, membership(member, topics=topics), keep_place=keep_place))


class KafkaBench:
    """Every bench has its own prefix, and so its own topics and group."""

    def __init__(self, bootstrap: str, *, partitions: int = PARTITIONS) -> None:
        prefix = f"log-{uuid.uuid4().hex[:8]}."
        # The shortest session that a broker allows by default.
        self.settings = KafkaSettings(
            bootstrap=bootstrap, prefix=prefix, partitions=partitions, session_timeout_ms=6_000
        )
        self._logs: list[KafkaEventLog] = []
        config = {
            "cleanup.policy": "compact,delete",
            "max.message.bytes": str(MAX_BYTES),
            "message.timestamp.type": "LogAppendTime",
        }
        new = [NewTopic(prefix + name, partitions, 1, config=config) for name in TOPICS]
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for done in admin.create_topics(new).values():
            done.result(60)

    def log(self, member: str = "a", *, topics: tuple[str, ...] = TOPICS, keep_place: bool = False) -> Follower:
        settings = self.settings.model_copy(update={"keep_place": keep_place})
        made = KafkaEventLog(settings, membership(member, topics=topics))
        self._logs.append(made)
        return Follower(made)

    def reader(self) -> LogReader:
        return KafkaLogReader(self.settings)

    def leave_a_hole(self, topic: str, partition: int) -> None:
        log = self._logs[-1]
        before = log.end(topic, partition)
        producer = Producer({"bootstrap.servers": self.settings.bootstrap, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce(self.settings.prefix + topic, value=b"taken back", key=b"t", partition=partition)
        producer.flush(60)
        producer.abort_transaction(10)
        # The abort is answered before its marker is in the partition: until then the hole has no end.
        eventually(lambda: log.end(topic, partition) == before + 2, what="the end of the hole")

    def delete(self, topic: str, partition: int, *, below: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.settings.bootstrap})
        place = TopicPartition(self.settings.prefix + topic, partition, below)
        for done in admin.delete_records([place]).values():
            done.result(60)

    def expire(self, member: str) -> None:
        """Time does it: the member is not polled, but heartbeats go on, so it has to be closed."""
        for log in self._logs:
            if log.member == member:
                log.close()

    def close(self) -> None:
        for log in self._logs:
            log.close()


def take_until(
    log: EventLog | Follower, done: Callable[[Taken], object], *, within: float = GIVE_UP_S, limit: int = 100
) -> Taken:
    """Takes until the whole of what was taken satisfies a condition."""
    whole = Taken()
    deadline = time.monotonic() + within
    while True:
        taken = log.take(limit, 0.05)
        whole.rebalances += taken.rebalances
        whole.records += taken.records
        whole.reached += taken.reached
        whole.shrunk += taken.shrunk
        whole.deliveries += taken.deliveries
        if done(whole):
            return whole
        assert time.monotonic() < deadline, f"not taken in {within} s, only {whole}"


def places(deliveries: list[Delivery]) -> list[tuple[int, int | None]]:
    """What became of records, by token, without the times."""
    return sorted((delivery.token, delivery.offset) for delivery in deliveries)


def values(records: list[Record], topic: str = INPUTS, partition: int | None = None) -> list[bytes | None]:
    return [r.value for r in records if r.topic == topic and partition in (None, r.partition)]


def assigned(taken: Taken) -> dict[int, Assigned]:
    found: dict[int, Assigned] = {}
    for change in taken.rebalances:
        if isinstance(change, Assigned):
            found[change.partition] = replace(change, assignment=0)
        else:
            found.pop(change.partition, None)
    return found


def assigned_as(taken: Taken) -> int:
    return next(change.assignment for change in taken.rebalances if isinstance(change, Assigned))


def chains(taken: Taken) -> list[Reached]:
    return [reached for reached in taken.reached if reached.topic == CHAIN]


def start(log: EventLog | Follower, count: int = PARTITIONS) -> Taken:
    return take_until(log, lambda taken: len(assigned(taken)) == count)


def share(one: Follower, two: Follower) -> tuple[Taken, Taken]:
    """Takes until the second of two members has one partition, and the first the other."""
    whole = Taken(), Taken()
    for _ in range(500):
        for log, taken in zip((one, two), whole, strict=True):
            came = log.take(10, 0.02)
            taken.rebalances += came.rebalances
            taken.records += came.records
        first = list(assigned(whole[0])) == [0] or whole[0].rebalances == [Revoked(1)]
        if first and list(assigned(whole[1])) == [1]:
            return whole
    raise AssertionError("the partitions are not shared")
