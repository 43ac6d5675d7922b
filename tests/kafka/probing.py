"""What a broker lets somebody do: every question asked by a real client that is logged in as that somebody."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.waiting import eventually

TOPIC_OPERATIONS = (
    "write",
    "read",
    "describe",
    "describe_configs",
    "create",
    "alter_configs",
    "alter",
    "delete",
)
"""All that Kafka's ACLs know of topics."""

GROUP_OPERATIONS = ("read", "describe", "delete")
ALLOWED = "allowed"
DENIED = {"topic": "TOPIC_AUTHORIZATION_FAILED", "group": "GROUP_AUTHORIZATION_FAILED"}

_ANSWER_S = 60.0
_AS_GOOD = {"TOPIC_ALREADY_EXISTS", "GROUP_ID_NOT_FOUND"}
"""What only somebody is told who would have been allowed to."""

_NOT_YET = {
    *("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "NOT_CONTROLLER"),
    *("LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "REQUEST_TIMED_OUT", "_TIMED_OUT", "_TRANSPORT"),
}
"""No word about rights: a broker that is busy, or not the one to ask, wants to be asked again."""

Outcomes = dict[tuple[str, str], str]
"""By operation and name: `ALLOWED`, or the name of the error."""


class Probe:
    """Asks for one user. `group` is where this user's readers belong; `place` is a topic that may be committed for."""

    def __init__(self, config: Mapping[str, str], *, group: str, place: str) -> None:
        self._config: dict[str, Any] = {**config, "log_level": 0}
        self._group, self._place = group, place
        self._admin = AdminClient(self._config)

    def topics(self, names: list[str]) -> Outcomes:
        """Every operation on every topic. What would change or destroy something comes last, or is only checked."""
        admin = self._admin
        resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in names}
        change = ConfigEntry("retention.bytes", "-1", incremental_operation=AlterConfigOpType.SET)
        changes = [ConfigResource(ResourceType.TOPIC, name, incremental_configs=[change]) for name in names]
        new, more = [NewTopic(name, 3, 3) for name in names], [NewPartitions(name, 4) for name in names]
        ask: dict[str, Callable[[], dict[str, str]]] = {
            "write": lambda: self.write(names),
            "describe": lambda: self._describe(names),
            "read": lambda: self._read(names),
            "describe_configs": lambda: _named(admin.describe_configs(list(resources.values()))),
            "alter_configs": lambda: _named(admin.incremental_alter_configs(changes, validate_only=True)),
            "create": lambda: _answers(admin.create_topics(new, validate_only=True)),
            "alter": lambda: _answers(admin.create_partitions(more, validate_only=True)),
            "delete": lambda: _answers(admin.delete_topics(names)),
        }
        return _told(ask)

    def groups(self, names: list[str]) -> Outcomes:
        """Every operation on every group. To commit is what members do, so it stands for `read`."""
        ask: dict[str, Callable[[], dict[str, str]]] = {
            "read": lambda: {name: self._commit(name) for name in names},
            "describe": lambda: _answers(self._admin.describe_consumer_groups(names)),
            "delete": lambda: _answers(self._admin.delete_consumer_groups(names)),
        }
        return _told(ask)

    def write(self, names: Iterable[str]) -> dict[str, str]:
        """A record each, acknowledged or refused."""
        producer, found = Producer({**self._config, "acks": "all"}), dict[str, str]()
        for name in names:

            def told(error: KafkaError | None, _: object, name: str = name) -> None:
                found[name] = error.name() if error else ALLOWED

            try:
                producer.produce(name, b"probe", b"probe", partition=0, on_delivery=told)
            except KafkaException as error:  # where the client has learned of the refusal before it is asked
                told(error.args[0], None)
        assert producer.flush(_ANSWER_S) == 0
        return found

    def _describe(self, names: list[str]) -> dict[str, str]:
        errors = {name: self._admin.list_topics(name, timeout=_ANSWER_S).topics[name].error for name in names}
        return {name: error.name() if error else ALLOWED for name, error in errors.items()}

    def _read(self, names: list[str]) -> dict[str, str]:
        """A record each, or why none came.

        Where a topic may not even be seen, a client never learns whom to ask for its records: the refusal to tell is
        the answer then, and a record that came all the same would replace it.
        """
        found = {name: answer for name, answer in self._describe(names).items() if answer != ALLOWED}
        consumer = Consumer({**self._config, "group.id": self._group, "enable.auto.commit": False})
        consumer.assign([TopicPartition(name, 0, 0) for name in names])
        deadline = time.monotonic() + _ANSWER_S
        try:
            while found.keys() != set(names):
                assert time.monotonic() < deadline, f"no answer about {set(names) - found.keys()}"
                message = consumer.poll(0.1)
                if message is not None and (topic := message.topic()):
                    error = message.error()
                    found[topic] = error.name() if error else ALLOWED
            return found
        finally:
            consumer.close()

    def _commit(self, group: str) -> str:
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(self._place, 0, 0)])
        (future,) = self._admin.alter_consumer_group_offsets([asked]).values()
        try:
            (place,) = future.result(_ANSWER_S).topic_partitions
        except KafkaException as error:
            return str(error.args[0].name())
        return place.error.name() if place.error else ALLOWED


def _told(ask: Mapping[str, Callable[[], dict[str, str]]]) -> Outcomes:
    """The answers to every operation, in this order, each asked again until it speaks of rights."""
    found = {
        name: eventually(partial(_of_rights, question), what=f"an answer to {name}") for name, question in ask.items()
    }
    return {(operation, name): answer for operation, answers in found.items() for name, answer in answers.items()}


def _of_rights(question: Callable[[], dict[str, str]]) -> dict[str, str] | None:
    answers = question()
    return None if _NOT_YET & set(answers.values()) else answers


def _named(answers: dict[ConfigResource, Future[Any]]) -> dict[str, str]:
    return _answers({resource.name: future for resource, future in answers.items()})


def _answers(futures: Mapping[str, Future[Any]]) -> dict[str, str]:
    return {name: _answer(future) for name, future in futures.items()}


def _answer(future: Future[Any]) -> str:
    try:
        future.result(_ANSWER_S)
    except KafkaException as error:
        name = str(error.args[0].name())
        return ALLOWED if name in _AS_GOOD else name
    return ALLOWED
