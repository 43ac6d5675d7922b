"""Runs that start others: what becomes of each by the other, and nothing twice and nothing lost over any crash."""

from __future__ import annotations

import cProfile
import json
from dataclasses import replace

import pytest

from refold.core import events, topics
from refold.core.ids import EntryId
from refold.core.messages import DeadLetter
from refold.core.planning.family import family_messages
from refold.core.planning.verdict import Start
from refold.core.run.fold import evolve
from refold.core.wire import codec
from refold.engine.planner.settings import Bounds
from tests.planner.kin import ask, forge, rig
from tests.planner.rig import Rig


def status(world: Rig, *runs: str) -> list[str]:
    """What has become of runs."""
    states = [world.state(run) for run in runs]
    return [state.status if state else "unknown" for state in states]


def result(world: Rig, run: str) -> str:
    """The result that was told of a run."""
    (told,) = world.outcomes()[run]
    return told[2]


def test_a_parent_gets_the_result_of_its_child() -> None:
    world = rig()

    ask(world, "r", "boss", {"n": 4})
    world.pump()

    assert status(world, "r", "r.1") == ["completed", "completed"]
    assert (result(world, "r.1"), result(world, "r")) == ("40", "41")


def test_a_parent_that_waits_for_a_child_alone_is_suspended() -> None:
    world = rig()
    world.answers = False

    ask(world, "r", "chief", {"n": 4})
    world.pump()

    assert status(world, "r", "r.1", "r.1.1") == ["suspended", "suspended", "running"]
    assert world.log_of("r")[0].events[-1] == events.RunSuspended("child", "r.1")


def test_what_is_known_of_who_asked_goes_down_the_family() -> None:
    world = rig()
    world.answers = False

    ask(world, "r", "chief", {"n": 4}, sessions=["s-1"], labels={"team": "shop"})
    world.pump()

    for run in ("r", "r.1", "r.1.1"):
        state = world.state(run)
        assert state is not None
        assert state.request is not None
        assert (state.request.requester, state.request.sessions) == ("ann", ["s-1"])
        assert state.request.labels == {"team": "shop"}


def test_a_child_that_fails_raises_in_its_parent() -> None:
    world = rig()

    ask(world, "r", "careful")
    world.pump()

    assert json.loads(result(world, "r")) == {"run_id": "r.1", "code": "ValueError", "message": "it broke"}


@pytest.mark.parametrize("said_of", ["r", "r.1"])
def test_cancelling_reaches_all_below(said_of: str) -> None:
    world = rig()
    world.answers = False
    ask(world, "r", "chief", {"n": 4})
    world.pump()

    world.signal(said_of, "cancel", '{"reason": "enough"}')
    world.pump()

    above = "cancelled" if said_of == "r" else "failed"
    assert status(world, "r", "r.1", "r.1.1") == [above, "cancelled", "cancelled"]
    state = world.log_of("r.1.1")[-1].events[-1]
    assert isinstance(state, events.RunCancelled)
    assert state.actor == "r.1"


def test_a_child_that_its_parent_leaves_is_cancelled() -> None:
    world = rig()
    world.hold = lambda request: request.run_id == "r.1"

    ask(world, "r", "deserter")
    world.pump()

    assert status(world, "r", "r.1") == ["completed", "cancelled"]


def test_a_child_that_is_abandoned_goes_on_without_its_parent() -> None:
    world = rig()
    world.answers = False
    ask(world, "r", "leaver")
    world.pump()

    before = status(world, "r", "r.1")
    world.answers = True
    world.boot()

    assert before == ["completed", "running"]
    assert result(world, "r.1") == "30"


def test_a_child_that_outlives_a_fork_begins_though_the_fork_is_read_as_over() -> None:
    world = rig()
    world.answers = False
    ask(world, "r", "leaver")
    world.pump()
    (entry,) = world.log_of("r")
    state = evolve(None, entry, EntryId(bytes(16)))
    assert state.over

    forked = replace(entry, events=[events.RunForked(events.ForkedFrom("s", 4, bytes(16)), "ada")])

    ended = replace(forked, events=[*forked.events, events.RunCompleted("1")])

    assert [each.request.run_id for each in family_messages(state, forked) if isinstance(each, Start)] == ["r.1"]
    assert not [each for each in family_messages(state, ended) if isinstance(each, Start)]


def test_an_event_starts_those_that_listen_and_its_teller_goes_on() -> None:
    world = rig()

    ask(world, "r", "teller")
    world.pump()

    assert status(world, "r", "r.1_1") == ["completed", "completed"]
    assert result(world, "r.1_1") == "70"
    assert [type(event).__name__ for event in world.log_of("r")[0].events] == [
        *("RunRequested", "RunStarted", "EventPublished", "RunCompleted")
    ]


def test_nobody_but_its_parent_starts_a_child() -> None:
    world = rig()
    world.answers = False
    ask(world, "r", "boss", {"n": 4})
    world.pump()

    for run in ("r.1", "r.2", "other.1", "r.1.1"):
        world.broker.write(forge(world, run, "worker", {"n": 666}))
    world.pump()
    world.answers = True
    world.boot()

    letters = [codec.decode(DeadLetter, record.value or b"") for record in world.reader.scan(topics.DEAD_LETTER)]
    assert [letter.code for letter in letters] == ["malformed"] * 4
    assert status(world, "r.2", "other.1", "r.1.1") == ["unknown"] * 3
    assert result(world, "r") == "41"


def test_agents_that_wake_each_other_for_ever_end_where_the_depth_does() -> None:
    world = rig(budget=Bounds(depth=3))

    ask(world, "r", "digger")
    world.pump()

    assert status(world, "r", "r.1.1.1") == ["failed", "failed"]
    assert status(world, "r.1.1.1.1") == ["unknown"]
    end = world.log_of("r.1.1.1")[-1].events[-1]
    assert isinstance(end, events.RunFailed)
    assert end.failure.code == "budget_depth"


def test_a_late_outcome_of_a_child_is_nothing_to_a_parent_that_is_over() -> None:
    world = rig()
    world.answers = False
    ask(world, "r", "boss", {"n": 4})
    world.pump()

    world.signal("r", "cancel")
    world.answers = True
    world.pump()

    assert [type(event).__name__ for entry in world.log_of("r") for event in entry.events] == [
        *("RunRequested", "RunStarted", "ChildStarted", "RunSuspended", "RunCancelled")
    ]


def test_children_wait_for_room_and_all_begin() -> None:
    world = rig(active=1)

    for number in range(5):
        ask(world, f"r-{number}", "chief", {"n": number})
    world.pump()

    assert [result(world, f"r-{number}") for number in range(5)] == [str(10 * n + 2) for n in range(5)]


@pytest.mark.parametrize("agent", ["chief", "careful", "teller", "leaver", "deserter"])
def test_a_crash_at_any_point_changes_nothing_of_a_family(agent: str) -> None:
    """The planner is dropped with all it has in memory after every so many turns."""
    given = {"n": 4} if agent == "chief" else None
    calm = rig()
    ask(calm, "r", agent, given)
    calm.pump()

    for turns in range(1, 25):
        world = rig()
        ask(world, "r", agent, given)
        for _ in range(40):
            world.pump(turns)
            world.boot(turns)
        world.pump()
        world.boot()

        assert ended(world) == ended(calm), turns
        assert all(len(told) == 1 for told in world.outcomes().values())


def ended(world: Rig) -> dict[str, str]:
    """How all runs ended, and with what."""
    return {run: f"{status} {result}" for run, told in world.outcomes().items() for status, _, result in told}


def work(count: int) -> int:
    """How many functions are called for a fan-out: what it costs, without a clock."""
    world, profile = rig(), cProfile.Profile()
    ask(world, "r", "crowd", {"count": count})
    profile.enable()
    world.pump()
    profile.disable()
    assert status(world, "r") == ["completed"]
    return sum(entry.callcount for entry in profile.getstats())


def test_a_child_costs_the_same_however_many_there_are() -> None:
    few, many = work(100), work(1_500)

    assert many / 1_500 <= 1.2 * few / 100


@pytest.mark.long
def test_ten_thousand_children_of_one_gather_finish() -> None:
    world = rig(active=2_000)

    ask(world, "r", "crowd", {"count": 10_000})
    world.pump(10_000)

    assert result(world, "r") == "10000"
    assert len(world.outcomes()) == 10_001


def test_what_does_not_fit_into_an_entry_fails_and_says_why() -> None:
    world = rig()

    ask(world, "r", "crowd", {"count": 15_000, "given": "x" * 200})
    world.pump()

    end = world.log_of("r")[-1].events[-1]
    assert isinstance(end, events.RunFailed)
    assert end.failure.code == "too_large"
    assert "asyncio.Semaphore" in end.failure.message


def test_a_run_that_starts_too_many_fails() -> None:
    world = rig(budget=Bounds(children=5))

    ask(world, "r", "crowd", {"count": 6})
    ask(world, "s", "crowd", {"count": 5})
    world.pump()

    end = world.log_of("r")[-1].events[-1]
    assert isinstance(end, events.RunFailed)
    assert end.failure.code == "budget_children"
    assert status(world, "s") == ["completed"]


def test_a_result_that_is_too_long_for_its_parent_is_a_failure_of_the_child() -> None:
    world = rig()

    ask(world, "r", "listening")
    world.pump()

    assert json.loads(result(world, "r")) == {"code": "too_large"}
    assert status(world, "r.1") == ["completed"]


def test_what_waits_for_a_child_no_longer_cancels_it_and_hears_nothing_of_it() -> None:
    world = rig()
    world.hold = lambda request: request.run_id == "r.2"
    ask(world, "r", "hurrying")
    world.pump()

    assert status(world, "r", "r.2") == ["completed", "cancelled"]
    kinds = [type(event).__name__ for entry in world.log_of("r") for event in entry.events]
    assert "ChildCompleted" not in kinds
    assert kinds.count("StepGivenUp") == 1


@pytest.mark.parametrize("ends", ["failed", "cancelled"])
@pytest.mark.parametrize("lost", ["its end", "what was heard"])
def test_a_run_hears_of_its_child_also_when_the_log_has_lost_that_and_the_childs_end(ends: str, lost: str) -> None:
    world = rig()
    world.hold = lambda request: True
    ask(world, "r", "patient", {"agent": "worker" if ends == "cancelled" else "breaker"})
    world.pump()
    if ends == "cancelled":
        world.operate("r.1", "cancel")
        world.pump()
    heard = world.log_of("r")[-1]
    assert isinstance(heard.events[0], events.ChildCompleted)
    assert heard.cause is not None

    # The snapshot knows more: for it the child is over.
    cut = heard.cause.offset + (lost == "what was heard")
    world.broker.truncate(topics.RUN_LOG, 0, cut)
    world.hold = lambda request: False
    world.boot()
    world.boot()

    assert status(world, "r", "r.1") == ["completed", ends]
    assert json.loads(result(world, "r")) in (ends, "ValueError"), "or what the log still says"
