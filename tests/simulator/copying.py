"""An operator who forks runs: at any moment, at any entry, once more, and what was forked again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random

from refold.core.ids import RunId, home
from refold.core.wire.blobs import is_pointer
from tests.simulator.forks import forkable
from tests.simulator.reading.logged import LoggedRun
from tests.simulator.reading.values import Datum
from tests.simulator.workload.inputs import ClientInput, Scenario, operation, word
from tests.simulator.world.outside import Outside
from tests.simulator.world.store import name_of
from tests.simulator.world.world import World

LOOKS_MS = 4_000
"""How often the operator looks whether a fork has become a run."""


class Forking:
    """The forks of a case, which are drawn apart from all else."""

    def __init__(
        self, world: World, scenario: Scenario, publish: Callable[[ClientInput], None], outside: Outside
    ) -> None:
        self._world, self._scenario, self._publish, self._outside = world, scenario, publish, outside
        self._rng = Random(f"forks of {scenario.name}")
        self._left, self._said = scenario.forks, 0

    def took(self, run: LoggedRun, entry: Datum) -> bool:
        """Takes an entry that counts; true if it is a copy, of which nobody has to hear."""
        first = entry["events"][0][0].rpartition(".")[2]
        if first == "RunRequested" and run.copying:
            self._world.at(LOOKS_MS, lambda: self._look(run.id), waits=False)
        if run.copying:
            return True
        begins = first == "RunRequested" or (run.fork is not None and run.fork.at == entry["seq"])
        if begins and self._left and ("." not in run.id or self._rng.random() < 0.3):
            self._left -= 1
            after_ms = self._rng.choice((30, 120, 300, 700, 1_500, 3_000)) + self._rng.randrange(100)
            self._world.at(after_ms, lambda: self._fork(run.id))
        if begins and run.fork is not None:
            self._told(run)
        return False

    def _told(self, run: LoggedRun) -> None:
        """Who speaks to runs speaks to this one."""
        for step, wait in run.mail.waits.items():
            if self._scenario.programs:
                waits = {"step": step, "name": wait.name, "match": wait.match}
                self._outside.waits(run.id, waits, by=run.id)
        if not self._scenario.programs and run.mail.waits:
            self._publish(word(run.id, "s-forked", {"n": 1}, partitions=self._world.settings.partitions))

    def _fork(self, name: str) -> None:
        run, rng = self._world.witness.history.runs.get(name), self._rng
        if run is None or run.copying:
            return
        at, head = self._place(run)
        self._said += 1
        stem, partitions = f"{name.replace('.', '-')}-fork{self._said}", self._world.settings.partitions
        fork = next(each for n in count() if home(each := f"{stem}-{n}", partitions) == home(name, partitions))
        self._copy_values(run, fork)
        data = {"source": name, "at": at, "head": head.hex(), "reason": "try"}
        self._world.counts["forks.asked"] += 1
        again_ms = (0, rng.choice((0, 5, 40, 400, 2_000))) if rng.random() < 0.4 else (0,)
        for number, after_ms in enumerate(again_ms):
            given = operation(fork, f"fork-{number}", "fork", data, partitions=partitions)
            self._world.at(after_ms, lambda given=given: self._publish(given))  # type: ignore[misc]
        if rng.random() < 0.15:  # another one under this id
            at, head = self._place(run)
            other = data | {"at": at, "head": head.hex()}
            self._publish(operation(fork, "other", "fork", other, partitions=partitions))

    def _place(self, run: LoggedRun) -> tuple[int, bytes]:
        """Where a run is forked: mostly before its end, and now and then at an entry that has lost."""
        places, rng = forkable(self._world, run), self._rng
        before = [place for place in places if not run.ends or place[0] < run.ends[0][1]]
        found = rng.choice(places if rng.random() < 0.1 else before or places)
        losers = [(at, head) for of, at, head in self._world.witness.history.losers if of == run.id]
        return rng.choice(losers) if losers and rng.random() < 0.5 else found

    def _copy_values(self, run: LoggedRun, fork: str) -> None:
        """Who forks a run copies its large values."""
        texts = self._world.store.texts
        for head in run.heads:
            for kind, event in self._world.witness.history.known[head]["events"]:
                rest = f".{event['step']}" if kind.rpartition(".")[2] in ("ChildStarted", "ChildCompleted") else ""
                owner, below = run.id + rest, fork + rest
                for text in (event.get(key) for key in ("input", "result", "data")):
                    if isinstance(text, str) and is_pointer(text) and (value := texts.get(name_of(RunId(owner), text))):
                        self._world.store.keep(RunId(below), value)

    def _look(self, name: str) -> None:
        """Gives up a fork that nobody can end: its source, or what the operator has said, is gone."""
        world, run = self._world, self._world.witness.history.runs.get(name)
        if run is None or run.over or run.fork is None or run.fork.at:
            return
        if world.hit("truncate", "mirror") or run.fork.source in world.erasures.ever:
            self._said += 1
            world.counts["forks.given_up"] += 1
            self._publish(operation(name, f"c-{self._said}", "cancel", partitions=world.settings.partitions))
        world.at(LOOKS_MS, lambda: self._look(name), waits=False)
