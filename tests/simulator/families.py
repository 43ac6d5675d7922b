"""What may never be of runs that start others, checked when a case is over."""

from __future__ import annotations

from collections.abc import Iterator

from refold.core.topics import RUN_REQUESTED
from tests.simulator.reading.children import LoggedChild
from tests.simulator.reading.logged import LoggedRun
from tests.simulator.world.world import World

SOON_MS = 50
"""How long a run may go on without any fault when nobody waits for it any more: many turns."""


def objections(world: World, *, at_rest: bool) -> Iterator[str]:
    """Each run is what its parent has started, ends when that one is over, and is heard of once."""
    runs = world.witness.history.runs
    for run in runs.values():
        if "." in run.id and (why := _invented(world, run)):
            yield f"invented: run {run.id} {why}"
        for name, request in run.children.submitted.items() if at_rest else ():
            yield from _submitted(world, run, name, request)
        for rest, child in run.children.known.items() if at_rest else ():
            yield from _kept(run, child, f"{run.id}.{rest}", runs.get(f"{run.id}.{rest}"), calm=not world.struck)


def submitted(world: World) -> dict[str, tuple[str, str]]:
    """What runs have submitted, by id: also those whose entries the log has lost since."""
    found: dict[str, tuple[str, str]] = {}
    for history in (world.witness.history, world.witness.unaware):
        for run in history.runs.values():
            found |= run.children.submitted
    return found


def awaited(world: World) -> set[str]:
    """Runs that others have submitted and that begin, unless their topic has lost the request (docs/limits.md)."""
    if world.counts[f"truncated: {RUN_REQUESTED}"]:
        return set()
    runs = world.witness.history.runs
    return {name for run in runs.values() if not run.fork for name in run.children.submitted}


def _submitted(world: World, run: LoggedRun, name: str, request: tuple[str, str]) -> Iterator[str]:
    found = world.witness.history.runs.get(name)
    if found is None:
        if name in awaited(world):
            yield f"lost: run {run.id} has submitted {name}, which never was"
    elif (found.request, found.requester) != (request, run.requester):
        yield f"invented: run {name} is {found.request} of {found.requester}, and {run.id} has submitted {request}"


def may_cancel(world: World, run: LoggedRun, actor: str) -> bool:
    """Whether a run is cancelled because its parent is over, or has given it up."""
    parent, child = run.id.rpartition(".")[0], _started(world, run)[1]
    above = world.witness.history.runs.get(parent)
    return bool(actor == parent and above and child and not child.outlives and (above.over or child.left_ms))


def _started(world: World, run: LoggedRun) -> tuple[LoggedRun | None, LoggedChild | None]:
    """The run that has started another, and how: also where the log has lost it since, and has kept the child."""
    parent, _, rest = run.id.rpartition(".")
    for history in (world.witness.history, world.witness.unaware):
        above = history.runs.get(parent)
        if above is not None and (child := above.children.known.get(rest)) is not None:
            return above, child
    return None, None


def _invented(world: World, run: LoggedRun) -> str:
    above, child = _started(world, run)
    if above is None or child is None:
        return "was started by nobody"
    if child.request != run.request:
        return f"is {run.request}, and its parent has started {child.request}"
    return "" if run.requester == above.requester else f"is of {run.requester}, and its parent of {above.requester}"


def _kept(run: LoggedRun, child: LoggedChild, name: str, below: LoggedRun | None, *, calm: bool) -> Iterator[str]:
    left_ms = child.left_ms or (run.at_ms if run.over else 0)
    if below is None:
        if child.told or child.outlives or not left_ms:
            yield f"lost: run {name} was to be started and never was"
        return
    ended = [(status, result) for status, _, result in below.ends]  # what outlives its parent may be retried
    if child.told and child.told not in ended:
        yield f"lie: run {run.id} was told that {name} is {child.told}, and it is {ended}"
    if below.over and child.heard and not child.told and not left_ms:
        yield f"lost: run {name} is {below.status}, and its parent has not heard of it"
    late_ms = below.at_ms - left_ms
    if not child.told and not child.outlives and left_ms and (not below.over or (calm and late_ms > SOON_MS)):
        yield f"orphan: run {name} went on for {late_ms} ms, and nobody waited for it"
