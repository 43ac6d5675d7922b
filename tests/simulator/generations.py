"""What may never be of runs that go on with a new history, checked when a case is over."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.simulator.reading.logged import LoggedRun
from tests.simulator.world.world import World


def generations_of(world: World, name: str) -> list[LoggedRun]:
    """The generations of a run, the first one first: by the log, and by what it has lost since."""
    known = {**world.witness.unaware.runs, **world.witness.history.runs}
    found = {run_id.removeprefix(name): run for run_id, run in known.items() if run_id.startswith((name, f"{name}+"))}
    later = {int(rest[1:]): run for rest, run in found.items() if rest[:1] == "+" and rest[1:].isdecimal()}
    return [*([found[""]] if "" in found else ()), *(later[number] for number in sorted(later))]


def latest(world: World, name: str) -> LoggedRun | None:
    """The last generation of a run."""
    found = [run for run in generations_of(world, name) if run.id in world.witness.history.runs]
    return found[-1] if found else None


def awaited(world: World) -> set[str]:
    """Generations that have to begin, or have."""
    return {_next(run.id) for run in world.witness.history.runs.values() if run.status == "continued"}


def vanished(world: World) -> set[str]:
    """Generations whose beginning the log has lost, and a snapshot has the end of the one before (docs/limits.md)."""
    return awaited(world) - world.witness.history.runs.keys() if world.hit("truncate-log") else set()


def objections(world: World, *, at_rest: bool) -> Iterator[str]:
    """Each generation begins once, with what the one before has left, and no signal is taken twice."""
    runs = world.witness.history.runs
    for run in runs.values():
        if "+" in run.id and "." not in run.id:
            yield from _unlinked(world, run)
    for name in awaited(world) - runs.keys() - vanished(world) if at_rest else ():
        yield f"lost: generation {name} was to begin and never did"
    for name in {run.id.partition("+")[0] for run in runs.values() if "+" in run.id and "." not in run.id}:
        yield from _taken(world, name)


def _unlinked(world: World, run: LoggedRun) -> Iterator[str]:
    before = _before(world, run)
    if before is None or before.status != "continued" or before.end is None:
        yield f"invented: generation {run.id} begins, and the one before has not ended so"
        return
    if run.continues != before.head:
        yield f"chain: generation {run.id} does not name the last entry of {before.id}"
    if run.request != (before.request[0], before.end["input"]) or run.requester != before.requester:
        yield f"invented: generation {run.id} is {run.request}, and {before.id} has asked for {before.end['input']}"
    carried = [name for name in run.mail.came if name in before.mail.kept]
    if carried != before.mail.kept:
        yield f"lost: generation {run.id} has {carried} of the signals {before.mail.kept} that {before.id} has kept"


def _taken(world: World, name: str) -> Iterator[str]:
    generations = [run for run in generations_of(world, name) if run.id in world.witness.history.runs]
    taken = [signal for run in generations for signal in run.mail.taken.values()]
    for signal in {signal for signal in taken if taken.count(signal) > 1}:
        yield f"twice: signal {signal} was taken by several generations of {name}"
    last = generations[-1]
    if last.status == "completed" and last.end and last.request[0] == "living" and len(generations) == _number(last):
        seen = [signal for signal in json.loads(last.end["result"]) if signal]
        if seen != taken:
            yield f"seen: {name} has taken {taken}, and its agent has seen {seen}"


def _before(world: World, run: LoggedRun) -> LoggedRun | None:
    number = _number(run) - 1
    name = run.id.partition("+")[0] + (f"+{number}" if number > 1 else "")
    return world.witness.history.runs.get(name) or world.witness.unaware.runs.get(name)


def _next(name: str) -> str:
    root, _, number = name.partition("+")
    return f"{root}+{int(number or 1) + 1}"


def _number(run: LoggedRun) -> int:
    return int(run.id.partition("+")[2] or 1)
