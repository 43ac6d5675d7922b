"""What may never be of runs that are handed to other versions, checked when a case is over."""

from __future__ import annotations

import json
from collections.abc import Iterator

from refold.core.topics import DEAD_LETTER, RUN_OPERATED
from tests.simulator.reading.logged import LoggedRun
from tests.simulator.reading.values import Datum, read_value
from tests.simulator.reading.versions import called
from tests.simulator.world.world import World

REFUSALS = ("conflict", "unknown_version", "stalled")
"""With which codes an order to go on by another version is refused."""


def objections(world: World) -> Iterator[str]:
    """A run goes on by the version that it began with, unless an order that was taken says otherwise."""
    written = world.witness.written.get(RUN_OPERATED, ())
    given = [json.loads(record.value) for record in written if record.value and b'"migrate"' in record.value]
    if not given and not any(run.revisions.changes for run in world.witness.history.runs.values()):
        return
    moved = world.hit("mirror", "truncate-operations", "truncate-log")  # what lay at a place lies there no more
    refused = set(_refused(world))
    for run in world.witness.history.runs.values():
        for before, after, cause in run.revisions.changes:
            world.counts["migrations"] += 1
            if not any(_orders(said, run, before, after) for said in given):
                yield f"unasked: run {run.id} was handed from version {before} to {after}, and nobody has ordered that"
            place = (cause["partition"], cause["offset"]) if cause else (-1, -1)
            # A planner that dies between its refusal and the tombstone leaves the order to one with another app.
            if place in refused and not moved and not world.counts["deploys"]:
                yield f"refused: run {run.id} was handed to version {after} by an order that was refused"
    world.counts["migrations_refused"] += len(refused)


def refuses(letter: Datum) -> bool:
    """True if a dead letter has an order to go on by another version, which may be refused."""
    migrates = letter["topic"] == RUN_OPERATED and b'"migrate"' in letter["value"]
    return migrates and letter["code"] in REFUSALS


def _orders(said: Datum, run: LoggedRun, before: str, after: str) -> bool:
    data = said["data"]
    return said["run_id"] == run.id and called(data["from"]) == before and data["to"] == after


def _refused(world: World) -> Iterator[tuple[int, int]]:
    for record in world.witness.written.get(DEAD_LETTER, ()):
        if record.value is None:  # the letter was erased with its run
            continue
        letter = read_value(record.value)
        # An order that was taken may come to a successor that has no room for what waits: it is read again for nothing.
        if refuses(letter) and letter["code"] != "stalled":
            yield letter["partition"], letter["offset"]
