"""What somebody who may write Redis can put there ends nobody, holds nobody up, and is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from refold.core.ids import CallId
from refold.core.messages import ToolRequest
from refold.dev.valkey import EmbeddedValkey
from tests.contract.ledger_benches import RedisBench
from tests.recovery.executor_rig import Rig

Poison = Callable[[Any, str], object]


def call(number: int) -> ToolRequest:
    run = f"r{number}"
    return ToolRequest(CallId(f"{run}/3"), run, 1, 1, 0, "fire", "{}", f"key-{number}", "pure", 60_000)


MINE = call(1)
ENTRY = f"effect:{MINE.key}"

POISONED: dict[str, Poison] = {
    "a lapsed lease of nonsense": lambda redis, at: (
        redis.hset(f"{at}effect:evil", mapping={"state": "started", "order": b"\xff nonsense"}),
        redis.zadd(f"{at}held", {"evil": 1}),
    ),
    "a lapsed lease of a newer version": lambda redis, at: (
        redis.hset(f"{at}effect:evil", mapping={"state": "started", "order": b"\0\0\1\0\0 newer"}),
        redis.zadd(f"{at}held", {b"\xff\xfe": 1, "evil": 1}),
    ),
    "a result of nonsense": lambda redis, at: redis.hset(f"{at}outbox", f"{MINE.call_id}#1", b"{}"),
    "a result of nobody": lambda redis, at: redis.hset(f"{at}outbox", b"\xff no call", b"\0"),
    "an index that is none": lambda redis, at: redis.set(f"{at}held", "x"),
    "an outbox that is none": lambda redis, at: redis.set(f"{at}outbox", "x"),
    "a quarantine that is none": lambda redis, at: (
        redis.set(f"{at}quarantine", "x"),
        redis.hset(f"{at}outbox", b"no call", b"\0"),
    ),
    "an entry that is none": lambda redis, at: redis.set(f"{at}{ENTRY}", "x"),
    "an entry without an attempt": lambda redis, at: redis.hset(
        f"{at}{ENTRY}", mapping={"state": "started", "call": MINE.call_id, "attempt": "x", "token": "t"}
    ),
    "an entry without a result": lambda redis, at: redis.hset(
        f"{at}{ENTRY}", mapping={"state": "done", "success": "1", "call": MINE.call_id, "attempt": "1", "token": "t"}
    ),
    "a stored result of nonsense": lambda redis, at: redis.hset(
        f"{at}{ENTRY}",
        mapping={"state": "done", "success": "1", "call": MINE.call_id, "attempt": "1", "token": "t", "result": "x"},
    ),
    "another token": lambda redis, at: redis.hset(f"{at}{ENTRY}", mapping={"state": "done", "token": "t"}),
}


@pytest.fixture
def bench(valkey: EmbeddedValkey) -> Iterator[RedisBench]:
    """Give an empty ledger on the shared server."""
    made = RedisBench(valkey.url)
    yield made
    made.close()


def settle(rig: Rig) -> None:
    for _ in range(5):
        rig.turn(after_ms=1_500)


@pytest.mark.parametrize("late", [False, True], ids=["before the claim", "while the tool runs"])
@pytest.mark.parametrize("what", POISONED)
def test_what_nobody_can_read_is_set_aside_and_the_others_go_on(what: str, late: bool, bench: RedisBench) -> None:
    rig, at = Rig(shared=bench.ledger), f"{bench.prefix}:default:{{0}}:"
    settle(rig)
    if not late:
        POISONED[what](bench.client, at)

    rig.ask(MINE)
    if late:
        assert [start.request.call_id for start in rig.started] == [MINE.call_id]
        POISONED[what](bench.client, at)
        rig.end(result="1")
    settle(rig)
    rig.ask(call(2))
    rig.end(result="2")
    settle(rig)

    assert "r2/3" in {start.request.call_id for start in rig.started}
    assert [(said.status, said.result) for said in rig.told(CallId("r2/3"))] == [("completed", "2")]
    assert rig.told(MINE.call_id) or not late, "what a tool has done is told"
    assert bench.client.hlen(f"{at}outbox") == 0
    told = rig.executor.counts["ledger.unreadable"] + rig.relay.counts["ledger.unreadable"]
    assert told >= 1 or what in (OVERWRITTEN if late else UNSEEN), "nobody hears of it"
    assert told <= 4, "the same is found again and again"


UNSEEN = ("another token",)
OVERWRITTEN = (
    *UNSEEN,
    "a result of nonsense",
    "a stored result of nonsense",
    "an entry without an attempt",
    "an entry without a result",
)
"""Those that are fenced or replaced by what the tool's end has written."""
