"""The operator who hands runs to other versions of their agent, as `refold run migrate` does."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.simulator.reading.logged import LoggedRun
from tests.simulator.revised import APART, NEWEST, OLDER, REVISED
from tests.simulator.workload.inputs import ClientInput, Upgrade, operation

UNKNOWN = "4"
"""A version that nobody has."""


class Upgrades:
    """Says of each run of the agent that has versions what a scenario wants (None: what chance has it say)."""

    def __init__(
        self,
        name: str,
        script: tuple[Upgrade, ...] | None,
        partitions: int,
        *,
        at: Callable[[int, Callable[[], object]], None],
        publish: Callable[[ClientInput], None],
    ) -> None:
        self._script, self._partitions, self._at, self._publish = script, partitions, at, publish
        self._rng = Random(f"versions of {name}")
        self._said = 0

    def began(self, run: LoggedRun) -> None:
        """Code of a run begins."""
        if run.request[0] != REVISED:
            return
        for upgrade in self._drawn() if self._script is None else self._script:
            self._at(upgrade.after_ms, lambda upgrade=upgrade: self._say(run, upgrade))  # type: ignore[misc]

    def _say(self, run: LoggedRun, upgrade: Upgrade) -> None:
        self._said += 1
        data = {"from": upgrade.since or run.revisions.version, "seq": run.revisions.at, "to": upgrade.to}
        self._publish(operation(run.id, f"m-{self._said}", "migrate", data, partitions=self._partitions))

    def _drawn(self) -> tuple[Upgrade, ...]:
        rng = self._rng
        said = [
            Upgrade(rng.randrange(900), rng.choice((OLDER, OLDER, NEWEST))) for _ in range(rng.choice((0, 1, 2, 3)))
        ]
        if rng.random() < 0.3:
            said.append(Upgrade(rng.randrange(900), rng.choice((APART, UNKNOWN))))
        if rng.random() < 0.3:
            said.append(Upgrade(rng.randrange(900), OLDER, since=rng.choice((OLDER, NEWEST))))
        if rng.random() < 0.2:
            said.append(Upgrade(rng.randrange(2_000, 9_000), OLDER))
        return tuple(said)
