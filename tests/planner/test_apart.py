"""A run in trouble is kept out of the snapshot of its partition, and nothing else is."""

from __future__ import annotations

import dataclasses

import pytest

from refold.client.reading.history import Run, feed
from refold.core.events import Entry
from refold.core.ids import RunId, log_key
from refold.core.messages import KeptRun, Marks
from refold.core.run.log import LogFold
from refold.core.run.snapshot import MARKS_KEY
from refold.core.topics import RUN_LOG, RUN_SNAPSHOT
from refold.core.wire import codec
from refold.engine.planner import snapshot
from refold.engine.planner.lane import Lane
from refold.engine.planner.log.acceptance import Acceptance, Happened
from refold.engine.planner.recovery import TakeOver
from refold.engine.ports.log import Outgoing, Record
from tests.planner.mirror import again
from tests.planner.rig import Rig
from tests.planner.test_copies import holds, run_of, torn

OTHERS = 40


def marks_of(rig: Rig) -> Marks:
    """The marks of the only partition."""
    values = [r.value for r in rig.broker.log(RUN_SNAPSHOT, 0).records if r.key == MARKS_KEY and r.value]
    return codec.decode(Marks, values[-1])


def lane_of(rig: Rig) -> Lane:
    """The lane of the only partition."""
    lane = rig.planner.lanes.get(0)
    assert lane is not None
    return lane


def others(rig: Rig, count: int = OTHERS, *, first: int = 0) -> None:
    """Runs that begin and end."""
    rig.answers = True
    rig.hold = lambda request: request.run_id == "torn"
    for number in range(first, first + count):
        rig.start(f"other-{number}")
    rig.pump()


def successor(rig: Rig, member: str) -> Rig:
    """The planner is killed, and another takes over."""
    rig.broker.expire("refold-planner", rig.settings.member)
    return Rig(rig.world, rig.broker, member=member, hold=rig.hold)


@pytest.mark.parametrize("count", [OTHERS, pytest.param(10_000, marks=pytest.mark.campaign)])
def test_a_forked_run_keeps_only_itself_out_of_the_snapshot(count: int) -> None:
    rig, run, _ = torn()

    for first in range(0, count, OTHERS):
        others(rig, first=first)

    log, end = lane_of(rig).log, rig.broker.log(RUN_LOG, 0).end
    marks = marks_of(rig)
    assert marks.log > end - 4
    assert list(marks.apart) == [run]
    # What is kept in memory of the others is a row each.
    assert set(log.snapshot_writer._by_run) <= {run}
    assert len(log.finished) >= count


@pytest.mark.parametrize("take_overs", [1, 3])
def test_every_successor_finds_it_forked_and_reads_nothing_else_again(
    take_overs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, run, head = torn()
    others(rig)
    judged: list[bytes | None] = []
    accept = Acceptance._accept_read

    def watched(log: Acceptance, record: Record) -> list[Happened]:
        judged.append(record.key)
        return accept(log, record)

    monkeypatch.setattr(Acceptance, "_accept_read", watched)

    for number in range(take_overs):
        judged.clear()
        rig = successor(rig, f"next-{number}")
        assert holds(rig) == {run: "forked"}
        assert len(judged) < 12
        others(rig, 5, first=OTHERS + 5 * number)

    rig.hold = lambda request: False
    rig.operate(run, "repair", f'{{"head":"{head.hex()}"}}')
    rig.pump()
    assert holds(rig) == {}
    assert rig.state(run).status == "completed"  # type: ignore[union-attr]
    assert set(rig.world.done.values()) == {1}


def test_a_repaired_run_is_kept_anew() -> None:
    rig, run, head = torn()
    others(rig, 1)
    rig.operate(run, "repair", f'{{"head":"{head.hex()}"}}')
    rig.pump()

    others(rig, first=1)

    marks, state = marks_of(rig), rig.state(run)
    assert state is not None
    assert not state.over
    assert marks.apart == {}
    assert marks.log > rig.broker.log(RUN_LOG, 0).end - 4
    after = successor(rig, "later")
    assert after.state(run).head == state.head  # type: ignore[union-attr]
    after.hold = lambda request: False
    after = successor(after, "last")
    assert after.state(run).status == "completed"  # type: ignore[union-attr]
    assert set(after.world.done.values()) == {1}


@pytest.mark.parametrize("chosen", [0, 1])
def test_a_repair_that_a_take_over_reads_is_what_it_keeps(chosen: int) -> None:
    rig = Rig()
    rig.hold = lambda request: request.run_id == "torn" and '"n":0' not in request.args
    rig.start("torn")
    rig.pump()
    first, second = [r for r in rig.broker.log(RUN_LOG, 0).records if run_of(r) == "torn"]
    entry = codec.decode(Entry, second.value or b"")
    name, value = codec.encode_entry(dataclasses.replace(entry, nonce=bytes(16)))
    rig.broker.expire("refold-planner", "p")
    rig.broker.write(Outgoing(RUN_LOG, 0, log_key(entry.run_id, entry.seq, name), value, (), 0))
    rig.broker.write(again(second))
    rig.broker.write(again(first))
    rig.broker.compact(RUN_LOG, 0)
    forked = without_snapshot(rig, "forked")
    assert holds(forked) == {"torn": "forked"}
    head = (name.hex(), (second.key or b"").decode().rsplit("/", 1)[1])[chosen]
    forked.operate("torn", "repair", f'{{"head":"{head}"}}')
    forked.pump()
    assert forked.state("torn").head.id.hex() == head  # type: ignore[union-attr]

    # The whole log is read, the fork and the repair, and what is kept of that is what the next one goes on with.
    reader = without_snapshot(forked, "reader")
    others(reader, 3)
    after = successor(reader, "after")

    found = lane_of(after).log.accepted(RunId("torn"))
    assert found is not None
    assert found.head.id.hex() == head
    assert after.stalled == {}
    fold, history = LogFold(), Run.empty(RunId("torn"))
    for record in after.broker.log(RUN_LOG, 0).records:
        if run_of(record) == "torn":
            history.take(feed(fold, record), fold)
    assert history.records[-1].id.hex() == head


def test_with_more_than_marks_can_name_all_runs_are_read_and_operators_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot, "APART_RUNS", 0)
    rig, run, _ = torn()

    others(rig)

    assert marks_of(rig).apart == {"": "8"}
    assert rig.planner.counts["snapshot.crowded"]
    for member in ("second", "third"):
        rig = successor(rig, member)
        assert holds(rig) == {run: "forked"}
        assert len(lane_of(rig).log.finished) >= OTHERS


def without_snapshot(rig: Rig, member: str) -> Rig:
    """A successor that finds nothing in `run-snapshot`."""
    for record in [r for r in rig.broker.log(RUN_SNAPSHOT, 0).records if r.value is not None]:
        rig.broker.write(Outgoing(RUN_SNAPSHOT, 0, record.key or b"", None, (), 0))
    rig.broker.compact(RUN_SNAPSHOT, 0, tombstones=True)
    return successor(rig, member)


def test_what_a_zombie_writes_of_a_run_that_is_over_is_taken_out_again() -> None:
    rig = Rig()
    others(rig, 4)
    key = b"run/other-1"
    late = codec.encode(KeptRun(RunId("other-1"), 1, 0, "", 0, b"", 1))

    rig.broker.write(Outgoing(RUN_SNAPSHOT, 0, key, late, (), 0))
    others(rig, 4, first=4)

    assert [r.value for r in rig.broker.log(RUN_SNAPSHOT, 0).records if r.key == key][-2:] == [late, None]
    after = successor(rig, "after")
    assert after.planner.counts["snapshot.broken"] == 0


def test_what_a_zombie_writes_while_another_takes_over_is_deleted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    others(rig, 4)
    key = b"run/other-1"
    late = codec.encode(KeptRun(RunId("other-1"), 1, 0, "", 0, b"", 1))
    read_log = TakeOver._read_log

    def beside_a_zombie(start: TakeOver) -> None:
        rig.broker.write(Outgoing(RUN_SNAPSHOT, 0, key, late, (), 0))
        read_log(start)

    monkeypatch.setattr(TakeOver, "_read_log", beside_a_zombie)
    after = successor(rig, "after")
    others(after, 4, first=4)

    assert [r.value for r in after.broker.log(RUN_SNAPSHOT, 0).records if r.key == key][-2:] == [late, None]
