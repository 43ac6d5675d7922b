"""Planners that have lost a partition and do not know it, and go on copying a history there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.core.ids import RunId, log_key
from refold.core.messages import RunOperation
from refold.core.planning import copying
from refold.core.planning.copying import fork_asked
from refold.core.run.fold import evolve
from refold.core.run.state import RunState
from refold.core.wire import canonical, codec
from refold.engine.ports.log import Outgoing
from tests.recovery.retrying import shop, three
from tests.recovery.rig import Rig
from tests.recovery.test_forking import SOURCE, asked_for, done, ends, entries, finished, fork, partly

FORK = RunId("f-1")


def stray(rig: Rig, place: int) -> None:
    """The log takes a copy of an entry of the source that somebody has made long ago, behind what was the head then."""
    said = RunOperation(FORK, "s", "fork", canonical.dumps(asked_for(rig, ends(rig)[2])))
    state = None
    for entry in entries(rig, FORK)[:place]:
        state = evolve(state or RunState(FORK), entry, codec.encode_entry(entry)[0])
    fresh = replace(copying.copy_of(entries(rig, SOURCE)[place], fork_asked(said), FORK, state), nonce=b"zombie")
    name, value = codec.encode_entry(fresh)
    rig.broker.write(Outgoing("run-log", 0, log_key(FORK, fresh.seq, name), value, (), 0))


def forgetful(rig: Rig) -> None:
    """All snapshots are gone: who comes next reads the log from its start."""
    rig.broker.log("run-snapshot", 0).records.clear()


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("snapshot", [True, False])
def test_a_copy_of_a_zombie_that_comes_when_its_fork_is_over_stalls_nothing(place: int, snapshot: bool) -> None:
    rig = done()
    rig.later(86_400_000)
    fork(rig, ends(rig)[2])
    finished(rig)
    whole = rig.history("f-1")
    stray(rig, place)
    if not snapshot:
        forgetful(rig)
    rig.deploy(shop(three))

    assert rig.holds() == 0
    assert "run.stalled" not in rig.news
    assert rig.history("f-1") == whole
    rig.later(1)
    fork(rig, ends(rig)[2])
    assert rig.letters() == 0


@pytest.mark.parametrize("place", [2, 3])
def test_a_copy_of_a_zombie_behind_the_cut_of_a_fork_that_was_cancelled_stalls_nothing(place: int) -> None:
    rig = done()
    rig.later(86_400_000)
    partly(rig, 2)
    rig.operate("f-1", "cancel")
    rig.run()
    stray(rig, 2)
    forgetful(rig)
    rig.deploy(shop(three))

    assert rig.holds() == 0
    assert "run.stalled" not in rig.news
    rig.later(1)
    fork(rig, ends(rig)[2])
    assert rig.letters() == 0
    assert rig.events("f-1")[-1] == "RunCancelled"


def test_a_copy_of_a_zombie_that_comes_when_its_id_is_that_of_an_ordinary_run_stalls_nothing() -> None:
    rig = done()
    rig.start("f-1", "shop")
    rig.run()
    finished(rig)
    rig.later(86_400_000)
    stray(rig, 0)
    forgetful(rig)
    rig.deploy(shop(three))

    assert rig.holds() == 0
    assert rig.state("f-1").status == "completed"
