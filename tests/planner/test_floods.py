"""A client that says as much as it likes: what a lane holds of that is bounded in bytes, and the others go on."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator

import pytest

from refold.core.topics import RUN_REQUESTED, RUN_SIGNALLED
from refold.planner import sharing
from refold.planner.inbox import Inbox
from refold.planner.settings import Limits
from refold.ports.log import Outgoing, Record
from tests.planner.clocked import Rig

LARGE = 200_000
LIMIT = 1_000
"""KiB that may wait of one topic."""


def signal(number: int, data: str = "x" * LARGE) -> bytes:
    return json.dumps({"run_id": f"nobody-{number}", "signal_id": "s", "kind": "cancel", "data": data}).encode()


def request(number: int, **fields: object) -> bytes:
    return json.dumps({"run_id": f"r-{number}", "agent": "idling", "input": {}, **fields}).encode()


@pytest.fixture
def measured() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def grown(rig: Rig, topic: str, values: Iterator[tuple[str, bytes]], *, ms: int) -> int:
    """The most that the planner's side holds at once while it takes these; what lies in the broker is not counted."""
    most = 0
    for key, value in values:
        rig.broker.write(Outgoing(topic, 0, key.encode(), value, (), 0))
    base = tracemalloc.get_traced_memory()[0]
    for _ in range(ms):
        letters = sum(len(record.value or b"") for record in rig.broker.log("dead-letter", 0).records)
        most = max(most, tracemalloc.get_traced_memory()[0] - base - letters)
        rig.run(10)
    return most


def test_signals_for_runs_that_nobody_has_take_no_more_than_their_budget(measured: None) -> None:
    rig = Rig(waiting=LIMIT)
    rig.run(10)

    most = grown(rig, RUN_SIGNALLED, ((f"nobody-{number}/s", signal(number)) for number in range(150)), ms=60)

    assert most < 3 * LIMIT * 1_024
    rig.run(60_000)
    assert len(rig.letters()) == 150
    assert rig.broker.groups["refold-planner"].committed[RUN_SIGNALLED, 0] == 150


def test_large_signals_that_wait_do_not_keep_small_ones_from_being_heard() -> None:
    rig = Rig(waiting=LIMIT, active=1)
    rig.start("first", "looking", {"what": "it"})
    rig.run(10)
    rig.start("behind", "looking", {"what": "it"})  # there is no room for it: nobody knows how long this takes
    for number in range(30):
        rig.write(RUN_SIGNALLED, f"nobody-{number}/s", signal(number))
    rig.signal("behind", "cancel")
    rig.signal("first", "cancel")

    rig.run(1_000)

    assert rig.kinds("first")[-1] == "RunCancelled"
    rig.run(60_000)
    assert rig.kinds("behind") == ["RunRequested", "RunCancelled"]


def test_a_topic_that_is_full_does_not_stop_the_others() -> None:
    inbox = Inbox(Limits(topic_bytes=10_000))
    for offset in range(20):
        inbox.take(Record(RUN_REQUESTED, 0, offset, b"k", b"x" * 1_000, lambda: None))

    assert inbox.full(RUN_REQUESTED)
    assert not inbox.full(RUN_SIGNALLED)

    inbox.begin(1 << 30, 0)
    while inbox.answerable:
        inbox.pop().finish()
    assert not inbox.full(RUN_REQUESTED)


def test_headers_count_as_well() -> None:
    inbox = Inbox(Limits(topic_bytes=10_000))

    inbox.take(Record(RUN_SIGNALLED, 0, 0, b"k", b"{}", lambda: [("h", b"x" * 20_000)]))

    assert inbox.full(RUN_SIGNALLED)


def test_nothing_is_kept_of_what_is_answered_though_its_position_waits(measured: None) -> None:
    rig = Rig(active=1)
    rig.start("first", "looking", {"what": "it"})
    rig.run(10)
    rig.start("behind", "looking", {"what": "it"})
    rig.signal("behind", "cancel")  # waits, and with it the position of all that comes later
    rig.run(10)

    most = grown(
        rig,
        RUN_SIGNALLED,
        (("first/" + str(n), signal(n).replace(b"nobody-%d" % n, b"none!")) for n in range(60)),
        ms=60,
    )

    assert rig.broker.groups["refold-planner"].committed.get((RUN_SIGNALLED, 0), 0) == 0
    assert len(rig.letters()) == 60
    assert most < 5_000_000


@pytest.mark.parametrize("fields", [{"not_before_ms": 2**52}, {"agent": "nobody"}])
def test_runs_that_cannot_begin_take_no_more_than_their_budget_and_the_others_go_on(fields: dict[str, object]) -> None:
    rig = Rig(inputs=1_000)
    for number in range(30):
        rig.write(RUN_REQUESTED, f"r-{number}", request(number, input="x" * 100_000, **fields))
    rig.start("mine", "idling", {})

    rig.run(10_000)

    assert {letter.code for letter in rig.letters()} == {"no_room"}
    assert 10 <= 30 - len(rig.letters()) <= 12
    assert rig.kinds("mine")[-1] == "RunCompleted"


def test_small_ones_that_cannot_begin_count_as_well() -> None:
    rig = Rig(inputs=100)
    for number in range(100):
        rig.write(RUN_REQUESTED, f"r-{number}", request(number, not_before_ms=2**52))
        rig.run(10)

    assert 100 - len(rig.letters()) <= 51


def test_a_successor_counts_what_waits_already() -> None:
    rig = Rig(inputs=1_000)
    for number in range(15):
        rig.write(RUN_REQUESTED, f"r-{number}", request(number, input="x" * 100_000, not_before_ms=2**52))
    rig.run(10_000)
    before = len(rig.letters())

    rig.successor(ahead=100)
    rig.run(1_000)
    rig.write(RUN_REQUESTED, "r-99", request(99, input="x" * 100_000, not_before_ms=2**52))
    rig.run(1_000)

    assert before == len(rig.letters()) - 1


def test_large_inputs_of_runs_that_work_wait_in_their_topic_until_there_is_room() -> None:
    rig = Rig(inputs=1_000)
    for number in range(30):
        rig.start(f"r-{number}", "looking", {"what": "x" * 100_000})
    rig.start("small", "looking", {"what": "it"})

    rig.run(1_000)
    begun = len(rig.take())
    for _ in range(40):
        for each in rig.requests():
            if rig.kinds(each.run_id)[-1] == "CallDispatched":
                rig.answer(each)
        rig.run(1_000)

    assert 10 <= begun <= 12
    assert rig.letters() == []
    assert all(rig.kinds(f"r-{number}")[-1] == "RunCompleted" for number in range(30))


def test_what_users_say_gives_way_to_runs_that_are_under_way() -> None:
    rig = Rig(waiting=100_000)
    rig.start("mine", "looking", {"what": "it"})
    rig.run(10)
    [open_] = rig.take()
    for number in range(50):
        rig.write(RUN_SIGNALLED, f"nobody-{number}/s", signal(number))
    rig.turn()
    rig.answer(open_)

    rig.turn()

    [lane] = rig.planner.lanes
    assert len(lane.inbox) > 40
    assert rig.kinds("mine")[-1] == "RunCompleted"


def test_after_much_of_what_users_say_others_have_the_planner_for_a_while() -> None:
    rig = Rig(waiting=100_000)
    rig.start("mine", "looking", {"what": "it"})
    rig.run(10)
    for number in range(50):
        rig.write(RUN_SIGNALLED, f"nobody-{number}/s", signal(number))
    [lane] = rig.planner.lanes
    rig.turn()
    first = len(lane.inbox)
    rig.now += 20  # that is how long it took
    rig.turn()
    rig.now += 3 * 20 - 1
    rig.turn()
    rested = len(lane.inbox)
    rig.now += 1
    rig.turn()

    assert rested == first
    assert len(lane.inbox) < rested
    assert rig.planner.next_due_ms() is not None
    assert sharing.REST == 3
