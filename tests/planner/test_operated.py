"""What operators say is heard however much users say, and what users say of others' runs is not."""

from __future__ import annotations

import json

import pytest

from refold.core.run.erased import read_hold
from refold.core.topics import RUN_OPERATED, RUN_SIGNALLED, RUN_SNAPSHOT
from refold.engine.planner.intake.inbox import Inbox
from refold.engine.planner.settings import Limits
from refold.engine.ports.log import Record
from tests.planner.clocked import Rig

LARGE = 60_000


def vain(number: int) -> bytes:
    """What somebody says of a run that there is not: nobody knows that before long."""
    said = {"run_id": f"no-{number}", "signal_id": "s", "kind": "cancel", "actor": "eve", "data": "x" * LARGE}
    return json.dumps(said).encode()


def test_an_operator_is_heard_while_users_flood_their_topic() -> None:
    rig = Rig(waiting=100)
    rig.start("r", "looking", {"what": "it"})
    rig.run(10)
    [lane] = rig.planner.lanes
    for number in range(50):
        rig.write(RUN_SIGNALLED, f"no-{number}/s", vain(number))
        if number % 5 == 0:
            rig.turn()
    full = lane.inbox.full(RUN_SIGNALLED)
    rig.signal("r", "cancel")  # behind all of that
    rig.operate("r", "cancel")

    for _ in range(3):
        rig.turn()

    assert full
    assert lane.inbox.read(RUN_SIGNALLED) < rig.broker.log(RUN_SIGNALLED, 0).end
    assert rig.kinds("r")[-1] == "RunCancelled"


def test_of_what_came_together_operators_are_answered_first() -> None:
    inbox = Inbox((RUN_SIGNALLED, RUN_OPERATED), Limits())
    for topic in (RUN_SIGNALLED, RUN_OPERATED):
        inbox.take(Record(topic, 0, 0, b"k", b"{}", lambda: None))
    inbox.begin(0, 1_000)  # users have had their share

    assert inbox.answerable
    assert inbox.next_due_ms() == 0
    first = inbox.pop().record
    assert first is not None
    assert first.topic == RUN_OPERATED
    assert not inbox.answerable


@pytest.mark.parametrize("topic", [RUN_SIGNALLED, RUN_OPERATED])
def test_no_run_starts_before_both_were_heard_to_their_ends(topic: str) -> None:
    rig = Rig()
    rig.start("r", "looking", {"what": "it"})
    (rig.signal if topic == RUN_SIGNALLED else rig.operate)("r", "cancel")
    rig.turn()
    rig.log.pause(topic, 0)
    rig.run(1_000)
    unheard = rig.kinds("r")
    rig.log.resume(topic, 0)

    rig.run(1_000)

    assert unheard == []
    assert rig.kinds("r") == ["RunRequested", "RunCancelled"]


def test_what_operators_say_of_a_run_that_is_not_known_waits_for_it_and_positions_with_it() -> None:
    rig = Rig()
    rig.operate("r", "cancel")
    rig.start("r", "looking", {"what": "it"})

    rig.run(5_000)

    assert rig.kinds("r") == ["RunRequested", "RunCancelled"]
    assert rig.broker.groups["refold-planner"].committed[RUN_OPERATED, 0] == 1


def test_a_successor_does_not_hear_it_again() -> None:
    rig = Rig()
    rig.start("r", "looking", {"what": "it"})
    rig.run(10)
    rig.operate("r", "cancel")
    rig.run(10_000)

    rig.successor()
    rig.run(10)

    [lane] = rig.planner.lanes
    assert rig.kinds("r").count("RunCancelled") == 1
    assert lane.inbox.low_water()[RUN_OPERATED] == 1


@pytest.mark.parametrize("kind", ["cancel", "retry", "fail", "repair", "migrate"])
def test_a_user_says_nothing_of_others_runs(kind: str) -> None:
    rig = Rig()
    rig.start("r", "looking", {"what": "it"})
    rig.run(10)
    before = rig.kinds("r")
    said = {"run_id": "r", "signal_id": "s", "kind": kind, "actor": "eve", "data": {"head": ""}}
    rig.write(RUN_SIGNALLED, "r/s", json.dumps(said).encode())

    rig.run(5_000)

    assert rig.kinds("r") == before
    assert [letter.code for letter in rig.letters()] == ["operators_only"]


def test_a_user_does_not_let_a_held_run_go() -> None:
    rig = Rig()
    rig.start("r", "nobody", {})
    rig.run(10)
    for kind in ("retry", "fail"):
        rig.signal("r", kind, name=kind)

    rig.run(5_000)

    assert [letter.code for letter in rig.letters()] == ["operators_only"] * 2
    held = [record for record in rig.broker.log(RUN_SNAPSHOT, 0).records if record.key == b"hold/r"]
    assert read_hold("r", held[-1].value or b"").reason == "unknown_agent"
    rig.operate("r", "fail")
    rig.run(5_000)
    assert rig.kinds("r")[-1] == "RunFailed"
