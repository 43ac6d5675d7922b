"""Compaction by the real log cleaner: what it removes never changes what a run is."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer

from refold.client.operations.runs import Runs
from refold.core.events import Entry
from refold.core.ids import home, log_key
from refold.core.run.chain import anchor_name
from refold.core.run.log import LogFold
from refold.core.topics import RUN_LOG
from refold.core.wire import codec
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.runtime.settings import KafkaSettings
from tests.chaos import raw
from tests.chaos.faults import Saboteur
from tests.chaos.stack import PREFIX, Stack
from tests.chaos.world import SIMPLE, World
from tests.kafka.cleaning import JUNK, ROUND_S, make_eager
from tests.waiting import eventually

LOG, REQUESTED = f"{PREFIX}run-log", f"{PREFIX}tool-requested.default"
IN_DOUBT = [[{"tool": "fire", "label": f"c{number}", "plan": "raises_after"} for number in range(20)]]
"""Every second of these calls loses its answer: of twenty, one at least but once in a million."""


@dataclass
class Platform:
    """A running platform whose cleaner is eager."""

    stack: Stack
    world: World
    producer: Producer
    doubtful: str


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    """Give a platform on which runs have ended, and one waits for a human."""
    worlds: list[World] = []

    def prepare(kafka: str) -> None:
        world = World(KafkaSettings(bootstrap=kafka, prefix=PREFIX), stack.outside, seed=7)
        world.open()
        make_eager(kafka, (LOG, REQUESTED))
        worlds.append(world)

    stack = Stack(tmp_path, prepare=prepare, pairs=1, kafka_properties={"log.cleaner.backoff.ms": "200"})
    with stack:
        (world,) = worlds
        world.human.asleep.set()
        ended = [world.start_run(SIMPLE) for _ in range(20)]
        doubtful = world.start_run(IN_DOUBT)
        eventually(lambda: set(ended) <= world.over.keys(), what="the runs")
        # Suspended: every call has its result or is in doubt, and the history goes on only when a human speaks.
        runs = Runs(KafkaLogReader(world.settings))
        eventually(lambda: (run := runs.find(doubtful)) and run.status == "suspended", every=0.5, what="the doubts")
        yield Platform(stack, world, Producer({"bootstrap.servers": stack.dev.kafka, "log_level": 0}), doubtful)
        world.close()


@pytest.mark.long
def test_a_cleaned_log_folds_to_the_same_states_and_goes_on(platform: Platform) -> None:
    world, kafka = platform.world, platform.stack.dev.kafka
    forged = _forge_rivals(platform)
    assert _forged(_fold(world)) == forged  # before the planner has buried any of it, and the cleaner taken that away
    first_junk = _write_junk(platform)
    before = _fold(world)
    requests = len(raw.scan(kafka, REQUESTED))

    eventually(
        lambda: _roll_and_look(platform, first_junk) and len(raw.scan(kafka, REQUESTED)) < requests,
        every=ROUND_S,
        what="both topics are cleaned",
    )

    after = _fold(world)
    assert _digests(after) == _digests(before)
    assert _forged(after) <= forged  # a planner that saw one fork a run has buried it, and cleaning took it away
    assert after.void["key"] < before.void["key"]
    Saboteur(platform.stack, world.human, seed=1).do("kill", "planner")
    world.human.asleep.clear()
    eventually(lambda: not world.waiting(), what="the run that waited for a human")
    world.flush()
    eventually(lambda: world.judge().clean, what="the verdict")
    now = _digests(_fold(world))
    assert {run: digest for run, digest in _digests(before).items() if now[run] != digest}.keys() == {platform.doubtful}


def _forge_rivals(platform: Platform) -> int:
    """Writes, beside every third entry, another that extends the same head: right in itself, and too late."""
    entries = raw.scan(platform.stack.dev.kafka, LOG)
    records = [record for record in entries if record.value and anchor_name(record.key) is None]
    rivals = 0
    for record in records[::3]:
        entry = dataclasses.replace(codec.decode(Entry, record.value or b""), actor="zombie", nonce=bytes(16))
        name, value = codec.encode_entry(entry)
        platform.producer.produce(LOG, value, log_key(entry.run_id, entry.seq, name), record.partition)
        assert record.partition == home(entry.run_id, platform.world.settings.partitions)
        rivals += 1
    assert platform.producer.flush(60) == 0
    return rivals


def _write_junk(platform: Platform) -> dict[int, int]:
    """Writes void records behind the history of every partition; returns where the first of them lie."""
    for number in range(platform.world.settings.partitions):
        for _ in range(50):
            platform.producer.produce(LOG, b"?" * 100, JUNK, number)
    assert platform.producer.flush(60) == 0
    first: dict[int, int] = {}
    for record in raw.scan(platform.stack.dev.kafka, LOG):
        if record.key == JUNK:
            first.setdefault(record.partition, record.offset)
    return first


def _roll_and_look(platform: Platform, first_junk: dict[int, int]) -> bool:
    """Makes the broker close its segments; true when the cleaner has passed over the history of every partition."""
    for number in range(platform.world.settings.partitions):
        platform.producer.produce(LOG, b"?", JUNK, number)
        platform.producer.produce(REQUESTED, None, JUNK, number)
    assert platform.producer.flush(60) == 0
    there = {(record.partition, record.offset) for record in raw.scan(platform.stack.dev.kafka, LOG)}
    return not any(place in there for place in first_junk.items())


class Fold(LogFold):
    """The fold of all partitions, which keeps count of what is void."""

    def __init__(self) -> None:
        super().__init__()
        self.void: Counter[str] = Counter()


def _fold(world: World) -> Fold:
    fold = Fold()
    for record in KafkaLogReader(world.settings).scan(RUN_LOG):
        fold.void[fold.feed(record.key, record.value).void] += 1
    return fold


def _forged(fold: Fold) -> int:
    """What came too late: for the head of its run, or after the run's end."""
    return fold.void["raced"] + fold.void["over"]


def _digests(fold: Fold) -> dict[str, str]:
    return {run: state.digest() for run, state in fold.states.items()}
