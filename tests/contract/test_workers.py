"""Which workers live, and what waits for one, asked of a real broker: no report of a killed process counts as alive."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from refold.cli.commands.serve import presence
from refold.cli.commands.serve.presence import Presence
from refold.client.operations.workers import workers
from refold.client.reading.member import WorkerGroup, Workers
from refold.core.messages import Member, MemberAgent, MemberTool
from refold.core.topics import MEMBER, RUN_REQUESTED, executors, tool_requested
from refold.core.wire import codec
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka.log import KafkaEventLog
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.ports.log import Assigned, Membership
from refold.engine.runtime.clock import clock_ms
from refold.engine.runtime.settings import KafkaSettings, Settings
from tests.waiting import eventually

PLANNER = Member("p-1", "planner", "shop", 5, agents=[MemberAgent("order", "1", {"code": "c0de"})])
MAIL = Member("m-1", "executor", "shop", 5, "mail", tools=[MemberTool("send", "", "once", "mail", [], False, "")])


@pytest.fixture
def settings(kafka: EmbeddedKafka) -> KafkaSettings:
    own = KafkaSettings(bootstrap=kafka.bootstrap, prefix=f"w-{uuid.uuid4().hex[:8]}.", partitions=3)
    Topics(own, ("default", "mail")).apply()
    return own


def write(settings: KafkaSettings, topic: str, key: str, value: bytes | None, *, partition: int = 0) -> None:
    """Write a record as a service does."""
    publisher = KafkaPublisher(settings, partitions=3, source="test")
    publisher.send_raw(topic, partition, key=key.encode(), value=value, headers=())


@contextmanager
def living(settings: KafkaSettings, group: str, name: str, topic: str) -> Iterator[KafkaEventLog]:
    """A member of a group that has all partitions."""
    with closing(KafkaEventLog(settings, Membership(group, name, (topic,)))) as log:
        numbers = set[int]()

        def placed() -> bool:
            numbers.update(each.partition for each in log.take(10, 0.02).rebalances if isinstance(each, Assigned))
            return len(numbers) == 3

        eventually(placed, what="the partitions")
        yield log


def group(found: Workers, name: str) -> WorkerGroup:
    """The group of a role and pool, as people call it."""
    return next(each for each in found.groups if each.name == name)


def test_a_platform_that_nothing_runs_lacks_a_planner_and_nothing_else(settings: KafkaSettings) -> None:
    found = workers(settings)

    assert [each.name for each in found.groups if each.missing] == ["planner"]
    assert group(found, "planner").unserved == [0, 1, 2]
    assert {each.pool for each in found.groups if not each.members} == {"", "default", "mail"}


def test_a_killed_worker_is_gone_though_its_report_stays_and_a_living_one_is_there(settings: KafkaSettings) -> None:
    for member in (PLANNER, MAIL):
        write(settings, MEMBER, member.name, codec.encode(member))

    with living(settings, "refold-planner", "p-1", RUN_REQUESTED):
        found = workers(settings)

    rows = {each.member: each for each in found.workers}
    assert (rows["p-1"].alive, rows["p-1"].partitions, rows["p-1"].versions) == (True, [0, 1, 2], ["order 1"])
    assert rows["p-1"].host
    assert (rows["m-1"].alive, rows["m-1"].pool, rows["m-1"].seen_ms > 5) == (False, "mail", True)
    assert [each.name for each in found.groups if each.missing] == ["executor of pool mail"]
    assert group(found, "executor of pool mail").command == "refold serve executor --app APP --pool mail"


def test_the_slots_in_use_of_an_executor_are_reported_when_they_change(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "SLOTS_S", 0.05)
    member, used, topic = replace(MAIL, slots=4), [3], tool_requested("mail")

    def loads() -> list[tuple[int | None, str]]:
        return [(each.slots_used, each.load) for each in workers(settings).workers if each.member == "m-1"]

    write(settings, MEMBER, member.name, codec.encode(member))
    assert loads() == [(None, "4")]  # a version that reports no number
    with (
        living(settings, executors("mail"), "m-1", topic),
        Presence(Settings(kafka=settings), member, first_s=0, slots_used=lambda: used[0]),
    ):
        eventually(lambda: loads() == [(3, "3 / 4")], what="the first report")
        used[0] = 0
        eventually(lambda: loads() == [(0, "0 / 4")], what="the change")


def test_what_nobody_takes_is_counted_with_its_age_and_what_was_taken_back_is_not(settings: KafkaSettings) -> None:
    write(settings, tool_requested("mail"), "r-1/1", b"call")
    write(settings, tool_requested("mail"), "r-2/1", b"call", partition=1)
    write(settings, tool_requested("mail"), "r-2/1", None, partition=1)
    write(settings, RUN_REQUESTED, "r-3", b"run")

    found = workers(settings)

    mail = group(found, "executor of pool mail")
    assert (mail.waiting, mail.missing, group(found, "planner").waiting) == (1, True, 1)
    assert 0 <= mail.oldest_s < 60
    assert not group(found, "executor of pool default").missing


def test_what_a_group_has_committed_waits_no_more_and_what_follows_is_its_lag(settings: KafkaSettings) -> None:
    topic = tool_requested("mail")
    for number in (1, 2, 3):
        write(settings, topic, f"r-{number}/1", b"call")

    with living(settings, executors("mail"), "m-1", topic) as log:
        log.commit({(topic, 0): 2})

        def committed() -> Workers | None:
            log.take(1, 0.02)
            return found if group(found := workers(settings), "executor of pool mail").lag else None

        found = eventually(committed, what="the commit")

    mail = group(found, "executor of pool mail")
    assert (mail.waiting, mail.lag, mail.members, mail.unserved) == (1, {topic: 1}, 1, [])


def test_the_age_of_what_may_not_be_read_is_known_to_the_second(settings: KafkaSettings) -> None:
    topic, reader = tool_requested("mail"), KafkaLogReader(settings)
    for number in (1, 2):
        write(settings, topic, f"r-{number}/1", b"call")
    write(settings, topic, "r-3/1", b"call", partition=2)
    times = {(record.partition, record.offset): record.at_ms for record in reader.scan(topic)}

    found = [reader.appended_ms(topic, at, clock_ms()) for at in ({0: 0, 2: 0}, {0: 1}, {2: 0})]

    assert [abs(ms - times[at]) <= 1_000 for ms, at in zip(found, [(0, 0), (0, 1), (2, 0)], strict=True)] == [True] * 3
