"""Which versions of which agents have runs that live, and which of these stand still."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from refold.client.runs import Run


@dataclass(slots=True)
class VersionInUse:
    """A version of an agent and its runs that live. `stalled` maps those that stand still to why they do.

    A version is needed as long as there are such runs: without it they go on with the newest where that agrees.
    """

    agent: str
    version: str
    live: int = 0
    stalled: dict[str, str] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)


def in_use(runs: Iterable[Run]) -> list[VersionInUse]:
    """The versions by agent, the one that was begun with first before the others."""
    found: dict[tuple[str, str], VersionInUse] = {}
    for run in runs:
        state = run.state
        if state.over or state.request is None or not state.started_ms:
            continue
        key = state.request.agent, state.version
        row = found.setdefault(key, VersionInUse(*key))
        row.live += 1
        row.runs.append(state.run_id)
        if run.hold is not None:
            needs = f", needs {run.hold.needs}" if run.hold.needs else ""
            row.stalled[state.run_id] = f"{run.hold.reason}{needs}"
    return sorted(found.values(), key=lambda row: row.agent)
