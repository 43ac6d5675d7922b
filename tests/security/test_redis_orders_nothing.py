"""Whoever writes Redis may make an executor forget and wait; it orders nothing, and answers for nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from refold.core.ids import CallId
from refold.core.messages import ToolRequest, ToolResult
from refold.core.wire import codec
from refold.core.wire.seal import OrderPlace, Seal
from refold.engine.adapters.memory.ledger import CallEntry
from refold.engine.executor.settings import ExecutorSettings
from tests.recovery.executor_rig import Rig
from tests.simulator.world.open_ledger import OpenLedger

OURS = Seal("default", bytes(range(32)))
OTHERS = {"no key": Seal(), "another key": Seal("default", b"guessed"), "another pool": replace(OURS, pool="web")}


def call(number: int, **changes: object) -> ToolRequest:
    request = ToolRequest(CallId(f"r{number}/3"), f"r{number}", 1, 1, 0, "fire", "{}", f"key-{number}", "pure", 3_000)
    return replace(request, **changes)  # type: ignore[arg-type]


MINE, OTHER = call(1), call(2)


def rig() -> Rig:
    return Rig(ExecutorSettings(seal=OURS))


def lapse(on: Rig, request: ToolRequest, order: bytes) -> None:
    """A lease that lapses at once, as somebody has written it."""
    place = (0, "default", request.key)
    entries = {place: CallEntry("started", request.call_id, request.attempt, "evil", 1 << 60, order=order)}
    plant(on.ledger, entries=entries, leases={(0, "default"): {request.key: 0}})
    for _ in range(3):
        on.turn(after_ms=1_500)


def plant(ledger: OpenLedger, **changes: object) -> None:
    ledger.rollback(ledger.snapshot()._replace(**changes))  # type: ignore[arg-type]


def said(request: ToolRequest, result: str = '"made up"') -> bytes:
    return codec.encode(ToolResult(request.call_id, request.run_id, 1, request.attempt, "completed", result))


def test_a_lapsed_lease_that_points_at_its_order_is_taken_over() -> None:
    mine = rig()

    lapse(mine, MINE, mine.order(MINE, offset=7))

    assert [start.request for start in mine.started] == [MINE]


@pytest.mark.parametrize("whose", OTHERS)
def test_nothing_begins_for_an_entry_that_no_executor_of_the_pool_has_written(whose: str) -> None:
    mine = rig()
    mine.order(MINE, offset=7)

    lapse(mine, MINE, OTHERS[whose].close_order(0, MINE.key, OrderPlace(MINE.call_id, 1, 7)))

    assert mine.started == []
    assert mine.executor.counts["ledger.unreadable"] == 1
    assert mine.ledger.aside[0, "default"].keys() == {f"entry:{MINE.key}"}


STOLEN: dict[str, Callable[[Rig], bytes]] = {
    "another key": lambda on: on.order(OTHER, offset=7),
    "another partition": lambda on: OURS.close_order(1, MINE.key, OrderPlace(MINE.call_id, 1, 7)),
    "a result": lambda on: OURS.close("result", 0, MINE.key, f"1 7 {MINE.call_id}".encode()),
}


@pytest.mark.parametrize("what", STOLEN)
def test_what_was_put_elsewhere_stands_for_nothing_here(what: str) -> None:
    mine = rig()
    mine.order(MINE, offset=7)

    lapse(mine, MINE, STOLEN[what](mine))

    assert mine.started == []
    assert mine.executor.counts["ledger.unreadable"] == 1


@pytest.mark.parametrize(
    "lies",
    [None, OTHER, replace(MINE, attempt=2), replace(MINE, key="another")],
    ids=["none", "call", "attempt", "key"],
)
def test_an_order_that_is_not_in_the_log_any_more_is_left_to_the_planner(lies: ToolRequest | None) -> None:
    mine = rig()
    if lies:
        mine.order(lies, offset=7)

    lapse(mine, MINE, OURS.close_order(0, MINE.key, OrderPlace(MINE.call_id, 1, 7)))
    assert mine.started == []
    assert mine.ledger.leases()[0, "default"] == {}, "it lapses again and again"
    mine.ask(MINE, offset=8)

    assert [start.request for start in mine.started] == [MINE]
    assert mine.executor.counts["ledger.unreadable"] == 0


LATER: dict[str, Callable[[], CallEntry]] = {
    "nothing": lambda: CallEntry("started", MINE.call_id, 10**6, "evil", 1 << 60),
    "its own order": lambda: later(OURS.close_order(0, MINE.key, OrderPlace(MINE.call_id, 1, 7))),
    "another call's": lambda: later(OURS.close_order(0, MINE.key, OrderPlace(OTHER.call_id, 2, 7))),
    "another key": lambda: later(OURS.close_order(0, OTHER.key, OrderPlace(MINE.call_id, 2, 7))),
    "another pool": lambda: later(OTHERS["another pool"].close_order(0, MINE.key, OrderPlace(MINE.call_id, 2, 7))),
    "its own result": lambda: later(OURS.close("result", 0, MINE.key, said(MINE)), "done"),
}


def later(sealed: bytes, state: str = "started") -> CallEntry:
    """An entry that says of a later attempt that it has begun, or is done."""
    what = {"result" if state == "done" else "order": sealed}
    return CallEntry(state, MINE.call_id, 10**6, "evil", 1 << 60, **what)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", LATER)
def test_a_later_attempt_that_the_pool_has_not_begun_fails_no_call(what: str) -> None:
    mine = rig()

    plant(mine.ledger, entries={(0, "default", MINE.key): LATER[what]()})
    mine.ask(MINE)

    assert mine.results == []
    assert mine.executor.counts["ledger.unreadable"] == 1
    mine.ask(MINE)
    assert [start.request for start in mine.started] == [MINE], "asked for again, it is done"


def test_what_a_newer_version_says_of_a_later_attempt_stays_for_that() -> None:
    mine, place = rig(), (0, "default", MINE.key)
    newer = b"\x00" + b"\xff" * (codec.FRAME_BYTES - 1) + b"of tomorrow"
    entry = later(OURS.close("result", 0, MINE.key, newer), "done")._replace(attempt=2)
    plant(mine.ledger, entries={place: entry})

    mine.ask(MINE)

    assert mine.ledger.entries()[place] == entry
    assert (mine.results, mine.executor.counts["ledger.unreadable"]) == ([], 1)


@pytest.mark.parametrize("state", ["started", "done"])
def test_a_later_attempt_that_the_pool_has_begun_is_told(state: str) -> None:
    mine, place = rig(), (0, "default", MINE.key)
    order, done = OURS.close_order(0, MINE.key, OrderPlace(MINE.call_id, 2, 7)), replace(MINE, attempt=2)
    failed = codec.encode(ToolResult(MINE.call_id, MINE.run_id, 1, 2, "failed"))
    sealed = OURS.close("result", 0, MINE.key, failed) if state == "done" else order

    plant(mine.ledger, entries={place: later(sealed, state)._replace(attempt=done.attempt)})
    mine.ask(MINE)

    assert [(result.status, result.late) for result in mine.results] == [("unknown", False)]


@pytest.mark.parametrize("whose", OTHERS)
def test_a_result_that_no_executor_of_the_pool_has_written_is_told_to_nobody(whose: str) -> None:
    mine = rig()

    made_up = OTHERS[whose].close("result", 0, MINE.key, said(MINE))
    plant(mine.ledger, outbox={(0, "default"): {f"{MINE.call_id}#1": made_up}})
    mine.turn(after_ms=1_500)
    mine.turn(after_ms=1_500)

    assert mine.results == []
    assert mine.relay.counts["ledger.unreadable"] == 1
    assert mine.ledger.outbox()[0, "default"] == {}


@pytest.mark.parametrize("field", [f"{OTHER.call_id}#1", f"{MINE.call_id}#2"])
def test_a_result_is_that_of_its_own_attempt_wherever_it_lies(field: str) -> None:
    mine = rig()

    plant(mine.ledger, outbox={(0, "default"): {field: OURS.close("result", 0, MINE.key, said(MINE))}})
    mine.turn(after_ms=1_500)

    assert mine.results == []
    assert mine.relay.counts["ledger.unreadable"] == 1


@pytest.mark.parametrize("whose", [*OTHERS, "another call", "another attempt, failed"])
def test_a_stored_result_counts_only_where_it_was_put(whose: str) -> None:
    mine, known = rig(), said(MINE)
    sealed = OTHERS[whose].close("result", 0, MINE.key, known) if whose in OTHERS else b""
    if whose == "another call":
        sealed = OURS.close("result", 0, OTHER.key, said(OTHER))
    elif whose == "another attempt, failed":
        failed = ToolResult(MINE.call_id, MINE.run_id, 1, 2, "failed")
        sealed = OURS.close("result", 0, MINE.key, codec.encode(failed))
    entry = CallEntry("done", MINE.call_id, 1, "evil", 1 << 60, success=True, result=sealed)
    plant(mine.ledger, entries={(0, "default", MINE.key): entry})

    mine.ask(MINE)
    assert mine.results == []
    assert mine.executor.counts["ledger.unreadable"] == 1
    mine.ask(MINE)
    mine.end(result='"mine"')

    assert [result.result for result in mine.told(MINE.call_id)] == ['"mine"']


def test_what_the_pool_has_stored_is_told_again_and_of_another_life_under_its_name() -> None:
    mine = rig()
    mine.ask(MINE)
    mine.end(result='"mine"')

    mine.ask(MINE)
    mine.ask(replace(MINE, call_id=CallId("r1/9"), attempt=4))

    told = [(result.call_id, result.attempt, result.result) for result in mine.results]
    assert told == [("r1/3", 1, '"mine"'), ("r1/3", 1, '"mine"'), ("r1/9", 4, '"mine"')]
    assert len(mine.started) == 1
