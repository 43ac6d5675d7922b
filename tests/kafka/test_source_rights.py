"""A source works on a cluster with rights, as the principal that has its role's and those on one topic and group."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from refold import App
from refold.core.topics import DEAD_LETTER, DEAD_LETTER_SOURCE, RUN_LOG, RUN_REQUESTED
from refold.engine.adapters.kafka.acls import may_write
from refold.engine.adapters.kafka.foreign import ForeignTopic
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.runtime.gauges import Vitals
from refold.engine.runtime.settings import Settings
from tests.embedded.secured import ADMIN
from tests.kafka.secured import SecuredCluster
from tests.kafka.test_foreign import fulfil, started
from tests.waiting import eventually

PREFIX, TOPIC, GROUP = "sourced.", "bought", "shop-refold"


@pytest.mark.long
def test_a_source_has_the_rights_that_it_needs_and_no_more(secured_cluster: SecuredCluster) -> None:
    secured_cluster.furnish(PREFIX)
    config: dict[str, str | int | float | bool] = {
        "bootstrap.servers": secured_cluster.kafka.bootstrap,
        **secured_cluster.options(ADMIN),
    }
    admin, read = AdminClient(config), (AclOperation.READ, AclPermissionType.ALLOW)
    admin.create_topics([NewTopic(TOPIC, 2, 3)])[TOPIC].result(60)
    for kind, name in ((ResourceType.TOPIC, TOPIC), (ResourceType.GROUP, GROUP)):
        rule = AclBinding(kind, name, ResourcePatternType.LITERAL, "User:refold-source", "*", *read)
        admin.create_acls([rule])[rule].result(60)
    producer = Producer(config)
    for number in range(10):
        producer.produce(TOPIC, json.dumps({"n": number, "pad": ""}) if number else "{")
    assert producer.flush(60) == 0
    app, settings = App("shop"), secured_cluster.settings("source", PREFIX)
    app.agent(fulfil)
    app.source(TOPIC, group=GROUP)(started)
    reader = KafkaLogReader(secured_cluster.settings("operator", PREFIX))

    Topics(settings, ()).check()
    topic, before = ForeignTopic(Settings(kafka=settings), app.sources[TOPIC], "one", Vitals()), _count(reader)
    eventually(lambda: not topic.turn(0.1) and _count(reader) == (before[0] + 9, before[1] + 1))
    topic.close()

    assert not may_write(settings, DEAD_LETTER)
    assert not may_write(settings, RUN_LOG)


def _count(reader: KafkaLogReader) -> tuple[int, int]:
    """How many requests and letters of sources there are."""
    requests, letters = (sum(1 for _ in reader.scan(topic)) for topic in (RUN_REQUESTED, DEAD_LETTER_SOURCE))
    return requests, letters
