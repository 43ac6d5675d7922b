"""Forks of forks by chance, under planners that die and a log that does not answer: nothing of a copy ever follows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from refold.core.events import Terminal
from refold.core.ids import RunId, log_key, parse_call_id
from refold.core.messages import RunOperation
from refold.core.planning.copying import copy_of, fork_asked, lacks_history
from refold.core.run.fold import evolve
from refold.core.run.state import RunState
from refold.core.wire import codec
from refold.engine.planner.settings import Limits, PlannerSettings
from refold.engine.ports.log import Delivery, Outgoing
from tests.recovery.rig import Rig
from tests.recovery.test_forking import SOURCE, DiedError, entries, house, requests

NAMES = (SOURCE, "f-1", "f-2", "f-3")


class Chance:
    """A rig whose planner may die at a record, and whose log may not say whether it has taken one."""

    def __init__(self, seed: int) -> None:
        self.rng, self.rig = random.Random(seed), Rig(house())
        self.dies = self.silent = 0.0
        self._append = self.rig._append
        self.rig._append = self.append  # type: ignore[method-assign]

    def append(self, record: Outgoing) -> Delivery:
        """Take a record, or not."""
        if self.rng.random() < self.dies:
            raise DiedError
        if record.topic != "run-log" or self.rng.random() >= self.silent:
            return self._append(record)
        if self.rng.random() < 0.5:
            self._append(record)
        return Delivery(record.token, None)

    def go(self, what: Callable[[], None]) -> None:
        """Do it, with as many planners as that takes."""
        while True:
            try:
                what()
                return
            except DiedError:
                self.dies, what = self.dies / 2 if self.dies > 0.01 else 0, lambda: self.rig.deploy(house())

    def copy_on(self) -> None:
        """A zombie goes on with a copy where it was when it lost its partition, whatever has come since."""
        rig, rng = self.rig, self.rng
        said = [codec.decode(RunOperation, each.value) for each in rig.records("run-operated") if each.value]
        if not (forks := [each for each in said if each.kind == "fork" and f'"{each.run_id}"' not in each.data]):
            return
        asked, run = fork_asked(each := rng.choice(forks)), RunId(each.run_id)
        kept = [entry for entry in entries(rig, asked.source.run_id) if entry.last_seq <= asked.source.seq]
        if not kept or any(isinstance(event, Terminal) for entry in kept for event in entry.events):
            return
        place, state = rng.randrange(len(kept)), None
        for entry in entries(rig, run)[:place]:
            state = evolve(state or RunState(run), entry, codec.encode_entry(entry)[0])
        if place != (len(state.heads) if state else 0) or not lacks_history(state, asked):
            return
        for entry in kept[place:]:
            fresh = replace(copy_of(entry, asked, run, state), nonce=rng.randbytes(16), actor="zombie")
            name, value = codec.encode_entry(fresh)
            rig.broker.write(Outgoing("run-log", 0, log_key(run, fresh.seq, name), value, (), 0))
            state = evolve(state or RunState(run), fresh, name)

    def step(self, number: int) -> None:
        """Somebody does something."""
        rng, rig = self.rng, self.rig
        self.dies, self.silent = rng.choice((0, 0, 0.02, 0.1)), rng.choice((0, 0, 0.1))
        source, name, what = rng.choice(NAMES), rng.choice(NAMES[1:]), rng.random()
        rig.now += 1
        if what < 0.4 and (heads := [*rig.state(source).heads]):
            head = rng.choice(heads)
            rig.operate(name, "fork", source=source, at=head.seq, head=head.id.hex())
            if rng.random() < 0.3:
                rig.start(name, "patient")
        elif what < 0.75:
            rig.finish(rng.choice(("", *NAMES)))
        elif what < 0.85:
            self.copy_on()
        elif what < 0.9:
            rig.operate(name, rng.choice(("pause", "resume", "cancel")))
        else:
            rig.tell(source, f"s-{number}", "now")
        self.go(rig.run if rng.random() < 0.7 else lambda: rig.later(rng.choice((10, 30_000, 3_600_000))))


@pytest.mark.parametrize("seed", [*range(28), 58, 90])
def test_whatever_comes_between_a_copy_orders_nothing_and_no_run_stalls(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = Limits(flying_entries=1 + seed % 3) if seed % 2 else Limits()
    monkeypatch.setattr("tests.recovery.rig.PlannerSettings", partial(PlannerSettings, limits=most))
    chance = Chance(seed)
    rig = chance.rig
    rig.start(SOURCE, "patient")
    rig.run()
    for number in range(chance.rng.randint(5, 25)):
        chance.step(number)
    chance.dies = chance.silent = 0
    rig.broker.log("run-snapshot", 0).records.clear()
    rig.deploy(house())

    keys: dict[str, str] = {}
    for name in NAMES:
        state = rig.state(name)
        forked = state.request.forked.seq if state.request and state.request.forked else 0
        assert not state.copying
        assert not forked or rig.events(name)[forked] == "RunForked"
        for request in requests(rig, name):
            assert parse_call_id(request.call_id)[1] > forked, "a call of the copy went out"
            assert keys.setdefault(request.key, name) == name, "it has the key of another run"
    assert rig.holds() == 0
