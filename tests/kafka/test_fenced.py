"""A member that its coordinator fences after an outage joins again: no other process need have its name."""

from __future__ import annotations

from uuid import uuid4

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient, NewTopic

from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka.log import KafkaEventLog
from refold.engine.ports.log import Assigned, Membership
from refold.engine.runtime.settings import KafkaSettings
from tests.waiting import eventually


def assigned(log: KafkaEventLog) -> bool:
    return any(isinstance(change, Assigned) for change in log.take(10, 0.05).rebalances)


def test_a_member_that_is_fenced_after_an_outage_joins_again(kafka: EmbeddedKafka) -> None:
    name = f"t{uuid4().hex}"
    new = NewTopic(f"{name}.asked", 1, 1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([new])[new.topic].result(60)
    settings, membership = (
        KafkaSettings(bootstrap=kafka.bootstrap, prefix=f"{name}."),
        Membership(name, "a", ("asked",)),
    )
    member = KafkaEventLog(settings, membership)
    eventually(lambda: assigned(member), what="a place in the group")
    member._group._on_error(1, KafkaError(KafkaError._TRANSPORT))  # as librdkafka reports a broker that is away

    other = KafkaEventLog(settings, membership)  # what a coordinator makes of a join whose answer was lost
    eventually(lambda: assigned(other), what="the place for the newer one")

    eventually(lambda: assigned(member), what="the place once more")
    assert member.depth().placed
    member.close()
    other.close()
