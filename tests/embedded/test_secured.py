"""Three brokers with users: they know who one is, deny by default, and outlive one of them."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from refold.core.errors import UsageError
from tests.embedded.secured import ADMIN, SecuredKafka
from tests.kafka.secured import OUTSIDER, SecuredCluster
from tests.waiting import eventually


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """Give a cluster of this file's own, to be killed."""
    with SecuredKafka(tmp_path_factory.mktemp("secured"), ["reader"]) as running:
        yield running
        running.kill()


@pytest.fixture
def shared(secured_cluster: SecuredCluster) -> SecuredKafka:
    """Give the cluster that many tests share, not to be killed."""
    return secured_cluster.kafka


def config(cluster: SecuredKafka, user: str = ADMIN) -> dict[str, Any]:
    return {"bootstrap.servers": cluster.bootstrap, "log_level": 0, **cluster.client_options(user)}


def create(cluster: SecuredKafka, topic: str) -> None:
    new = NewTopic(topic, 1, 3, config={"min.insync.replicas": "2"})
    admin = AdminClient(config(cluster))
    admin.create_topics([new])[topic].result(60)


def write(cluster: SecuredKafka, topic: str, value: bytes, *, user: str = ADMIN) -> KafkaError | None:
    """Append one record; the error if it was refused."""
    told: list[KafkaError | None] = []
    producer = Producer({**config(cluster, user), "acks": "all"})
    producer.produce(topic, value, on_delivery=lambda error, _: told.append(error))
    producer.flush(60)
    (error,) = told
    return error


def read(cluster: SecuredKafka, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({**config(cluster), "group.id": "reader"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [record.value() for record in consumer.consume(count, timeout=60)]
    finally:
        consumer.close()


def test_a_user_may_log_in_and_may_do_nothing_until_it_is_given_a_right(shared: SecuredKafka) -> None:
    create(shared, "closed")

    error = write(shared, "closed", b"x", user=OUTSIDER)

    assert error
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert AdminClient(config(shared, OUTSIDER)).list_topics(timeout=60).topics == {}
    assert write(shared, "closed", b"x") is None


@pytest.mark.parametrize("change", [{"sasl.password": "guessed"}, {"sasl.username": "nobody"}])
def test_a_stranger_cannot_log_in(shared: SecuredKafka, change: dict[str, str]) -> None:
    errors: list[int] = []
    settings: dict[str, Any] = {**config(shared), **change}
    settings["error_cb"] = lambda error: errors.append(error.code())
    of_other_pool = AdminClient(settings)

    eventually(lambda: of_other_pool.poll(0.1) or KafkaError._AUTHENTICATION in errors)
    with pytest.raises(KafkaException):
        of_other_pool.list_topics(timeout=0.5)


def test_without_a_login_nothing_is_answered(shared: SecuredKafka) -> None:
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": shared.bootstrap, "log_level": 0}).list_topics(timeout=0.5)


@pytest.mark.long
def test_a_record_is_acknowledged_and_read_while_one_of_three_is_dead(secured: SecuredKafka) -> None:
    create(secured, "copied")
    assert write(secured, "copied", b"all alive") is None

    secured.nodes[0].kill()
    error = write(secured, "copied", b"two alive")
    there = read(secured, "copied", 2)
    secured.nodes[0].start()

    assert error is None
    assert there == [b"all alive", b"two alive"]


def test_a_user_that_is_not_there_is_named(shared: SecuredKafka) -> None:
    with pytest.raises(UsageError, match=f"no user 'ghost'.*admin, .*{OUTSIDER}"):
        shared.client_options("ghost")


def test_nobody_else_on_the_machine_can_read_the_passwords(shared: SecuredKafka) -> None:
    folder = shared.nodes[0].data_dir.parent
    word = shared.client_options(ADMIN)["sasl.password"]

    holding = [
        path for path in folder.rglob("*") if path.suffix in (".json", ".properties") and word in path.read_text()
    ]

    assert {path.name for path in holding} == {"passwords.json", "server.properties"}
    assert {stat.S_IMODE(Path(path).stat().st_mode) for path in holding} == {0o600}


# The last one: it leaves the cluster stopped.


@pytest.mark.long
def test_another_object_on_the_folder_finds_ports_users_and_records(secured: SecuredKafka) -> None:
    create(secured, "stays")
    assert write(secured, "stays", b"here") is None
    secured.stop()

    folder = secured.nodes[0].data_dir.parent
    with SecuredKafka(folder, ["somebody else"]) as second:
        assert second.bootstrap == secured.bootstrap
        assert second.users == secured.users == (ADMIN, "reader")
        assert second.client_options("reader") == secured.client_options("reader")
        assert read(second, "stays", 1) == [b"here"]
        second.kill()
