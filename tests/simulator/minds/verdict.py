"""What may never be of agents that think, whatever their models say, checked when a case is over."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from refold.core.topics import RUN_LOG
from refold.core.wire.sizes import ENVELOPE_BYTES
from tests.simulator.app import DANGEROUS
from tests.simulator.budgets import METERED
from tests.simulator.reading.logged import LoggedRun
from tests.simulator.workload.inputs import Scenario
from tests.simulator.world.law import DEAR_USD
from tests.simulator.world.receiver import Deed
from tests.simulator.world.world import World

THINKERS = ("thinker", "helper")

SOON_MS = 100
"""How long after its deadline a run may go on without any fault: many turns."""

FELT_MS = 7_000
"""How long a fault is felt: a zombie comes back that long after it, and acts on what it had read."""


def objections(world: World, scenario: Scenario) -> Iterator[str]:
    """No harm is done without a decision that the log has, no model keeps a run going beyond its limits, and nothing
    is asked of one twice but where something has failed."""
    yield from _forbidden(world)
    yield from _paid_twice(world)
    if scenario.policy == "thrifty" and not scenario.decrees:
        yield from _dear(world)
    thinkers = [run for run in world.witness.history.runs.values() if run.request[0] in THINKERS]
    sizes = _sizes(world) if thinkers else {}
    for run in thinkers:
        yield from _bounded(world, run, sizes[run.id])
        _count(world, run)


def _forbidden(world: World) -> Iterator[str]:
    calls = {call.id: call for run in world.witness.history.runs.values() for call in run.calls.values()}
    for deed in world.receiver.done:
        if deed.tool not in DANGEROUS or not deed.applied or world.hit("truncate-log"):
            continue
        call = calls.get(deed.call)
        if not deed.decision or call is None or not any(token == deed.decision for token, *_ in call.permits):
            yield f"forbidden: call {deed.call} of {deed.tool} had its effect, and nobody has decided that"


def _bounded(world: World, run: LoggedRun, size: int) -> Iterator[str]:
    chosen = world.settings
    if run.asked > chosen.run_steps:
        yield f"endless: run {run.id} has {run.asked} steps, and {chosen.run_steps} are allowed"
    if len(run.children.known) > chosen.run_children:
        yield f"endless: run {run.id} has started more than the {chosen.run_children} runs that are allowed"
    if run.id.count(".") > chosen.run_depth:
        yield f"endless: run {run.id} has more than the {chosen.run_depth} runs above it that are allowed"
    # What brings it beyond is one entry, and the one that ends it another.
    if size > chosen.run_bytes + 2 * (2 * chosen.payload_bytes + ENVELOPE_BYTES):
        yield f"endless: run {run.id} has {size} bytes of history, and {chosen.run_bytes} are allowed"
    due_ms = json.loads(run.request[1]).get("by_ms", 0)
    due_ms += run.later_ms if due_ms else 0
    if due_ms and not world.struck and not run.pauses.spans and run.at_ms > due_ms + SOON_MS:
        yield f"endless: run {run.id} went on for {run.at_ms - due_ms} ms after its deadline"


def _paid_twice(world: World) -> Iterator[str]:
    """An attempt of what costs something is made again only where whoever made it was struck, or what it said."""
    made: dict[tuple[str, int], Deed] = {}
    for deed in world.receiver.done:
        if deed.tool not in METERED:
            continue
        before = made.get((deed.call, deed.attempt))
        made[deed.call, deed.attempt] = deed
        if before and not any(before.at_ms - FELT_MS <= at_ms <= deed.at_ms for at_ms in world.struck_ms):
            yield f"paid twice: attempt {deed.attempt} of {deed.call} was made again, and nothing had happened to it"


def _dear(world: World) -> Iterator[str]:
    """A policy that looks at what a run has cost sees what it has cost."""
    for run in world.witness.history.runs.values():
        for call in run.calls.values():
            if call.tool == "model" or call.tool in DANGEROUS or call.failure == "repeated":
                continue
            denied, usd = call.failure == "denied", call.cost / 1_000_000_000
            if denied != (usd > DEAR_USD):
                yield f"cost: {call.id} was {'denied' if denied else 'let out'}, and its run had cost {usd} $"


def _sizes(world: World) -> Counter[str]:
    """The bytes of the entries that count, by run."""
    heads = {head.hex(): run.id for run in world.witness.history.runs.values() for head in run.heads}
    sizes: Counter[str] = Counter()
    for partition in range(world.settings.partitions):
        for record in world.broker.log(RUN_LOG, partition).records:
            if owner := heads.get((record.key or b"").rpartition(b"/")[2].decode()):
                sizes[owner] += len(record.value or b"")
    return sizes


def _count(world: World, run: LoggedRun) -> None:
    """What models have made agents do, so that a campaign can tell whether it was worth its time."""
    seen = world.counts
    seen["minds"] += 1
    end = run.end["failure"]["code"] if run.end and run.status == "failed" else run.status
    seen[f"mind: ended {end}"] += 1
    _count_calls(seen, run)
    seen["mind: went on beyond"] += run.purse.let_on
    seen["mind: perhaps paid"] += len(run.purse.open) if run.over else 0
    below = [world.witness.history.runs.get(f"{run.id}.{rest}") for rest in run.children.known]
    spent = [each for each in below if each and each.end and each.status == "failed"]
    seen["mind: child spent"] += sum(each.end["failure"]["code"].startswith("budget_") for each in spent if each.end)


def _count_calls(seen: Counter[str], run: LoggedRun) -> None:
    harm = [call for call in run.calls.values() if call.tool in DANGEROUS]
    seen["mind: harm wanted"] += len(harm)
    seen["mind: harm prevented"] += sum(not call.permits for call in harm)
    seen["mind: harm allowed"] += sum(call.phase == "completed" and bool(call.permits) for call in harm)
    seen["mind: answer refused"] += sum(call.tool == "model" and call.phase == "failed" for call in run.calls.values())
    twins = Counter((call.tool, call.args) for call in run.calls.values())
    seen["mind: the same once more"] += sum(times - 1 for times in twins.values())
    failures = Counter(call.failure for call in run.calls.values())
    seen["mind: refused as repeated"] += failures["repeated"]
    seen["mind: to be made cheaper"] += failures["degrade"]
    seen["mind: denied"] += failures["denied"]
