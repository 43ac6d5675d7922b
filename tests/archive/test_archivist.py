"""What the archivist does in a pass, and what the next one makes of a pass that died."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from refold.client.verify import verify_log
from refold.core import topics
from refold.core.errors import ConflictError, NotFoundError, UnreachableError
from refold.core.events import Entry, Failure, RunCancelled, RunFailed, RunRetried
from refold.core.ids import RunId, entry_id, home, log_key
from refold.core.messages import RunErased
from refold.core.run.erased import erased_claims_key, erased_key, is_erased_claims_key
from refold.core.run.finished import Finished
from refold.core.run.snapshot import PartitionSnapshot
from refold.core.wire import codec
from refold.engine.archive import service
from refold.engine.archive.collecting import RunsOfLog, runs_of_log
from refold.engine.archive.container import ArchivedRun, flaws
from refold.engine.archive.erasure import ORDER, run_of
from refold.engine.archive.service import Archivist
from refold.engine.archive.settings import ArchivistSettings
from refold.engine.ports.log import LogReader
from tests.archive.world import DAY, World
from tests.cli.chronicle import completed, ended, proposed, requested
from tests.core.histories import read_fold
from tests.golden.samples import histories
from tests.roots import TRUST


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Give topics with two runs that end now, and one that goes on."""
    world = World(tmp_path / "archive")
    world.run("first")
    world.run("second", agent="audit")
    world.run("lives", over=False)
    return world


def later(world: World, days: int) -> World:
    world.broker.now += days * DAY
    return world


def test_a_run_knows_of_every_topic_that_it_is_erased_from(world: World) -> None:
    kinds = {topics.kind_of(each.topic) for each in world.records()}

    assert kinds == set(ORDER)


def test_what_ended_long_ago_is_archived_and_erased_and_nothing_else(world: World) -> None:
    later(world, 20).run("third")
    others = [world.values(run) for run in ("lives", "third")]

    swept = later(world, 10).archivist().sweep()

    assert sorted(swept.due) == sorted(swept.archived) == ["first", "second"] == sorted(world.marked())
    assert world.values("first") == world.values("second") == []
    assert [world.values(run) for run in ("lives", "third")] == others
    assert flaws(world.archive_store.get("first")) == []


def test_before_its_time_nothing_is_written(world: World) -> None:
    before = world.records()

    swept = later(world, 29).archivist().sweep()

    assert (swept.due, swept.left) == ([], {})
    assert [each for each in world.records() if each.key != b"archivist"] == before


def test_a_dry_run_tells_what_is_due_and_writes_nothing(world: World) -> None:
    before = world.records()

    swept = later(world, 30).archivist().sweep(dry_run=True)

    assert sorted(swept.due) == ["first", "second"]
    assert [each for each in world.records() if each.key != b"archivist"] == before
    assert world.archive_store.files() == []


def test_an_agent_may_keep_its_runs_longer(world: World) -> None:
    swept = later(world, 30).archivist(by_agent={"audit": 365 * DAY}).sweep()

    assert swept.due == ["first"]


def test_a_run_of_which_nobody_has_told_is_left_alone(world: World) -> None:
    world.chronicle.add("silent", requested(), emit=False)
    world.chronicle.add("silent", ended(), emit=False)

    swept = later(world, 30).archivist().sweep()

    assert "silent" in swept.left
    assert world.values("silent")


def test_a_run_of_which_the_log_has_two_histories_is_left_alone(world: World) -> None:
    [*_, last] = [record for record in world.values("first") if record.topic == topics.RUN_LOG]
    entry = replace(codec.decode(Entry, last.value or b""), nonce=b"another history!")
    name, value = codec.encode_entry(entry)
    later(world, 1).chronicle.write(topics.RUN_LOG, "first", key=log_key(entry.run_id, entry.seq, name), value=value)

    swept = later(world, 30).archivist().sweep()

    assert swept.due == ["second"]
    assert world.values("first")


def test_a_second_pass_finds_nothing_to_do(world: World) -> None:
    later(world, 30).archivist().sweep()
    before, files = world.records(), world.archive_store.files()

    swept = world.archivist().sweep()

    assert (swept.due, swept.tombstones, swept.erasing) == ([], 0, 2)
    assert [each for each in world.records() if each.key != b"archivist"] == [
        each for each in before if each.key != b"archivist"
    ]
    assert world.archive_store.files() == files


def test_the_marker_goes_when_nothing_of_the_run_lies_anywhere(world: World) -> None:
    later(world, 30).archivist().sweep()
    assert world.archivist().sweep().gone == []
    world.clean()

    swept = world.archivist().sweep()

    assert sorted(swept.gone) == ["first", "second"]
    assert world.marked() == set()


def test_that_there_were_claims_stays_known_and_nothing_else_of_them(world: World) -> None:
    later(world, 30).archivist().sweep()
    world.clean()
    world.archivist().sweep()

    claims = [each for each in world.records() if topics.kind_of(each.topic) == topics.TOOL_CLAIMED]
    [left, other] = [each for each in claims if is_erased_claims_key(each.key)]
    assert {left.key, other.key} == {erased_claims_key(RunId(run)) for run in ("first", "second")}
    assert not any(b"first" in (each.key or b"") + (each.value or b"") for each in (left, other))
    before = len(world.records())
    world.archivist().sweep()
    assert len(world.records()) == before + 1, "the beat of a pass, and no word more of what is gone"


def test_what_comes_after_the_erasure_is_erased_too(world: World) -> None:
    later(world, 30).archivist().sweep()
    world.clean()
    world.chronicle.write(topics.tool_completed("default"), "first", key=b"first/3", value=b"late")

    swept = world.archivist().sweep()

    assert (swept.gone, swept.tombstones) == (["second"], 1)
    assert world.values("first") == []
    world.clean()
    assert world.archivist().sweep().gone == ["first"]


def test_a_pass_that_dies_anywhere_is_finished_by_the_next(tmp_path: Path) -> None:
    """After every write: whatever is erased stands in the archive and has a marker; then all of it goes."""
    writes = 0
    while True:
        world = World(tmp_path / str(writes))
        world.run("first")
        world.run("lives", over=False)
        whole, others = world.values("first"), world.values("lives")
        later(world, 30).lives = writes
        try:
            world.archivist().sweep()
            break
        except UnreachableError:
            world.lives = None
        if world.values("first") != whole:
            assert world.marked() == {"first"}
            assert flaws(world.archive_store.get("first")) == []
        if any(each.value is None and run_of(each) == "first" for each in world.chronicle.reader.scan(topics.RUN_LOG)):
            assert {each.topic for each in world.values("first")} <= {topics.RUN_LOG}
        world.archivist().sweep()
        assert (world.values("first"), world.values("lives")) == ([], others)
        assert len(world.archive_store.files()) == 1
        writes += 1

    assert writes > 15


def test_one_run_is_erased_at_once_when_it_is_over(world: World) -> None:
    swept = world.archivist().erase("first")

    assert (swept.due, list(swept.archived)) == (["first"], ["first"])
    assert world.values("first") == []
    assert world.values("second") != []
    with pytest.raises(ConflictError, match="cancel"):
        world.archivist().erase("lives")
    with pytest.raises(NotFoundError):
        world.archivist().erase("nobody")


def test_a_run_leaves_when_a_planner_has_kept_its_row(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = world.broker.log(topics.RUN_SNAPSHOT, home(RunId("first"), 4)).records
    kept = next(each for each in rows if (each.key or b"").startswith(b"over/"))
    rows.remove(kept)
    waited: list[int] = []

    def wait(seconds: float) -> None:
        waited.append(int(seconds))
        if len(waited) == 2:
            rows.append(kept._replace(offset=rows[-1].offset + 1))

    monkeypatch.setattr(service, "sleep", wait)
    left = later(world, 31).archivist().sweep(dry_run=True).left
    with pytest.raises(ConflictError, match="run first cannot be erased yet: its row"):
        world.archivist().erase("first")

    assert left["first"] == "its row is not in run-snapshot yet"
    assert world.archivist(give_up_s=9).erase("first").due == ["first"]
    assert waited == [1, 1]


def test_a_run_that_is_retried_while_it_is_archived_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run("fails", over=False)
    world.chronicle.add("fails", [RunFailed(Failure("ValueError", "no"))])
    keep = world.archive_store.keep

    def slowly(runs: Sequence[ArchivedRun]) -> dict[RunId, str]:
        files = keep(runs)
        world.chronicle.add("fails", [RunRetried("operator")])
        return files

    monkeypatch.setattr(world.archive_store, "keep", slowly)
    before = len(world.values("fails"))
    swept = later(world, 31).archivist().sweep()

    assert swept.left["fails"] == "it went on while it was archived"
    assert sorted(swept.archived) == sorted(world.marked()) == ["first", "second"]
    assert len(world.values("fails")) == before + 1


def snapshot_of(world: World, run: str) -> PartitionSnapshot:
    """What a planner has that takes the home of a run over."""
    taken = PartitionSnapshot(Finished())
    for record in world.chronicle.reader.scan(topics.RUN_SNAPSHOT, home(RunId(run), 4)):
        taken.feed(record.key or b"", record.value)
    taken.close()
    return taken


def test_beyond_the_horizon_an_erased_run_is_forgotten_and_its_row_goes(world: World) -> None:
    for _ in range(2):
        later(world, 31).archivist(horizon_ms=90 * DAY).sweep()
        world.clean()
    before = snapshot_of(world, "first")
    later(world, 30).archivist(horizon_ms=90 * DAY).sweep()
    after = snapshot_of(world, "first")

    assert RunId("first") in before.finished
    assert not before.forgotten()
    assert RunId("first") not in after.finished
    assert all(key.startswith(b"over/") for key in after.forgotten())


def test_no_row_goes_of_a_run_that_lies_in_the_log(world: World) -> None:
    later(world, 365).archivist(retention_ms=1_000 * DAY, horizon_ms=90 * DAY).sweep()

    assert RunId("first") in snapshot_of(world, "first").finished
    assert RunId("second") in snapshot_of(world, "second").finished


def test_a_run_stays_as_long_as_one_that_has_started_it(world: World) -> None:
    world.run("lives.1")
    world.run("first.1.2")
    world.run("first.1")

    swept = later(world, 31).archivist(most_runs=3).sweep()
    rest = later(world, 32).archivist().sweep()

    assert [*swept.due, *rest.due] == ["first", "second", "first.1", "first.1.2"]
    assert world.values("lives.1") != []


def test_a_run_is_erased_with_all_that_it_has_started(world: World) -> None:
    world.run("first.1")
    world.run("first.1.2", over=False)

    with pytest.raises(ConflictError, match="run first.1.2, which first has started, is not over"):
        world.archivist().erase("first")
    with pytest.raises(ConflictError, match="run first.1 was started by first"):
        world.archivist().erase("first.1")
    world.chronicle.add(RunId("first.1.2"), ended())
    swept = world.archivist().erase("first")

    assert swept.due == ["first", "first.1", "first.1.2"]
    assert world.values("first.1.2") == []
    assert world.values("second") != []


def test_a_run_is_erased_without_a_copy_where_there_is_no_archive(world: World) -> None:
    archivist = Archivist(world.chronicle.reader, world, None, ArchivistSettings())

    swept = archivist.erase("first")

    assert (swept.archived, world.values("first"), world.archive_store.files()) == ({}, [], [])


def test_a_run_that_is_being_erased_disagrees_with_nothing(tmp_path: Path) -> None:
    """After every write of an erasure, whatever has been cleaned: its marker says enough."""
    for writes in range(18):
        world = World(tmp_path / str(writes))
        world.chronicle.add("first", requested(), ended())
        world.lives = writes
        with suppress(UnreachableError):
            world.archivist(retention_ms=0).sweep()

        verdict = verify_log(world.chronicle.reader, TRUST, now_ms=0, settle_s=0)

        assert verdict.violations == []
        assert ("first" in verdict.digests) == (world.marked() == set())


def retried(world: World, *, ends: bool) -> None:
    """A run that failed and was retried, and that is over again or lives."""
    world.chronicle.add("again", requested(), [RunFailed(Failure("ValueError", "no"))])

    world.chronicle.add("again", [RunRetried("operator")])
    if ends:
        world.chronicle.add("again", ended())


def test_a_run_that_was_retried_is_due_by_its_last_end_and_archived_whole(world: World) -> None:
    retried(world, ends=True)

    swept = later(world, 31).archivist().sweep()

    assert "again" in swept.archived
    assert flaws(world.archive_store.get("again")) == []
    assert world.archive_store.get("again").status == "completed"


def test_a_run_that_was_retried_stays_until_its_last_outcome_is_told(world: World) -> None:
    retried(world, ends=True)
    log = world.broker.log(topics.RUN_COMPLETED, home("again", 4))
    last = [each for each in log.records if each.key == b"again"][-1]
    log.records.remove(last)  # a planner has told the failure, and not what came of the retry

    swept = later(world, 31).archivist().sweep()

    assert "its outcome" in swept.left["again"]
    assert "again" not in world.marked()


def test_a_run_that_was_retried_and_lives_is_not_due(world: World) -> None:
    retried(world, ends=False)

    swept = later(world, 31).archivist().sweep()

    assert "again" not in [*swept.due, *swept.left]


def damaged(world: World) -> list[Path]:
    """Copies that were read back well, and rot since; their indexes do not."""
    files = list(world.folder.rglob("*.avro"))
    for path in files:
        path.write_bytes(path.read_bytes()[:-40] + b"\x00" * 40)
    return files


def test_a_copy_of_an_earlier_pass_is_read_again_before_anything_is_erased(world: World) -> None:
    later(world, 31)
    world.lives = 0
    with suppress(UnreachableError):
        world.archivist().sweep()  # it has filed the runs, and dies before it marks them
    world.lives = None
    assert damaged(world)

    swept = world.archivist().sweep()

    assert sorted(swept.archived) == ["first", "second"]
    held = [run for file in set(swept.archived.values()) for run in world.archive_store.runs(file)]
    assert sorted(run.run_id for run in held) == ["first", "second"]
    assert [flaws(run) for run in held] == [[], []]


def test_a_family_never_leaves_in_parts(world: World) -> None:
    for name in ("house", "house.1", "house.2"):
        world.run(name)
    log = world.broker.log(topics.RUN_COMPLETED, home("house", 4))
    log.records = [record for record in log.records if record.key != b"house.2"]  # a planner has not told it yet

    swept = later(world, 31).archivist().sweep()

    assert {"house", "house.1"} <= swept.left.keys()
    assert not {"house", "house.1", "house.2"} & (set(swept.archived) | world.marked())


def test_an_erasure_of_a_family_that_was_cut_short_is_finished_when_it_is_given_again(world: World) -> None:
    family = {"house", "house.1", "house.2"}
    for name in family:
        world.run(name)
    world.lives = 1
    with suppress(UnreachableError):
        world.archivist().erase("house")
    assert world.marked() & family == {"house"}

    world.lives = None
    world.archivist().erase("house")

    assert world.marked() & family == family
    assert [name for name in family if world.values(name)] == []


def test_the_files_of_an_archive_are_their_owners_alone(world: World) -> None:
    later(world, 31).archivist().sweep()

    made = [world.folder, *world.folder.rglob("*")]

    assert len(made) > 4
    assert [str(path) for path in made if path.stat().st_mode & 0o077] == []


@pytest.mark.parametrize("name", histories())
def test_every_golden_history_is_archived_and_erased_when_it_is_over(name: str, tmp_path: Path) -> None:
    world = World(tmp_path / "archive")
    records = [(bytes.fromhex(key), bytes.fromhex(value)) for key, value in histories()[name]["records"]]
    state = read_fold(records)
    run = state.run_id
    for key, value in records:
        world.chronicle.write(topics.RUN_LOG, run, key=key, value=value)
    world.chronicle.states[run] = state
    if not state.over:
        assert run not in later(world, 31).archivist().sweep().due
        world.chronicle.add(run, [RunCancelled("enough", "ada")], emit=False)
    world.chronicle.write(topics.RUN_COMPLETED, run, key=run.encode(), value=b"its outcome")
    world.chronicle.keep(world.chronicle.states[run])

    swept = later(world, 31).archivist().sweep()

    assert (list(swept.archived), swept.left) == ([run], {})
    assert flaws(world.archive_store.get(run)) == []
    assert world.values(run) == []


def forged(world: World, run: str, head: str = "") -> None:
    """A marker as a planner could write it."""
    marker = RunErased(RunId(run), head)
    world.chronicle.write(topics.RUN_SNAPSHOT, run, key=erased_key(marker.run_id), value=codec.encode(marker))


def test_a_marker_of_a_run_that_lives_erases_nothing_and_is_told(world: World) -> None:
    forged(world, "lives")
    before = len(world.values("lives"))

    swept = later(world, 1).archivist().sweep()

    assert (len(world.values("lives")), swept.tombstones) == (before, 0)
    assert "no archivist" in swept.left["lives"]
    found = verify_log(world.chronicle.reader, TRUST, now_ms=world.broker.now, settle_s=0)
    assert [each.run_id for each in found.violations if each.kind == "erased"] == ["lives"]


@pytest.mark.parametrize("headed", [False, True])
def test_a_marker_of_a_run_that_is_over_does_not_spare_it_the_archive(world: World, *, headed: bool) -> None:
    later(world, 1)
    [ended] = [each for number in range(4) for each in runs_of_log(world.chronicle.reader, number).ended.values()][:1]
    forged(world, ended.run_id, head=ended.head if headed else "00")

    early = world.archivist().sweep()
    assert (early.tombstones, early.archived) == (0, {})
    swept = later(world, 30).archivist().sweep()

    assert ended.run_id in swept.archived
    assert flaws(world.archive_store.get(ended.run_id)) == []


@pytest.mark.parametrize("lives", range(1, 14))
def test_a_run_that_failed_is_erased_wherever_its_pass_was_cut_short(tmp_path: Path, lives: int) -> None:
    world = World(tmp_path / "archive")
    world.chronicle.add("bad", requested("deploy"), proposed(1))
    world.chronicle.add("bad", completed(1))
    world.chronicle.add("bad", [RunFailed(Failure("ValueError", "a bug"))])
    later(world, 31).lives = lives
    with suppress(UnreachableError):
        world.archivist().sweep()
    world.lives = None

    swept = [later(world, 1).archivist().sweep() for _ in "12"]

    assert (world.values("bad"), swept[-1].left) == ([], {})


@pytest.mark.parametrize("run", ["first", "lives", "fresh"])
def test_a_marker_erases_nothing_of_a_run_that_a_newer_version_has_written_on(world: World, run: str) -> None:
    newer = b"\x00" + b"\xff" * (codec.FRAME_BYTES - 1) + b"of tomorrow"
    key = log_key(RunId(run), 99 if run != "fresh" else 1, entry_id(newer[codec.FRAME_BYTES :]))
    world.chronicle.write(topics.RUN_LOG, run, key=key, value=newer)
    forged(world, run)

    swept = later(world, 1).archivist().sweep()

    assert (swept.tombstones, run in swept.left) == (0, True)


def test_a_beginning_that_a_mirror_brings_again_accuses_nobody(world: World) -> None:
    first = next(each for each in world.records() if (each.key or b"").startswith(b"first/0000000001/"))
    later(world, 31).archivist().sweep()
    world.clean()
    world.chronicle.write(topics.RUN_LOG, "first", key=first.key or b"", value=first.value)

    found = verify_log(world.chronicle.reader, TRUST, now_ms=world.broker.now, settle_s=0)
    swept = world.archivist().sweep()

    assert [each for each in found.violations if each.kind == "erased"] == []
    assert (world.values("first"), swept.left) == ([], {})


def test_a_failure_before_a_retry_that_a_mirror_brings_again_is_erased_and_no_run_that_is_due(world: World) -> None:
    world.chronicle.add("bad", requested("deploy"), [RunFailed(Failure("ValueError", "a bug"))])
    world.chronicle.add("bad", [RunRetried("operator")], ended())
    beginning = [each for each in world.records() if each.topic == topics.RUN_LOG and run_of(each) == "bad"][:2]
    later(world, 31).archivist().sweep()
    whole = world.archive_store.get("bad")
    world.clean()
    for record in beginning:
        world.chronicle.write(topics.RUN_LOG, "bad", key=record.key or b"", value=record.value)

    swept = later(world, 31).archivist().sweep()

    assert (world.values("bad"), swept.due, swept.left) == ([], [], {})
    assert world.archive_store.get("bad") == whole


def test_a_partition_in_which_nothing_is_due_is_not_read_again_before_a_run_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def reading(reader: LogReader, partition: int, wanted: Container[RunId] = ()) -> RunsOfLog:
        read.append(partition)
        return runs_of_log(reader, partition, wanted)

    monkeypatch.setattr("refold.engine.archive.collecting.runs_of_log", reading)
    quiet = dict[int, int]()

    world.archivist(retention_ms=DAY // 2).sweep(quiet)
    first = list(read)
    world.archivist(retention_ms=DAY // 2).sweep(quiet)
    second = list(read)
    swept = later(world, 1).archivist(retention_ms=DAY // 2).sweep(quiet)

    assert (first, second) == (list(range(len(first))), first)
    assert sorted(swept.due) == ["first", "second"]


def test_what_is_due_is_found_by_an_archivist_that_had_nothing_to_do_before(world: World) -> None:
    archivist, quiet = world.archivist(by_agent={"audit": 2 * DAY}), dict[int, int]()

    passes = [sorted((later(world, 1), archivist.sweep(quiet))[1].due) for _ in range(3)]

    assert passes == [[], ["second"], []]
