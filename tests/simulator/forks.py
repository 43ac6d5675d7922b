"""What may never be of runs that are forked, checked when a case is over."""

from __future__ import annotations

import json
from collections.abc import Iterator

from refold.core.topics import APPROVAL_REQUESTED, DEAD_LETTERS, RUN_OPERATED
from tests.simulator.reading.forks import last_of
from tests.simulator.reading.logged import ENDS, LoggedRun
from tests.simulator.reading.values import Datum, read_value
from tests.simulator.settings import ORDERS
from tests.simulator.world.world import World


def objections(world: World) -> Iterator[str]:
    """A fork is what an operator has asked for; of what it keeps nothing follows; a good one is not refused."""
    given = asked(world)
    for run in world.witness.history.runs.values():
        if run.fork is None:
            continue
        world.counts["forks"] += 1
        world.counts["forks.of_forks"] += len(run.fork.lineage) > 1
        world.counts["forks.cut_short"] += 0 < run.fork.at <= run.fork.seq
        said = {"source": run.fork.source, "at": run.fork.seq, "head": run.fork.head.hex()}
        if not any(each["run_id"] == run.id and said.items() <= each["data"].items() for each in given):
            yield f"invented: run {run.id} is a fork that nobody has asked for"
        yield from _followed(world, run, run.fork.at or run.seq)
    yield from _refused(world)


def asked(world: World) -> list[Datum]:
    """The forks that operators have ever asked for."""
    written = world.witness.written.get(RUN_OPERATED, ())
    return [json.loads(record.value) for record in written if record.value and b'"fork"' in record.value]


def _followed(world: World, run: LoggedRun, last: int) -> Iterator[str]:
    """What was ordered, asked and done for events that are copies. Of an id that the log has lost it may be older."""
    if world.hit("truncate-log"):
        return
    copies = {f"{run.id}/{seq}" for seq in range(1, last + 1)}
    for topic in (ORDERS, APPROVAL_REQUESTED):
        for record in world.witness.written.get(topic, ()):
            said = read_value(record.value) if record.value and record.read_headers() else {}
            if said.get("call_id") in copies:
                yield f"copied: {said['call_id']} is on {topic}, and is a copy"
    yield from (
        f"copied: {deed.call} has an effect, and is a copy" for deed in world.receiver.done if deed.call in copies
    )


def _refused(world: World) -> Iterator[str]:
    """A fork of what was not over, counts and is there is not refused."""
    for record in world.witness.laid(*DEAD_LETTERS):
        letter = read_value(record.value) if record.value else {}
        if letter.get("topic") != RUN_OPERATED or b'"fork"' not in letter["value"]:
            continue
        world.counts["forks.refused"] += 1
        said = json.loads(letter["value"])
        data = said["data"]
        moved = world.hit("truncate-log", "mirror") or letter["code"] in ("erased", "stalled")
        moved |= bytes.fromhex(data["head"]) not in world.witness.history.known
        moved = moved or any(each["run_id"] == said["run_id"] and each["data"] != data for each in asked(world))
        if not moved and data["source"] not in world.erasures.ever and not _ended(world, data):
            yield f"refused: run {data['source']} may be forked at {data['at']} ({letter['code']}: {letter['reason']})"


def _ended(world: World, data: Datum) -> bool:
    """True if the run had an end within what was to be kept."""
    known, head = world.witness.history.known, bytes.fromhex(data["head"])
    while head and (entry := known.get(head)):
        if entry["events"][-1][0].rpartition(".")[2] in ENDS:
            return True
        head = entry["prev"]
    return False


def forkable(world: World, run: LoggedRun) -> list[tuple[int, bytes]]:
    """The entries of a run that a fork may end with, by last event and id."""
    return [(last_of(world.witness.history.known[head]), head) for head in run.heads]
