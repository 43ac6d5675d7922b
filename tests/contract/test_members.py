"""The report of a member on a broker: there while it serves, gone when it has left, and still there after a crash."""

from __future__ import annotations

import uuid

import pytest

from refold.cli.commands.serve.presence import Presence
from refold.client.reading.member import ServedBy, agents_served
from refold.core.messages import Member, MemberAgent
from refold.core.topics import MEMBER
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.runtime.settings import KafkaSettings, Settings
from tests.waiting import eventually


@pytest.fixture
def settings(kafka: EmbeddedKafka) -> Settings:
    own = KafkaSettings(bootstrap=kafka.bootstrap, prefix=f"member-{uuid.uuid4().hex[:8]}.", partitions=3)
    Topics(own).apply()
    return Settings(kafka=own)


def serving(settings: Settings) -> list[ServedBy]:
    """The members that report to have the agent."""
    rows = agents_served(KafkaLogReader(settings.kafka).scan(MEMBER))
    return [by for row in rows for by in row.members]


def member(name: str) -> Member:
    return Member(name, "planner", "shop", 5, agents=[MemberAgent("order", "1", {"code": "c0de"})])


def test_a_member_is_listed_while_it_serves(settings: Settings) -> None:
    with Presence(settings, member("p.1"), first_s=0):
        with Presence(settings, member("p-2"), first_s=0):
            eventually(lambda: len(serving(settings)) == 2)
        assert [by.member for by in serving(settings)] == ["p.1"]
        assert serving(settings)[0].reported_ms > serving(settings)[0].started_ms

    assert serving(settings) == []


def test_the_report_of_a_member_that_crashes_stays(settings: Settings) -> None:
    def crash() -> None:
        with Presence(settings, member("p-1"), first_s=0):
            eventually(lambda: serving(settings))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        crash()

    assert [by.member for by in serving(settings)] == ["p-1"]
