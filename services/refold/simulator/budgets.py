"""What may never be of budgets, checked when a case is over."""

from __future__ import annotations

from collections.abc import Iterator

from refold.core.topics import RUN_COMPLETED
from refold.simulator.app import PRICED
from refold.simulator.reading.spending import family_of
from refold.simulator.reading.values import read_value
from refold.simulator.workload.inputs import Scenario
from refold.simulator.world.faults import LOSES_LEDGER
from refold.simulator.world.world import World

PRICE = 100_000_000
"""What it costs each time, in billionths of a dollar."""

CERTAIN = frozenset({"ok", "slow", "not-done", "raises-after"})
"""Scripts after which everybody knows, or has to fear, what was paid: nothing more is booked, and nothing less."""


def objections(world: World, scenario: Scenario, *, at_rest: bool) -> Iterator[str]:
    """What is paid is booked; nobody goes beyond a limit; and users are told of what was taken."""
    if world.hit("truncate-log"):
        return  # what the log has lost was paid all the same
    runs = world.witness.history.runs
    for run in runs.values():
        for call in [call for call in run.calls.values() if call.tool == PRICED]:
            for attempt in call.attempts:
                if (call.id, attempt) not in run.purse.reserved:
                    yield f"unreserved: attempt {attempt} of {call.id} went out, and nothing was reserved"
    for first in [run for run in runs.values() if run.purse.limit]:
        family = family_of(runs, first)
        taken = sum(run.purse.taken for run in family)
        names = {call.id for run in family for call in run.calls.values()}
        paid = PRICE * sum(deed.tool == PRICED and deed.call in names for deed in world.receiver.done)
        # Of an attempt that goes on while its ledger forgets it nobody knows that it was made before: one of each run.
        unknown = PRICE * len(world.struck) * len(family) if world.hit(*LOSES_LEDGER, "outage") else 0
        if paid > taken + unknown:
            yield f"unbooked: the family of run {first.id} has paid {paid}, and {taken} is booked"
        if world.struck:
            continue
        if first.purse.excess > 0 and world.settings.planners == 1:
            yield f"overspent: the family of run {first.id} went {first.purse.excess} beyond its budget"
        certain = all(script in CERTAIN for script in scenario.scripts.get(PRICED, ()))
        if at_rest and certain and taken != paid:
            yield f"misbooked: the family of run {first.id} has paid {paid}, and {taken} is booked"
    yield from _told(world) if at_rest else ()


def _told(world: World) -> Iterator[str]:
    """What users are told of a family that has heard of all its runs is what these have taken."""
    runs = world.witness.history.runs
    for record in world.witness.written.get(RUN_COMPLETED, ()):
        outcome = read_value(record.value) if record.value else {}
        run = runs.get(outcome.get("run_id", ""))
        if run is None or not run.purse.limit or run.seq != outcome["seq"]:
            continue
        family = family_of(runs, run)
        if any(child.told is None for each in family for child in each.children.known.values()):
            continue  # what was cancelled with its parent may be over after it
        taken = sum(each.purse.taken for each in family)
        if not outcome["used"] or outcome["used"]["nano_usd"] != taken:
            yield f"mistold: run {run.id} was told to have taken {outcome['used']}, and it is {taken}"
