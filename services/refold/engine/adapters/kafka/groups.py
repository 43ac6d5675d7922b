"""Consumer groups of the broker: living members, their partitions and committed offsets."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from refold.core.errors import UnreachableError
from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.errors import of, translate
from refold.engine.ports.log import Place
from refold.engine.runtime.settings import KafkaSettings

COORDINATOR_S = 5.0
"""Longest wait for coordinators, whose move takes a second or two."""


class GroupMember(NamedTuple):
    """Living member of a group; `host` is its address as the broker sees it."""

    name: str
    host: str
    partitions: tuple[int, ...]


class GroupState(NamedTuple):
    members: tuple[GroupMember, ...]
    committed: dict[Place, int]


def group_states(settings: KafkaSettings, groups: Iterable[str]) -> dict[str, GroupState]:
    """State of each group; empty if it never had members. **Raises** UnreachableError."""
    names = [settings.prefix + group for group in groups]
    try:
        return _described(settings, names)
    except UnreachableError:
        # The first request to a cluster creates its topic of offsets, and its client never gets the answer.
        return _described(settings, names)


def _described(settings: KafkaSettings, names: list[str]) -> dict[str, GroupState]:
    # Positions first: they come from the same coordinators. An AdminClient that asks one which is away or still loading
    # ends the process (SIGABRT, SIGSEGV in librdkafka 2.16), and each restart of a broker is such a moment.
    admin = clients.admin(settings)  # a new one: an AdminClient stays with a coordinator that has moved
    try:
        topics, prefix = admin.list_topics(timeout=COORDINATOR_S).topics, settings.prefix
        own = (topic for topic in topics if topic.startswith(prefix))
        places = [TopicPartition(topic, number) for topic in own for number in topics[topic].partitions]
        committed = {name: _committed(settings, name, places) for name in names}
    except KafkaException as error:
        raise translate(error, "ask for the positions of groups") from None
    described = admin.describe_consumer_groups(names, request_timeout=COORDINATOR_S)
    members = {name: getattr(_answer(described[name], name), "members", ()) for name in names}
    return {
        name.removeprefix(prefix): GroupState(tuple(map(_member, members[name])), committed[name]) for name in names
    }


def _committed(settings: KafkaSettings, name: str, places: list[TopicPartition]) -> dict[Place, int]:
    asker = clients.consumer(settings, name.removeprefix(settings.prefix))  # never joins
    try:
        answers = asker.committed(places, timeout=COORDINATOR_S)
    finally:
        asker.close()
    return {(at.topic.removeprefix(settings.prefix), at.partition): at.offset for at in answers if at.offset >= 0}


def _member(member: Any) -> GroupMember:
    partitions = {place.partition for place in member.assignment.topic_partitions} if member.assignment else ()
    return GroupMember(member.client_id, member.host.lstrip("/"), tuple(sorted(partitions)))


def _answer(future: Future[Any], name: str) -> Any:
    try:
        return future.result()
    except KafkaException as error:
        if of(error).code() == KafkaError.GROUP_ID_NOT_FOUND:
            return None
        raise translate(error, f"ask who is in the group {name}") from None
