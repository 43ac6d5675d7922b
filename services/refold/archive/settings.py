"""Settings of an archivist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from refold.runtime import defaults


@dataclass(frozen=True, slots=True)
class ArchivistSettings:
    """`pools` are those of the app. **Units**: milliseconds since the end of a run, by agent where it says so itself.

    `most_runs` of a partition are taken in one pass, the oldest first: what a pass has to remember is bounded.
    `give_up_s` is how long an erasure on demand waits for what a planner has to do first. What is known of erased runs
    goes `horizon_ms` after their end; never, if it is 0.
    """

    retention_ms: int = defaults.RETENTION_MS
    by_agent: Mapping[str, int] = field(default_factory=dict)
    pools: tuple[str, ...] = ("default",)
    most_runs: int = 20_000
    give_up_s: int = 0
    horizon_ms: int = 0

    def retention_of(self, agent: str) -> int:
        return self.by_agent.get(agent, self.retention_ms)
