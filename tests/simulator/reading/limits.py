"""A second reading of limits per day: what each lane lets out for a tenant, and when others have to know of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from refold.core.ids import home
from refold.core.planning.windows import value_digest
from refold.engine.ports.log import Record
from tests.simulator.reading.logged import LoggedRun
from tests.simulator.reading.spending import follow_spending, in_flight
from tests.simulator.reading.values import read_value
from tests.simulator.settings import PARTITIONS

LIMIT, PRICE = 750_000_000, 100_000_000
"""What a tenant may spend in a day, and what each thing costs. **Units**: billionths of a dollar."""

HEARD_MS = 2_500
"""When what a lane has let out is known to the others, without any fault: told every second, and some turns."""


READ_MS = 600
"""When what lies in a lane's own copy of what others have told is known to it, whoever serves it, whatever strikes."""


@dataclass(slots=True)
class LoggedLimits:
    """What is spent by tenant and lane, each time that it changes, and what lanes have `told` each other of it.

    `deaf` is wrong where nothing delays telling, `unread` wherever the lane could read it: in a take-over, too. Who is
    `dazed` has stood still, and writes what it decided before; `judged` counts what was.
    Of the tenants of a lane so many are counted `singly` (0: all), and `rest` counts what was judged of the others.
    """

    sums: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)
    told: dict[tuple[int, int, str], dict[bytes, list[tuple[int, int, int]]]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    deaf: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    dazed: bool = False
    judged: int = 0
    singly: int = 0
    rest: int = 0

    def hears(self, record: Record) -> None:
        """A record of what lanes tell, in the copy of one of them: a sum for each tenant, whose name has a digest."""
        if record.value is None:
            for (copy, *_), tellers in self.told.items():
                if copy == record.partition:
                    tellers.pop(record.key or b"", None)
            return
        said = read_value(record.value)
        tellers = self.told.setdefault((record.partition, said["lane"], said["value"]), {})
        tellers.setdefault(record.key or b"", []).append((said["log"], record.at_ms, said["nano_usd"]))

    def _heard(self, lane: int, at_ms: int, tenant: str) -> int:
        """The least that a lane has to have known of what others let out for a tenant at a time, by its own copy."""
        found, named = 0, value_digest(tenant)
        for (copy, other, value), tellers in self.told.items():
            if value != named:
                continue
            known = [(log, when, much) for lines in tellers.values() for log, when, much in lines]
            before = max((each for each in known if each[1] <= at_ms - READ_MS), default=None)
            if copy == lane != other and before:
                found += min(much for log, when, much in known if log >= before[0] and when <= at_ms)
        return found

    def follow(
        self, runs: Mapping[str, LoggedRun], run: LoggedRun, name: str, event: dict[str, Any], *, at_ms: int
    ) -> None:
        """Takes an event of `OF_BUDGETS`, and notes what it means for the limits of a tenant."""
        follow_spending(runs, run, name, event)
        if run.purse.tenant and not run.copying:
            self._count(runs, run, name, at_ms)

    def _count(self, runs: Mapping[str, LoggedRun], run: LoggedRun, name: str, at_ms: int) -> None:
        tenant = run.purse.tenant
        lane = home(run.id, PARTITIONS)
        mine = [each for each in runs.values() if each.purse.tenant == tenant and home(each.id, PARTITIONS) == lane]
        spent = sum(each.purse.own.nano_usd for each in mine)
        self.sums.setdefault((tenant, lane), []).append((at_ms, spent))
        if name == "CallReserved":
            self._let_out(tenant, lane, spent, in_flight(mine), at_ms)
            self._share(runs, tenant, lane)

    def _let_out(self, tenant: str, lane: int, spent: int, several: int, at_ms: int) -> None:
        others = [sums for (who, where), sums in self.sums.items() if who == tenant and where != lane]
        # What a lane has let out itself it knows to the last call, but for another planner that does the same.
        if spent > LIMIT + several:
            self.wrong.append(f"overspent: lane {lane} lets {spent} out for {tenant}, of {LIMIT}")
        told = self._heard(lane, at_ms, tenant)
        self.judged += bool(told) and not self.dazed
        # Two planners at once do not know of the other's last calls.
        if told and not self.dazed and spent + told > LIMIT + several:
            self.unread.append(f"overspent: lane {lane} has {spent}, was told {told}, of {LIMIT} for {tenant}")
        heard = sum(_at(sums, at_ms - HEARD_MS) for sums in others)
        if spent + heard > LIMIT:
            self.deaf.append(f"overspent: lane {lane} has {spent}, others had {heard}, of {LIMIT} for {tenant}")

    def _share(self, runs: Mapping[str, LoggedRun], tenant: str, lane: int) -> None:
        """Of more tenants than a lane counts singly, those that came later share what one may spend."""
        rest = [who for who, where in self.sums if where == lane][self.singly :]
        if not self.singly or tenant not in rest:
            return
        mine = [run for run in runs.values() if run.purse.tenant in rest and home(run.id, PARTITIONS) == lane]
        spent = sum(run.purse.own.nano_usd for run in mine)
        self.rest += spent > PRICE
        if spent > LIMIT + in_flight(mine):
            self.wrong.append(f"overspent: lane {lane} lets {spent} out for all of {rest}, of {LIMIT}")

    @property
    def tenants(self) -> int:
        """How many tenants have spent anything."""
        return len({tenant for tenant, _ in self.sums})

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
