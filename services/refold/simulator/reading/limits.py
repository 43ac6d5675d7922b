"""A second reading of limits per day: what each lane lets out for a tenant, and when others have to know of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from refold.core.ids import home
from refold.simulator.reading.logged import LoggedRun
from refold.simulator.reading.spending import follow_spending, in_flight
from refold.simulator.settings import PARTITIONS

LIMIT, PRICE = 750_000_000, 100_000_000
"""What a tenant may spend in a day, and what each thing costs. **Units**: billionths of a dollar."""

HEARD_MS = 2_500
"""When what a lane has let out is known to the others, without any fault: told every second, and some turns."""


@dataclass(slots=True)
class LoggedLimits:
    """What is spent by tenant and lane, each time that it changes. `deaf` is wrong where nothing delays telling."""

    sums: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    deaf: list[str] = field(default_factory=list)

    def follow(
        self, runs: Mapping[str, LoggedRun], run: LoggedRun, name: str, event: dict[str, Any], *, at_ms: int
    ) -> None:
        """Takes an event of `OF_BUDGETS`, and notes what it means for the limits of a tenant."""
        follow_spending(runs, run, name, event)
        if run.purse.tenant:
            self._count(runs, run, name, at_ms)

    def _count(self, runs: Mapping[str, LoggedRun], run: LoggedRun, name: str, at_ms: int) -> None:
        tenant = run.purse.tenant
        lane = home(run.id, PARTITIONS)
        mine = [each for each in runs.values() if each.purse.tenant == tenant and home(each.id, PARTITIONS) == lane]
        spent = sum(each.purse.taken.nano_usd for each in mine)
        self.sums.setdefault((tenant, lane), []).append((at_ms, spent))
        others = [sums for (who, where), sums in self.sums.items() if who == tenant and where != lane]
        if name == "CallReserved":
            # What a lane has let out itself it knows to the last call, but for another planner that does the same.
            if spent > LIMIT + in_flight(mine):
                self.wrong.append(f"overspent: lane {lane} lets {spent} out for {tenant}, of {LIMIT}")
            heard = sum(_at(sums, at_ms - HEARD_MS) for sums in others)
            if spent + heard > LIMIT:
                self.deaf.append(f"overspent: lane {lane} has {spent}, others had {heard}, of {LIMIT} for {tenant}")

    def stingy(self, runs: Iterable[LoggedRun]) -> Iterator[str]:
        """Runs that have met a limit of which enough was left, whoever had taken the most of it by then."""
        for run in runs:
            if not run.end or not run.end.get("failure", {}).get("code", "").startswith("limit_"):
                continue
            lanes = [sums for (tenant, _), sums in self.sums.items() if tenant == run.purse.tenant]
            most = sum(max((spent for at_ms, spent in sums if at_ms <= run.at_ms), default=0) for sums in lanes)
            if most + PRICE <= LIMIT:
                yield f"stingy: run {run.id} fails, and {run.purse.tenant} has spent {most} of {LIMIT}"


def _at(sums: list[tuple[int, int]], at_ms: int) -> int:
    """The least that was spent since a time: a bill gives back, and others may know that sooner."""
    before = [spent for when, spent in sums if when <= at_ms][-1:]
    return min([*before, *(spent for when, spent in sums if when > at_ms)]) if before else 0
