"""Everything that is to be said of the programs of a case, when it is over."""

from __future__ import annotations

from collections.abc import Iterator

from refold.core.errors import NonDeterminismError
from refold.core.events import Entry
from refold.core.ids import EntryId, RunId
from refold.core.run.fold import fold
from refold.core.run.log import LogFold
from refold.core.topics import RUN_LOG
from refold.engine.ports.log import Record
from refold.testing.reruns import same_end
from tests.simulator.programs.judge import differences, programs_in
from tests.simulator.programs.perform import AGENT
from tests.simulator.reading.history import History
from tests.simulator.world.world import World


def verdict(world: World) -> Iterator[str]:
    """What plain asyncio objects to, and where fresh code along a history does not decide the same."""
    told = History()
    logs = [world.broker.log(RUN_LOG, partition).records for partition in range(world.settings.partitions)]
    entries = (entry for log in logs for record in log for entry in told.follow(record))
    for run, (tree, history) in programs_in(entries).items():
        world.counts["programs"] += 1
        for entry in history:
            world.counts.update(f"program: {kind.rpartition('.')[2]}" for kind, _ in entry["events"])
        yield from differences(run, tree, history)
    for log in logs:
        yield from _again(world, log)


def _again(world: World, log: list[Record]) -> Iterator[str]:
    """The product's own replay, along what the log holds in the end."""
    known, pieces = LogFold(), dict[RunId, list[tuple[EntryId, Entry]]]()
    for record in log:
        judged = known.feed(record.key, record.value)
        for each in (judged, *judged.linked):
            if each.entry and not each.void:
                pieces.setdefault(each.run_id, []).append((each.id, each.entry))
    for run, entries in pieces.items():
        state = fold(entries, run)
        if state.request is None or state.request.agent != AGENT or not state.started_ms:
            continue
        try:
            same_end(world.app, AGENT, state)
        except NonDeterminismError as error:
            if state.status != "cancelled":
                yield f"replay: run {run}: {error}"
