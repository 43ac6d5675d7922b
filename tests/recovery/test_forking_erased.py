"""Live forks of runs that are erased meanwhile, and of forks of those."""

from __future__ import annotations

import pytest

from refold.core.ids import RunId
from refold.core.messages import DeadLetter, RunErased
from refold.core.run.erased import erased_key
from refold.core.topics import RUN_LOG, RUN_OPERATED, RUN_SNAPSHOT
from refold.core.wire import codec
from refold.engine.ports.log import Outgoing
from tests.recovery.retrying import shop, three
from tests.recovery.rig import Rig
from tests.recovery.test_forking import SOURCE, asked_for, done, ends, finished, fork, partly, requests


def mark(rig: Rig, run: str) -> None:
    """An archivist closes the id of a run."""
    value = codec.encode(RunErased(RunId(run)))
    rig.broker.write(Outgoing(RUN_SNAPSHOT, 0, erased_key(RunId(run)), value, (), 0))


def bury(rig: Rig, run: str) -> None:
    """It buries all records of the run, and the log is cleaned of them."""
    log = rig.broker.log(RUN_LOG, 0)
    there = [record for record in log.records if (record.key or b"").startswith(f"{run}/".encode())]
    for record in there:
        rig.broker.write(Outgoing(RUN_LOG, 0, record.key or b"", None, (), 0))
    log.records[:] = [record for record in log.records if record not in there]


def refused(rig: Rig) -> int:
    """How many operations nobody could carry out, however often they were read."""
    letters = [codec.decode(DeadLetter, record.value or b"") for record in rig.records("dead-letter")]
    return len({letter.offset for letter in letters if letter.topic == RUN_OPERATED})


@pytest.mark.parametrize("first", ["mark", "fork"])
@pytest.mark.parametrize("turns", range(5))
def test_a_source_that_is_erased_while_it_is_read_is_copied_whole_or_refused(first: str, turns: int) -> None:
    rig = done()
    said = asked_for(rig, ends(rig)[2])
    if first == "mark":
        mark(rig, SOURCE)
    rig.operate("f-1", "fork", **said)
    for _ in range(turns):
        rig._turn()
    mark(rig, SOURCE)
    bury(rig, SOURCE)
    rig.run()
    rig.deploy(shop(three))
    finished(rig)

    if refused(rig):
        assert rig.events("f-1") == []
    else:
        assert (rig.events("f-1").count("RunForked"), rig.state("f-1").status) == (1, "completed")
    assert rig.holds() == 0


@pytest.mark.parametrize("gone", [SOURCE, "f-1"])
def test_a_fork_of_a_fork_needs_no_run_but_the_one_it_is_forked_from(gone: str) -> None:
    rig = done()
    fork(rig, ends(rig)[1])
    finished(rig)
    mark(rig, gone)
    bury(rig, gone)
    rig.deploy(shop(three))
    if gone == SOURCE:
        fork(rig, ends_of(rig, "f-1"), run="f-2", source="f-1")
        rig.deploy(shop(three))
        finished(rig, "f-2")
        assert rig.state("f-2").status == "completed"
        assert rig.state("f-2").request.forked.lineage == [SOURCE, "f-1"]  # type: ignore[union-attr]
    else:
        rig.operate("f-2", "fork", source="f-1", at=9, head="00" * 16)
        rig.run()
        assert refused(rig)
        assert rig.events("f-2") == []
    assert rig.holds() == 0


def ends_of(rig: Rig, run: str) -> int:
    """Where the last entry but one of a run ends."""
    return rig.state(run).heads[-2].seq


def test_a_part_of_a_copy_whose_source_was_erased_waits_to_be_cancelled_and_calls_nothing() -> None:
    rig = done()
    at = ends(rig)[2]
    said = asked_for(rig, at)
    partly(rig, 2)
    mark(rig, SOURCE)
    bury(rig, SOURCE)
    rig.deploy(shop(three))
    rig.operate("f-1", "fork", **said)
    rig.run()
    rig.later(3_600_000)
    assert (refused(rig), requests(rig, "f-1"), rig.holds()) == (1, [], 0)
    rig.operate("f-1", "cancel")
    rig.run()
    rig.deploy(shop(three))

    assert rig.events("f-1")[-2:] == ["RunForked", "RunCancelled"]
    assert requests(rig, "f-1") == []
