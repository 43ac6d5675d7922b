"""Consumer groups of the broker: living members, their partitions and committed offsets."""

from collections.abc import Iterable
from contextlib import closing
from typing import Any, NamedTuple

from confluent_kafka import KafkaError

from refold.core.errors import UnreachableError
from refold.engine.adapters.kafka import clients, offsets
from refold.engine.adapters.kafka.errors import admin_result, translated
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
    listed = list(groups)
    try:
        return _described(settings, listed)
    except UnreachableError:
        # The first request to a cluster creates its topic of offsets, and its client never gets the answer.
        return _described(settings, listed)


def _described(settings: KafkaSettings, groups: list[str]) -> dict[str, GroupState]:
    # Positions first: they come from the same coordinators. An AdminClient that asks one which is away or still loading
    # ends the process (SIGABRT, SIGSEGV in librdkafka 2.16), and each restart of a broker is such a moment.
    admin = clients.admin(settings)  # a new one: an AdminClient stays with a coordinator that has moved
    names, committed = clients.Names(settings.prefix), dict[str, dict[Place, int]]()
    with translated("ask for the positions of groups"):
        topics = admin.list_topics(timeout=COORDINATOR_S).topics
        own = [topic for topic in topics if topic.startswith(names.prefix)]
        places = [(names.logical(topic), number) for topic in own for number in topics[topic].partitions]
        for group in groups:
            with closing(clients.consumer(settings, group)) as asker:  # never joins
                committed[group] = offsets.committed(asker, names, places, COORDINATOR_S)
    described = admin.describe_consumer_groups([names[group] for group in groups], request_timeout=COORDINATOR_S)
    states = {}
    for group, future in ((group, described[names[group]]) for group in groups):
        action, absent = f"ask who is in the group {names[group]}", KafkaError.GROUP_ID_NOT_FOUND
        members = getattr(admin_result(future, action, unless=absent), "members", ())
        states[group] = GroupState(tuple(map(_member, members)), committed[group])
    return states


def _member(member: Any) -> GroupMember:
    partitions = {place.partition for place in member.assignment.topic_partitions} if member.assignment else ()
    return GroupMember(member.client_id, member.host.lstrip("/"), tuple(sorted(partitions)))
