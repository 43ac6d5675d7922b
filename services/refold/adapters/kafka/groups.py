"""Consumer groups of the broker: living members, their partitions and committed offsets."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException

from refold.adapters.kafka import clients
from refold.adapters.kafka.errors import of, translate
from refold.core.errors import UnreachableError
from refold.ports.log import Place
from refold.runtime.settings import KafkaSettings

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
        return _asked(settings, names)
    except UnreachableError:
        # The first request to a cluster creates its topic of offsets, and its client never gets the answer.
        return _asked(settings, names)


def _asked(settings: KafkaSettings, names: list[str]) -> dict[str, GroupState]:
    admin = clients.admin(settings)  # a new one: an AdminClient stays with a coordinator that has moved
    described = admin.describe_consumer_groups(names, request_timeout=COORDINATOR_S)
    asked = {name: [ConsumerGroupTopicPartitions(name)] for name in names}
    offsets = {
        name: admin.list_consumer_group_offsets(asked[name], request_timeout=COORDINATOR_S)[name] for name in names
    }
    found, prefix = dict[str, GroupState](), settings.prefix
    for name in names:
        members = getattr(_answer(described[name], name), "members", ())
        committed = getattr(_answer(offsets[name], name), "topic_partitions", None) or ()
        positions = {(at.topic.removeprefix(prefix), at.partition): at.offset for at in committed if at.offset >= 0}
        found[name.removeprefix(prefix)] = GroupState(tuple(map(_member, members)), positions)
    return found


def _member(member: Any) -> GroupMember:
    partitions = {each.partition for each in member.assignment.topic_partitions} if member.assignment else ()
    return GroupMember(member.client_id, member.host.lstrip("/"), tuple(sorted(partitions)))


def _answer(future: Future[Any], name: str) -> Any:
    try:
        return future.result()
    except KafkaException as error:
        if of(error).code() == KafkaError.GROUP_ID_NOT_FOUND:
            return None
        raise translate(error, f"ask who is in the group {name}") from None
