"""What was refused or ignored for good leaves its topic: no planner without positions takes it up again."""

from __future__ import annotations

import json

import pytest

from refold.core.ids import RunId
from refold.core.messages import RunErased
from refold.core.run.erased import erased_key
from refold.core.topics import RUN_OPERATED, RUN_REQUESTED, RUN_SIGNALLED, RUN_SNAPSHOT
from refold.core.wire import codec
from tests.planner.clocked import Rig

MONTH_MS = 31 * 86_400_000
PEOPLE = (RUN_REQUESTED, RUN_SIGNALLED, RUN_OPERATED)


def left(rig: Rig, topic: str) -> list[bytes]:
    """The keys of which a topic still has something."""
    number = range(rig.broker.partitions)
    last = {record.key: record for n in number for record in rig.broker.log(topic, n).records}
    return [key or b"" for key, record in last.items() if record.value is not None]


def forgotten(rig: Rig) -> None:
    """A quiet month, the cleaner, and a planner that finds no positions."""
    rig.run(MONTH_MS)
    for topic in PEOPLE:
        for number in range(rig.broker.partitions):
            rig.broker.compact(topic, number)
    log = rig.broker.log(RUN_SNAPSHOT, 0)
    rig.broker.delete(RUN_SNAPSHOT, 0, below=log.end)
    rig.broker.groups["refold-planner"].committed.clear()
    rig.successor()
    rig.run(1_000)


@pytest.mark.parametrize("kind", ["cancel", "signal"])
def test_what_was_refused_a_month_ago_does_not_reach_a_run_that_has_its_id_by_now(kind: str) -> None:
    rig = Rig()
    if kind == "cancel":
        rig.signal("late", "cancel")
    else:
        rig.say_go("late")
    rig.run(60_000)
    assert [letter.code for letter in rig.letters()] == ["unknown_run"]

    rig.start("late", "told", None)
    rig.run(1_000)
    before = rig.kinds("late")
    forgotten(rig)

    assert rig.kinds("late") == before
    assert left(rig, RUN_SIGNALLED) == []


def test_a_cancel_that_was_ignored_as_its_run_had_failed_does_not_cancel_it_after_a_retry() -> None:
    rig = Rig()
    rig.start("r", "looking", {"what": "it"})
    rig.run(1_000)
    rig.answer(rig.take()[0], "broken")
    rig.run(600_000)
    assert rig.kinds("r")[-1] == "RunFailed"
    rig.signal("r", "cancel")
    rig.run(1_000)
    assert left(rig, RUN_SIGNALLED) == []

    failed = len(rig.kinds("r"))
    rig.operate("r", "retry", {"failure": failed})
    rig.run(1_000)
    forgotten(rig)

    assert "RunCancelled" not in rig.kinds("r")


@pytest.mark.parametrize(
    ("topic", "key", "value"),
    [
        (RUN_REQUESTED, "r", b"not JSON"),
        (RUN_REQUESTED, "another", json.dumps({"run_id": "r", "agent": "idling", "input": {}}).encode()),
        (RUN_SIGNALLED, "r/s", b"\x00\x00\x00\x00\x7fgarbage"),
        (RUN_SIGNALLED, "foreign", json.dumps({"run_id": "r", "signal_id": "s", "kind": "cancel"}).encode()),
        (RUN_OPERATED, "r/o", json.dumps({"run_id": "r", "signal_id": "o", "kind": "no such"}).encode()),
    ],
)
def test_nothing_of_a_refused_input_stays_under_whatever_key_it_came(topic: str, key: str, value: bytes) -> None:
    rig = Rig()
    rig.write(topic, key, value)

    rig.run(60_000)

    assert len(rig.letters()) == 1
    assert left(rig, topic) == []


def test_a_stray_leaves_the_partition_where_it_fell() -> None:
    rig = Rig(partitions=2)
    rig.start("r", "idling", {}, partition=0)
    rig.start("r", "idling", {}, partition=1)

    rig.run(1_000)

    assert rig.kinds("r")[-1] == "RunCompleted"
    kept = [number for number in range(2) if any(each.value for each in rig.broker.log(RUN_REQUESTED, number).records)]
    rig.broker.compact(RUN_REQUESTED, 0)
    rig.broker.compact(RUN_REQUESTED, 1)
    after = [number for number in range(2) if any(each.value for each in rig.broker.log(RUN_REQUESTED, number).records)]
    assert len(kept) == 2
    assert after == []


def test_an_input_is_not_done_before_its_tombstone_is_in_the_topic() -> None:
    rig = Rig(refuses={})
    rig.signal("nobody", "cancel")
    rig.run(60_000)
    written = [record.value for record in rig.broker.log(RUN_SIGNALLED, 0).records]

    assert written[0] is not None
    assert written[1:] == [None]
    assert rig.broker.groups["refold-planner"].committed[RUN_SIGNALLED, 0] == 2


def test_the_id_of_an_erased_run_is_known_in_the_planner_that_lived_as_in_its_successor() -> None:
    rig = Rig()
    rig.start("r", "idling", {})
    rig.run(60_000)
    kinds = rig.kinds("r")
    assert kinds[-1] == "RunCompleted"
    rig.write(RUN_SNAPSHOT, erased_key(RunId("r")).decode(), codec.encode(RunErased(RunId("r"))))
    rig.run(60_000)
    rig.write(RUN_SNAPSHOT, erased_key(RunId("r")).decode(), None)
    rig.run(60_000)

    rig.start("r", "idling", {})
    rig.run(1_000)
    lived = rig.kinds("r")
    rig.successor()
    rig.start("r", "idling", {})
    rig.run(60_000)

    assert lived == rig.kinds("r") == kinds
    assert rig.requests() == []
