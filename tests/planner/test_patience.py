"""What comes before its run waits for positions: however long the queue is, and no longer than it takes to know."""

from __future__ import annotations

import pytest

from refold.core.ids import RunId, home
from refold.core.topics import RUN_OPERATED, RUN_REQUESTED, RUN_SIGNALLED
from tests.planner.clocked import Rig

PARTITIONS = 3


@pytest.mark.long
@pytest.mark.parametrize("ahead", [1, 10_000])
def test_a_cancel_behind_a_long_queue_reaches_its_run_before_that_costs_anything(ahead: int) -> None:
    rig = Rig()
    for number in range(ahead):
        rig.start(f"r-{number}", "idling", {})
    rig.start("mine", "paying", {"what": "it"})
    rig.signal("mine", "cancel")

    rig.run(5_000)

    assert rig.kinds("mine") == ["RunRequested", "RunCancelled"]
    assert "mine" not in {request.run_id for request in rig.requests()}, "nothing is paid"
    assert rig.letters() == []


def test_a_cancel_waits_for_hours_when_the_queue_does() -> None:
    rig = Rig(active=1)
    for number in range(3):
        rig.start(f"r-{number}", "looking", {"what": "it"})
    rig.start("mine", "paying", {"what": "it"})
    rig.signal("mine", "cancel")

    rig.run(6 * 3_600_000)
    waiting = rig.letters()
    while requests := rig.take():
        for request in requests:
            rig.answer(request)
        rig.run(1_000)

    assert waiting == []
    assert rig.kinds("mine") == ["RunRequested", "RunCancelled"]


@pytest.mark.parametrize("partitions", [1, PARTITIONS])
def test_a_signal_for_a_run_that_nobody_asked_for_is_dead_as_soon_as_that_is_known(partitions: int) -> None:
    rig = Rig(partitions=partitions)
    rig.start("other", "looking", {"what": "it"})
    rig.signal("mine", "cancel")

    rig.run(5_000)

    assert [(letter.topic, letter.code) for letter in rig.letters()] == [(RUN_SIGNALLED, "unknown_run")]


def test_a_signal_waits_for_what_strayed_into_another_partition() -> None:
    rig = Rig(partitions=PARTITIONS)
    strayed = (home("mine", PARTITIONS) + 1) % PARTITIONS
    rig.run(10)
    rig.log.pause(RUN_REQUESTED, strayed)  # it lies there, and nobody has come so far
    rig.start("mine", "paying", {"what": "it"}, partition=strayed)
    rig.signal("mine", "cancel")

    rig.run(3_600_000)
    waiting = rig.letters()
    rig.log.resume(RUN_REQUESTED, strayed)
    rig.run(5_000)

    assert waiting == []
    assert rig.kinds("mine") == ["RunRequested", "RunCancelled"]
    assert rig.letters() == []


def test_what_waits_beyond_the_limit_goes_back_to_its_sender_and_stops_nobody() -> None:
    rig = Rig(waiting=20, active=1)
    rig.start("first", "looking", {"what": "it"})
    rig.run(10)
    for number in range(550):
        rig.start(f"r-{number}", "paying", {"what": "it"})
        rig.signal(f"r-{number}", "cancel")
    rig.signal("first", "cancel")

    rig.run(5_000)
    heard = rig.kinds("first")[-1]
    while requests := rig.take():
        for request in requests:
            rig.answer(request)
        rig.run(2_000)

    told = {letter.code for letter in rig.letters()}
    ends = [rig.kinds(f"r-{number}")[-1] for number in range(550)]
    assert heard == "RunCancelled"
    assert told == {"unknown_run"}
    assert ends.count("RunCancelled") > 0
    assert len(rig.letters()) + ends.count("RunCancelled") == 550


def test_a_request_whose_run_stands_still_keeps_nobody_waiting_for_an_answer() -> None:
    rig = Rig()
    rig.run(10)
    next(iter(rig.planner.lanes)).log.freeze(RunId("frozen"), "its history goes on where this version does not see it")
    rig.start("frozen", "looking", {"what": "it"})
    for number in range(5):
        rig.signal(f"unknown-{number}", "cancel")

    rig.run(60_000)

    assert [letter.code for letter in rig.letters()] == ["unknown_run"] * 5


def test_a_resolve_that_was_refused_stays_refused_when_positions_are_lost() -> None:
    rig = Rig()
    rig.start("r", "paying", {"what": "it"})
    rig.run(10)
    [request] = rig.take()
    data = {"step": 1, "attempt": 1, "verdict": "give_up"}
    rig.operate("r", "resolve", data)  # too early: nobody is in doubt
    rig.run(1_000)
    refused = [letter.code for letter in rig.letters()]
    rig.now += 1_000
    rig.answer(request, "doubt")
    rig.run(10)
    assert rig.kinds("r")[-2:] == ["CallDoubted", "RunSuspended"]

    del rig.broker.groups["refold-planner"].committed[RUN_OPERATED, 0]
    rig.successor()
    rig.run(10_000)

    assert refused == ["conflict"]
    assert rig.kinds("r")[-2:] == ["CallDoubted", "RunSuspended"]
    rig.operate("r", "resolve", data, name="later")
    rig.run(10)
    assert "DoubtResolved" in rig.kinds("r")


def test_a_group_that_takes_long_to_answer_is_not_asked_without_a_pause() -> None:
    """A planner waits for the answer: one that asked again at once would do nothing else, not even end."""
    rig = Rig(partitions=PARTITIONS)
    rig.start("open", "looking", {"what": "it"})
    rig.run(120_000)
    rig.signal("nobody", "cancel")
    rig.slow_ms, before = 2_000, rig.asked

    rig.run(30_000)

    assert 2 < rig.asked - before <= 2 * 30 // 3


def test_a_successor_hears_what_was_said_of_a_run_before_it_starts_that() -> None:
    rig = Rig()
    for number in range(1_200):  # more than is read in a turn, or two
        rig.signal(f"nobody-{number}", "cancel")
    rig.signal("mine", "cancel")
    rig.run(10)
    rig.start("mine", "paying", {"what": "it"})
    while not rig.kinds("mine"):
        rig.turn()
    assert rig.kinds("mine") == ["RunRequested"]

    rig.successor(ahead=100)
    rig.run(5_000)

    assert rig.kinds("mine") == ["RunRequested", "RunCancelled"]
    assert rig.requests() == []


def test_a_successor_hears_what_was_said_of_a_run_before_it_reads_that_it_was_asked_for() -> None:
    rig = Rig()
    for number in range(1_200):  # more than is read in a turn, or two
        rig.signal(f"nobody-{number}", "cancel")
    rig.signal("mine", "cancel")
    rig.start("mine", "paying", {"what": "it"})

    rig.successor(ahead=100)
    rig.run(5_000)

    assert rig.kinds("mine") == ["RunRequested", "RunCancelled"]
    assert rig.requests() == []


def test_more_signals_than_may_wait_at_once_keep_no_run_from_starting() -> None:
    rig = Rig(waiting=100)
    for number in range(500):
        rig.signal(f"nobody-{number}", "cancel")
    rig.start("mine", "idling", {})

    rig.successor(ahead=100)
    rig.run(60_000)

    assert rig.kinds("mine")[-1] == "RunCompleted"
    assert len(rig.letters()) == 500
