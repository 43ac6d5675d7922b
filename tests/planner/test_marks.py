"""Marks say positions of one log: in a mirror of it, or where it was cut off and went on, nobody believes them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import pytest

from refold.core.events import Entry, NoteRecorded
from refold.core.ids import EntryId, RunId, log_key, parse_log_key
from refold.core.messages import Marks, RunErased
from refold.core.run.chain import Head, anchor_key
from refold.core.run.erased import erased_key
from refold.core.run.finished import Finished
from refold.core.run.snapshot import MARKS_KEY, PartitionSnapshot
from refold.core.topics import RUN_LOG, RUN_REQUESTED, RUN_SNAPSHOT
from refold.core.wire import codec
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.ports.log import Outgoing
from tests.planner.mirror import again, mirrored
from tests.planner.rig import POOL, TOPICS, Rig


def marks_of(rig: Rig) -> Marks:
    """The last marks of the first partition."""
    values = [r.value for r in rig.broker.log(RUN_SNAPSHOT, 0).records if r.key == MARKS_KEY]
    return codec.decode(Marks, values[-1] or b"")


def busy(rig: Rig, runs: int = 6) -> Rig:
    """Some runs are over, and one waits for executors."""
    for n in range(runs):
        rig.start(f"run-{n}")
    rig.pump()
    rig.answers = False
    rig.start("waits")
    rig.pump()
    return rig


def foreign(rig: Rig) -> bool:
    """Whether the planner took the marks for those of another log."""
    return rig.planner.counts["marks.foreign"] > 0


def test_a_successor_on_the_same_log_reads_from_the_anchor_on() -> None:
    rig = busy(Rig())
    marks = marks_of(rig)
    rig.broker.expire("refold-planner", "p")

    after = Rig(rig.world, rig.broker, member="next")

    assert marks.anchor
    assert marks.anchor_offset < marks.log
    assert not foreign(after)
    assert after.log.reads[RUN_LOG, 0] == [marks.anchor_offset]
    assert after.log.reads[RUN_REQUESTED, 0] == [int(marks.inputs[RUN_REQUESTED])]


@pytest.mark.parametrize("topic", [RUN_LOG, RUN_REQUESTED])
@pytest.mark.parametrize("by", [-1, 1])
def test_marks_of_a_log_with_other_offsets_are_not_believed(topic: str, by: int) -> None:
    rig = busy(Rig(broker=MemoryBroker(TOPICS, clock_ms=lambda: 1_000)))
    if by < 0:
        rig.broker.skip(topic, 0)
        rig.start("one-more")
        rig.pump()
    target = MemoryBroker(TOPICS, clock_ms=lambda: 2_000)
    if by > 0:
        target.skip(topic, 0)
    for name in TOPICS:
        for record in rig.broker.log(name, 0).records:
            target.write(again(record))
    target.write(rig.asking("asked-for-at-last"))

    after = Rig(rig.world, target)

    assert foreign(after) or after.planner.counts["log.shrunk"]
    assert after.state("asked-for-at-last").status == "completed"  # type: ignore[union-attr]
    assert after.state("waits").status == "completed"  # type: ignore[union-attr]
    assert set(after.world.done.values()) == {1}
    assert {run: told for run, told in after.outcomes().items() if len(told) > 1} == {}


def test_a_log_that_was_cut_off_below_the_marks_is_read_from_its_start() -> None:
    rig = busy(Rig())
    rig.broker.expire("refold-planner", "p")
    rig.broker.truncate(RUN_LOG, 0, marks_of(rig).log - 3)

    after = Rig(rig.world, rig.broker, member="next")

    assert after.log.reads[RUN_LOG, 0] == [0]
    assert after.log.reads[RUN_REQUESTED, 0] == [0]
    assert all(after.state(f"run-{n}").status == "completed" for n in range(6))  # type: ignore[union-attr]
    assert after.state("waits").status == "completed"  # type: ignore[union-attr]
    assert set(after.world.done.values()) == {1}


def test_marks_whose_inputs_rest_on_what_the_log_has_lost_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = busy(Rig())
    append, publish = rig.log.append, rig.log.publish
    lost_acks: list[Outgoing] = []

    def unheard(records: Sequence[Outgoing]) -> None:
        lost_acks.extend(record for record in records if record.topic == POOL)
        append([record for record in records if record.topic == POOL])
        publish([record for record in records if record.topic != POOL])

    # No order is acknowledged any more, so the marks stand still, and nothing is kept of a run that begins after them.
    monkeypatch.setattr(rig.log, "publish", unheard)
    rig.start("ordered")
    rig.pump()
    began = rig.broker.log(RUN_LOG, 0).end
    rig.start("answered")
    rig.pump()
    marks = marks_of(rig)
    assert lost_acks
    assert marks.log < began
    assert int(marks.inputs[RUN_REQUESTED]) == rig.broker.log(RUN_REQUESTED, 0).end
    rig.broker.truncate(RUN_LOG, 0, began)
    rig.broker.expire("refold-planner", "p")

    after = Rig(rig.world, rig.broker, member="next")

    assert after.planner.counts["log.shrunk"]
    assert after.state("answered").status == "completed"  # type: ignore[union-attr]
    assert not after.stalled


def test_a_run_that_was_kept_beyond_what_the_log_has_left_is_not_believed() -> None:
    rig = busy(Rig())
    before, kept = marks_of(rig), rig.broker.log(RUN_SNAPSHOT, 0)
    rig.broker.write(unwritten(rig, "waits")[0])
    rig.pump()
    lost = next(record.offset for record in kept.records if record.value == codec.encode(before)) + 1
    kept.records = [record for record in kept.records if record.offset < lost or record.key != MARKS_KEY]
    rig.broker.truncate(RUN_LOG, 0, before.log)

    after = Rig(rig.world, rig.broker, member="next")

    assert after.planner.counts["log.shrunk"]
    assert after.state("waits").status == "completed"  # type: ignore[union-attr]
    assert not after.stalled
    assert set(after.world.done.values()) == {1}


@pytest.mark.parametrize("anchored", [True, False])
def test_inputs_of_which_the_log_has_lost_the_answer_since_the_marks_are_read_again(anchored: bool) -> None:
    rig = busy(Rig()) if anchored else Rig()
    rig.settings = dataclasses.replace(rig.settings, snapshot_ms=1 << 40, commit_ms=0)
    rig.boot()
    if not anchored:  # its planner died before it knew of any record to stand on
        del rig.broker.log(RUN_SNAPSHOT, 0).records[1:]
        rig.broker.log(RUN_LOG, 0).records.clear()
    marks = marks_of(rig)
    rig.answers = False
    rig.start("asked-since")
    rig.pump()
    committed = rig.broker.groups["refold-planner"].committed
    rig.broker.truncate(RUN_LOG, 0, marks.log)

    after = Rig(rig.world, rig.broker, member="next")

    assert bool(marks.anchor) == anchored
    assert committed[RUN_REQUESTED, 0] > int(marks.inputs[RUN_REQUESTED])
    assert after.state("asked-since").status == "completed"  # type: ignore[union-attr]
    assert set(after.world.done.values()) == {1}


def test_a_log_that_was_cut_off_and_went_on_is_another() -> None:
    rig = busy(Rig())
    rig.broker.expire("refold-planner", "p")
    log, marks = rig.broker.log(RUN_LOG, 0), marks_of(rig)
    other = busy(Rig(), runs=9)
    rig.broker.truncate(RUN_LOG, 0, marks.anchor_offset)
    for record in other.broker.log(RUN_LOG, 0).records[marks.anchor_offset : log.end + 9]:
        rig.broker.write(again(record))

    after = Rig(rig.world, rig.broker, member="next")

    assert foreign(after)


def test_where_the_snapshot_is_broken_too_the_anchor_is_looked_at_when_it_comes() -> None:
    rng = random.Random(1)
    rig = busy(Rig())
    target = mirrored(rig.broker, rng, repeats=0.3)
    log = target.log(RUN_SNAPSHOT, 0)
    log.records = [record for record in log.records if not (record.key or b"").startswith(b"run/")]

    after = Rig(rig.world, target)

    assert foreign(after)
    assert after.state("waits").status == "completed"  # type: ignore[union-attr]
    assert set(after.world.done.values()) == {1}


def test_a_log_without_the_anchor_or_anything_after_it_is_another() -> None:
    rig = busy(Rig())
    rig.broker.expire("refold-planner", "p")
    log, anchor = rig.broker.log(RUN_LOG, 0), marks_of(rig).anchor_offset
    end = log.end
    rig.broker.truncate(RUN_LOG, 0, anchor)
    rig.broker.skip(RUN_LOG, 0, end - anchor)

    after = Rig(rig.world, rig.broker, member="next")

    assert foreign(after)
    assert after.state("waits").status == "completed"  # type: ignore[union-attr]


def test_a_successor_links_what_was_held_aside_when_the_marks_were_written() -> None:
    rig = busy(Rig())
    first, second, third = unwritten(rig, "waits")
    rig.broker.write(third)
    rig.pump()
    rig.broker.write(first)  # the run moves, and is kept with all that counts
    rig.pump()
    assert marks_of(rig).log <= rig.broker.log(RUN_LOG, 0).end - 2
    rig.broker.expire("refold-planner", "p")
    rig.broker.write(second)

    after = Rig(rig.world, rig.broker, member="next")

    _, seq, name = parse_log_key(third.key) or ("", 0, b"")
    state = after.state("waits")
    assert state is not None
    assert state.entry_at(seq) == name


def test_a_commit_that_runs_ahead_of_the_marks_forgets_nothing_of_what_was_linked() -> None:
    rig = busy(Rig())
    first, second, third = unwritten(rig, "waits")
    ahead = rig.broker.write(third).offset
    rig.broker.write(first)
    link = rig.broker.write(second).offset
    lane = rig.planner.lanes.get(0)
    assert lane is not None
    assert ahead is not None
    assert link is not None
    for offset in range(ahead, link + 1):
        list(lane.log.follow(rig.broker.log(RUN_LOG, 0).records[offset]))

    assert lane.log.linked_from(link + 1) == link + 1  # commits go by what is acknowledged
    assert lane.log.linked_from(link) == ahead  # marks may lie further back: others are told of limits later


class Unanswered(Rig):
    """Executors are away from the start."""

    def _answer(self) -> None:
        pass


def ghost(orphan: Outgoing) -> Outgoing:
    """The same entry of a run that nobody knows."""
    entry = dataclasses.replace(codec.decode(Entry, orphan.value or b""), run_id=RunId("ghost"))
    name, value = codec.encode_entry(entry)
    return Outgoing(RUN_LOG, 0, log_key(entry.run_id, entry.seq, name), value, (), 0)


@pytest.mark.parametrize("taken_over", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_runs_that_end_behind_a_record_that_waits_for_its_predecessor_are_rows(known: bool, taken_over: bool) -> None:
    rig = busy(Rig())
    third = unwritten(rig, "waits")[2]
    orphan = rig.broker.write(third if known else ghost(third)).offset
    rig.pump()
    if taken_over:
        rig = Unanswered(rig.world, rig.broker, member="next")
    for n in range(20):
        rig.start(f"later-{n}", steps=0)
    rig.pump()

    snapshot = PartitionSnapshot(Finished())
    for record in rig.broker.log(RUN_SNAPSHOT, 0).records:
        snapshot.feed(record.key or b"", record.value)
    asleep = snapshot.close()

    assert snapshot.whole
    assert set(asleep) <= {"waits"}
    assert all(RunId(f"later-{n}") in snapshot.finished for n in range(20))
    assert marks_of(rig).log <= (orphan or 0)


def unwritten(rig: Rig, run: str) -> list[Outgoing]:
    """Three entries that a zombie has on its way, one after the other: each is a note."""
    state = rig.state(run)
    assert state is not None
    found, head = list[Outgoing](), state.head
    for n in range(3):
        step = len(state.steps) + 1 + n
        entry = Entry(
            run_id=state.run_id,
            seq=head.seq + 1,
            prev=head.id,
            at_ms=state.at_ms,
            cause=None,
            actor="zombie",
            nonce=bytes([n]) * 16,
            events=[NoteRecorded(step, "k", "1")],
        )
        name, value = codec.encode_entry(entry)
        found.append(Outgoing(RUN_LOG, 0, log_key(state.run_id, entry.seq, name), value, (), 0))
        head = Head(name, entry.last_seq)
    return found


def test_a_snapshot_stands_on_when_every_run_below_it_is_erased() -> None:
    rig = Rig()
    for n in range(3):
        rig.start(f"run-{n}")
    rig.pump()
    for n in range(3):
        run = RunId(f"run-{n}")
        rig.broker.write(Outgoing(RUN_SNAPSHOT, 0, erased_key(run), codec.encode(RunErased(run)), (), 0))
    rig.pump()
    marks = marks_of(rig)
    for record in list(rig.broker.log(RUN_LOG, 0).records):
        if parse_log_key(record.key) is not None:
            rig.broker.write(Outgoing(RUN_LOG, 0, record.key or b"", None, (), 0))
    rig.broker.compact(RUN_LOG, 0)
    rig.broker.expire("refold-planner", "p")

    after = Rig(rig.world, rig.broker, member="next")

    assert marks.anchor_offset < marks.log
    left = [record.key for record in rig.broker.log(RUN_LOG, 0).records if record.value]
    assert left[-1] == anchor_key(EntryId(bytes.fromhex(marks.anchor)))
    assert not any(parse_log_key(key) for key in left)
    assert not foreign(after)
    assert after.planner.counts["record.void"] == 0
    assert after.log.reads[RUN_REQUESTED, 0] == [int(marks.inputs[RUN_REQUESTED])]
