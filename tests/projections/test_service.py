"""A projection is built, rebuilt beside the one in use, switched, verified, and stands still where it has to."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from refold.console.projections import following
from refold.console.projections.following import Follower
from refold.console.projections.metrics import ViewMetrics
from refold.console.projections.service import SHARE, KeptProjection, Pace, carried, serving, verify
from refold.console.projections.status import status_of
from refold.console.sql.opening import open_views
from refold.core.errors import ConflictError, UsageError
from refold.core.events import CallCompleted, RunCompleted
from refold.core.tables import Scalar, ViewTable
from refold.core.topics import APPROVAL_VOTED, RUN_LOG
from refold.engine.ports.log import Place
from refold.engine.ports.tables import ViewChanges, rows_digest
from refold.sdk.projection import Projection, Recorded, View, key, sums, table
from tests.projections.memory_views import MemoryViewDatabase, MemoryViewStore
from tests.projections.source import ListedLog, attentive

RUNS = [f"run-{number}" for number in range(12)]


class Squares(Projection):
    """What tools gave, by call and by day."""

    events = (CallCompleted,)
    answers = table("answers", key(call_id=str), run_id=str, answer=int)
    by_day = sums("answers_by_day", key(day=str), n=int, total=int)

    def apply(self, view: View, recorded: Recorded) -> None:
        view.put(self.answers, call_id=recorded.call.call_id, answer=recorded.result)
        view.add(self.by_day, day=recorded.day, n=1, total=recorded.result)


class SquaresAgain(Squares):
    """The same in a later version."""

    name = "squares"
    version = 2
    answers = Squares.answers
    by_day = Squares.by_day


class Fragile(Projection):
    """Raises at the end of one run."""

    events = (RunCompleted,)
    ended = table("ended", key(run_id=str), at_ms=int)
    fragile: ClassVar[set[str]] = {"run-3"}

    def apply(self, view: View, recorded: Recorded) -> None:
        if recorded.run_id in self.fragile:
            raise ValueError("no such customer")
        view.put(self.ended, at_ms=recorded.at_ms)


@pytest.fixture
def log() -> ListedLog:
    log = ListedLog()
    log.finish(*RUNS)
    return log


def settle(*slots: KeptProjection, turns: int = 300) -> None:
    """Lets projections go on until nothing is left to do for them."""
    quiet = 0
    for _ in range(turns):
        quiet = 0 if sum(slot.turn(0.0) for slot in slots) else quiet + 1
        if quiet > 5:
            return
    raise AssertionError("it goes on and on")


def rows(database: MemoryViewDatabase, of: ViewTable) -> list[tuple[Scalar, ...]]:
    return list(database.public[of.name].scan(of))


def digests(database: MemoryViewDatabase, projection: type[Projection]) -> list[int]:
    return [rows_digest(of, database.public[of.name].scan(of)) for of in projection.tables]


def test_a_projection_is_in_use_once_it_has_caught_up(log: ListedLog) -> None:
    database = MemoryViewDatabase()
    slot = attentive(Squares(), database, log)

    slot.turn(0.0)
    assert database.generations("squares") == {1: "building"}

    settle(slot)
    assert database.generations("squares") == {1: "serving"}
    assert len(rows(database, Squares.answers)) == 10 * len(RUNS)
    assert sum(int(row[2]) for row in rows(database, Squares.by_day)) == 10 * len(RUNS)

    log.finish("one-more")
    settle(slot)
    assert len(rows(database, Squares.answers)) == 10 * len(RUNS) + 10


def test_whoever_goes_on_after_a_crash_ends_with_equal_rows(log: ListedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, broken = MemoryViewDatabase(), MemoryViewDatabase()
    settle(attentive(Squares(), whole, log))

    monkeypatch.setattr(following, "MOST_RECORDS", 10)
    for _ in range(60):  # a process for each turn
        attentive(Squares(), broken, log).turn(0.0)
    settle(attentive(Squares(), broken, log))

    assert digests(broken, Squares) == digests(whole, Squares)


def test_a_rebuilt_generation_replaces_the_one_in_use_when_it_has_caught_up(log: ListedLog) -> None:
    database = MemoryViewDatabase()
    slot = attentive(Squares(), database, log)
    settle(slot)
    before = digests(database, Squares)

    database.create("squares", 2, slot.tables, slot.begun())
    slot.turn(0.0)
    assert database.generations("squares") == {1: "serving", 2: "building"}
    assert digests(database, Squares) == before

    settle(slot)
    assert database.generations("squares") == {2: "serving"}
    assert digests(database, Squares) == before


def test_a_process_that_waits_for_the_one_which_keeps_the_views_logs_it_once(log: ListedLog, tmp_path: Path) -> None:
    first, second = (open_views(f"sqlite:///{tmp_path / 'views.db'}") for _ in range(2))
    settle(attentive(Squares(), first, log))
    clock = count(0, 60)
    waiting = attentive(Squares(), second, log, clock=lambda: float(next(clock)))

    with capture_logs() as logs:
        for _ in range(5):
            waiting.turn(0.0)
    assert [(line["event"], line["log_level"]) for line in logs] == [("projection.waits", "info")]

    first.close()
    waiting.turn(0.0)
    assert waiting.serves


def test_a_rebuild_comes_to_its_end_while_the_log_goes_on_growing(log: ListedLog) -> None:
    database = MemoryViewDatabase()
    slot = attentive(Squares(), database, log)
    settle(slot)
    database.create("squares", 2, slot.tables, slot.begun())

    for number in range(10):
        log.finish(f"later-{number}")
        slot.turn(0.0)
        if database.generations("squares") == {2: "serving"}:
            break

    assert database.generations("squares") == {2: "serving"}
    assert len(rows(database, Squares.answers)) == 10 * (len(RUNS) + number + 1)


def test_another_version_is_built_beside_the_one_in_use(log: ListedLog) -> None:
    database = MemoryViewDatabase()
    settle(attentive(Squares(), database, log))
    log.finish("later")

    again = attentive(SquaresAgain(), database, log)
    again.turn(0.0)
    assert database.generations("squares") == {1: "serving", 2: "building"}
    settle(again)

    assert database.generations("squares") == {2: "serving"}
    assert len(rows(database, Squares.answers)) == 10 * len(RUNS) + 10


@pytest.mark.parametrize("cleaned", [False, True])
def test_what_erased_runs_have_added_stays_in_the_sums_after_a_rebuild(log: ListedLog, cleaned: bool) -> None:
    database = MemoryViewDatabase()
    slot = attentive(Squares(), database, log)
    settle(slot)
    before = sum(int(row[3]) for row in rows(database, Squares.by_day))
    for run in RUNS[:3]:
        log.mark(run)
        log.bury(run)
    settle(slot)
    assert {row[1] for row in rows(database, Squares.answers)} == set(RUNS[3:])
    assert sorted(int(row[2]) for row in rows(database, Squares.by_day)) == [30, 90]
    if cleaned:
        log.clean()

    database.create("squares", 2, slot.tables, slot.begun())
    settle(slot)

    assert database.generations("squares") == {2: "serving"}
    assert sorted(int(row[2]) for row in rows(database, Squares.by_day)) == [30, 90]
    assert sum(int(row[3]) for row in rows(database, Squares.by_day)) == before


def test_a_projection_whose_code_raises_stands_still_and_the_others_go_on(log: ListedLog) -> None:
    database = MemoryViewDatabase()
    fragile, squares = attentive(Fragile(), database, log), attentive(Squares(), database, log)

    settle(fragile, squares)

    assert "Fragile.apply, run run-3, seq " in fragile.stopped
    assert "no such customer" in fragile.stopped
    assert database.generations("squares") == {1: "serving"}
    assert database.generations("fragile") == {1: "building"}
    assert "ValueError" in database.store("fragile", 1).notes()["stopped"]


def test_a_view_of_another_log_stands_still_and_names_both(log: ListedLog) -> None:
    database = MemoryViewDatabase()
    settle(attentive(Squares(), database, log))
    other = ListedLog(name="log-2")
    other.finish("x")

    slot = attentive(Squares(), database, other)
    settle(slot)

    assert "log-1" in slot.stopped
    assert "log-2" in slot.stopped
    assert len(rows(database, Squares.answers)) == 10 * len(RUNS)


def test_a_view_of_a_log_that_has_shrunk_stands_still(log: ListedLog) -> None:
    database = MemoryViewDatabase()
    settle(attentive(Squares(), database, log))
    log.ends[RUN_LOG, 0] = 3

    slot = attentive(Squares(), database, log)
    settle(slot)

    assert "the log has lost its end" in slot.stopped


def test_a_view_whose_next_records_were_deleted_stands_still(log: ListedLog) -> None:
    database = MemoryViewDatabase()
    settle(attentive(Squares(), database, log))
    log.finish("later")
    log.starts[RUN_LOG, 0] = log.bounds()[RUN_LOG, 0][1]

    slot = attentive(Squares(), database, log)
    slot.turn(0.0)

    assert "the log has lost its beginning" in slot.stopped


def test_a_log_that_was_cut_and_has_grown_again_is_noticed_by_its_last_record(log: ListedLog) -> None:
    database = MemoryViewDatabase()
    settle(attentive(Squares(), database, log))
    for place in [place for place in log.lists if place[0] == RUN_LOG]:
        log.lists[place], log.ends[place] = log.lists[place][:-3], log.ends[place] - 3
    log.finish("other", "another", "a-third")
    before = digests(database, Squares)

    slot = attentive(Squares(), database, log)
    settle(slot)

    assert "the log has lost its end" in slot.stopped
    assert digests(database, Squares) == before


def test_a_topic_beside_the_log_whose_end_was_lost_and_written_again_is_noticed(log: ListedLog) -> None:
    database, place = MemoryViewDatabase(), (APPROVAL_VOTED, 0)
    log.append(*place, b"r-1/1/vote", b"yes")
    settle(attentive(Squares(), database, log))
    (lost,) = log.lists[place]
    log.lists[place] = [lost._replace(at_ms=lost.at_ms + 1)]  # the same vote, sent again

    slot = attentive(Squares(), database, log)
    settle(slot)

    assert "the log has lost its end: approval-voted/0" in slot.stopped


def test_a_topic_beside_the_log_whose_last_record_was_superseded_is_read_on(log: ListedLog) -> None:
    database, place = MemoryViewDatabase(), (APPROVAL_VOTED, 0)
    log.append(*place, b"r-1/1/vote", b"yes")
    settle(attentive(Squares(), database, log))
    log.append(*place, b"r-1/1/vote", None)
    del log.lists[place][0]

    slot = attentive(Squares(), database, log)
    settle(slot)

    assert slot.stopped == ""
    assert database.store("squares", 1).positions()[place] == 2


def test_another_generation_replaces_one_that_stands_still_without_a_restart(log: ListedLog) -> None:
    database = MemoryViewDatabase()
    settle(attentive(Squares(), database, log))
    other = ListedLog(name="log-2")
    other.finish("x")
    slot = attentive(Squares(), database, other)
    settle(slot)
    assert slot.stopped

    database.create("squares", 2, slot.tables, slot.begun())
    settle(slot)

    assert not slot.stopped
    assert database.generations("squares") == {2: "serving"}
    assert {row[1] for row in rows(database, Squares.answers)} == {"x"}


def test_a_generation_that_was_replaced_is_dropped_after_a_crash(log: ListedLog) -> None:
    database = MemoryViewDatabase()
    slot = attentive(Squares(), database, log)
    settle(slot)
    database.create("squares", 2, slot.tables, slot.begun())
    database.switch("squares", 2, Squares.tables)  # and dies before it drops the first

    settle(attentive(Squares(), database, log))

    assert database.generations("squares") == {2: "serving"}


def test_what_was_built_of_another_version_is_dropped(log: ListedLog) -> None:
    database = MemoryViewDatabase()
    settle(attentive(Squares(), database, log))
    later = attentive(SquaresAgain(), database, log)
    database.create("squares", 2, later.tables, later.begun())  # and the deploy is taken back

    slot = attentive(Squares(), database, log)
    settle(slot)

    assert database.generations("squares") == {1: "serving"}
    assert verify(Squares(), database, MemoryViewDatabase(), log).equal


def test_what_erased_runs_have_added_is_taken_over_once_by_two_writers(log: ListedLog) -> None:
    database = MemoryViewDatabase()
    slot = attentive(Squares(), database, log)
    for run in RUNS[:3]:
        log.mark(run)
    settle(slot)
    for run in RUNS[:3]:
        log.bury(run)
    settle(slot)
    before = sorted(int(row[2]) for row in rows(database, Squares.by_day))
    log.clean()
    one, other = (
        Follower(Squares(), database.store("squares", 1), log),
        Follower(Squares(), MemoryViewStore(slot.begun()), log),
    )
    other.reach(one.positions)
    late = carried(Squares(), one.store, other)

    other.store.commit(carried(Squares(), one.store, other))
    other.store.commit(late)

    assert sorted(int(row[2]) for row in other.store.scan(Squares.by_day)) == before == [30, 90]
    assert set(late.moves) == {place for place, at in one.positions.items() if at}


def test_what_erased_runs_have_added_is_not_taken_from_a_generation_that_another_process_moves_on(
    log: ListedLog,
) -> None:
    database = MemoryViewDatabase()
    slot = attentive(Squares(), database, log)
    settle(slot)
    late = Follower(Squares(), database.store("squares", 1), log)
    database.create("squares", 2, slot.tables, slot.begun())
    slot._open_generations()
    building = slot._building
    assert building is not None
    building.reach(late.positions)
    for run in RUNS[:3]:
        log.mark(run)
        log.bury(run)
    while any(late.positions[place] < end for place, (_, end) in log.bounds().items()):
        late.advance(0.0)

    with pytest.raises(ConflictError, match="another process has moved generation 1 of squares"):
        slot._switch(building)
    slot.close()
    settle(slot)

    assert database.generations("squares") == {2: "serving"}
    assert sorted(int(row[2]) for row in rows(database, Squares.by_day)) == [30, 90]


def test_a_run_whose_tombstones_were_cleaned_unread_goes_with_its_marker(log: ListedLog) -> None:
    database = MemoryViewDatabase()
    slot = attentive(Squares(), database, log)
    log.mark("run-3")
    settle(slot)
    log.bury("run-3")
    log.clean()
    settle(slot)
    log.mark("run-3", marked=False)

    settle(slot)

    assert {row[1] for row in rows(database, Squares.answers)} == set(RUNS) - {"run-3"}


def test_verify_proves_a_view_equal_to_the_log_and_names_rows_that_differ(log: ListedLog) -> None:
    database = MemoryViewDatabase()
    settle(attentive(Squares(), database, log))
    assert verify(Squares(), database, MemoryViewDatabase(), log).equal

    store = database.store("squares", serving(database, "squares"))
    wrong, gone, *_ = rows(database, Squares.answers)
    added = ("made-up/1", "made-up", 9)
    store.commit(
        ViewChanges(
            (),
            rows={Squares.answers: {wrong[:1]: (*wrong[:2], 77), gone[:1]: None, added[:1]: added}},
            sums={Squares.by_day: {("2026-09-21", 0): [0, 1]}},
        )
    )
    found = verify(Squares(), database, MemoryViewDatabase(), log)

    assert {(each.table, tuple(each.key)) for each in found.differences} == {
        ("answers", wrong[:1]),
        ("answers", gone[:1]),
        ("answers", added[:1]),
        ("answers_by_day", ("2026-09-21", 0)),
    }


def test_verify_ends_where_markers_have_come_since_the_view_was_written(log: ListedLog) -> None:
    database, rounds = MemoryViewDatabase(), count()
    settle(attentive(Squares(), database, log))
    log.mark("run-3")  # read by nobody so far

    def give_up(done: int, whole: int) -> None:
        assert next(rounds) < 1_000, f"{done} of {whole} stays as it is"

    assert verify(Squares(), database, MemoryViewDatabase(), log, give_up).equal


def test_a_writer_that_was_given_up_changes_nothing(log: ListedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "MOST_RECORDS", 10)
    database = MemoryViewDatabase()
    old, new = (attentive(Squares(), database, log, refresh_s=60.0) for _ in range(2))
    old.turn(0.0)
    for _ in range(3):
        new.turn(0.0)
    there = database.store("squares", 1).positions()

    assert sum(old.turn(0.0) for _ in range(20)) == 0
    assert database.store("squares", 1).positions() == there
    settle(attentive(Squares(), database, log))
    assert verify(Squares(), database, MemoryViewDatabase(), log).equal


def test_tables_that_could_not_be_rebuilt_equal_are_refused() -> None:
    with pytest.raises(UsageError, match="run_id"):
        table("customers", key(customer=str), orders=int)
    with pytest.raises(UsageError, match="no int"):
        sums("spend", key(day=str), last=str)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="run_id"):
        sums("spend", key(run_id=str), n=int)


class Replacing(MemoryViewDatabase):
    """Loses a generation, as by a switch, once it was asked for so often."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def store(self, projection: str, generation: int) -> MemoryViewStore:
        if generation == 1 and self.generations(projection).get(2):
            self.after -= 1
            if self.after == 0:
                self.switch(projection, 2, Squares.tables)
                self.drop(projection, 1)
        return super().store(projection, generation)


@pytest.mark.parametrize("after", [1, 2])
def test_the_status_of_a_projection_that_is_switched_just_then_is_that_of_the_new_one(
    log: ListedLog, after: int
) -> None:
    database = Replacing(after)
    slot = attentive(Squares(), database, log)
    settle(slot)
    database.create("squares", 2, slot.tables, slot.begun())

    info = status_of("squares", database, "sqlite:///views.db", log)

    assert [each.generation for each in info.generations] == [2]


class Busy(ListedLog):
    """A log that grows, and whose view has read that, between a look at its bounds and what follows the look."""

    slot: KeptProjection | None = None

    def bounds(self) -> dict[Place, tuple[int, int]]:
        found = super().bounds()
        if (slot := self.slot) is not None:
            self.slot = None
            self.finish(f"more-{self.ends[RUN_LOG, 0]}")
            settle(slot)
            self.slot = slot
        return found


def test_a_view_that_keeps_up_with_a_log_under_load_is_never_called_stopped() -> None:
    log, database = Busy(), MemoryViewDatabase()
    slot = attentive(Squares(), database, log)
    log.finish("first")
    settle(slot)
    log.slot = slot

    info = status_of("squares", database, "sqlite:///views.db", log)

    assert [(each.state, each.reason, each.lag) for each in info.generations] == [("serving", "", 0)]
    assert all(each.position <= each.end for each in info.generations[0].positions)


def test_metrics_do_not_call_a_view_stopped_that_keeps_up_with_a_log_under_load() -> None:
    log, database = Busy(), MemoryViewDatabase()
    slot = attentive(Squares(), database, log)
    log.finish("first")
    settle(slot)
    log.slot = slot

    found = {each.name: [sample.value for sample in each.samples] for each in ViewMetrics(database, log).collect()}

    assert found["refold_projection_stopped"] == [0]
    assert found["refold_projection_lag_records"] == [0]


COMMIT_S, RECORD_S = 0.0025, 0.0002
"""CPU time of a commit, and of each record in it, as measured with SQLite."""


def paced(pace: Pace, arrivals: list[float]) -> tuple[list[float], float]:
    """The delay of each record up to its commit, and the CPU time, of a projection that rests as it is told."""
    left, now, delays, work = sorted(arrivals), 0.0, list[float](), 0.0
    while left:
        now = max(now, left[0])
        batch = [at for at in left if at <= now]
        left = left[len(batch) :]
        cost = COMMIT_S + RECORD_S * len(batch)
        now, work = now + cost, work + cost
        delays += [now - at for at in batch]
        now += pace.rest_s(now, cost)
    return delays, work


def test_the_records_of_a_run_alone_are_not_held_up() -> None:
    runs = [[second + step * 0.009 for step in range(5)] for second in range(60)]

    delays, _ = paced(Pace(), [at for run in runs for at in run])

    assert max(delays) < 2 * COMMIT_S


@pytest.mark.parametrize("rate", [10, 100, 500, 2_000])
def test_a_steady_stream_shares_commits_and_takes_the_time_of_ten_a_second(rate: int) -> None:
    seconds = 30
    delays, work = paced(Pace(), [number / rate for number in range(rate * seconds)])

    least = RECORD_S * rate * seconds
    assert work - least < seconds * max(SHARE, 11 * COMMIT_S) + 0.05
    assert max(delays) < 0.12 + RECORD_S * rate


def test_a_run_after_a_flood_is_held_up_by_it_no_longer_than_a_second() -> None:
    flood = [number / 2_000 for number in range(20_000)]
    late = [12.0 + step * 0.009 for step in range(5)]

    delays, _ = paced(Pace(), flood + late)

    assert max(delays[-5:]) < 2 * COMMIT_S
