"""Settings of an archivist."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from refold.core import defaults


@dataclass(frozen=True, slots=True)
class ArchivistSettings:
    """Settings of an archivist. **Units**: milliseconds since the end of a run.

    `most_runs` limits the runs of a partition in one pass, and so its memory. An erasure on demand waits `give_up_s`
    seconds for planners. Data about erased runs goes `horizon_ms` after their end; 0 means never."""

    retention_ms: int = defaults.RETENTION_MS
    by_agent: Mapping[str, int] = field(default_factory=dict)
    pools: tuple[str, ...] = ("default",)
    most_runs: int = 20_000
    give_up_s: int = 0
    horizon_ms: int = 0

    def retention_of(self, agent: str) -> int:
        return self.by_agent.get(agent, self.retention_ms)
