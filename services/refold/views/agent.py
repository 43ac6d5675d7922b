"""Agents: which versions of them have runs that are not over, and which of these stand still."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from refold.views.history import Run
from refold.views.model import View


class VersionInUse(View):
    """A version of an agent and its live runs. `stalled` maps those that stand still to the reason.

    A version is needed as long as there are such runs: without it they go on with the newest where that agrees.
    """

    agent: str
    version: str
    live: int = 0
    stalled: dict[str, str] = Field(default_factory=dict)
    runs: list[str] = Field(default_factory=list)


def versions_in_use(runs: Iterable[Run]) -> list[VersionInUse]:
    """The versions by agent, in the order in which their first runs began."""
    found: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        state = run.state
        if state.request is not None and state.started_ms and not state.over:
            found.setdefault((state.request.agent, state.version), []).append(run)
    rows = [
        VersionInUse(
            agent=agent,
            version=version,
            live=len(live),
            stalled={run.state.run_id: _why(run) for run in live if run.hold},
            runs=[run.state.run_id for run in live],
        )
        for (agent, version), live in found.items()
    ]
    return sorted(rows, key=lambda row: row.agent)


def _why(run: Run) -> str:
    hold = run.hold
    assert hold is not None, "it stands still"
    return f"{hold.reason}, needs {hold.needs}" if hold.needs else hold.reason
