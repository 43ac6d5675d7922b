"""What is kept of a partition and the tail of its log make what the whole log makes, whenever the writing stopped."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.events import Failure, NoteRecorded, RunCompleted, RunFailed, RunRequested, RunRetried, RunStarted
from refold.core.ids import RunId
from refold.core.messages import Marks
from refold.core.run import chain, snapshot
from refold.core.run.finished import ROW_BYTES, Finished
from refold.core.run.log import LogFold
from refold.core.run.redrive import reopens
from refold.core.run.snapshot import MARKS_KEY, PartitionSnapshot, block_key, run_key
from refold.core.wire import codec
from refold.engine.planner.snapshot import SnapshotWriter
from tests.core.histories import Log, examples, random_log
from tests.golden.samples import histories

seeds = st.integers(0, 2**32)
Raw = tuple[bytes, bytes]
Kept = tuple[bytes, bytes | None]


@dataclass
class Partition:
    """A lane's fold and what it keeps, on topics that are lists."""

    log: list[Raw]
    topic: list[Kept] = field(default_factory=list)
    finished: Finished = field(default_factory=Finished)
    fold: LogFold = field(default_factory=LogFold)
    position: int = 0
    lost: random.Random | None = None

    def __post_init__(self) -> None:
        self.snapshot_writer = SnapshotWriter(self.finished, "p", state=self.fold.states.get)
        self._sent = self.snapshot_writer.orders

    def begin(self, read: list[Kept]) -> bool:
        """Takes over from what is in the topic; whether that was of use."""
        old = PartitionSnapshot(self.finished)
        for key, value in read:
            old.feed(key, value)
        asleep = old.close()
        for run in asleep:
            taken = old.take(run)
            self.snapshot_writer.woken(run, taken)
            for key, entry in taken.pairs:
                assert not self.fold.feed(key, entry).void
        self.position = old.marks.log if old.marks and old.whole else 0
        self.known = {run: kept.log for run, kept in asleep.items()}
        self.read(len(self.log), live=False)
        for run, state in list(self.fold.states.items()):
            if state.over:
                self.snapshot_writer.end(run, self.finished.add(self.fold.states.pop(run)))
        self.snapshot_writer.begin(old, list(self.fold.states), {}, distrust=False)
        self.deliver()
        return old.whole

    def read(self, upto: int, *, live: bool = True) -> None:
        """Folds the log on."""
        for offset in range(self.position, upto):
            key, value = self.log[offset]
            record = chain.read(key, value)
            assert isinstance(record, chain.LogRecord)
            run = record.entry.run_id
            if (row := self.finished.get(run)) and reopens(row.head, row.status, record.entry):
                self._bring_back(run, offset)
            if run in self.finished or (not live and offset < self.known.get(run, 0)):
                continue
            if self.fold.feed(key, value).void:
                continue
            after = self.fold.states[run]
            self.snapshot_writer.add(run, value, seq=record.entry.seq, offset=offset)
            if after.over:
                del self.fold.states[run]
                (self.snapshot_writer.over if live else self.snapshot_writer.end)(run, self.finished.add(after))
        self.position = max(self.position, upto)

    def _bring_back(self, run: RunId, upto: int) -> None:
        """Reads the history of a failed run again that goes on."""
        self.finished.forget(run)
        self.fold.forget(run)
        entries = []
        for offset, (key, value) in enumerate(self.log[:upto]):
            record = chain.read(key, value)
            if isinstance(record, chain.LogRecord) and record.entry.run_id == run:
                self.fold.feed(key, value)
                entries.append((offset, record.entry.seq, value))
        self.snapshot_writer.reopen(run, entries)

    def round(self, emitted: int) -> None:
        """Begins to write what has moved."""
        self.snapshot_writer.round(emitted, {}, log=emitted)
        self.snapshot_writer.write(self.position)

    def deliver(self) -> None:
        """What was sent comes into the topic; of what may get lost, all is sent again."""
        while self._sent:
            sent = self._sent.pop(0)
            if self.lost and self.lost.random() < 0.3:
                self.snapshot_writer.delivered(sent, None)
            else:
                self.topic.append((sent.key, sent.value))
                self.snapshot_writer.delivered(sent, len(self.topic))

    def facts(self) -> dict[str, str]:
        """What is known of every run."""
        live = {str(run): state.digest() for run, state in self.fold.states.items()}
        runs = {key.split(b"/")[0].decode() for key, _ in self.log[: self.position]}
        over = {run: found.head.id.hex() for run in runs if (found := self.finished.get(RunId(run)))}
        return live | over


def interleaved(rng: random.Random, runs: int = 5) -> list[Raw]:
    """The records of some runs in an order that the log may have."""
    logs = []
    for n in range(runs):
        log = random_log(rng.randrange(2**32), inputs=rng.randrange(1, 40))
        whole = Log(run_id=f"run-{n}")
        for _, entry in log.entries:
            whole.append(entry.events)
        logs.append(list(whole.records))
    records = []
    while logs := [log for log in logs if log]:
        records.append(rng.choice(logs).pop(0))
    return records


def plain(log: list[Raw]) -> dict[str, str]:
    """What the whole log makes."""
    whole = Partition(log)
    whole.begin([])
    return whole.facts()


@examples
@given(seeds)
def test_a_take_over_at_any_point_knows_what_the_whole_log_says(seed: int) -> None:
    rng = random.Random(seed)
    log = interleaved(rng)
    small = rng.choice([64, 2_000, 16_384])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("refold.engine.planner.snapshot.BLOCK_BYTES", small)
        patch.setattr("refold.engine.planner.snapshot.ENDED_BYTES", 2 * ROW_BYTES)
        patch.setattr("refold.core.run.snapshot.ENDED_BYTES", 2 * ROW_BYTES)
        topic: list[Kept] = []
        end = 0
        for _ in range(4):
            end = rng.randrange(end, len(log) + 1)
            lane = Partition(log[:end], topic=topic, lost=random.Random(seed))
            lane.begin(list(topic))
            lane.log, emitted = log, lane.position
            while lane.position < len(log) and rng.random() < 0.8:
                lane.read(rng.randrange(lane.position, len(log)) + 1)
                emitted = rng.randrange(emitted, lane.position + 1)
                lane.round(emitted)
                lane.deliver()
                lane.snapshot_writer.write(lane.position)
                lane.deliver()
            end = lane.position
            # It dies somewhere among what it wrote last: a successor sees any beginning of that.
            last = max((n for n, (key, _) in enumerate(topic) if key == MARKS_KEY), default=-1)
            del topic[rng.randrange(last, len(topic)) + 1 :]

    successor = Partition(log)
    used = successor.begin(topic)

    assert successor.facts() == plain(log)
    assert used or not topic


@examples
@given(seeds)
def test_whatever_a_topic_was_cleaned_of_or_repeats_the_log_decides(seed: int) -> None:
    rng = random.Random(seed)
    log = interleaved(rng)
    topic: list[Kept] = []
    lane = Partition(log[:1], topic=topic)
    lane.begin([])
    lane.log = log
    for upto in sorted(rng.sample(range(1, len(log) + 1), min(5, len(log)))):
        lane.read(upto)
        lane.round(upto)
        lane.deliver()

    unreadable_result = list(topic)
    for _ in range(rng.randrange(4)):  # a mirror repeats records
        unreadable_result.insert(rng.randrange(len(unreadable_result) + 1), rng.choice(unreadable_result))
    for _ in range(rng.randrange(4)):  # a zombie, or a crash, before cleaning
        del unreadable_result[rng.randrange(len(unreadable_result) + 1) : rng.randrange(len(unreadable_result) + 1)]
    last = {key: n for n, (key, _) in enumerate(unreadable_result)}
    cleaned = [(key, value) for n, (key, value) in enumerate(unreadable_result) if last[key] == n]

    for read in (unreadable_result, cleaned):
        successor = Partition(log)
        successor.begin(read)
        assert successor.facts() == plain(log)


@pytest.mark.parametrize("name", sorted(histories()))
def test_a_golden_history_is_kept_and_read_back(name: str) -> None:
    log = [(bytes.fromhex(key), bytes.fromhex(value)) for key, value in histories()[name]["records"]]
    for cut in range(len(log)):
        lane = Partition(log[:cut])
        lane.begin([])
        lane.round(cut)
        lane.deliver()
        lane.round(cut)
        lane.deliver()

        successor = Partition(log)
        used = successor.begin(lane.topic)

        assert used
        assert successor.facts() == plain(log)


def test_marks_of_a_newer_version_are_not_relied_on() -> None:
    rng = random.Random(3)
    log = interleaved(rng)
    lane = Partition(log)
    lane.begin([])
    lane.round(len(log))
    lane.deliver()
    newer = b"\0\0\0\xff\xff" + codec.encode(Marks(9, 0, bytes(16), {}))[5:]

    successor = Partition(log)

    assert not successor.begin([*lane.topic, (MARKS_KEY, newer)])
    assert successor.facts() == plain(log)


def test_a_long_history_is_written_once_and_not_again_at_every_step() -> None:
    log = Log(run_id="long")
    lane = Partition([])
    lane.begin([])
    for n in range(1, 801):
        first = [RunRequested("a", "1", "ab" * 16, ""), RunStarted()]
        log.append([*first] if n == 1 else [NoteRecorded(n - 1, "k", "x" * 400)])
        lane.log = log.records
        lane.read(n)
        if n % 5 == 0:
            lane.round(n)
            lane.deliver()

    written = sum(len(value or b"") for key, value in lane.topic if key.startswith(b"run/"))
    history = sum(len(value) for _, value in log.records)

    assert written < 6 * history
    assert snapshot.BLOCK_BYTES == 16_384


def test_an_older_record_of_a_run_behind_the_marks_is_not_believed() -> None:
    log = Log(run_id="run-0")
    lane = Partition([])
    lane.begin([])
    log.append([RunRequested("a", "1", "ab" * 16, ""), RunStarted()])
    for n in range(1, 4):
        log.append([NoteRecorded(n, "k", "1")])
        lane.log = log.records
        lane.read(len(log.records))
        lane.round(lane.position)
        lane.deliver()
    older = next(record for record in lane.topic if record[0] == snapshot.run_key(RunId("run-0")))

    successor = Partition(log.records)
    used = successor.begin([*lane.topic, older])

    assert not used
    assert successor.facts() == plain(log.records)


def test_a_run_that_is_over_is_no_row_before_what_it_ordered_is_acknowledged() -> None:
    log = Log(run_id="run-0")
    log.append([RunRequested("a", "1", "ab" * 16, ""), RunStarted(), RunCompleted("1")])
    lane = Partition([])
    lane.begin([])
    lane.log = log.records
    lane.read(1)

    lane.round(0)
    lane.deliver()
    before = [key for key, _ in lane.topic]
    lane.round(1)
    lane.deliver()

    assert not any(key.startswith(b"over/") for key in before)
    assert any(key.startswith(b"over/") for key, _ in lane.topic)


def test_a_planner_that_was_replaced_takes_no_row_of_its_successor_away() -> None:
    first, second = (Log(run_id=run) for run in ("run-0", "run-1"))
    for log in (first, second):
        log.append([RunRequested("a", "1", "ab" * 16, ""), RunStarted()])
    begun = [*first.records, *second.records]
    replaced = Partition(begun)
    replaced.begin([])
    first.append([RunCompleted("1")])
    successor = Partition([*begun, first.records[-1]])
    successor.begin([])  # it has come as far as the other one: both count the same rounds
    successor.round(len(successor.log))
    successor.deliver()

    second.append([RunCompleted("1")])
    replaced.log = [*begun, second.records[-1]]
    replaced.read(len(replaced.log))
    replaced.round(len(replaced.log))
    replaced.deliver()

    after = PartitionSnapshot(Finished())
    for key, value in {**dict(successor.topic), **dict(replaced.topic)}.items():
        after.feed(key, value)
    assert [RunId(run) in after.finished for run in ("run-0", "run-1")] == [True, True]


def test_what_is_kept_of_a_run_goes_only_when_its_row_is_there_for_sure() -> None:
    log = Log(run_id="run-0")
    log.append([RunRequested("a", "1", "ab" * 16, ""), RunStarted()])
    lane = Partition(log.records)
    lane.begin([])
    lane.round(1)
    lane.deliver()
    log.append([RunCompleted("1")])
    after = Partition(log.records, topic=list(lane.topic))
    after.begin(list(lane.topic))
    before = len(after.topic)
    after.round(2)
    after.deliver()
    after.round(2)
    after.deliver()

    for end in range(before, len(after.topic) + 1):  # it dies somewhere among what it wrote
        assert Partition(log.records).begin(after.topic[:end])
    assert (snapshot.run_key(RunId("run-0")), None) in after.topic


LONG = RunId("long")


def begun(notes: int) -> Log:
    """The history of a run with this many steps: three of them fill a block."""
    log = Log(run_id=LONG)
    log.append([RunRequested("a", "1", "ab" * 16, ""), RunStarted()])
    for n in range(1, notes + 1):
        log.append([NoteRecorded(n, "k", "x" * 7_000)])
    return log


def left(lane: Partition) -> set[bytes]:
    """The keys of runs that have a value in the topic."""
    return {key for key, value in dict(lane.topic).items() if value is not None and key.startswith(b"run/")}


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_block_that_a_zombie_writes_of_a_run_is_deleted_when_the_run_is_over(steps: int) -> None:
    log = begun(steps)
    lane, zombie = Partition([*log.records]), begun(3)
    lane.begin([])
    lane.round(len(lane.log))
    lane.deliver()
    other = Partition([*zombie.records])
    other.begin([])
    other.round(len(other.log))
    other.deliver()
    late = [(key, value) for key, value in other.topic if key.startswith(b"run/")]
    assert {key for key, _ in late} == {run_key(LONG), block_key(LONG, 0)}

    for key, value in (*lane.topic, *late):
        lane.snapshot_writer.follow(key, value)
    lane.topic += late
    log.append([RunCompleted("1")])
    lane.log = log.records
    lane.read(len(lane.log))
    for _ in range(3):
        lane.round(len(lane.log))
        lane.deliver()
    written = len(lane.topic)
    lane.round(len(lane.log))
    lane.deliver()

    assert left(lane) == set()
    assert len(lane.topic) == written
    assert Partition(lane.log).begin(lane.topic)


def test_own_records_that_are_read_back_are_no_change() -> None:
    log = begun(5)
    lane = Partition(log.records)
    lane.begin([])
    lane.round(len(lane.log))
    lane.deliver()
    written = list(lane.topic)

    for key, value in written:
        lane.snapshot_writer.follow(key, value)
    lane.round(len(lane.log))
    lane.deliver()
    lane.round(len(lane.log))
    lane.deliver()

    assert block_key(LONG, 0) in left(lane)
    assert lane.topic == written


def test_a_run_that_goes_on_is_not_lost_to_a_zombie_that_deletes_its_failed_state() -> None:
    log = begun(0)
    log.append([RunFailed(Failure("failed", "as scripted"))])
    zombie = Partition(log.records[:1])
    zombie.begin([])
    zombie.round(1)
    zombie.deliver()
    zombie.log = [*log.records]
    zombie.read(2)
    zombie.round(2)
    zombie.deliver()  # the row; the older record goes with the next round
    topic = list(zombie.topic)
    successor = Partition([*log.records], topic=topic)
    assert successor.begin(list(topic))
    log.append([RunRetried("ada")])
    successor.log = log.records
    successor.read(3)
    successor.round(3)
    successor.deliver()
    before = len(zombie.topic)

    zombie.round(2)
    zombie.deliver()
    deleted = zombie.topic[before:]
    assert (run_key(LONG), None) in deleted

    for late in (deleted[:1], deleted):
        after = Partition(log.records)
        after.begin([*topic, *late])
        assert after.facts() == plain(log.records)
