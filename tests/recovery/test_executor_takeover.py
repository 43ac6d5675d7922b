"""What an executor makes of requests that lie there when it comes: of what is settled, old, or not for it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import pytest

from refold.core.errors import UnreachableError
from refold.core.ids import CallId
from refold.core.messages import ToolRequest
from refold.core.wire import codec
from refold.core.wire.headers import CALL_KEY
from refold.engine.executor.lane import TakeOverScan
from refold.engine.executor.settings import ExecutorSettings
from refold.engine.ports.effects import AskLedger
from refold.engine.ports.ledger import Claim, Filled, Lapsed, Operation, Reply, Superseded, Unpublished
from refold.engine.ports.log import Assigned, Reached, Record
from tests.recovery.executor_rig import CLAIMS, ORDERS, Rig
from tests.simulator.world.open_ledger import OpenLedger

HOUR_MS = 3_600_000
RETENTION_MS = 7 * 24 * HOUR_MS


def call(number: int, **fields: object) -> ToolRequest:
    """A request of a call of its own."""
    request = ToolRequest(CallId(f"r{number}/3"), f"r{number}", 1, 1, 0, "fire", "{}", f"key-{number}", "pure", 3_000)
    return replace(request, **fields)  # type: ignore[arg-type]


def asks(offset: int, request: ToolRequest, at_ms: int = 1_000_000) -> Record:
    return Record(ORDERS, 0, offset, request.call_id.encode(), codec.encode(request), lambda: None, at_ms)


def closes(offset: int, request: ToolRequest) -> Record:
    named = [(CALL_KEY, request.key.encode())]
    return Record(ORDERS, 0, offset, request.call_id.encode(), None, lambda: named, 1_000_000)


def begun(rig: Rig) -> list[str]:
    return [start.request.call_id for start in rig.started]


# Who comes


@pytest.mark.parametrize(
    ("effect", "member", "after_ms"),
    [
        ("pure", "me", 0),
        ("keyed", "me", 0),
        ("keyed", "another", 1_000),
        ("probed", "me", 10_000),
        ("once", "me", 10_000),
    ],
)
def test_a_process_goes_on_at_once_with_what_one_of_its_name_had_begun_if_that_may_be_repeated(
    effect: str, member: str, after_ms: int
) -> None:
    rig = Rig(ExecutorSettings(member="me"))
    rig.ask(call(1, effect=effect, timeout_ms=60_000))
    assert begun(rig) == ["r1/3"]

    successor = rig.successor(member)

    if after_ms:
        successor.turn(after_ms=after_ms - 700)
        assert begun(successor) == []
        assert successor.told(CallId("r1/3")) == []
        successor.turn(after_ms=700)
        successor.turn(after_ms=300)
    asked = [result.status for result in successor.told(CallId("r1/3"))]
    assert (begun(successor), asked) == (([], ["doubt"]) if effect == "once" else (["r1/3"], []))


class RefusesWrites:
    """A ledger that refuses everything: memory is full, or a failover is under way."""

    def run(self, operations: Sequence[Operation]) -> list[Reply]:
        raise UnreachableError("READONLY")

    def problems(self) -> list[str]:
        return []


@pytest.mark.parametrize("effect", ["pure", "keyed", "probed", "once"])
def test_a_call_goes_on_at_once_when_the_ledger_takes_writes_again(effect: str) -> None:
    rig = Rig(ExecutorSettings(member="me"))
    rig.shared = RefusesWrites()
    rig.ask(call(1, effect=effect, timeout_ms=60_000))
    for _ in range(80):
        rig.turn(after_ms=100)
    assert begun(rig) == []

    rig.shared = None
    for _ in range(10):
        rig.turn(after_ms=100)

    assert (begun(rig), rig.results) == (["r1/3"], [])


def test_a_process_of_the_same_name_with_another_lock_waits_for_the_leases_of_the_first() -> None:
    rig = Rig(ExecutorSettings(member="me", lock_id="one"))
    rig.ask(call(1, effect="keyed", timeout_ms=60_000))

    assert begun(rig.successor("me", "one")) == ["r1/3"]
    assert begun(rig.successor("me", "two")) == []


def test_a_process_ends_leases_of_its_name_once_and_keeps_its_own() -> None:
    rig = Rig(ExecutorSettings(member="me"))
    rig.ask(call(1))
    again = Assigned(0, {}, {}, {CLAIMS: 0, "catalog": 0, ORDERS: 1})  # given back: an executor on its own asks again
    turns = [rig.turn(again), *(rig.turn(after_ms=rig.settings.reap_ms) for _ in range(5))]
    batches = [effect.operations for effects in turns for effect in effects if isinstance(effect, AskLedger)]
    asked = [operation for each in batches for operation in each if isinstance(operation, Lapsed)]

    assert begun(rig) == ["r1/3"]
    assert [operation.heir.partition("/")[2] for operation in asked if operation.heir] == ["me"]


# What is settled


@pytest.mark.parametrize("committed", [None, 0])
def test_a_call_that_is_closed_further_on_is_not_made_again_though_the_ledger_knows_nothing(
    committed: int | None,
) -> None:
    log = [asks(0, call(1)), asks(1, call(2)), closes(2, call(1)), asks(3, call(3)), closes(4, call(3))]
    rig = Rig()
    rig.assign(committed=committed, end=5)

    rig.turn(*log)
    assert begun(rig) == []
    assert [read.offset for read in rig.reads] == [1]
    for record in log[1:]:
        rig.turn(record)

    assert begun(rig) == ["r2/3"]


def test_only_the_last_request_of_a_call_is_acted_upon() -> None:
    log = [asks(0, call(1)), asks(1, call(1, again=True))]
    rig = Rig()
    rig.assign(end=2)

    rig.turn(*log)
    rig.turn(*log[1:])

    assert [start.request.again for start in rig.started] == [True]


def test_what_was_on_its_way_from_the_first_reading_is_not_taken_for_the_second() -> None:
    log = [asks(0, call(1)), asks(1, call(2)), asks(2, call(3)), asks(3, call(4))]
    rig = Rig()
    rig.assign(end=2)

    rig.turn(*log[:3])
    rig.turn(log[3])
    assert begun(rig) == []
    rig.turn(*log)

    assert begun(rig) == ["r1/3", "r2/3", "r3/3", "r4/3"]


def test_a_second_reading_that_finds_less_than_the_first_is_asked_for_once_more() -> None:
    rig = Rig()
    rig.assign(end=2)
    rig.turn(asks(0, call(1)), asks(1, call(2)))

    rig.turn(asks(2, call(3)))  # the cleaner has taken the others, which were closed since
    rig.turn(after_ms=1_000)
    rig.turn(asks(2, call(3)))

    assert [read.offset for read in rig.reads] == [0, 0]
    assert begun(rig) == ["r3/3"]


def test_what_is_open_is_remembered_until_it_is_read_again_and_no_longer() -> None:
    count = 5_000
    scan = TakeOverScan(0, count)
    tracemalloc.start()
    try:
        for offset in range(count):
            scan.follow(asks(offset, call(offset)), poison=False)
        used, _ = tracemalloc.get_traced_memory()
        remembered = len(scan._open)
        for offset in range(count - 1):
            request = asks(offset, call(offset))
            assert scan.passes(request)
            assert scan.open(request, poison=False)
    finally:
        tracemalloc.stop()

    assert used / count < 260  # 126 at best: a dictionary doubles
    assert (remembered, len(scan._open)) == (count, 1)
    assert scan.open(asks(count, call(count)), poison=False)
    assert len(scan._open) == 0


def test_where_everything_is_closed_nothing_is_read_twice_and_the_end_is_committed() -> None:
    rig = Rig()
    rig.assign(end=3)

    rig.turn(asks(0, call(1)), closes(1, call(1)), Reached(ORDERS, 0, 3), asks(3, call(2)))
    rig.turn(after_ms=1_000)
    rig.turn(after_ms=1_000)

    assert rig.reads == []
    assert begun(rig) == ["r2/3"]
    assert rig.commits[ORDERS, 0] == 4


def test_nothing_above_an_open_request_is_committed_before_it_is_read_again() -> None:
    rig = Rig(ExecutorSettings(slots=0))
    rig.assign(end=2)

    rig.turn(asks(0, call(1)), closes(1, call(1)), asks(2, call(2)))
    rig.assign(end=3)
    rig.turn(asks(0, call(1)), closes(1, call(1)), asks(2, call(2)), asks(3, call(3)))
    rig.turn(after_ms=1_000)
    rig.turn(after_ms=1_000)

    assert rig.commits[ORDERS, 0] == 2


class Broken(OpenLedger):
    """A ledger that is away while it is told to be."""

    away = False

    def run(self, operations: Sequence[Operation]) -> list[Reply]:
        if self.away:
            raise UnreachableError("the ledger is away")
        return super().run(operations)


@pytest.mark.parametrize("scanned", [False, True])
def test_a_tombstone_is_committed_when_the_ledger_has_closed_its_call_and_not_before(scanned: bool) -> None:
    ledger = Broken(lambda: 1_000_000)
    rig = Rig(shared=ledger)
    ledger.away = True
    rig.assign(committed=0, end=2 * scanned)

    rig.turn(asks(0, call(1)), closes(1, call(1)), Reached(ORDERS, 0, 2))
    rig.turn(after_ms=10_000)
    before = rig.commits.get((ORDERS, 0), 0)
    ledger.away = False
    rig.turn(after_ms=1_000)
    rig.turn(after_ms=1_000)

    assert before <= 1
    assert rig.commits[ORDERS, 0] == 2


def test_a_successor_closes_a_call_whose_tombstone_its_predecessor_had_read() -> None:
    ledger = Broken(lambda: 1_000_000)
    rig = Rig(shared=ledger)
    rig.ask(call(1))
    rig.end(result="1")
    ledger.away = True
    rig.turn(closes(1, call(1)))
    rig.turn(after_ms=10_000)

    ledger.away = False
    successor = Rig(shared=ledger)
    successor.assign(committed=rig.commits.get((ORDERS, 0), 0), end=2)
    successor.turn(*[asks(0, call(1)), closes(1, call(1))][rig.commits.get((ORDERS, 0), 0) :])
    successor.turn(after_ms=1_000)

    token, lease = "another", 1_000
    [said] = ledger.run([Claim(0, "default", "key-1", call(1).call_id, 1, token, lease, b"")])
    assert said == Superseded(closed=True)


def test_an_attempt_that_the_log_has_gone_back_to_is_answered_and_the_later_one_with_it() -> None:
    rig = Rig()
    rig.ask(call(1, attempt=3))
    rig.end("failed", message="no")

    rig.ask(call(1, attempt=2))
    again = rig.told(call(1).call_id)[-1]
    rig.ask(call(1, attempt=3, again=True))
    last = rig.told(call(1).call_id)[-1]

    assert (again.attempt, again.status, again.late) == (2, "unknown", False)
    assert (last.attempt, last.status) == (3, "failed")
    assert len(rig.started) == 1


# What is old


@pytest.mark.parametrize("acts", [True, False])
def test_a_request_older_than_half_of_what_the_ledger_remembers_is_left_to_the_planner(acts: bool) -> None:
    age_ms = RETENTION_MS // 2 + (-HOUR_MS if acts else HOUR_MS)
    rig = Rig()
    rig.turn(after_ms=RETENTION_MS)

    rig.turn(asks(0, call(1), at_ms=rig.now_ms - age_ms))
    rig.turn(after_ms=1_000)

    assert begun(rig) == (["r1/3"] if acts else [])
    assert rig.executor.counts["request.stale"] == (0 if acts else 1)
    assert rig.commits[ORDERS, 0] == 1


# What waits


def test_a_call_waits_once_however_often_it_is_asked_for_or_its_lease_lapses() -> None:
    rig = Rig(ExecutorSettings(slots=0))
    lapsed = call(1, effect="keyed")
    rig.ledger.run([Claim(0, "default", lapsed.key, lapsed.call_id, 1, "dead", 0, rig.order(lapsed))])

    for _ in range(50):
        rig.turn(after_ms=200)
    for offset in range(3):
        rig.turn(asks(offset, call(2)))

    (lane,) = rig.executor.lanes
    assert len(lane.waiting) == 2
    assert rig.executor.counts["lease.lapsed"] == 1
    rig.turn(after_ms=1_000)
    assert rig.commits[ORDERS, 0] == 2


def test_a_higher_attempt_takes_the_place_of_a_lower_one_that_waits() -> None:
    rig = Rig(ExecutorSettings(slots=0))

    rig.turn(asks(0, call(1)), asks(1, call(1, attempt=2)), asks(2, call(1)))

    (lane,) = rig.executor.lanes
    assert lane.waiting.take().request.attempt == 2


# What is not for it


def test_a_tool_that_is_not_here_is_not_claimed_holds_nobody_up_and_is_let_go_without_a_word() -> None:
    rig = Rig(ExecutorSettings(tools=frozenset({"fire"}), aside_ms=5_000))

    for offset in range(3):
        rig.turn(asks(offset, call(offset, tool="water")))
    rig.turn(asks(3, call(3)))
    rig.turn(after_ms=600)
    before = rig.commits.get((ORDERS, 0), 0)
    rig.turn(after_ms=5_000)
    rig.turn(after_ms=1_000)

    assert begun(rig) == ["r3/3"]
    assert {entry.call for entry in rig.ledger.entries().values()} == {"r3/3"}
    assert rig.executor.counts["tool.missing"] == 1
    assert (before, rig.commits[ORDERS, 0]) == (0, 4)
    assert {told.call_id for told in rig.results} == {"r3/3"}


def test_the_tombstone_of_a_call_whose_tool_is_not_here_lets_it_go() -> None:
    rig = Rig(ExecutorSettings(tools=frozenset()))

    rig.turn(asks(0, call(1)), closes(1, call(1)))
    rig.turn(after_ms=1_000)
    rig.turn(after_ms=1_000)
    rig.turn(after_ms=1_000)

    assert rig.commits[ORDERS, 0] == 2


# When the ledger is full


def test_a_full_ledger_gets_no_new_calls_but_the_results_of_those_under_way() -> None:
    rig = Rig()
    rig.ask(call(1))
    rig.ledger.filled = Filled(80, 100)
    rig.turn(after_ms=5_000)

    rig.ask(call(2))
    assert begun(rig) == ["r1/3"]
    rig.end(result="1")
    assert {told.call_id for told in rig.results} == {"r1/3"}

    rig.ledger.filled = Filled(76, 100)
    rig.turn(after_ms=5_000)
    assert begun(rig) == ["r1/3"]
    rig.ledger.filled = Filled(74, 100)
    rig.turn(after_ms=5_000)
    rig.turn()
    assert begun(rig) == ["r1/3", "r2/3"]
    assert (rig.executor.counts["ledger.full"], rig.executor.counts["ledger.room"]) == (1, 1)


def test_a_ledger_without_a_limit_is_never_full() -> None:
    rig = Rig()
    rig.ledger.filled = Filled(1 << 40, 0)
    rig.turn(after_ms=5_000)

    rig.ask(call(1))

    assert begun(rig) == ["r1/3"]


# When the log refuses a result


@pytest.mark.parametrize(("status", "said"), [("completed", "broken"), ("failed", "failed")])
def test_a_result_that_the_log_refuses_is_told_in_a_few_words(status: str, said: str) -> None:
    rig = Rig(largest=600)
    rig.ask(call(1))

    rig.end(status, '"' + "x" * 1_000 + '"') if status == "completed" else rig.end(status, message="x" * 1_000)
    rig.turn(after_ms=100)

    (told,) = rig.results
    assert told.failure
    assert (told.status, told.failure.code, told.retryable, told.result) == (said, "too_large", False, "")
    assert rig.relay.counts["publish.refused"] == 1
    assert rig.relay.idle
    assert not any(rig.ledger.outbox().values())


def test_a_log_that_takes_nothing_at_all_is_tried_again_once_a_minute() -> None:
    rig = Rig()
    rig.ask(call(1))
    rig.largest = 10
    rig.end(result='"x"')
    for _ in range(30):
        rig.turn(after_ms=1_000)
    refused = rig.relay.counts["publish.refused"]

    rig.largest = 1_000
    for _ in range(60):
        rig.turn(after_ms=1_000)

    assert refused == 2
    assert [told.status for told in rig.results] == ["completed"]
    assert not any(rig.ledger.outbox().values())


def test_a_result_stays_in_the_outbox_until_the_log_has_it() -> None:
    rig = Rig()
    rig.silent = True
    rig.ask(call(1))
    rig.end(result="1")
    rig.turn(after_ms=10_000)
    before = rig.ledger.run([Unpublished(0, "default", 10)])[0]

    rig.heard()
    rig.turn(after_ms=10_000)

    assert [field for field, _ in before or []] == ["r1/3#1"]  # type: ignore[misc, str-unpack, union-attr]
    assert [told.result for told in rig.told(call(1).call_id)] == ["1"]
    assert rig.ledger.run([Unpublished(0, "default", 10)]) == [[]]
