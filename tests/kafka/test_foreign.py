"""Sources on a real broker without a planner: the test itself is how far planners have come."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from refold import App, Context, NewRun, NewSignal, SourceRecord
from refold.core.errors import UnreachableError
from refold.core.messages import DeadLetter, RunRequest
from refold.core.topics import DEAD_LETTER_SOURCE, PLANNERS, RUN_REQUESTED, RUN_SIGNALLED
from refold.core.wire import codec
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka import foreign
from refold.engine.adapters.kafka.foreign import ForeignTopic
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.ports.log import Record
from refold.engine.runtime.gauges import Vitals
from refold.engine.runtime.settings import KafkaSettings, Settings
from tests.waiting import eventually

PARTITIONS = 2


class Bench:
    """Topics of a platform, and a topic of others with the members of its group."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self.name = f"t{uuid4().hex}"
        own = KafkaSettings(bootstrap=kafka.bootstrap, prefix=f"{self.name}.", partitions=PARTITIONS)
        self.settings = Settings(kafka=own, max_payload_bytes=10_000)
        self.app, self.members, self.lacks = App("shop"), list[ForeignTopic](), ""
        self.planning = False
        self.app.agent(fulfil)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        ours = [f"{self.name}.{topic}" for topic in (RUN_REQUESTED, RUN_SIGNALLED, DEAD_LETTER_SOURCE)]
        new = [NewTopic(name, PARTITIONS, 1) for name in (self.name, *ours)]
        for future in admin.create_topics(new).values():
            future.result(60)

    def source(self, function: Callable[[SourceRecord], Any]) -> None:
        self.app.source(self.name, group=self.name)(function)

    def join(self) -> ForeignTopic:
        source, name = self.app.sources[self.name], f"member-{len(self.members)}"
        self.members.append(ForeignTopic(self.settings, source, name, Vitals()))
        return self.members[-1]

    def write(self, numbers: range, pad: str = "") -> None:
        producer = Producer({"bootstrap.servers": self.settings.kafka.bootstrap})
        for number in numbers:
            producer.produce(self.name, json.dumps({"n": number, "pad": pad}), partition=number % PARTITIONS)
        assert producer.flush(60) == 0

    def turn(self) -> bool:
        """A turn of each member; never what is waited for."""
        self.lacks = ""
        for member in self.members:
            with suppress(UnreachableError):  # a coordinator that is just being made
                self.lacks += member.turn(0.02)
        if self.planning:
            self.taken()
        return False

    def taken(self) -> None:
        """Have the planners taken all requests there are."""
        config = {"bootstrap.servers": self.settings.kafka.bootstrap, "group.id": f"{self.name}.{PLANNERS}"}
        consumer = Consumer(config)
        topic = f"{self.name}.{RUN_REQUESTED}"
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, n), 10)[1] for n in range(PARTITIONS)]
        consumer.commit(offsets=[TopicPartition(topic, n, end) for n, end in enumerate(ends)], asynchronous=False)
        consumer.close()

    def records(self, topic: str) -> list[Record]:
        return [*KafkaLogReader(self.settings.kafka).scan(topic)]

    def runs(self) -> set[int]:
        requests = [codec.decode(RunRequest, record.value or b"") for record in self.records(RUN_REQUESTED)]
        return {json.loads(request.input)["order"] for request in requests}

    def lag(self) -> int:
        consumer = Consumer({"bootstrap.servers": self.settings.kafka.bootstrap, "group.id": self.name})
        places = consumer.committed([TopicPartition(self.name, number) for number in range(PARTITIONS)], 10)
        lag = sum(consumer.get_watermark_offsets(at, 10)[1] - max(0, at.offset) for at in places)
        consumer.close()
        return lag


async def fulfil(ctx: Context, order: int, pad: str = "") -> int:
    return order


def started(record: SourceRecord) -> NewRun:
    return NewRun(fulfil, {"order": record.value["n"], "pad": record.value["pad"]})


@pytest.fixture
def bench(kafka: EmbeddedKafka) -> Iterator[Bench]:
    """Give a source of its own on the broker."""
    bench = Bench(kafka)
    yield bench
    for member in bench.members:
        member.close()


def test_a_source_waits_while_planners_are_behind(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "MOST_UNTAKEN", 500)
    bench.source(started)
    bench.join()
    bench.write(range(1_200))

    for most in (500, 1_000):
        eventually(lambda: bench.turn() or "planners have not taken" in bench.lacks)
        assert (len(bench.records(RUN_REQUESTED)), bench.lag()) == (most, 1_200 - most)
        bench.taken()
    eventually(lambda: bench.turn() or bench.lag() == 0)

    assert bench.runs() == {*range(1_200)}
    assert len(bench.records(RUN_REQUESTED)) == 1_200


def test_members_that_come_and_go_leave_out_no_record(bench: Bench) -> None:
    bench.source(started)
    bench.join()
    for number in range(3):
        bench.write(range(1_000 * number, 1_000 * (number + 1)))
        bench.turn()
        bench.join()
    bench.members.pop(1).close()

    eventually(lambda: bench.turn() or bench.lag() == 0)

    assert bench.runs() == {*range(3_000)}


def test_a_signal_waits_until_planners_have_taken_the_request_of_its_run(bench: Bench) -> None:
    bench.source(lambda record: NewSignal("r-1", "paid", record.value["n"], start=NewRun(fulfil, {"order": 1})))
    bench.join()
    bench.write(range(2))

    eventually(lambda: bench.turn() or "before signals" in bench.lacks)
    for _ in range(5):
        bench.turn()
    assert bench.records(RUN_REQUESTED)
    assert (bench.records(RUN_SIGNALLED), bench.lag()) == ([], 2)
    bench.planning = True
    eventually(lambda: bench.turn() or bench.lag() == 0)

    assert {record.key for record in bench.records(RUN_SIGNALLED)} == {
        f"r-1/{bench.name}:{number}:0".encode() for number in range(PARTITIONS)
    }


def test_a_result_that_is_too_large_is_a_dead_letter_and_the_next_record_follows(bench: Bench) -> None:
    bench.source(started)
    bench.join()
    bench.write(range(1), pad="x" * 12_000)
    bench.write(range(1, 3))

    eventually(lambda: bench.turn() or bench.lag() == 0)

    (letter,) = [codec.decode(DeadLetter, record.value or b"") for record in bench.records(DEAD_LETTER_SOURCE)]
    assert (letter.topic, letter.partition, letter.offset, letter.code) == (bench.name, 0, 0, "unmapped")
    assert "more than 10000" in letter.reason
    assert len(letter.value) == 10_000
    assert bench.runs() == {1, 2}


def test_aborted_records_are_passed_over(bench: Bench) -> None:
    bench.source(started)
    bench.join()
    producer = Producer({"bootstrap.servers": bench.settings.kafka.bootstrap, "transactional.id": bench.name})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(bench.name, json.dumps({"n": 7, "pad": ""}), partition=0)
    producer.flush(60)
    producer.abort_transaction(60)

    eventually(lambda: bench.turn() or bench.lag() == 0, what="the end behind them")

    assert bench.runs() == set()
