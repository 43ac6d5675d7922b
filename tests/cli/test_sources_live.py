"""Sources on a real platform: thousands of records of a topic of others, poison among them, and kill -9 in between."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from refold.client.operations.runs import Runs
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.runtime.settings import KafkaSettings
from tests.cli.terminal import Dev, served
from tests.tidy.repository import ROOT
from tests.waiting import eventually

APP = """
from refold import App, Context, NewSignal, SourceRecord, NewRun
app = App("shop")

@app.agent
async def fulfil(ctx: Context, order: int) -> int:
    return order

@app.agent
async def track(ctx: Context) -> list[int]:
    return sorted([(await ctx.wait_for("event")).data for _ in range(2)])

@app.source("shop.orders", group={group!r})
def on_order(record: SourceRecord) -> NewRun:
    if {poison} and record.value.get("poison"):
        raise ValueError(f"poison {{record.value['n']}}")
    number = record.value["n"]
    return NewRun(fulfil, {{"order": number}}, id=f"order-{{number}}" if number % 2 else "")

@app.source("shop.events", group="shop-refold-events", value="bytes")
def on_event(record: SourceRecord) -> NewSignal:
    return NewSignal(record.key.decode(), "event", int(record.value), start=NewRun(track))
"""
PARTITIONS = 3
MANY, EVERY = 2_000, 100


class Shop:
    """The broker as the shop sees it: it writes its own topics, and asks how far a group has come."""

    def __init__(self, dev: Dev) -> None:
        self.dev, self.bootstrap = dev, dev.state["kafka"]
        self.settings = KafkaSettings(bootstrap=self.bootstrap, partitions=1)

    def create(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)

    def write(self, topic: str, records: list[tuple[str, bytes]], **options: Any) -> list[tuple[int, int]]:
        """Write records, a partition after the other; returns their places."""
        producer, places = Producer({"bootstrap.servers": self.bootstrap, **options}), dict[int, tuple[int, int]]()
        if options:
            producer.init_transactions(60)
            producer.begin_transaction()
        for number, (key, value) in enumerate(records):

            def written(error: Any, message: Any, number: int = number) -> None:
                assert error is None
                places[number] = message.partition(), message.offset()

            producer.produce(topic, value, key, number % PARTITIONS, on_delivery=written)
            producer.poll(0)
        producer.flush(60)
        if options:
            producer.abort_transaction(60)
        return [places[number] for number in range(len(records))]

    def lag(self, topic: str, group: str) -> int:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        places = consumer.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], 10)
        ends = [consumer.get_watermark_offsets(place, 10)[1] for place in places]
        consumer.close()
        return sum(end - max(0, place.offset) for place, end in zip(places, ends, strict=True))

    def settled(self, topic: str, group: str) -> bool:
        """Whether a group has read all of a topic; not while the broker is away."""
        with suppress(KafkaException):
            return self.lag(topic, group) == 0
        return False

    def requests(self) -> int:
        """How many requests lie there, with those that came again; the planner adds a tombstone for each of these."""
        return sum(record.value is not None for record in KafkaLogReader(self.settings).scan("run-requested"))

    def has_requests(self, count: int) -> bool:
        return self.requests() >= count

    def runs(self, agent: str) -> dict[str, Any]:
        """The requests of all runs of an agent, by run."""
        requests = {run.state.run_id: run.state.request for run in Runs(KafkaLogReader(self.settings)).all()}
        return {name: request for name, request in requests.items() if request is not None and request.agent == agent}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    for name, poison, group in (
        ("app.py", True, "shop-refold"),
        ("mended.py", False, "x"),
        ("again.py", True, "again"),
    ):
        (folder / name).write_text(APP.format(poison=poison, group=group))
    with served(folder / "app.py", folder) as dev:
        yield Shop(dev)


def test_each_record_is_one_run_whatever_is_killed(shop: Shop) -> None:
    dev = shop.dev
    eventually(lambda: "there is no topic shop.orders" in (dev.data / "logs/sources.log").read_text())
    shop.create("shop.orders")
    poison = [number for number in range(MANY) if number % EVERY == 0]
    values = [json.dumps({"n": number, "poison": number in poison}).encode() for number in range(MANY)]
    aborted = [(str(number), json.dumps({"n": number}).encode()) for number in range(MANY, MANY + 50)]
    half = MANY // 2

    first = shop.write("shop.orders", [(str(number), value) for number, value in enumerate(values[:half])])
    for share in (1, 200, 600):
        eventually(partial(shop.has_requests, share), what="requests")
        dev.kill("sources")
    shop.write("shop.orders", aborted, **{"transactional.id": "shop"})
    rest = shop.write("shop.orders", [(str(half + number), value) for number, value in enumerate(values[half:])])
    dev.kill("planner")
    dev.kill("sources")
    dev.kill("broker")
    eventually(lambda: shop.settled("shop.orders", "shop-refold"), what="the end of the topic")

    places = dict(enumerate([*first, *rest]))
    expected = {
        f"order-{number}" if number % 2 else f"shop~orders:{places[number][0]}:{places[number][1]}": number
        for number in range(MANY)
        if number not in poison
    }
    eventually(lambda: len(shop.runs("fulfil")) >= len(expected), what="all runs", every=1.0)
    assert {run: json.loads(request.input)["order"] for run, request in shop.runs("fulfil").items()} == expected
    letters = dev.read("deadletter", "list", "--limit", "1000")
    assert {tuple(map(int, row["from"].split("/")[1:])) for row in letters} == {places[number] for number in poison}
    assert {(row["topic"], row["code"]) for row in letters} == {("shop.orders", "unmapped")}


def test_records_that_come_again_change_nothing(shop: Shop) -> None:
    before, requests = shop.runs("fulfil"), shop.requests()
    command = [sys.executable, "-m", "refold", "serve", "sources", "--app", str(shop.dev.data / "again.py")]
    with subprocess.Popen([*command, "--data", str(shop.dev.data)], cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        eventually(
            lambda: shop.requests() > requests and shop.lag("shop.orders", "again") == 0, what="all records again"
        )
        process.terminate()

    assert process.returncode == 0
    assert shop.requests() == requests + MANY - MANY // EVERY
    assert shop.dev.read("run", "show", "order-1")["run_id"] in before
    assert shop.runs("fulfil").keys() == before.keys()
    assert {row["code"] for row in shop.dev.read("deadletter", "list", "--limit", "1000")} == {"unmapped"}


def test_a_letter_is_mapped_again_by_mended_code_under_the_same_id(shop: Shop) -> None:
    letter = shop.dev.read("deadletter", "list", "--limit", "1000")[0]
    mended = ("--app", str(shop.dev.data / "mended.py"), "--yes")

    shop.dev.refold("deadletter", "replay", letter["letter"], "--yes", code=2)
    for _ in range(2):
        shop.dev.refold("deadletter", "replay", letter["letter"], *mended)

    run = f"shop~orders:{letter['partition']}:{letter['offset']}"
    eventually(lambda: run in shop.runs("fulfil"), what="the run of the letter")
    assert shop.dev.read("run", "show", run)["status"] in ("running", "completed")


def test_each_signal_begins_its_run_and_counts_once(shop: Shop) -> None:
    shop.create("shop.events")
    events: list[tuple[str, bytes]] = [(f"t-{number % 300}", str(number).encode()) for number in range(600)]

    shop.write("shop.events", events[:400])
    eventually(lambda: shop.runs("track"), what="the first runs", every=0.5)
    shop.dev.kill("sources")
    shop.dev.kill("planner")
    shop.write("shop.events", events[400:])

    ended = ("run", "list", "--agent", "track", "--status", "completed", "--limit", "1000")
    eventually(lambda: len(shop.dev.read(*ended)) == 300, what="the end of all runs", every=1.0)
    results = Counter(json.dumps(shop.dev.read("run", "show", f"t-{number}")["result"]) for number in range(0, 300, 50))
    assert results == Counter(json.dumps([number, number + 300]) for number in range(0, 300, 50))
    eventually(lambda: shop.lag("shop.events", "shop-refold-events") == 0)
    assert not [row for row in shop.dev.read("deadletter", "list", "--limit", "1000") if row["topic"] != "shop.orders"]
