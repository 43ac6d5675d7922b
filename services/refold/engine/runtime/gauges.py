"""Metrics of a process, written by its loop and read by exporters, at a fraction of a microsecond per turn."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from refold.engine.ports.effects import Service
from refold.engine.ports.log import Depth, Place

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of duration buckets; the last is the longest wait for a broker."""

# Waits for Kafka, Redis or a database are no part of a turn: a restart would end none of them.
HUNG_S = 30.0
"""Longest turn of our own code before the process counts as hung."""

WAITING_INPUTS = "refold_waiting_inputs"
"""Metric: unanswered inputs of a planner, by the condition that they wait for."""


@dataclass(slots=True)
class Durations:
    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total_s: float = 0.0

    def add(self, taken_s: float) -> None:
        self.counts[bisect_left(SECONDS, taken_s)] += 1
        self.total_s += taken_s


@dataclass
class Vitals:
    """Numbers of a process. `positions`: next offsets to read; `busy_since`: start of the current turn, 0 between
    turns. `lacks`: reason why it is not ready; `ask` computes one on demand."""

    turns: Durations = field(default_factory=Durations)
    appends: Durations = field(default_factory=Durations)
    ledger: Durations = field(default_factory=Durations)
    records_in: int = 0
    records_out: int = 0
    alarms: Counter[str] = field(default_factory=Counter)
    leases_lapsed: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    positions: Mapping[Place, int] = field(default_factory=dict)
    unacknowledged: int = 0
    executions: int = 0
    waiting: Counter[str] = field(default_factory=Counter)
    lanes: int = 0
    lacks: str = "it has not taken its first turn"
    started: bool = False
    spare: bool = False
    ask: Callable[[], str] | None = None
    busy_since: float = 0.0

    def begin_turn(self, now_s: float) -> None:
        self.busy_since = now_s

    def end_turn(self, now_s: float) -> None:
        self.turns.add(now_s - self.busy_since)
        self.busy_since = 0.0

    def move(self, positions: Mapping[Place, int]) -> None:
        self.positions = {**self.positions, **positions}  # anew: exporters iterate over it

    def read(self, records: int) -> None:
        self.records_in += records

    def wrote(self, records: int, since_s: float = 0.0) -> None:
        self.records_out += records
        if since_s:
            self.appends.add(time.monotonic() - since_s)

    def report(self, name: str, *, alarm: bool) -> None:
        if alarm:
            self.alarms[name] += 1
        else:
            self.leases_lapsed += name == "lease.lapsed"

    def measure(self, services: Sequence[Service], depth: Depth, away: str = "") -> None:
        """Read state, counts and log depth of services; `away` names an unreachable server."""
        now = [service.lanes_now() for service in services]
        self.lanes, behind, self.executions = map(sum, zip(*(service[:3] for service in now), strict=True))
        self.waiting = Counter()
        for service in now:
            self.waiting.update(service.waiting)
        self.counts = sum((service.counts for service in services), Counter())
        self.positions, self.unacknowledged = depth.positions, depth.unacknowledged
        self.spare = depth.placed and not self.lanes
        lacks = f"{away} does not answer" * bool(away) or f"{behind} partitions have not caught up" * bool(behind)
        self.stand(lacks if depth.placed else "its group has given it no place")

    def hung(self, clock: Callable[[], float] = time.monotonic) -> bool:
        since = self.busy_since
        return since > 0 and clock() - since > HUNG_S

    def stand(self, lacks: str) -> None:
        """Mark the process as started; `lacks` is the reason why it is not ready, if any."""
        self.started, self.lacks = True, lacks

    @property
    def readiness(self) -> str:
        """Reason why the process is not ready, or ""."""
        return self.ask() if self.ask is not None and not self.lacks else self.lacks
