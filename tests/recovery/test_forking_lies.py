"""Whoever may write the run log lies about forks: each reader goes on, and so does every other run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from refold.console.projections.projector import HEADS
from refold.core.approval.signature import NOBODY
from refold.core.events import (
    DOUBT,
    ApprovalDecided,
    ApprovalRequested,
    AttemptFailed,
    CallCompleted,
    CallDispatched,
    CallProposed,
    CallRenewed,
    DoubtResolved,
    Entry,
    Event,
    Failure,
    ForkedFrom,
    LateResultRecorded,
    Requirement,
    RunForked,
    SleepEnded,
    StatusSet,
)
from refold.core.ids import RunId, log_key
from refold.core.run.chain import Head
from refold.core.run.state import RunState
from refold.core.topics import RUN_LOG
from refold.core.wire import codec
from refold.engine.ports.log import Outgoing
from refold.lab.evidence.bundle import Bundle, BundledRun
from refold.lab.evidence.verify import verify_bundle
from tests.evidence.story import file_of
from tests.projections.viewed import Log, Viewed, folded
from tests.recovery.rig import Rig
from tests.recovery.test_forking import SOURCE, fork, house, requests

FOREIGN = ForkedFrom(RunId("zz"), 4, b"x" * 16)
KEY = "5" * 64

Lie = Callable[[RunState], Sequence[Event]]


def lie(rig: Rig, run: str, fresh: Sequence[Event], head: Head | None = None) -> Head:
    """The log takes an entry that extends a run."""
    head = head or rig.state(run).head
    entry = Entry(RunId(run), head.seq + 1, head.id, rig.now, None, "liar", b"n" * 16, list(fresh))
    name, value = codec.encode_entry(entry)
    rig.broker.write(Outgoing(RUN_LOG, 0, log_key(entry.run_id, entry.seq, name), value, (), 0))
    return Head(name, entry.last_seq)


def forked() -> Rig:
    """A run that sleeps, waits and calls, and its fork."""
    rig = Rig(house())
    rig.start(SOURCE, "patient")
    rig.run()
    rig.later(3_600_000)
    fork(rig, 99)
    assert rig.asked("f-1")
    assert rig.asked(SOURCE)
    return rig


def own(state: RunState) -> ForkedFrom:
    """The source of a fork, or of none."""
    return (state.request.forked if state.request else None) or FOREIGN


def begins_again(state: RunState) -> list[Event]:
    """A run is forked far behind its end, by its own request."""
    assert state.request
    return [replace(state.request, forked=ForkedFrom(RunId(SOURCE), 1_000_000, b"q" * 16))]


def charged(state: RunState) -> CallProposed:
    """A call of a run."""
    return next(step for step in state.steps if isinstance(step, CallProposed))


LIES: dict[str, Lie] = {
    "once more": lambda state: [RunForked(own(state), "liar")],
    "of another": lambda state: [RunForked(FOREIGN, "liar")],
    "not first": lambda state: [StatusSet("x"), RunForked(own(state), "liar")],
    "key of no step": lambda state: [RunForked(own(state), "liar", keys={"99": KEY})],
    "key of a word": lambda state: [RunForked(own(state), "liar", keys={"x": KEY})],
    "key of nothing": lambda state: [RunForked(own(state), "liar", keys={"0": KEY})],
    "key of a sleep": lambda state: [RunForked(own(state), "liar", keys={"1": KEY})],
    "key of a step of the same entry": lambda state: [
        replace(charged(state), step=len(state.steps) + 1),
        RunForked(own(state), "liar", keys={str(len(state.steps) + 1): KEY}),
    ],
    "edit": lambda state: [RunForked(own(state), "liar", edit="{", tool="charge")],
    "edit of no tool": lambda state: [RunForked(own(state), "liar", edit='{"n":7}', tool="")],
    "deadline": lambda state: [RunForked(own(state), "liar", deadline_ms=-5)],
    "begins again": begins_again,
    "renewed": lambda state: [RunForked(own(state), "liar"), CallRenewed(1)],
    "sent": lambda state: [
        RunForked(own(state), "liar", keys={"3": KEY}),
        CallRenewed(3),
        CallDispatched(3, 1, state.at_ms),
    ],
}


CONTRADICTIONS = ("key of no step", "key of a word", "key of a sleep", "renewed")


def holes(rig: Rig, run: str) -> int:
    """How many holes a bundle of a run has."""
    records = [record for record in rig.records(RUN_LOG) if (record.key or b"").startswith(f"{run}/".encode())]
    bundle = Bundle(RunId(run), [BundledRun(RunId(run), records, ())], [], [], (), redacted=frozenset())
    return len(verify_bundle(file_of(bundle), NOBODY).holes)


@pytest.mark.parametrize("run", ["f-1", SOURCE])
@pytest.mark.parametrize("what", LIES)
def test_a_lie_about_a_fork_stops_no_reader_and_no_other_run(what: str, run: str) -> None:
    rig = forked()
    lie(rig, run, LIES[what](rig.state(run)))
    rig.run()
    rig.broker.log("run-snapshot", 0).records.clear()
    rig.deploy(house())
    rig.start("r-9", "helper", n=1)
    rig.run()
    for _ in range(6):
        rig.finish()
        rig.run()

    assert rig.state("r-9").status == "completed"
    log = Log(record for record in rig.records(RUN_LOG))
    viewed = Viewed.of(log)
    heads = {row["run_id"]: row["seq"] for row in viewed.rows(HEADS)}
    if what != "renewed":  # which a view that does not fold takes as it comes
        assert heads == {name: each.state.head.seq for name, each in folded(log).items()}
    assert bool(holes(rig, run)) == (what in CONTRADICTIONS)
    keys = [request.key for request in requests(rig, "f-1")]
    assert not set(keys) & {request.key for request in requests(rig, SOURCE)}


def test_a_fork_behind_what_contradicts_its_history_stops_no_view() -> None:
    rig = forked()
    head = lie(rig, "f-1", [CallRenewed(99)])
    lie(rig, "f-1", [RunForked(FOREIGN, "liar")], head)
    rig.start("r-9", "helper", n=1)
    rig.run()

    viewed = Viewed.of(Log(rig.records(RUN_LOG)))

    assert {row["run_id"]: row["reason"] for row in viewed.rows(HEADS)}["f-1"]
    assert "r-9" in {row["run_id"] for row in viewed.rows(HEADS)}


@pytest.mark.parametrize(
    "event",
    [
        ApprovalRequested(2, 1, 1, "p", "r", Requirement(["ada"]), "dev", "1", "", "0" * 64, about=DOUBT),
        CallDispatched(2, 1, 0),
        AttemptFailed(2, 1, Failure("x", "y"), unknown=False, retry_ms=0),
        CallCompleted(2, 1, "1"),
        DoubtResolved(99, 1, "happened", "liar"),
        LateResultRecorded(99, 1, "completed", "1", contradicts=False),
        SleepEnded(3),
    ],
    ids=lambda event: type(event).__name__,
)
def test_who_lies_of_a_step_stops_its_run_alone(event: Event) -> None:
    rig = forked()
    head = rig.state(SOURCE).head
    lie(rig, SOURCE, [event])
    rig.start("r-9", "helper", n=1)
    rig.run()
    rig.finish("r-9")
    rig.run()

    runs = folded(Log(rig.records(RUN_LOG)))
    assert (runs[RunId(SOURCE)].state.head, runs[RunId("r-9")].status) == (head, "completed")


def test_what_contradicts_a_history_does_so_without_the_assertions_of_python_too() -> None:
    started = "[events.RunRequested('a', 'null', 'd', seed='s'), events.RunStarted('1'), events.SleepStarted(1, 5)]"
    lied = "[events.DoubtResolved(1, 1, 'happened', 'liar')]"
    code = f"""
from refold.core import events
from refold.core.run.fold import advance
from refold.core.run.state import RunState
state = RunState('r-1')
advance(state, {started}, seq=1, at_ms=1)
advance(state, {lied}, seq=4, at_ms=2)
"""
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert "FoldError: event 4 of run r-1 contradicts its history" in done.stderr


def test_who_lists_runs_reads_on_behind_a_decision_that_nobody_was_asked_for() -> None:
    rig = forked()
    source = rig.state(SOURCE)
    lie(rig, SOURCE, [ApprovalDecided(charged(source).step, 1, "approve")])

    assert folded(Log(rig.records(RUN_LOG)))[RunId(SOURCE)].state.head.seq == source.head.seq + 1
