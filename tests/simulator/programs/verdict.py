"""Everything that is to be said of the programs of a case, when it is over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
from tests.simulator.reading.values import Datum
from tests.simulator.world.world import World


def verdict(world: World) -> Iterator[str]:
    """What plain asyncio objects to, and where fresh code along a history does not decide the same."""
    told = History()
    logs = [world.broker.log(RUN_LOG, partition).records for partition in range(world.settings.partitions)]
    entries = (entry for log in logs for record in log for entry in told.follow(record))
    answers = dict[tuple[str, str], str]()
    for run, (tree, history) in programs_in(entries).items():
        world.counts["programs"] += 1
        for entry in history:
            world.counts.update(f"program: {kind.rpartition('.')[2]}" for kind, _ in entry["events"])
        answers.update(_answers(run, history))
        yield from differences(run, tree, history)
    for log in logs:
        yield from _again(world, log, answers)


def _answers(run: str, history: list[Datum]) -> dict[tuple[str, str], str]:
    """The first answer to each signal, by run and id: whoever has read it is to read it again."""
    said = [event for entry in history for kind, event in entry["events"] if kind.endswith("SignalAnswered")]
    return {(run, event["signal_id"]): event["result"] for event in reversed(said)}


def _again(world: World, log: list[Record], answers: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """The product's own replay, along what the log holds in the end, and what it reads as answers there."""
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
        for name in state.answers:
            answer, first = state.answer_to(name), answers[run, name]
            if answer is None or answer.result != first:
                yield f"answers: run {run} has answered {name} with {first}, and is read to have with {answer}"
        try:
            same_end(world.app, AGENT, state)
        except NonDeterminismError as error:
            if state.status != "cancelled":
                yield f"replay: run {run}: {error}"
