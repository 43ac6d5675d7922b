"""The offsets of a group are gone when the campaign says so, and not before all members are."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from refold.dev.kafka import EmbeddedKafka
from tests.chaos.groups import committed, forget
from tests.waiting import eventually


def test_a_group_is_forgotten_as_soon_as_nobody_is_in_it(kafka: EmbeddedKafka) -> None:
    topic = group = "chaos-forgotten"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    (made,) = admin.create_topics([NewTopic(topic, 2, 1)]).values()
    made.result(20)
    member = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "enable.auto.commit": False})
    member.subscribe([topic])
    eventually(lambda: member.poll(0.1) is None and len(member.assignment()) == 2, within=60)
    member.commit(offsets=[TopicPartition(topic, number, 0) for number in range(2)], asynchronous=False)

    while_it_has_a_member = forget(kafka.bootstrap, group, within=3)
    before = committed(kafka.bootstrap, group, topic)
    member.close()

    assert forget(kafka.bootstrap, group, within=60)
    assert not while_it_has_a_member
    assert before == 2
    assert committed(kafka.bootstrap, group, topic) == 0
