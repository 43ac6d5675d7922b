"""What is halted is ordered all the same: a tool that needs no decision, by a planner that obeys nobody."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from time import sleep

from refold.core.messages import CatalogEntry, ToolRequest
from tests.security.hijack import Hijack, Outcome
from tests.security.plays import Play
from tests.waiting import eventually

UNDECLARED = "note"
TOOL = f"halt/tool/{UNDECLARED}"
READ_S = 2
"""How long an executor may take to read a halt, on a busy machine: what it has begun before it would never say."""


def plays() -> Iterator[Play]:
    """Each waits while it is halted, and has its effect when it goes on."""
    for name in (TOOL, "halt/pool/default", "halt/all"):
        yield Play(f"order what is halted: {name}", partial(ordered, name=name), "control", allowed=1)
    yield Play("the same, with a word of one's own that it goes on", own_word, "control", allowed=1)


def ordered(hijack: Hijack, *, name: str, words: bool = False) -> Outcome:
    """An order waits while something is halted, whatever is said by others, and is carried out then."""
    order = hijack.ordering(hijack.call(UNDECLARED))
    hijack.stage.publish(name, "halt", "look first")
    try:
        sleep(READ_S)
        why = passed_over(hijack, order, times=1)
        if words:
            hijack.stage.slip(CatalogEntry(name, "halt", "null"))
            hijack.stage.slip_tombstone(name)
            why = passed_over(hijack, order, times=2)
        waited = not hijack.results(order.call_id) and not hijack.stage.effects_of(hijack.label)
    finally:
        hijack.stage.publish(name, "halt", None)
    result = hijack.insist(order, 0)
    return Outcome(waited and result.status == "completed", f"executor: {why}; then {result.status}")


def own_word(hijack: Hijack) -> Outcome:
    return ordered(hijack, name=TOOL, words=True)


def passed_over(hijack: Hijack, order: ToolRequest, *, times: int) -> str:
    """Sends an order until the executor has said so often why it does not begin it."""

    def told() -> list[str]:
        lines = [line for line in hijack.stage.said("executor-default") if line["event"] == "call.halted"]
        found = [str(line["reason"]) for line in lines if line["call_id"] == order.call_id]
        return found if len(found) >= times else []

    hijack.send(order)
    return eventually(told, what="a halt that is obeyed")[-1]
