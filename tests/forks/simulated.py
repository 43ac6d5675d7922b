"""Histories of the simulator: real planners under faults, with people, models, children, doubts, pauses and retries."""

from __future__ import annotations

from collections.abc import Iterator

from refold.core.approval.policy import Policy
from refold.core.errors import FoldError, MalformedError
from refold.core.events import Failure
from refold.core.ids import RunId, root_of
from refold.core.run.handed import pointers
from refold.core.run.log import LogFold
from refold.core.wire import blobs
from refold.engine.planner.settings import Bounds
from refold.lab.forks.engine import Surroundings
from refold.lab.forks.record import LogRow, RecordedRun
from tests.forks.recording import Family
from tests.simulator.case import Case
from tests.simulator.workload.minds import mind_schedule
from tests.simulator.workload.programs import program_schedule, pruned
from tests.simulator.workload.schedules import schedule, spare
from tests.simulator.world.crew import ENVIRONMENT
from tests.simulator.world.law import STATUTES
from tests.simulator.world.store import FED_BYTES
from tests.simulator.world.world import World


def played(kind: str, seed: int) -> World:
    """The world of a case that has come to rest."""
    if kind == "random":
        case = Case(*spare(*schedule(seed), less=()))
    elif kind == "programs":
        case = Case(*spare(*pruned(*program_schedule(seed), less=()), less=()))
    else:
        case = Case(*spare(*mind_schedule(seed), less=()))
    case.run(traced=False)
    return case.world


def families(world: World) -> Iterator[tuple[RunId, Family, dict[RunId, RecordedRun]]]:
    """The families of runs whose whole history is in the log, by the id of the first run."""
    for partition in range(world.settings.partitions):
        fold, found, log = LogFold(), dict[str, Family](), world.broker.log("run-log", partition).records
        lies = {record.offset: record for record in log}
        for record in log:
            judged = fold.feed(record.key, record.value, offset=record.offset, at_ms=record.at_ms)
            # A mirror may have brought them in another order.
            for at, each in ((record.offset, judged), *((each.held[0].offset, each) for each in judged.linked)):
                if each.entry is not None and not each.void:
                    rows = found.setdefault(root_of(each.run_id), {}).setdefault(each.run_id, [])
                    rows.append(LogRow(at, lies[at].key or b"", lies[at].value or b""))
        for root, family in found.items():
            try:
                recorded = {run: RecordedRun.of(rows) for run, rows in family.items()}
            except (MalformedError, FoldError):  # its records lie in another order than that of its history
                continue
            whole = all(fold.states[run].head == each.state.head for run, each in recorded.items())
            if RunId(root) in recorded and whole and all(each.entries[0][1].seq == 1 for each in recorded.values()):
                yield RunId(root), family, recorded


def around(world: World, recorded: dict[RunId, RecordedRun]) -> Surroundings:
    """What the planners of a world stood on."""
    chosen = world.settings
    bounds = Bounds(
        steps=chosen.run_steps,
        history_bytes=chosen.run_bytes,
        children=chosen.run_children,
        depth=chosen.run_depth,
        payload_bytes=chosen.payload_bytes,
        blob_bytes=FED_BYTES,
    )
    values = {
        (run, pointer): world.store.texts.get(
            blobs.folder_of(run) + blobs.parse_pointer(pointer).digest, Failure("blob_missing", "it is not there")
        )
        for each in recorded.values()
        for run, pointer in pointers(each.state)
    }
    return Surroundings(ENVIRONMENT, [Policy.parse(each) for each in STATUTES.values()], values, bounds=bounds)
