"""A planner that is told to leave leaves nothing behind that its successor would have to tell a second time."""

from __future__ import annotations

import os
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from refold.core.messages import RunRequest
from refold.core.topics import RUN_COMPLETED
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka.log import KafkaEventLog
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.planner.service import Planner
from refold.engine.planner.settings import PlannerSettings
from refold.engine.runtime.host import Host
from refold.engine.runtime.settings import KafkaSettings
from tests.planner.clocked import Rig, app
from tests.waiting import eventually


def leave(rig: Rig) -> list[bool]:
    """What the planner says each time that it is asked whether it has drained."""
    said = [rig.planner.drain()]
    for _ in range(5):
        rig.turn()
        said.append(rig.planner.drain())
    return said


@pytest.mark.parametrize("drains", [True, False])
def test_an_outcome_is_published_once_when_a_planner_leaves(drains: bool) -> None:
    rig = Rig()
    rig.run(10)
    for number in range(5):
        rig.start(f"r{number}", "idling", {})
    rig.run(10)

    said = leave(rig) if drains else []
    rig.successor()
    rig.run(10)

    assert len(rig.outcomes()) == (5 if drains else 10)  # without, the last half second is told twice
    assert said == [False, True, True, True, True, True] * drains


def test_who_leaves_decides_nothing_more_and_loses_nothing() -> None:
    rig = Rig()
    rig.run(10)
    rig.planner.drain()
    rig.start("r", "idling", {})
    rig.run(1_000)
    before = rig.kinds("r")

    rig.successor()
    rig.run(10)

    assert before == []
    assert rig.kinds("r")[-1] == "RunCompleted"


def test_who_leaves_waits_for_what_is_not_acknowledged() -> None:
    rig = Rig()
    rig.run(10)
    rig.silent = 1
    rig.start("r", "looking", {"what": "it"})
    rig.turn()
    while not rig.requests():
        rig.turn()

    said = leave(rig)

    assert said[0] is False
    assert said[-1] is True
    assert len(rig.requests()) == 2  # the first publish had no answer, so it went out again


@contextmanager
def served(kafka: KafkaSettings, member: str) -> Iterator[Planner]:
    """A planner on a real broker, which leaves in the end as SIGTERM lets it."""
    settings = PlannerSettings(kafka.partitions, member, "test")
    planner, stop = Planner(app, settings, lambda: os.urandom(16)), threading.Event()
    host = Host([planner], KafkaEventLog(kafka, settings.membership))
    thread = threading.Thread(target=host.run, args=(stop.is_set,), kwargs={"grace_s": 30.0})
    thread.start()
    try:
        yield planner
    finally:
        stop.set()
        thread.join(60)


def test_planners_that_follow_each_other_publish_every_outcome_once(kafka: EmbeddedKafka) -> None:
    settings = KafkaSettings(bootstrap=kafka.bootstrap, prefix=f"leaving-{uuid.uuid4().hex[:8]}.", partitions=2)
    Topics(settings).apply()
    publisher = KafkaPublisher(settings, partitions=2)

    def told() -> Counter[bytes | None]:
        return Counter(record.key for record in KafkaLogReader(settings).scan(RUN_COMPLETED))

    def told_of(runs: int) -> bool:
        return len(told()) == runs

    for number in range(4):
        with served(settings, f"planner-{number}") as planner:
            eventually(lambda: planner.counts["lane.live"] == 2, within=60)
            for run in range(10):
                publisher.send(RunRequest(f"r-{number}-{run}", "idling"))
            eventually(partial(told_of, 10 * (number + 1)), within=60)

    assert set(told().values()) == {1}
