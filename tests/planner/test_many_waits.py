"""Many waits beside many signals: each finds its own, and other runs have their planner meanwhile."""

from __future__ import annotations

import json

import pytest

from refold.core.events import RunCompleted, RunFailed, SignalReceived, WaitsPostponed
from refold.core.topics import RUN_SIGNALLED
from refold.engine.planner.agents.agent_host import MOST_MATCHING, OFFERS_PER_TURN
from refold.engine.planner.deciding.admission import OFFER_BYTES
from refold.engine.planner.service import USERS_BYTES
from tests.planner.clocked import Rig

DAY = 86_400_000


def say(rig: Rig, number: int, of: str = "r") -> None:
    """Writes a signal."""
    said = {"run_id": of, "signal_id": f"s-{number}", "kind": "signal", "name": "go", "data": {"n": number}}
    rig.write(RUN_SIGNALLED, f"{of}/s-{number}", json.dumps(said).encode())


def kept_for(waits: int, signals: list[int]) -> Rig:
    """A run that keeps signals, and is about to begin its waits."""
    rig = Rig()
    for number in signals:
        say(rig, number)
    rig.start("r", "matching", {"waits": waits})
    return rig


def begin(rig: Rig) -> None:
    """Takes turns until the run waits."""
    for _ in range(30):
        if not postponed(rig):
            rig.turn()
    assert postponed(rig)


def postponed(rig: Rig) -> list[int]:
    return [event.first for event in rig.history("r")[1] if isinstance(event, WaitsPostponed)]


@pytest.mark.parametrize("dies", [False, True])
def test_each_wait_finds_its_signal_though_not_all_are_asked_in_one_turn(dies: bool) -> None:
    waits, strange = 60, list(range(1_000, 1_300))
    rig = kept_for(waits, [*strange, *range(waits)])
    begin(rig)

    if dies:
        rig.run()  # what its successor reads
        rig.now += DAY
        rig.successor()
    rig.run(1_000)

    marks = postponed(rig)
    assert marks[:-1] == sorted(marks[:-1])
    assert len(marks) >= waits * len(strange) // OFFERS_PER_TURN
    end = rig.history("r")[0].end
    assert isinstance(end, RunCompleted)
    assert json.loads(end.result) == list(range(waits))


def test_who_takes_over_while_waits_were_not_asked_goes_on_with_them() -> None:
    rig = kept_for(60, [*range(1_000, 1_300), *range(60)])
    begin(rig)

    asked_before = postponed(rig)
    rig.successor()
    rig.now += DAY
    rig.run(1_000)

    assert asked_before[-1] > 0
    assert isinstance(rig.history("r")[0].end, RunCompleted)


def test_a_signal_that_comes_while_waits_were_not_asked_is_for_the_first_that_it_matches() -> None:
    rig = kept_for(60, [*range(1_000, 1_300), *range(50)])
    begin(rig)

    for number in range(50, 60):
        say(rig, number)
    rig.run(1_000)

    assert isinstance(rig.history("r")[0].end, RunCompleted)


def test_what_nobody_waits_for_stays_and_nobody_is_asked_again() -> None:
    rig = kept_for(60, list(range(1_000, 1_300)))
    rig.run(1_000)

    entries = rig.appended
    rig.now += 2_000
    rig.successor()
    rig.run(1_000)

    assert postponed(rig)[-1] == 0
    assert rig.history("r")[0].status == "suspended"
    assert rig.history("r")[0].mail.behind == 0
    assert rig.kinds("r").count("WaitsPostponed") <= entries


def test_a_turn_asks_so_many_waits_about_signals_and_no_more() -> None:
    waits = MOST_MATCHING
    rig = kept_for(waits, []).run(1_000)

    for number in range(2_000, 2_300):
        say(rig, number)
    most, before = 0, 0
    for _ in range(40):
        rig.turn()
        came = sum(isinstance(event, SignalReceived) for event in rig.history("r")[1])
        most, before = max(most, came - before), came

    assert 0 < most <= USERS_BYTES // (OFFER_BYTES * waits) + 1


def test_one_wait_too_many_of_a_name_fails_the_run_and_says_why() -> None:
    rig = kept_for(MOST_MATCHING + 1, []).run(1_000)

    end = rig.history("r")[0].end
    assert isinstance(end, RunFailed)
    assert end.failure.code == "too_many_waits"
