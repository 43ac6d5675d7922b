"""What may never be of runs that are erased, checked when a case is over."""

from __future__ import annotations

from collections.abc import Iterator

from refold.core.errors import MalformedError
from refold.core.ids import parse_callback_token
from refold.core.topics import DEAD_LETTERS, RUN_COMPLETED
from tests.simulator.reading.values import Datum, read_value
from tests.simulator.workload.inputs import Scenario
from tests.simulator.world.broker import AHEAD_MS
from tests.simulator.world.world import World

HEARD_MS = 500
"""How long a marker may take to be known, without any fault: many turns."""


def objections(world: World, scenario: Scenario, *, at_rest: bool) -> Iterator[str]:
    """Only what is over, told and archived is erased, whole and with its family, and it does not come back."""
    erasures, runs = world.erasures, world.witness.history.runs
    yield from erasures.wrong
    yield from _unrefused(world, scenario)
    for run, marker in erasures.marked.items():
        # A mirror may have brought something back since the brokers have dropped what was erased.
        if at_rest and not erasures.lies(run):
            yield f"stuck: run {run} is erased, and its marker stays ({marker['file']})"
    untold = _untold(world)
    for run in sorted(erasures.ever):
        yield from (f"archive: run {run} is erased, and {why}" for why in erasures.unarchived_by_now(runs[run]))
        for below in (each for each in runs.values() if at_rest and each.id.startswith(f"{run}.")):
            # Kafka has lost its outcome, and an archivist takes that for not told (docs/limits.md).
            if below.over and below.id not in erasures.ever and below.id.encode() not in untold:
                yield f"family: run {run} is erased, and {below.id}, which it has started, is not"


def _untold(world: World) -> set[bytes]:
    """The runs whose outcomes Kafka has lost: of one that was retried that of an earlier end may be left."""
    logs = [world.broker.log(RUN_COMPLETED, number) for number in range(world.broker.partitions)]
    there = {(record.key, read_value(record.value)["seq"]) for log in logs for record in log.records if record.value}
    runs = world.witness.history.runs.values() if world.hit("truncate-outcomes") else ()
    return {run.id.encode() for run in runs if not run.ends or (run.id.encode(), run.ends[-1][1]) not in there}


def _unrefused(world: World, scenario: Scenario) -> Iterator[str]:
    """Whose request has the id of a run with a marker is told so, where nothing else has happened."""
    letters = [read_value(record.value) for record in world.witness.laid(*DEAD_LETTERS) if record.value]
    refused = {letter["key"] for letter in letters if letter["code"] == "erased"}
    for given in scenario.inputs if not world.struck else ():
        marked_ms = world.erasures.since.get((given.key or b"").decode())
        late = marked_ms is not None and world.settings.epoch_ms + given.at_ms > marked_ms - AHEAD_MS + HEARD_MS
        if given.kind == "repeat" and late and given.key not in refused:
            yield f"erased: run {given.key!r} has a marker, and a request for it was not refused"


def said_in_vain(world: World, letter: Datum) -> bool:
    """True if a dead letter is about a run that is erased."""
    key = letter["key"].decode(errors="replace")
    try:
        run: str = parse_callback_token(key)
    except MalformedError:
        run = key.removeprefix("again/").partition("/")[0]
    return letter["code"] == "erased" and run in world.erasures.ever
