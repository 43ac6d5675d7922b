"""An executor that is told to end: others go on with what it has, and no call pays for it with an attempt."""

from __future__ import annotations

import pytest

from refold.core.messages import ToolClaim, ToolRequest
from refold.core.wire import codec
from refold.engine.executor.settings import ExecutorSettings
from refold.engine.ports.effects import Commit, Effect, Leave, StopTool
from refold.engine.ports.log import Revoked
from tests.recovery.executor_rig import ORDERS, Rig
from tests.recovery.test_executor_takeover import Broken

GRACE_MS = 5_000
CLASSES = ("pure", "keyed", "probed", "once")


def a_call(effect: str = "pure", number: int = 1) -> ToolRequest:
    return ToolRequest(f"r1/{number}", "r1", number, 1, 0, "look", "{}", f"key-{number}", effect, 60_000)


def executor(slots: int = 10) -> Rig:
    return Rig(ExecutorSettings(slots=slots, grace_ms=GRACE_MS))


def told_to_end(rig: Rig) -> list[Effect]:
    """SIGTERM comes: what the executor does at once, before its partitions are others'."""
    assert not rig.executor.drain()
    effects = rig.turn()
    rig.turn(Revoked(0))
    return effects


def begun(rig: Rig) -> list[tuple[str, int, bool]]:
    return [(start.request.call_id, start.request.attempt, start.probe) for start in rig.started]


def links(rig: Rig) -> list[ToolClaim]:
    found = [codec.decode(ToolClaim, claim.value or b"") for claim in rig.claims]
    return [claim for claim in found if claim.call_id]


def test_its_partitions_are_others_at_once_whatever_still_runs() -> None:
    rig = executor(slots=1)
    rig.ask(a_call(number=1))
    rig.ask(a_call(number=2))

    effects = told_to_end(rig)

    order = [type(effect) for effect in effects if isinstance(effect, Commit | Leave)]
    assert order == [Commit, Leave]
    assert rig.commits[ORDERS, 0] == 1  # the second call waits, and whoever comes next reads it
    assert not rig.executor.drain()


@pytest.mark.parametrize("effect", CLASSES)
def test_a_tool_that_runs_ends_within_the_grace_and_its_result_is_told(effect: str) -> None:
    rig = executor()
    rig.ask(a_call(effect))
    told_to_end(rig)

    for _ in range(20):
        rig.turn(after_ms=200)
    assert not rig.executor.drain()
    other = rig.successor()
    rig.end(result='"done"')

    assert [(result.status, result.attempt) for result in rig.results] == [("completed", 1)]
    assert rig.executor.drain()
    rig.relay.drain()
    rig.turn()  # what is published leaves the outbox at once
    assert rig.relay.drain()
    assert begun(other) == []


@pytest.mark.parametrize("effect", ["pure", "keyed"])
def test_what_may_be_repeated_begins_elsewhere_at_once_when_the_grace_is_over(effect: str) -> None:
    rig = executor()
    rig.ask(a_call(effect))
    told_to_end(rig)
    for _ in range(GRACE_MS // 200):
        rig.turn(after_ms=200)

    assert not rig.executor.drain()
    stopped = [effect for effect in rig.turn() if isinstance(effect, StopTool)]
    other = rig.successor()

    assert [stop.reason for stop in stopped] == ["handed_over"]
    assert rig.executor.drain()
    assert begun(other) == [("r1/1", 1, False)]
    assert rig.results == []
    rig.end(status="unknown")  # the tool has heard it: that is nobody's attempt
    assert rig.results == []


@pytest.mark.parametrize(("effect", "then"), [("probed", [("r1/1", 1, True)]), ("once", [])])
def test_of_what_may_not_be_repeated_nothing_is_guessed_when_the_grace_is_over(
    effect: str, then: list[tuple[str, int, bool]]
) -> None:
    rig = executor()
    rig.ask(a_call(effect))
    told_to_end(rig)
    for _ in range(GRACE_MS // 200):
        rig.turn(after_ms=200)

    assert rig.executor.drain()
    stopped = [effect for effect in rig.turn() if isinstance(effect, StopTool)]
    other = rig.successor()
    early = begun(other), list(other.results)
    for _ in range(200):
        other.turn(after_ms=200)

    assert stopped == []
    assert rig.results == []
    assert early == ([], [])
    assert begun(other) == then
    assert [result.status for result in other.results] == (["doubt"] if effect == "once" else [])


@pytest.mark.parametrize("effect", ["probed", "once"])
def test_a_claim_under_which_nothing_was_done_is_taken_back_so_that_nobody_is_asked(effect: str) -> None:
    rig = executor()
    rig.blind = True
    rig.ask(a_call(effect))

    told_to_end(rig)
    other = rig.successor()

    claim, undone = links(rig)[:2]
    assert (undone.undone, undone.prev) == (True, claim.claim_id)
    assert rig.executor.drain()
    assert begun(other) == [("r1/1", 1, False)]
    assert other.results == []


def test_a_claim_that_came_after_one_that_nobody_took_back_stands() -> None:
    rig = executor()
    rig.ask(a_call("probed"))
    rig.now_ms += 1_000_000  # it dies, and its lease is over
    other = rig.successor()
    other.turn(after_ms=20_000)
    assert begun(other) == [("r1/1", 1, True)]

    told_to_end(other)

    assert not [link for link in links(rig) if link.undone]
    assert other.executor.drain()


def test_what_was_claimed_and_had_not_begun_is_no_takeover_elsewhere() -> None:
    rig = executor()
    rig.blind = True
    rig.ask(a_call("once"))
    told_to_end(rig)

    other = rig.successor()

    (entry,) = other.ledger.entries().values()
    assert (entry.attempt, entry.takeover, entry.state) == (1, "", "started")


def test_it_waits_for_a_ledger_that_is_away_and_hands_over_when_that_is_back() -> None:
    rig = executor()
    ledger = rig.shared = Broken(lambda: rig.now_ms)
    rig.blind = True
    rig.ask(a_call("probed"))

    ledger.away = True
    told_to_end(rig)
    rig.turn(after_ms=1_000)
    waits = not rig.executor.drain()
    ledger.away = False
    rig.turn(after_ms=1_000)

    assert waits
    assert rig.executor.drain()
    assert [until for leases in ledger.leases().values() for until in leases.values()] == [0]


def test_calls_under_way_are_counted_for_the_autoscaler_until_they_are_over() -> None:
    rig = executor(slots=1)
    before = rig.executor.lanes_now().executions
    rig.ask(a_call(number=1))
    rig.ask(a_call(number=2))
    running = rig.executor.lanes_now().executions

    rig.end(result='"done"')
    rig.turn()
    rig.end(result='"done"')
    rig.turn()

    assert (before, running, rig.executor.lanes_now().executions) == (0, 1, 0)
