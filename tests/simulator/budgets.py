"""What may never be of budgets, checked when a case is over."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from refold.core.topics import RUN_COMPLETED
from tests.simulator.app import PRICED
from tests.simulator.minds.models import LARGE, SMALL
from tests.simulator.reading.budgets import NOTHING, Place, Sum, total
from tests.simulator.reading.logged import LoggedCall, LoggedRun
from tests.simulator.reading.spending import family_of
from tests.simulator.reading.values import read_value
from tests.simulator.settings import ANSWERS
from tests.simulator.workload.inputs import Scenario
from tests.simulator.world.receiver import Deed
from tests.simulator.world.world import World

PRICE = Sum(100_000_000)
"""What `PRICED` costs each time."""

METERED = (PRICED, "model")
"""The tools that cost something."""

CERTAIN = frozenset({"ok", "slow", "not-done", "raises-after"})
"""Scripts after which everybody knows, or has to fear, what was paid: nothing more is booked, and nothing less."""

SOON_MS = 50
"""How long what a run took may be on its way without any fault: many turns."""

_COUNTS = ("input_tokens", "output_tokens")
_PER_TOKEN = {LARGE: (100_000, 400_000), SMALL: (10_000, 40_000)}


def objections(world: World, scenario: Scenario, *, at_rest: bool) -> Iterator[str]:
    """What is paid is booked; nobody goes beyond a limit; and users are told of what was taken."""
    runs = world.witness.history.runs
    paid: dict[str, list[Deed]] = {}
    for deed in world.receiver.done:
        if deed.tool in METERED:
            paid.setdefault(deed.call, []).append(deed)
    # Who has lost the tombstone of a request, and that it is done, makes it once more for nobody.
    reopened = world.hit("expire") and world.hit("truncate-orders")
    forgot, back = world.forgot or world.hit("outage") or reopened, world.hit("truncate-log")
    sent_back = set(_sent_back(world))
    for run in runs.values() if not back else ():  # what the log has lost was paid all the same
        for call in [call for call in run.calls.values() if call.tool in METERED]:
            yield from _booked(run, call, paid.get(call.id, []), forgot=forgot)
        if not world.struck and world.settings.planners == 1:
            yield from run.purse.odd
            if why := _uncounted(runs, run):
                yield why
    limits = world.witness.history.limits
    # In a mirror positions are others: of what was let out before, a second may be missing, or there twice.
    yield from limits.wrong if not world.hit("mirror") else ()
    # What a log has lost, and what others were told of it, counts on for them.
    alone = not world.settings.singly
    yield from limits.stingy(runs.values()) if alone and not (back or world.hit("mirror")) else ()
    yield from limits.unread if not world.hit("mirror", "truncate-spent") else ()
    yield from limits.deaf if alone and not world.struck else ()
    for first in [run for run in runs.values() if any(run.purse.limit)] if not back else ():
        family = family_of(runs, first)
        taken = total(run.purse.own for run in family)
        calls = [(run, call) for run in family for call in run.calls.values()]
        known = total(_least(run, call, paid.get(call.id, []), sent_back, forgot=forgot) for run, call in calls)
        if any(one > other for one, other in zip(known, taken, strict=True)):
            yield f"unbooked: the family of run {first.id} has paid {known}, and {taken} is booked"
        certain = all(script in CERTAIN for script in scenario.scripts.get(PRICED, ())) and not scenario.policy
        if at_rest and certain and not world.struck and taken.nano_usd != known.nano_usd:
            yield f"misbooked: the family of run {first.id} has paid {known}, and {taken} is booked"
    yield from _told(world) if at_rest else ()


def took(deed: Deed, most: Sum) -> Sum:
    """What was paid for something that was done, of which that much was thought to be the `most`."""
    if deed.tool == PRICED:
        return PRICE
    said: Any = json.loads(deed.result)
    usage = said.get("usage") if isinstance(said, dict) else None
    usage = usage if isinstance(usage, dict) else {}
    counts = [usage[name] for name in _COUNTS if name in usage]
    if not counts or not all(type(count) is int and count >= 0 for count in counts):
        return most  # it does not say
    given, made = (usage.get(name, 0) for name in _COUNTS)
    each = _PER_TOKEN.get(usage.get("model", ""))
    return Sum(given * each[0] + made * each[1] if each else most.nano_usd, given + made)


def _booked(run: LoggedRun, call: LoggedCall, deeds: list[Deed], *, forgot: bool) -> Iterator[str]:
    """Each attempt has its place in the budget, and is billed as what was paid."""
    purse = run.purse
    for attempt in call.attempts:
        place = call.id, attempt
        if place not in purse.reserved:
            yield f"unreserved: attempt {attempt} of {call.id} went out, and nothing was reserved"
            continue
        bill = purse.bills.get(place)
        if bill == Sum():
            if any(deed.attempt == attempt for deed in deeds) and not forgot:
                yield f"unpaid: attempt {attempt} of {call.id} was made, and is billed as nothing"
        # What was made twice, and nobody knows of either, is billed as what was reserved, which stays besides.
        elif bill and bill not in {took(deed, purse.reserved[place]) for deed in deeds} and place not in purse.open:
            yield f"misbilled: attempt {attempt} of {call.id} is billed as {bill}, and that was never paid"


def _uncounted(runs: Mapping[str, LoggedRun], run: LoggedRun) -> str:
    """What a run took is counted by the nearest one above it that goes on."""
    above = list(_above(runs, run))
    lives = any(each.at_ms > run.at_ms + SOON_MS for each in above if any(each.purse.limit))
    if not run.over or not lives or not any(run.purse.taken) or any(run.id in each.purse.heard for each in above):
        return ""
    return f"uncounted: run {run.id} took {run.purse.taken}, and nobody above it has heard of that"


def _above(runs: Mapping[str, LoggedRun], run: LoggedRun) -> Iterator[LoggedRun]:
    while not run.outlives and (parent := runs.get(run.id.rpartition(".")[0])):
        yield parent
        run = parent


def _sent_back(world: World) -> Iterator[Place]:
    """The attempts of which an executor has said that it sent nothing."""
    for record in world.witness.written.get(ANSWERS, ()):
        if record.value and record.read_headers():  # poison has none
            answer = read_value(record.value)
            if answer["status"] == "unauthorised":
                yield answer["call_id"], answer["attempt"]


def _least(run: LoggedRun, call: LoggedCall, deeds: list[Deed], sent_back: set[Place], *, forgot: bool) -> Sum:
    """What was paid for a call, as far as anybody can know: of a lost answer, what it was thought to be at most.

    That an attempt was made before, who takes it over knows from a ledger that forgets nothing, and no more than that:
    who then sends it back has made none itself. Of a call that its run has not waited for nobody is told.
    """
    found = NOTHING
    for attempt in {deed.attempt for deed in deeds}:
        place = call.id, attempt
        known = 1 if forgot or call.phase in ("dispatched", "given_up") or place in sent_back else 2
        most = run.purse.reserved.get(place, NOTHING)
        paid = sorted(Sum(*map(min, took(deed, most), most)) for deed in deeds if deed.attempt == attempt)
        # Whoever found nothing in the ledger has said that nothing came of it.
        found = total([found, *paid[: 0 if forgot and run.purse.bills.get(place) == NOTHING else known]])
    return found


def _told(world: World) -> Iterator[str]:
    """What users are told of a family that has heard of all its runs is what these have taken."""
    runs = world.witness.history.runs
    for record in world.witness.written.get(RUN_COMPLETED, ()):
        outcome = read_value(record.value) if record.value else {}
        run = runs.get(outcome.get("run_id", ""))
        if run is None or not any(run.purse.limit) or run.seq != outcome["seq"]:
            continue
        family = family_of(runs, run)
        if any(child.told is None for each in family for child in each.children.known.values()):
            continue  # what was cancelled with its parent may be over after it
        taken = total(each.purse.taken for each in family)
        if not outcome["used"] or Sum(*(outcome["used"][name] for name in Sum._fields)) != taken:
            yield f"mistold: run {run.id} was told to have taken {outcome['used']}, and it is {taken}"
