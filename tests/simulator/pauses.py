"""What may never be of runs that are paused, checked when a case is over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.simulator.reading.logged import LoggedRun
from tests.simulator.reading.values import read_value
from tests.simulator.settings import ORDERS
from tests.simulator.world.world import World

REACHED_MS = 50
"""How long a pause may take, without any fault, to what is on its way and to the runs below: many turns."""


def objections(world: World) -> Iterator[str]:
    """Nothing is ordered for a run that is paused, and what ends with it stands still with it."""
    if world.struck:  # what a fault has delayed may come at any time; what the log has is seen as it is read
        return
    runs = world.witness.history.runs
    for record in world.witness.written.get(ORDERS, ()):
        order = read_value(record.value) if record.value and record.read_headers() else {}  # else it is poison
        if (run := runs.get(order.get("run_id", ""))) and _within(run, record.at_ms):
            yield f"paused: call {order['call_id']} of run {run.id} was ordered at {record.at_ms}"
    yield from _children(runs)


def _children(runs: Mapping[str, LoggedRun]) -> Iterator[str]:
    for run in runs.values():
        for rest, child in run.children.known.items():
            below = runs.get(f"{run.id}.{rest}")
            for at_ms, name in below.pauses.went if below and not child.outlives else ():
                if _within(run, at_ms) and not (below and below.over and name == "RunCompleted"):
                    yield f"paused: {name} of run {run.id}.{rest} at {at_ms}, which was not paused with its parent"


def _within(run: LoggedRun, at_ms: int) -> bool:
    """Whether a run was paused at a time, and had been for a while."""
    spans = run.pauses.spans
    return any(since + REACHED_MS < at_ms and (not until or at_ms < until) for since, until in spans)
