"""A mirrored cluster that repeats records, cleaned, takes over: the drill of docs/guides/operating.md."""

from __future__ import annotations

import dataclasses
import random

import pytest

from refold.core.events import Entry
from refold.core.ids import HOLD_KEY, RunId, log_key, parse_log_key
from refold.core.messages import DeadLetter, Hold, ToolRequest
from refold.core.run.log import FORKED
from refold.core.topics import DEAD_LETTER, RUN_COMPLETED, RUN_LOG, RUN_SNAPSHOT
from refold.core.wire import codec
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.planner.intake.inbox import WaitsFor
from refold.engine.ports.log import Outgoing, Record
from tests.planner.mirror import again, fork, mirrored
from tests.planner.rig import POOL, TOPICS, Rig

RUNS = 300


def platform(runs: int, rng: random.Random, *, watched: int = 0, unwatched: int = 0, ahead: int = 0) -> Rig:
    """Runs of which a third is over, and a third waits for executors; zombies write, while a planner looks or not.

    The run log begins at the offset `ahead`.
    """
    rig = Rig(partitions=2)
    for number in range(2):
        rig.broker.skip(RUN_LOG, number, ahead)
    for n in range(runs):
        rig.start(f"run-{n}", steps=rng.randrange(1, 6))
        if n == runs // 3:
            rig.pump()
            fork(rig, rng, watched)
            rig.pump()
        if n == 2 * runs // 3:
            rig.pump(12)
            rig.answers = False
    rig.pump()
    fork(rig, rng, unwatched)
    return rig


def taken_over(rig: Rig, rng: random.Random, *, repeats: float = 0.01, kept: bool = True) -> Rig:
    """The same on a cluster that mirrors it, with no offsets, and executors that know what their claims say."""
    return Rig(rig.world, mirrored(rig.broker, rng, repeats=repeats, kept=kept))


def judge(before: Rig, after: Rig, runs: int) -> None:
    """Nothing happened twice, nobody heard two outcomes, and what is not stalled is as it was or went on."""
    assert set(after.world.done.values()) == {1}
    assert {run: told for run, told in after.outcomes().items() if len(told) > 1} == {}
    told = before.outcomes()
    for n in range(runs):
        run = f"run-{n}"
        state = after.state(run)
        if run in after.stalled:
            continue
        assert state is not None, run
        assert state.status == "completed", run
        assert told.get(run, after.outcomes()[run]) == after.outcomes()[run]


@pytest.mark.parametrize("kept", [True, False], ids=["with-snapshot", "without"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_mirror_that_repeats_a_hundredth_of_all_records_changes_no_run(seed: int, kept: bool) -> None:
    rng = random.Random(seed)
    before = platform(RUNS, rng)

    after = taken_over(before, rng, kept=kept)

    judge(before, after, RUNS)
    assert after.stalled == {}
    assert after.planner.counts["marks.foreign"] == 2 * kept


@pytest.mark.parametrize("seed", range(10, 16))
def test_what_a_snapshot_says_of_ended_runs_holds_in_a_mirror_too(seed: int) -> None:
    rng = random.Random(seed)
    before = platform(60, rng, watched=10, unwatched=20)

    after = taken_over(before, rng, repeats=0.2)

    judge(before, after, 60)
    assert after.stalled == {}


def test_where_zombies_wrote_and_nobody_looked_runs_stall_and_none_changes() -> None:
    rng = random.Random(3)
    before = platform(300, rng, unwatched=60)

    after = taken_over(before, rng, repeats=0.2, kept=False)

    judge(before, after, 300)
    assert set(after.stalled.values()) == {FORKED}
    assert len(after.stalled) < 100


def test_forks_are_buried_while_a_planner_looks_and_what_counts_never_is() -> None:
    rng = random.Random(4)
    rig = platform(30, rng)
    fork(rig, rng, 10)
    records = rig.broker.log(RUN_LOG, 0).records
    before = [record.key for record in records if record.value is not None]

    rig.pump()

    buried = {r.key for r in rig.broker.log(RUN_LOG, 0).records if r.value is None and run_of(r)}
    assert buried <= set(before[-10:])


def test_copies_are_counted_and_told() -> None:
    rig = platform(30, random.Random(5))
    records = [r for r in rig.broker.log(RUN_LOG, 0).records if r.value is not None and run_of(r)]
    living = [r for r in records if rig.planner.lanes.get(0).log.fold.states.get(run_of(r) or RunId(""))]  # type: ignore[union-attr]
    for record in living[-8:]:
        rig.broker.write(again(record))

    rig.pump()

    assert rig.planner.counts["record.copy"] == len(living[-8:]) > 4
    assert not [r for r in rig.broker.log(RUN_LOG, 0).records if r.value is None and run_of(r)]


def run_of(record: Record) -> RunId | None:
    """The run in a key of the run log; None for what is of no run."""
    parts = parse_log_key(record.key)
    return parts[0] if parts else None


def holds(rig: Rig) -> dict[str, str]:
    """The holds in `run-snapshot`, and why."""
    records = {r.key: r.value for r in rig.reader.scan(RUN_SNAPSHOT) if (r.key or b"").startswith(HOLD_KEY)}
    return {hold.run_id: hold.reason for value in records.values() if value and (hold := codec.decode(Hold, value))}


def torn(*, waiting: int = 4_000) -> tuple[Rig, RunId, bytes]:
    """A platform on which a run waits for executors and has two histories; the head of the one that was first."""
    rig = Rig(broker=MemoryBroker(TOPICS, clock_ms=lambda: 1_000_000))
    rig.start("run-0")
    rig.pump()
    rig.answers = False
    rig.start("torn")
    rig.start("sound")
    rig.pump()
    first = next(r for r in rig.broker.log(RUN_LOG, 0).records if run_of(r) == "torn")
    entry = codec.decode(Entry, first.value or b"")
    name, value = codec.encode_entry(dataclasses.replace(entry, nonce=bytes(16), at_ms=entry.at_ms - 120_000))
    rig.broker.write(Outgoing(RUN_LOG, 0, log_key(entry.run_id, 1, name), value, (), 0))
    rig.broker.write(again(first))
    rig.broker.compact(RUN_LOG, 0)
    rig.broker.expire("refold-planner", "p")
    after = Rig(rig.world, rig.broker, member="next", waiting=waiting)
    parts = parse_log_key(first.key)
    assert parts is not None
    return after, parts[0], parts[2]


class TestStandingStill:
    def test_a_run_of_two_histories_is_held_and_goes_on_when_it_is_repaired(self) -> None:
        rig, run, head = torn()
        assert holds(rig) == {run: "forked"}

        rig.operate(run, "repair", f'{{"head":"{head.hex()}"}}')
        rig.pump()

        assert holds(rig) == {}
        state = rig.state(run)
        assert state is not None
        assert state.status == "completed"
        assert set(rig.world.done.values()) == {1}

    def test_a_mended_run_asks_for_what_is_open(self) -> None:
        rig, run, head = torn()
        rig.answers = False
        before = rig.broker.log(POOL, 0).end

        rig.operate(run, "repair", f'{{"head":"{head.hex()}"}}')
        rig.pump()

        asked = [codec.decode(ToolRequest, r.value or b"") for r in rig.broker.log(POOL, 0).records[before:] if r.value]
        assert {request.run_id for request in asked} == {run}
        assert asked[0].again
        assert holds(rig) == {}

    def test_what_is_said_of_it_waits_and_others_go_on(self) -> None:
        rig, run, head = torn(waiting=11)

        for n in range(30):
            rig.signal(run, "cancel", number=n)
        rig.start("after")
        rig.signal("after", "cancel", number=99)
        rig.pump()

        letters = [codec.decode(DeadLetter, r.value or b"") for r in rig.reader.scan(DEAD_LETTER)]
        assert [letter.code for letter in letters] == ["stalled"] * 20
        assert rig.state("after").over  # type: ignore[union-attr]
        rig.operate(run, "repair", f'{{"head":"{head.hex()}"}}')
        rig.pump()
        assert rig.state(run).status == "cancelled"  # type: ignore[union-attr]

    def test_its_request_may_be_repeated(self) -> None:
        rig, run, _ = torn()

        rig.start(run)
        rig.pump()

        lane = rig.planner.lanes.get(0)
        assert lane is not None
        kept = [item for items in lane.inbox.waiting.at(WaitsFor.STALLED).values() for item in items]
        assert not any(item.from_user for item in kept)
        assert list(rig.reader.scan(DEAD_LETTER)) == []

    def test_how_it_has_ended_is_told_when_it_is_repaired_and_not_before(self) -> None:
        rng = random.Random(3)
        before = platform(120, rng, unwatched=40)
        target = mirrored(before.broker, rng, repeats=0.2, kept=False)
        ends = [target.log(RUN_COMPLETED, number).end for number in range(2)]
        after = Rig(before.world, target)
        over = {RunId(run) for run in before.outcomes()} & set(after.stalled)
        assert over
        assert not told_since(after, ends) & set(after.stalled)

        for run in after.stalled:
            head = before.state(run).head.id  # type: ignore[union-attr]
            after.operate(run, "repair", f'{{"head":"{head.hex()}"}}')
        after.pump()

        assert over <= told_since(after, ends)
        assert holds(after) == {}
        judge(before, after, 120)


def told_since(rig: Rig, ends: list[int]) -> set[RunId]:
    """The runs of which outcomes lie beyond these offsets."""
    logs = [rig.broker.log(RUN_COMPLETED, number) for number in range(len(ends))]
    return {
        RunId((record.key or b"").decode())
        for log, end in zip(logs, ends, strict=True)
        for record in log.records
        if record.offset >= end
    }


class TestRepair:
    def test_what_stalled_is_chosen_by_a_human_and_goes_on(self) -> None:
        rng = random.Random(3)
        before = platform(120, rng, unwatched=40)
        truth = {run: before.state(run).head for n in range(120) if (run := f"run-{n}")}  # type: ignore[union-attr]
        after = taken_over(before, rng, repeats=0.2, kept=False)
        stalled = dict(after.stalled)
        assert stalled

        for run in stalled:
            after.operate(run, "repair", f'{{"head":"{truth[run].id.hex()}"}}')
        after.pump()

        assert after.stalled == {}
        judge(before, after, 120)
        for number in range(2):
            after.broker.compact(RUN_LOG, number, tombstones=True)
        after.broker.expire("refold-planner", "p")
        later = Rig(after.world, after.broker, member="other")
        assert later.stalled == {}
        judge(before, later, 120)

    def test_who_names_no_head_is_told_which_there_are(self) -> None:
        rng = random.Random(3)
        after = taken_over(platform(120, rng, unwatched=40), rng, repeats=0.2, kept=False)
        run = next(iter(after.stalled))

        after.operate(run, "repair", '{"head":""}')
        after.pump()

        (letter,) = [codec.decode(DeadLetter, r.value or b"") for r in after.reader.scan(DEAD_LETTER)]
        assert "2 histories" in letter.reason
        assert run in after.stalled

    def test_copies_are_put_in_order_before_the_log_is_cleaned(self) -> None:
        rng = random.Random(6)
        rig = platform(30, rng)
        run = next(iter(rig.planner.lanes.get(0).log.fold.states))  # type: ignore[union-attr]
        mine = [r for r in rig.broker.log(RUN_LOG, 0).records if run_of(r) == run]
        rig.broker.write(again(mine[0]))
        rig.pump()

        rig.operate(run, "repair", '{"head":""}')
        rig.pump()
        rig.broker.compact(RUN_LOG, 0)

        assert [r.key for r in rig.broker.log(RUN_LOG, 0).records if run_of(r) == run] == [r.key for r in mine]
