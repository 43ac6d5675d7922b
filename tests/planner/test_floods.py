"""A client that says as much as it likes: what a lane holds of that is bounded in bytes, and the others go on."""

from __future__ import annotations

import json
from itertools import count

import pytest

from refold.core.approval.catalog import Catalog
from refold.core.ids import RunId
from refold.core.run.log import LogFold
from refold.core.topics import RUN_COMPLETED, RUN_LOG, RUN_REQUESTED, RUN_SIGNALLED
from refold.engine.planner import service
from refold.engine.planner.intake.inbox import Inbox, WaitsFor
from refold.engine.planner.log.outbox import ENDS_BYTES, Outbox
from refold.engine.planner.settings import Limits
from refold.engine.planner.snapshot import TURN_BYTES
from refold.engine.ports.log import Outgoing, Record
from refold.engine.runtime.lanes import Tokens
from tests.planner.clocked import Rig

LARGE = 200_000
LIMIT = 1_000
"""KiB that may wait of one topic."""


def signal(number: int, data: str = "x" * LARGE) -> bytes:
    return json.dumps({"run_id": f"nobody-{number}", "signal_id": "s", "kind": "cancel", "data": data}).encode()


def request(number: int, **fields: object) -> bytes:
    return json.dumps({"run_id": f"r-{number}", "agent": "idling", "input": {}, **fields}).encode()


def waiting_bytes(inbox: Inbox) -> int:
    return inbox._bytes.total() + inbox._elsewhere[WaitsFor.RUN].total() + inbox.held_bytes


def test_what_waits_of_a_flood_takes_no_more_than_its_budget() -> None:
    rig = Rig(waiting=LIMIT)
    rig.run(10)
    [lane] = rig.planner.lanes
    most = written = 0
    for _ in range(60):
        for _ in range(10 if not lane.inbox.full(RUN_SIGNALLED) else 0):  # so much as a take may bring
            rig.write(RUN_SIGNALLED, f"nobody-{written}/s", signal(written))
            written += 1
        rig.turn()
        most = max(most, waiting_bytes(lane.inbox))
    rig.run(60_000)

    assert most < LIMIT * 1_024 + 10 * (LARGE + 1_500)
    assert len(rig.letters()) == written > 50
    assert waiting_bytes(lane.inbox) == 0
    # Behind each that was refused lies its tombstone.
    assert rig.broker.groups["refold-planner"].committed[RUN_SIGNALLED, 0] == 2 * written


def test_large_signals_that_wait_do_not_keep_small_ones_from_being_heard() -> None:
    rig = Rig(waiting=LIMIT, active=1)
    rig.start("first", "looking", {"what": "it"})
    rig.run(10)
    rig.start("behind", "looking", {"what": "it"})  # there is no room for it: nobody knows how long this takes
    for number in range(30):
        rig.write(RUN_SIGNALLED, f"nobody-{number}/s", signal(number))
    for _ in range(20):
        rig.turn()
    rig.signal("behind", "cancel")
    rig.signal("first", "cancel")

    for _ in range(5):
        rig.turn()

    assert rig.kinds("first")[-1] == "RunCancelled"
    rig.run(60_000)
    assert rig.kinds("behind") == ["RunRequested", "RunCancelled"]


def test_a_topic_that_is_full_does_not_stop_the_others() -> None:
    inbox = Inbox((RUN_REQUESTED, RUN_SIGNALLED), Limits(topic_bytes=10_000))
    for offset in range(20):
        inbox.take(Record(RUN_REQUESTED, 0, offset, b"k", b"x" * 1_000, lambda: None))

    assert inbox.full(RUN_REQUESTED)
    assert not inbox.full(RUN_SIGNALLED)

    inbox.begin(1 << 30, 0)
    while inbox.answerable:
        inbox.pop().finish()
    assert not inbox.full(RUN_REQUESTED)


def test_headers_count_as_well() -> None:
    inbox = Inbox((RUN_REQUESTED, RUN_SIGNALLED), Limits(topic_bytes=10_000))

    inbox.take(Record(RUN_SIGNALLED, 0, 0, b"k", b"{}", lambda: [("h", b"x" * 20_000)]))

    assert inbox.full(RUN_SIGNALLED)


def test_nothing_is_kept_of_what_is_answered_though_its_position_waits() -> None:
    rig = Rig(active=1)
    rig.start("first", "looking", {"what": "it"})
    rig.run(10)
    rig.start("behind", "looking", {"what": "it"})
    rig.signal("behind", "cancel")  # waits, and with it the position of all that comes later
    rig.run(10)
    for number in range(60):
        rig.write(RUN_SIGNALLED, f"first/{number}", signal(number))

    rig.run(1_000)

    [lane] = rig.planner.lanes
    items = [item for _, item in lane.inbox._outstanding[RUN_SIGNALLED]._inputs]
    assert rig.broker.groups["refold-planner"].committed.get((RUN_SIGNALLED, 0), 0) == 0
    assert len(rig.letters()) == 60
    assert len(items) == 61 + 60  # and the tombstone of each that was refused
    assert all(item.record is None for item in items if item.done)  # type: ignore[attr-defined]


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
    assert len(lane.inbox._signals) > 40
    assert rig.kinds("mine")[-1] == "RunCompleted"


def test_after_much_of_what_users_say_others_have_the_planner_for_a_while() -> None:
    rig = Rig(waiting=100_000)
    rig.start("mine", "looking", {"what": "it"})
    rig.run(10)
    for number in range(50):
        rig.write(RUN_SIGNALLED, f"nobody-{number}/s", signal(number))
    [lane] = rig.planner.lanes
    rig.turn()
    first = len(lane.inbox._signals)
    rig.now += 20  # that is how long it took
    rig.turn()
    rig.now += 3 * 20 - 1
    rig.turn()
    rested = len(lane.inbox._signals)
    rig.now += 1
    rig.turn()

    assert rested == first
    assert len(lane.inbox._signals) < rested
    assert rig.planner.next_due_ms() is not None
    assert service.REST == 3


def test_a_snapshot_begins_before_its_time_when_histories_are_large() -> None:
    rig = Rig()
    rig.run(10)
    [lane] = rig.planner.lanes
    most = 0
    for number in range(60):
        rig.write(RUN_REQUESTED, f"r-{number}", request(number, input="x" * 300_000))
        rig.run(1)
        most = max(most, lane.log.snapshot_writer._full)

    assert all(rig.kinds(f"r-{number}")[-1] == "RunFailed" for number in range(60))
    assert most < 2 * TURN_BYTES


def test_a_take_over_holds_back_the_ends_of_runs_up_to_some_bytes() -> None:
    outbox = Outbox(0, "p", Tokens(count(1).__next__), Catalog(), frozenset())
    outbox.begin(0)
    for number in range(40):
        record = Outgoing(RUN_COMPLETED, 0, f"r-{number}".encode(), b"x" * 1_000_000, (), 0)
        outbox._hold_end(RunId(f"r-{number}"), [record])

    assert sum(len(each.value or b"") for ends in outbox._ends.values() for each in ends) < ENDS_BYTES
    assert [record.key for record in outbox.publishes[:2]] == [b"r-0", b"r-1"]
    assert len(outbox.publishes) + len(outbox._ends) == 40


def test_what_is_kept_of_a_run_that_may_be_over_has_nothing_that_its_sender_chose_the_size_of() -> None:
    rig = Rig()
    names = {"agent": "idling", "requester": "x" * 200, "labels": {"x" * 100: "y" * 800}}
    rig.write(RUN_REQUESTED, "r-1", json.dumps({"run_id": "r-1", "input": {}, **names}).encode())
    rig.run(10)
    fold = LogFold()
    for record in rig.broker.log(RUN_LOG, 0).records:
        fold.feed(record.key, record.value)

    ended = fold.ended(RunId("r-1"))
    assert ended is not None
    assert ended.request is not None
    assert (ended.request.agent, ended.request.requester, ended.request.labels) == ("", "", {})
    assert len(ended.request.request_digest) == 32
