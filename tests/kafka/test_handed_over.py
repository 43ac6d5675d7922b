"""Planner and executor of one process on a real broker: every record is in its topic before anything acts on it."""

from __future__ import annotations

import itertools
import os
import secrets
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Producer

from refold import App, Context
from refold.core.ids import RunId
from refold.core.messages import RunRequest
from refold.core.topics import RUN_COMPLETED, TOOL_COMPLETED, kind_of, tool_claimed, tool_completed, tool_requested
from refold.core.wire.seal import Seal
from refold.dev.kafka import EmbeddedKafka
from refold.dev.valkey import EmbeddedValkey
from refold.engine.adapters.kafka import intake
from refold.engine.adapters.kafka.log import KafkaEventLog
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader, KafkaLookup
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.adapters.redis.ledger import RedisLedger
from refold.engine.adapters.tools.toolbox import Toolbox
from refold.engine.executor.gate import Gate
from refold.engine.executor.service import Executor
from refold.engine.executor.settings import ExecutorSettings
from refold.engine.planner.service import Planner
from refold.engine.planner.settings import PlannerSettings
from refold.engine.ports.effects import Effect, Item, Now, Service
from refold.engine.ports.log import Membership, Outgoing, Record
from refold.engine.relay.service import Relay
from refold.engine.relay.settings import RelaySettings
from refold.engine.runtime.handover import Handover
from refold.engine.runtime.host import Host
from refold.engine.runtime.settings import KafkaSettings
from refold.sdk.sources import FactsTable
from tests.waiting import eventually

STEPS, RUNS, PARTITIONS = 6, 8, 2
app = App("handed")
pressed: Counter[str] = Counter()


@app.tool(effect="keyed")
async def press(name: str, *, idempotency_key: str) -> str:
    pressed[idempotency_key] += 1
    return name


async def _probe(name: str, *, idempotency_key: str) -> object:
    raise AssertionError("nothing is in doubt here")


@app.tool(effect="once")
async def seal(name: str) -> str:
    pressed[name] += 1
    return name


@app.agent
async def presses(ctx: Context, name: str) -> list[str]:
    results = [await ctx.call(press, name=f"{name}-{number}") for number in range(STEPS - 1)]
    return [*results, await ctx.call(seal, name=name)]


class Witness:
    """A service whose every record is compared with its topic, read from outside, before the service gets it."""

    def __init__(self, service: Service, lookup: KafkaLookup, topics: tuple[str, ...]) -> None:
        self._service, self._lookup, self._topics = service, lookup, topics
        self.counts, self.news = service.counts, service.news
        self.differing: list[Record] = []
        self.seen: Counter[str] = Counter()

    def turn(self, inbox: list[Item], now: Now) -> list[Effect]:
        for item in inbox:
            if isinstance(item, Record) and item.topic in self._topics:
                there = self._lookup(item.topic, item.partition, item.offset)
                self.seen[kind_of(item.topic)] += 1
                if there is None or _content(there) != _content(item):
                    self.differing.append(item)
        return self._service.turn(inbox, now)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)


def _content(record: Record) -> tuple[object, ...]:
    return (*record[:5], record.at_ms, record.read_headers())


class Hasty(KafkaEventLog):
    """The planted bug: a record is handed over when it is sent, at the offset that it ought to get."""

    def _produce(self, record: Outgoing, report: Any) -> None:
        if self._stored and record.topic.startswith(TOOL_COMPLETED):
            self._stored(record, self.end(record.topic, record.partition), 0)
            threading.Event().wait(0.1)  # as a slow broker
        super()._produce(record, report)


@dataclass
class Together:
    """Planner, executor and relay, as `refold serve all` has them."""

    kafka: KafkaSettings
    valkey: str
    log: type[KafkaEventLog] = KafkaEventLog
    member: str = "a"
    witnesses: list[Witness] = field(default_factory=list)
    planner: Planner = field(init=False)

    def hosts(self) -> tuple[Host, Host]:
        handover, numbers = Handover(), itertools.count(1)
        own = PlannerSettings(PARTITIONS, self.member, "test", beside=("default",))
        gate = Gate(tools=FactsTable(app.tools), environment="test", partitions=PARTITIONS)
        acting = ExecutorSettings(
            member=self.member, gate=gate, tools=app.tools, seal=Seal("default", b""), beside=True
        )
        self.planner = Planner(app, own, lambda: os.urandom(16), process=os.urandom(3).hex())
        relay = Relay(RelaySettings(seal=acting.seal), token=lambda: next(numbers))
        executor = Executor(acting, relay, token=lambda: next(numbers), fresh=lambda: secrets.token_hex(16))
        deciding = self._witness(self.planner, own.membership)
        first = Host([deciding], self.log(self.kafka, own.membership, stored=handover.stored))
        first.take_handed(handover, own.membership.lazy)
        ledger = RedisLedger(self.valkey, prefix=self.kafka.prefix, retention=timedelta(hours=1), cluster=False)
        second = Host(
            [self._witness(executor, acting.membership), relay],
            self.log(self.kafka, acting.membership, stored=handover.stored),
            ledger=ledger,
            tools=lambda done: Toolbox(app, done, threads=4, max_result=1_000_000),
            lookup=KafkaLookup(self.kafka, acting.membership),
        )
        second.take_handed(handover, acting.membership.lazy)
        return first, second

    def _witness(self, service: Service, membership: Membership) -> Any:
        lazy = tuple(membership.lazy)
        self.witnesses.append(Witness(service, KafkaLookup(self.kafka, membership), lazy))
        return self.witnesses[-1]

    @contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()
        first, second = self.hosts()
        thread = threading.Thread(target=first.run, args=(stop.is_set,), kwargs={"beside": {second: 1.0}})
        thread.start()
        try:
            eventually(lambda: self.planner.counts["lane.live"] >= 1, within=90, what="a lane")
            yield
        finally:
            stop.set()
            thread.join(60)


@pytest.fixture
def settings(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> KafkaSettings:
    found = KafkaSettings(bootstrap=kafka.bootstrap, prefix=f"handed-{uuid.uuid4().hex[:8]}.", partitions=PARTITIONS)
    Topics(found).apply()
    return found


def _ask(settings: KafkaSettings, runs: int = RUNS) -> list[str]:
    publisher = KafkaPublisher(settings, partitions=PARTITIONS)
    names = [f"{uuid.uuid4().hex[:8]}-{number}" for number in range(runs)]
    for run in names:
        publisher.send(RunRequest(RunId(run), "presses", f'{{"name": "{run}"}}'))
    return names


def _over(settings: KafkaSettings, runs: list[str]) -> bool:
    done = {record.key for record in KafkaLogReader(settings).scan(RUN_COMPLETED)}
    return {run.encode() for run in runs} <= done


def test_every_record_is_in_its_topic_before_anything_acts_on_it(
    settings: KafkaSettings, valkey: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a fetch that comes too late for the test, only what is handed over is acted on.
    monkeypatch.setattr(intake, "LAZY", {"fetch.wait.max.ms": 60_000, "fetch.min.bytes": 1 << 20})
    together = Together(settings, valkey.url)

    with together.running():
        runs = _ask(settings)
        eventually(lambda: _over(settings, runs), within=100, what="all runs end")

    assert [witness.differing for witness in together.witnesses] == [[], []]
    seen = sum((witness.seen for witness in together.witnesses), Counter[str]())
    assert seen[kind_of(tool_completed("default"))] >= RUNS * STEPS
    assert seen[kind_of(tool_requested("default"))] >= RUNS * STEPS
    assert seen[kind_of(tool_claimed("default"))] >= RUNS
    assert set(pressed.values()) == {1}


def test_a_record_that_is_handed_over_before_its_acknowledgement_is_noticed(
    settings: KafkaSettings, valkey: EmbeddedValkey
) -> None:
    together = Together(settings, valkey.url, Hasty)

    with together.running():
        _ask(settings, 1)
        eventually(lambda: any(witness.differing for witness in together.witnesses), within=60, what="a difference")


def test_what_others_write_is_read_in_its_place(settings: KafkaSettings, valkey: EmbeddedValkey) -> None:
    """Records of strangers in every handed topic, all the time: they are read too, in order, and nothing waits."""
    together, over = Together(settings, valkey.url), threading.Event()
    producer = Producer({"bootstrap.servers": settings.bootstrap})

    def disturb() -> None:
        for number in itertools.count():
            for topic in (tool_requested("default"), tool_completed("default"), tool_claimed("default")):
                producer.produce(settings.prefix + topic, None, b"stranger", number % PARTITIONS)
            producer.flush(10)
            if over.wait(0.05):
                return

    stranger = threading.Thread(target=disturb)
    with together.running():
        stranger.start()
        runs = _ask(settings)
        eventually(lambda: _over(settings, runs), within=100, what="all runs end")
        over.set()
        stranger.join()

    assert [witness.differing for witness in together.witnesses] == [[], []]


def test_partitions_that_another_process_acts_in_come_by_the_broker(
    settings: KafkaSettings, valkey: EmbeddedValkey
) -> None:
    """A second process joins, and the first leaves: what one writes for the other is fetched."""
    first, second = Together(settings, valkey.url), Together(settings, valkey.url, member="b")

    with second.running():
        with first.running():
            runs = _ask(settings, 20)
            eventually(lambda: first.planner.counts["lane.live"] and len(first.planner.lanes) == 1, within=60)
        runs += _ask(settings, 4)
        eventually(lambda: _over(settings, runs), within=100, what="all runs end")

    assert [witness.differing for witness in (*first.witnesses, *second.witnesses)] == [[], [], [], []]
    assert set(pressed.values()) == {1}
