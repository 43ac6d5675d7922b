"""More work than executors take: it waits where it lies, and does not grow by waiting."""

from __future__ import annotations

from refold.core.ids import parse_log_key
from refold.core.topics import RUN_LOG, RUN_REQUESTED, RUN_SIGNALLED
from tests.planner.clocked import Rig

HOUR = 3_600_000


def start_many(rig: Rig, count: int) -> Rig:
    """As many runs as that are requested at once."""
    for number in range(count):
        rig.start(f"r-{number}", "looking", {"what": "it"})
    return rig


def entries(rig: Rig) -> int:
    """How many entries the run log has."""
    return sum(parse_log_key(record.key) is not None for record in rig.broker.log(RUN_LOG, 0).records)


def test_without_executors_nothing_grows() -> None:
    rig = start_many(Rig(), 200).run(1_000)
    before = entries(rig), len(rig.requests())

    rig.run(HOUR)

    assert before == (200, 200)
    assert (entries(rig), len(rig.requests())) == before


def test_what_executors_have_passed_and_not_answered_goes_out_again_less_and_less_often() -> None:
    rig = start_many(Rig(), 3).run(1_000)
    rig.take()

    times = []
    for _ in range(60):
        rig.run(60_000)
        again = rig.take()
        assert all(request.again and request.attempt == 1 for request in again)
        times.append(len(again))

    assert entries(rig) == 3
    assert 15 <= sum(times) <= 30
    assert sum(times[:20]) > sum(times[40:])


def test_an_answer_to_a_request_that_went_out_again_counts() -> None:
    rig = start_many(Rig(), 1).run(1_000)
    rig.take()
    rig.run(120_000)
    [request, *_] = rig.take()

    rig.answer(request)
    rig.run(10)

    assert rig.kinds("r-0")[-2:] == ["CallCompleted", "RunCompleted"]


def test_a_successor_asks_again_what_nobody_has_answered() -> None:
    rig = start_many(Rig(), 1).run(1_000)
    rig.take()

    rig.successor(ahead=100)
    rig.run(120_000)

    assert [request.again for request in rig.take()][-1]
    assert entries(rig) == 1


def test_requests_wait_in_their_topic_while_enough_runs_are_active() -> None:
    rig = start_many(Rig(active=50), 3_000).run(HOUR)
    waiting = rig.most_live, entries(rig)
    rig.signal("r-7", "cancel")
    rig.run(10)
    cancelled = rig.kinds("r-7")[-1]
    while requests := rig.take():
        for request in requests:
            rig.answer(request)
        rig.run(1_000)

    assert waiting == (50, 50)
    assert cancelled == "RunCancelled"
    assert entries(rig) == 6_000
    assert rig.broker.groups["refold-planner"].committed[RUN_REQUESTED, 0] == 3_000


def test_no_run_starts_before_all_is_heard_that_was_said_before_the_take_over() -> None:
    rig = start_many(Rig(), 3)
    rig.signal("r-1", "cancel")
    rig.turn()
    rig.log.pause(RUN_SIGNALLED, 0)  # it comes later than the requests, as topics do
    rig.run(1_000)
    unheard = entries(rig), rig.broker.log(RUN_REQUESTED, 0).end
    rig.log.resume(RUN_SIGNALLED, 0)

    rig.run(1_000)

    assert unheard == (0, 3)
    assert rig.kinds("r-1")[-1] == "RunCancelled"
    assert [request.run_id for request in rig.requests()] == ["r-0", "r-2"]


def test_runs_that_wait_for_time_take_no_room() -> None:
    rig = Rig(active=10)
    for number in range(500):
        rig.start(f"r-{number}", "napping", {"seconds": 60})

    rig.run(1_000)

    assert entries(rig) == 500


def test_runs_that_wait_for_one_tool_keep_back_those_that_need_it_and_nobody_else() -> None:
    rig = start_many(Rig(active=50), 300).run(1_000)
    rig.take()
    for number in range(60):
        rig.start(f"other-{number}", "paying", {"what": "it"})

    rig.run(1_000)

    assert sum(request.tool == "look" for request in rig.requests()) == 50
    assert sum(request.tool != "look" for request in rig.take()) == 50


def test_what_waits_for_a_crowded_tool_begins_when_that_answers() -> None:
    rig = start_many(Rig(active=50), 120).run(1_000)

    while requests := rig.take():
        for request in requests:
            rig.answer(request)
        rig.run(1_000)

    assert all(rig.kinds(f"r-{number}")[-1] == "RunCompleted" for number in range(120))
    assert rig.most_live <= 51


def test_so_much_waits_for_what_is_crowded_and_then_the_topic_does() -> None:
    rig = start_many(Rig(active=5, waiting=20), 3_000).run(5_000)
    lane = next(iter(rig.planner.lanes))

    assert lane.inbox.read(RUN_REQUESTED) <= 1_000  # two batches, of 3,000
    assert lane.inbox.held_bytes > 20 * 1_024
