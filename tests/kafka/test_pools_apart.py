"""An executor was taken over, on three brokers: nothing of another pool is read, answered, skipped or lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from refold.core.errors import UsageError
from refold.engine.adapters.kafka.log import KafkaEventLog
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.ports.log import Outgoing
from refold.engine.runtime.settings import KafkaSettings
from tests.embedded.secured import ADMIN
from tests.kafka.secured import PARTITIONS, SecuredCluster, membership
from tests.waiting import eventually

PREFIX = "apart."
THEIRS = ("tool-requested.default", "tool-claimed.default", "tool-completed.default")
SERVICES = ("run-stream.default", "dead-letter", "dead-letter-approval")
"""Where the executors of the pool, the planner and the approval service alone say something."""
GROUP = f"{PREFIX}refold-executor-default"

Settings = Callable[[str], KafkaSettings]


@pytest.fixture(scope="module")
def settings(secured_cluster: SecuredCluster) -> Settings:
    """Give the settings of a role where pool `default` has an order, a claim and a result."""
    secured_cluster.furnish(PREFIX)
    own = lambda role: secured_cluster.settings(role, PREFIX)  # noqa: E731
    for topic in THEIRS:
        KafkaPublisher(own(ADMIN), partitions=PARTITIONS).send_raw(topic, 0, key=b"r/1", value=b"{}", headers=[])
    return own


@pytest.mark.parametrize("topic", THEIRS)
@pytest.mark.parametrize("role", ["executor.model", "client", "approver", "approval"])
def test_nobody_else_reads_what_a_pool_is_asked_and_what_it_says(settings: Settings, role: str, topic: str) -> None:
    with pytest.raises(UsageError, match="grant this principal the ACLs"):
        list(KafkaLogReader(settings(role)).scan(topic))


@pytest.mark.parametrize("value", [b"{}", None], ids=["made up", "tombstone"])
@pytest.mark.parametrize("topic", [*THEIRS, *SERVICES])
def test_an_executor_neither_answers_for_another_pool_nor_orders_nor_clears_its_claims(
    settings: Settings, topic: str, value: bytes | None
) -> None:
    log = KafkaEventLog(settings("executor.model"), membership("executor.model"))

    with pytest.raises(UsageError, match=f"write to {PREFIX}{topic}.*grant this principal the ACLs"):
        log.append([Outgoing(topic, 0, b"r/1", value, [], 1)])

    log.close()


def test_an_executor_does_not_join_the_group_of_another_pool(settings: Settings) -> None:
    joined = Consumer({**_config(settings("executor.model")), "group.id": GROUP})
    joined.subscribe([f"{PREFIX}tool-requested.model"])

    message = eventually(lambda: joined.poll(0.1))

    error = message.error()
    assert error
    assert error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    joined.close()


def test_an_executor_does_not_skip_the_orders_of_another_pool(settings: Settings) -> None:
    admin = AdminClient(_config(settings("executor.model")))
    skipped = ConsumerGroupTopicPartitions(GROUP, [TopicPartition(f"{PREFIX}tool-requested.default", 0, 1)])

    with pytest.raises(KafkaException) as refused:
        admin.alter_consumer_group_offsets([skipped])[GROUP].result(60)

    assert refused.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def _config(settings: KafkaSettings) -> dict[str, str | int]:
    return {"bootstrap.servers": settings.bootstrap, "log_level": 0, **settings.options}
