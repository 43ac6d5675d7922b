"""A broker that is just back, as its clients see it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from refold.core.errors import UsageError
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.clients import Names
from refold.engine.adapters.kafka.offsets import bounds
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.adapters.kafka.trouble import Overdue
from refold.engine.runtime.settings import KafkaSettings
from tests.waiting import GIVE_UP_S


class Back:
    """Stands for the broker's answers: so many times it does not know its partitions yet."""

    def __init__(self, unknown: int) -> None:
        self._unknown = unknown

    def offsets_for_times(self, asked: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        self._unknown -= 1
        if self._unknown >= 0:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        return [TopicPartition(each.topic, each.partition, 7) for each in asked]

    def list_topics(self, topic: str, timeout: float) -> None: ...


def test_a_broker_that_does_not_know_its_partitions_yet_is_asked_again() -> None:
    ends = bounds(cast(Consumer, Back(unknown=3)), Names(""), [("run-log", 2)])

    assert ends == {("run-log", 2): 7}


def test_a_topic_that_stays_away_is_missing() -> None:
    with pytest.raises(UsageError, match="refold topics apply"):
        bounds(cast(Consumer, Back(unknown=1_000_000)), Names(""), [("run-log", 2)])


@pytest.mark.parametrize(
    ("code", "ends"), [(KafkaError._UNKNOWN_PARTITION, False), (KafkaError.UNKNOWN_TOPIC_OR_PART, True)]
)
def test_a_service_waits_for_a_broker_that_is_away_for_minutes_and_not_for_a_topic_that_a_broker_denies(
    code: int, ends: bool
) -> None:
    overdue = Overdue("ask where a topic ends")
    overdue.late(KafkaException(KafkaError(code)))
    overdue._since_s -= 600

    with pytest.raises(UsageError) if ends else nullcontext():
        overdue.late(KafkaException(KafkaError(code)))


ASKS = """
import sys, time
from refold.engine.adapters.kafka.groups import group_states
from refold.core.errors import RefoldError
from refold.engine.runtime.settings import KafkaSettings
while True:
    try:
        print(dict(group_states(KafkaSettings(bootstrap=sys.argv[1]), ["refold-planner"])["refold-planner"].committed))
        break
    except RefoldError:
        time.sleep(0.02)
"""


@pytest.mark.long
def test_positions_of_groups_are_asked_for_while_the_coordinator_of_a_broker_that_is_back_still_loads(
    tmp_path: Path,
) -> None:
    """The AdminClient of librdkafka 2.16 ended the asking process with SIGSEGV."""
    with EmbeddedKafka(tmp_path) as broker:
        settings = KafkaSettings(bootstrap=broker.bootstrap)
        Topics(settings).apply()
        asker = clients.consumer(settings, "refold-planner")
        asker.commit(offsets=[TopicPartition("refold.run-log", 0, 7)], asynchronous=False)
        asker.close()
        for _ in range(2):
            broker.kill()
            asking = subprocess.Popen([sys.executable, "-c", ASKS, broker.bootstrap], stdout=subprocess.PIPE, text=True)
            broker.start()
            said, _ = asking.communicate(timeout=GIVE_UP_S)

            assert (asking.returncode, said.strip()) == (0, "{('run-log', 0): 7}")
