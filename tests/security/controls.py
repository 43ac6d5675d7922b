"""What people have allowed happens, and once: however often it is sent, and whatever fails meanwhile.

`once` is told apart by the claim chain, `probed` by its hook, `keyed` by the receiver, which counts what reaches it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from refold.core.messages import ToolRequest
from tests.embedded.wiping import wipe
from tests.security.app import DANGEROUS
from tests.security.hijack import Hijack, Outcome, ask_for
from tests.security.plays import Play
from tests.waiting import eventually

GUARDED = ("wipe", "refund", "deploy")
ONCE = Counter(GUARDED)
DONE = dict.fromkeys(DANGEROUS, ("completed",))
KNOWN = {**DONE, "wipe": ("doubt",)}
"""What comes of a second try of which the ledger knows nothing."""

NOT_THERE = dict.fromkeys(DANGEROUS, ("unauthorised",))
"""What another pool says to the same orders: its executors have no such tools."""


def plays() -> Iterator[Play]:
    """Three calls each, one of a class, unless it says otherwise."""
    yield Play("the genuine order with the genuine decision, of each class", genuine, "control", allowed=4)
    yield Play("sent again", again, "control", allowed=3)
    yield Play("sent to two pools at once", two_pools, "control", allowed=3)
    yield Play("sent again after Valkey has lost everything", wiped, "control", allowed=3)
    yield Play("sent again after the executor was killed", killed, "control", allowed=3)
    yield Play("killed in the middle, Valkey wiped, sent again to two pools", disaster, "control", allowed=3)
    yield Play("attempts 1, 2 and 5 of five, Valkey wiped in between", attempts, "control", allowed=2)
    yield Play("LIMIT a pure tool, sent again after Valkey was wiped", repeated, "limit", allowed=2)


def genuine(hijack: Hijack) -> Outcome:
    found = send(hijack, orders(hijack, DANGEROUS))
    return judge(hijack, found, DONE, effects=Counter(DANGEROUS))


def again(hijack: Hijack) -> Outcome:
    ordered = orders(hijack)
    send(hijack, ordered)
    return judge(hijack, send(hijack, ordered), DONE)


def two_pools(hijack: Hijack) -> Outcome:
    """Leases and chains are a pool's own, and so is a tool: one of the two refuses it."""
    ordered = orders(hijack, how="slow")
    there = send(hijack, ordered, pool="model")
    found = judge(hijack, [*send(hijack, ordered), *send(hijack, ordered)], DONE)
    return judge(hijack, there, NOT_THERE) if found.stopped else found


def wiped(hijack: Hijack) -> Outcome:
    ordered = orders(hijack)
    send(hijack, ordered)
    wipe(hijack.stage.valkey)
    return judge(hijack, send(hijack, ordered), KNOWN, received=2)


def killed(hijack: Hijack) -> Outcome:
    ordered = orders(hijack)
    send(hijack, ordered)
    hijack.stage.crash("executor-default")
    return judge(hijack, send(hijack, ordered), DONE)


def disaster(hijack: Hijack) -> Outcome:
    """All effects are there, no result is, and nobody but the claim chain, the hook and the receiver remembers."""
    ordered = orders(hijack, how="hold")
    for each in ordered:
        hijack.send(each)
    eventually(lambda: hijack.stage.effects_of(hijack.label) == ONCE, what="the effects")
    with hijack.stage.supervisor.down("executor-default"):
        wipe(hijack.stage.valkey)
        there = send(hijack, ordered, pool="model")
    found = judge(hijack, send(hijack, ordered), KNOWN, received=2)
    return judge(hijack, there, NOT_THERE, received=2) if found.stopped else found


def attempts(hijack: Hijack) -> Outcome:
    """Of the classes that may be tried again; every attempt is a new one to the ledger."""
    ordered = orders(hijack, ("refund", "deploy"), covers=5)
    found = send(hijack, ordered)
    for number in (2, 5):
        wipe(hijack.stage.valkey)
        found += send(hijack, [replace(each, attempt=number) for each in ordered])
    return judge(hijack, found, DONE, received=3, effects=Counter(("refund", "deploy")))


def repeated(hijack: Hijack) -> Outcome:
    """A tool that may be told again is."""
    ordered = orders(hijack, ["secret"])
    send(hijack, ordered)
    wipe(hijack.stage.valkey)
    ((_, status),) = send(hijack, ordered)
    return Outcome(False, f"executor: {status}")


def orders(hijack: Hijack, tools: Iterable[str] = GUARDED, *, how: str = "plain", covers: int = 1) -> list[ToolRequest]:
    """The orders of calls that people have approved, one of each tool."""
    found = []
    for tool in tools:
        call = hijack.call(tool, how=how)
        found.append(hijack.ordering(call, hijack.decision(ask_for(call, covers=covers))))
    return found


def send(hijack: Hijack, ordered: Sequence[ToolRequest], *, pool: str = "default") -> list[tuple[str, str]]:
    """Sends orders together; returns tool and status of what came of each."""
    known = {each.call_id: len(hijack.results(each.call_id, pool)) for each in ordered}
    for each in ordered:
        hijack.send(each, pool=pool)
    return [(each.tool, hijack.insist(each, known[each.call_id], pool=pool).status) for each in ordered]


def judge(
    hijack: Hijack,
    found: Sequence[tuple[str, str]],
    wanted: Mapping[str, Collection[str]],
    *,
    received: int = 1,
    effects: Counter[str] = ONCE,
) -> Outcome:
    """Whether all came out as wanted, with these effects so far; the keyed tool's receiver saw so many at least."""
    seen = hijack.stage.effects_of(hijack.label)
    reached = hijack.stage.effects_of(hijack.label, file="received")["refund"]
    right = all(status in wanted[tool] for tool, status in found)
    told = ", ".join(dict.fromkeys(f"{tool} {status}" for tool, status in found))
    where = f"executor: {told}; the receiver saw {reached}; {dict(seen)}"
    return Outcome(right and seen == effects and reached >= received, where)
