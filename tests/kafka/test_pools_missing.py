"""A pool whose topics are missing holds its own calls: planners go on, and they go out when the topics are made."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient

from refold.core.errors import NotFoundError, UsageError
from refold.core.ids import RunId
from refold.core.messages import RunRequest
from refold.core.topics import tool_completed, tool_requested
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka.log import KafkaEventLog
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.planner.service import Planner
from refold.engine.planner.settings import PlannerSettings
from refold.engine.runtime.host import Host
from refold.engine.runtime.settings import KafkaSettings
from tests.kafka.pools_app import app
from tests.waiting import eventually

BOTH = ("default", "model")


@dataclass
class Planning:
    """A planner of two pools that runs in a thread, and what it orders."""

    settings: KafkaSettings
    host: Host
    thread: threading.Thread

    def start(self, run: str) -> None:
        publisher = KafkaPublisher(self.settings, partitions=self.settings.partitions)
        publisher.send(RunRequest(RunId(run), "both", '{"word": "hi"}'))

    def ordered(self, pool: str) -> set[str]:
        """Runs of which calls are in the topic of a pool."""
        try:
            orders = list(KafkaLogReader(self.settings).scan(tool_requested(pool)))
        except (NotFoundError, UsageError):
            return set()
        return {(order.key or b"").decode().partition("/")[0] for order in orders if order.value}

    def await_order(self, run: str, pool: str) -> None:
        eventually(lambda: run in self.ordered(pool) or not self.thread.is_alive(), what=f"{run} in {pool}")
        assert self.thread.is_alive(), "the planner has ended"


@pytest.fixture
def planning(kafka: EmbeddedKafka) -> Iterator[Planning]:
    """Give a planner whose pool `model` has no topics."""
    settings = KafkaSettings(bootstrap=kafka.bootstrap, prefix=f"t{uuid4().hex}.", partitions=2)
    Topics(settings, BOTH[:1]).apply()
    own = PlannerSettings(settings.partitions, "planner-1", "test", pools=BOTH)
    stop, host = (
        threading.Event(),
        Host([Planner(app, own, lambda: os.urandom(16))], KafkaEventLog(settings, own.membership)),
    )
    thread = threading.Thread(target=host.run, args=(stop.is_set,))
    thread.start()
    yield Planning(settings, host, thread)
    stop.set()
    thread.join(60)


@pytest.mark.long
def test_the_calls_of_a_pool_without_topics_wait_until_they_are_made(planning: Planning) -> None:
    planning.start("early")
    planning.await_order("early", "default")
    assert planning.ordered("model") == set()
    assert planning.host.vitals.alarms["pool.missing"] == planning.settings.partitions

    Topics(planning.settings, BOTH).apply()

    planning.await_order("early", "model")
    planning.start("late")
    planning.await_order("late", "model")


@pytest.mark.long
@pytest.mark.parametrize("gone", [tool_requested, tool_completed])
def test_topics_of_a_pool_that_are_deleted_end_no_planner(planning: Planning, gone: Callable[[str], str]) -> None:
    Topics(planning.settings, BOTH).apply()
    planning.start("before")
    planning.await_order("before", "model")
    admin, name = (
        AdminClient({"bootstrap.servers": planning.settings.bootstrap}),
        planning.settings.prefix + gone("model"),
    )

    alarms = planning.host.vitals.alarms
    before = alarms["pool.missing"]

    admin.delete_topics([name])[name].result(60)
    planning.start("r")  # its order finds out
    eventually(lambda: alarms["pool.missing"] > before, what="the alarm")
    planning.start("meanwhile")
    planning.await_order("meanwhile", "default")
    Topics(planning.settings, BOTH).apply()

    planning.await_order("meanwhile", "model")


def test_only_an_executor_needs_the_topics_of_its_pool_to_start(kafka: EmbeddedKafka) -> None:
    settings = KafkaSettings(bootstrap=kafka.bootstrap, prefix=f"t{uuid4().hex}.", partitions=1)
    Topics(settings).apply()
    topics = Topics(settings, BOTH)

    topics.check(pools=False)
    with pytest.raises(UsageError, match="tool-requested.model is missing"):
        topics.check()
