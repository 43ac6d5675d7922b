"""Signals and callbacks as anybody writes them: plain JSON, in any partition, good and hostile."""

from __future__ import annotations

import json

import pytest

from refold.core.events import CallbackCreated, RunRequested
from refold.core.ids import RunId, callback_token, home
from refold.core.topics import RUN_SIGNALLED
from refold.engine.planner.intake.inbox import Inbox
from tests.planner.clocked import DAY, Rig

SAID = {"run_id": "r", "signal_id": "s-1", "kind": "signal", "name": "go", "data": {"n": 1}}
HOUR = 3_600_000


def waiting(agent: str = "told", **how: int) -> Rig:
    """A planner with a run that waits."""
    rig = Rig(**how)  # type: ignore[arg-type]
    rig.start("r", agent, {})
    return rig.run(10)


def say(rig: Rig, said: dict[str, object], *, key: str = "r/s-1", partition: int | None = None) -> Rig:
    """Writes plain JSON, as kcat would."""
    number = home("r", rig.broker.partitions) if partition is None else partition
    rig.write(RUN_SIGNALLED, key, json.dumps(said).encode(), partition=number)
    return rig.run(10)


def token(rig: Rig) -> str:
    """The token that the run's agent has made."""
    seed = next(event.seed for event in rig.history("r")[1] if isinstance(event, RunRequested))
    return callback_token(RunId("r"), seed, 1)


def codes(rig: Rig) -> list[str]:
    return [letter.code for letter in rig.letters()]


def test_plain_json_tells_a_run_something() -> None:
    rig = say(waiting(), SAID)

    assert rig.kinds("r")[-3:] == ["SignalReceived", "WaitEnded", "RunCompleted"]
    assert codes(rig) == []


def test_a_signal_in_another_partition_finds_its_run() -> None:
    rig = waiting(partitions=4)

    say(rig, SAID, partition=(home("r", 4) + 1) % 4)

    assert rig.kinds("r")[-1] == "RunCompleted"


def test_a_signal_before_its_run_is_there_for_it() -> None:
    rig = say(Rig(), SAID)
    rig.start("r", "told", {})
    rig.run(10)

    assert rig.kinds("r")[-1] == "RunCompleted"
    assert codes(rig) == []


def test_a_signal_of_a_run_that_never_was_is_a_dead_letter() -> None:
    rig = say(Rig(), SAID).run(60_000)

    assert codes(rig) == ["unknown_run"]


@pytest.mark.parametrize(
    ("changes", "key", "why"),
    [
        ({"name": "a b"}, "r/s-1", "is not a name"),
        ({"name": "\u001b[31m"}, "r/s-1", "is not a name"),
        ({"name": "x" * 300}, "r/s-1", "more than 256"),
        ({"name": ""}, "r/s-1", "is not a name"),
        ({"signal_id": ""}, "r/", "'signal_id' is missing"),
        ({"run_id": ""}, "/s-1", "'run_id' is missing"),
        ({}, "r/s-2", "the key is not"),
        ({}, "", "the key is not"),
        ({"data": "x" * 5_000}, "r/s-1", "more than 4000"),
        ({"more": 1}, "r/s-1", "unknown field"),
        ({"kind": "sing"}, "r/s-1", "nothing that users say"),
        ({"kind": "callback"}, "r/s-1", "not the token"),
        ({"kind": "callback", "callback": "cb_" + "A" * 5_000}, "r/s-1", "not the token"),
        ({"kind": "callback", "failure": "x" * 5_000}, "r/s-1", "more than 4096"),
    ],
)
def test_what_cannot_be_is_a_dead_letter_that_says_why(changes: dict[str, object], key: str, why: str) -> None:
    rig = say(waiting(payload_bytes=4_000), SAID | changes, key=key)

    [letter] = rig.letters()
    assert letter.code == "malformed"
    assert why in letter.reason
    assert rig.kinds("r")[-2:] == ["WaitStarted", "RunSuspended"]


def test_a_signal_to_a_run_that_is_over_is_refused() -> None:
    rig = say(waiting(), SAID).run(2_000)

    say(rig, SAID | {"signal_id": "s-2"}, key="r/s-2")

    assert codes(rig) == ["closed"]


def test_a_signal_that_is_read_again_is_no_dead_letter() -> None:
    rig = say(waiting(), SAID).run(2_000)

    rig.broker.groups["refold-planner"].committed.clear()
    rig.successor()
    rig.run(100)

    assert codes(rig) == []
    assert rig.kinds("r").count("SignalReceived") == 1


def test_an_answer_needs_neither_run_nor_id() -> None:
    rig = waiting("called", partitions=4)
    said = {"kind": "callback", "callback": token(rig), "data": 7, "key": "k-1"}

    say(rig, said, key=token(rig), partition=(home("r", 4) + 1) % 4)

    assert rig.kinds("r")[-2:] == ["CallbackCompleted", "RunCompleted"]
    assert codes(rig) == []


def test_what_does_not_fit_is_refused_and_the_run_goes_on() -> None:
    rig = waiting("called")

    say(rig, {"kind": "callback", "callback": token(rig), "data": "seven"}, key=token(rig))
    say(rig, {"kind": "callback", "callback": token(rig), "data": 7}, key=token(rig))

    assert codes(rig) == ["unfit"]
    assert rig.kinds("r")[-1] == "RunCompleted"


def test_the_token_of_one_run_is_of_no_use_for_another() -> None:
    rig = waiting("called")

    say(rig, {"kind": "callback", "callback": token(rig), "data": 7, "run_id": "q"}, key=token(rig))

    assert codes(rig) == ["malformed"]
    assert rig.kinds("r")[-2:] == ["CallbackCreated", "RunSuspended"]


def test_the_log_has_a_digest_of_the_token_and_not_the_token() -> None:
    rig = waiting("called")
    [made] = [event for event in rig.history("r")[1] if isinstance(event, CallbackCreated)]

    assert token(rig) not in repr(made)
    assert made.until_ms >= HOUR


def test_an_answer_that_came_in_time_counts_though_nobody_was_there_to_read_it() -> None:
    rig = waiting("called")
    said = {"kind": "callback", "callback": token(rig), "data": 7}
    rig.now += HOUR - 1_000
    rig.write(RUN_SIGNALLED, token(rig), json.dumps(said).encode())
    rig.now += DAY

    rig.successor()
    rig.run(100)

    assert rig.kinds("r")[-2:] == ["CallbackCompleted", "RunCompleted"]


@pytest.mark.parametrize("heard", [True, False])
def test_an_answer_in_time_counts_though_nobody_was_there_to_hear_it(
    heard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = waiting("called")
    said = {"run_id": "r", "callback": token(rig), "kind": "callback", "data": 7}
    rig.write(RUN_SIGNALLED, token(rig), json.dumps(said).encode())
    rig.now += 2 * HOUR
    if not heard:
        monkeypatch.setattr(Inbox, "ready", lambda self, timers, hears: list(timers))
    rig.successor(ahead=100)
    all_at_once = rig.log.take
    monkeypatch.setattr(rig.log, "take", lambda records, ms: all_at_once(1, ms))

    rig.run(10_000)

    assert rig.kinds("r")[-1] == ("RunCompleted" if heard else "RunFailed")


def test_an_answer_that_came_too_late_does_not_count_though_nobody_was_there_to_let_it_expire() -> None:
    rig = waiting("called")
    said = {"kind": "callback", "callback": token(rig), "data": 7}
    rig.now += HOUR + 1_000
    rig.write(RUN_SIGNALLED, token(rig), json.dumps(said).encode())

    rig.successor()
    rig.run(100)

    assert rig.kinds("r")[-2:] == ["WaitExpired", "RunFailed"]


def test_a_run_that_waits_for_a_year_holds_nothing_but_its_entries() -> None:
    rig = Rig()
    rig.start("r", "napping", {"seconds": 365 * 86_400})
    rig.start("q", "told", {})
    rig.run(20_000)

    rig.successor()
    rig.run(100)

    [lane] = rig.planner.lanes
    assert set(lane.log.asleep) == {"r", "q"}
    assert lane.log.fold.states == {}


@pytest.mark.parametrize("size", [9_000, 200_000])
def test_large_signals_that_nobody_waits_for_are_bounded_in_a_partition(size: int) -> None:
    rig = Rig(inputs=100)
    for number in range(30):
        rig.start(f"r-{number}", "told", {})
        said = {"run_id": f"r-{number}", "signal_id": "s", "kind": "signal", "name": "other", "data": "x" * size}
        rig.write(RUN_SIGNALLED, f"r-{number}/s", json.dumps(said).encode())
        rig.run(10)

    kept = sum(state.mail.bytes for lane in rig.planner.lanes for state in lane.log.fold.states.values())
    assert kept <= 102_400 + size
    assert "no_room" in codes(rig)
