"""Copies of records, and a cleaner that keeps the last of them, never make another history of a run."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from refold.core.ids import entry_id, log_key
from refold.core.run import disorder as run_disorder
from refold.core.run import log as run_log
from refold.core.run.chain import Head
from refold.core.run.log import FORKED, GAP, LogFold
from tests.core.copies import RUN, T0, Platform, Rates, Written, play

SCHEDULES = 400
ABSURD = Rates()


def played(rates: Rates, *, schedules: int = SCHEDULES) -> tuple[Counter[str], list[str]]:
    """What take-overs found, and what was wrong."""
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for seed in range(schedules):
        platform = play(seed, rates)
        outcomes += platform.outcomes
        wrong += platform.wrong
    return outcomes, wrong


class Scene:
    """Records of a run, put into a log in any order."""

    def __init__(self) -> None:
        self.platform = Platform(random.Random(1))
        self.heads = {"": Head()}
        self.records: dict[str, Written] = {}

    def make(self, name: str, on: str = "", *, last: bool = False) -> Scene:
        """A record on top of another."""
        made, entry, value = self.platform.entry(self.heads[on], last=last)
        key = log_key(RUN, entry.seq, made)
        self.heads[name], self.records[name] = Head(made, entry.last_seq), Written(key, value, T0)
        return self

    def fold(self, order: str, *, settle: bool = True, late: str = "") -> LogFold:
        """The fold of a log. `-f` is the tombstone of f, `late` names what the log took long after it was made."""
        fold = LogFold()
        for name in order.split():
            record = self.records[name.lstrip("-")]
            value = None if name.startswith("-") else record.value
            fold.feed(record.key, value, shared=True, at_ms=T0 + (90_000 if name in late.split() else 0))
        if settle:
            fold.settle()
        return fold

    def name(self, fold: LogFold) -> str:
        """Which record is the head."""
        state = fold.states.get(RUN)
        return next(name for name, head in self.heads.items() if head == (state.head if state else Head()))


@pytest.fixture
def scene() -> Scene:
    """Give a history of four, a fork of its second and what follows the fork."""
    scene = Scene().make("1").make("2", "1").make("3", "2").make("4", "3")
    return scene.make("f", "1").make("g", "f")


class TestLinking:
    @pytest.mark.parametrize("order", ["1 2 3 4", "2 1 3 4", "4 3 2 1", "1 3 4 2", "2 4 1 3", "1 4 2 3"])
    def test_a_history_is_whole_in_any_order(self, scene: Scene, order: str) -> None:
        fold = scene.fold(order)

        assert scene.name(fold) == "4"
        assert not fold.frozen

    def test_a_record_says_which_ones_it_makes_count(self, scene: Scene) -> None:
        fold = scene.fold("1 3 4", settle=False)
        record = scene.records["2"]

        judged = fold.feed(record.key, record.value)

        assert [each.id for each in judged.linked] == [scene.heads["3"].id, scene.heads["4"].id]
        assert judged.linked[-1].state is fold.states[RUN]

    def test_copies_are_told_from_what_lost(self, scene: Scene) -> None:
        fold = scene.fold("1 2 3")

        voids = [fold.feed(scene.records[name].key, scene.records[name].value).void for name in ("1", "3", "f", "g")]

        assert voids == ["copy", "copy", "raced", "orphan"]

    def test_what_has_no_beginning_is_closed_and_never_absent(self, scene: Scene) -> None:
        fold = scene.fold("3 4")

        assert fold.frozen == {RUN: GAP}
        assert not fold.extends(scene.platform.entry(Head())[1])

    def test_a_beginning_that_comes_late_opens_it_again(self, scene: Scene) -> None:
        fold = scene.fold("2 3")

        judged = fold.feed(scene.records["1"].key, scene.records["1"].value)

        assert judged.mended
        assert (scene.name(fold), fold.frozen) == ("3", {})

    def test_no_more_is_held_aside_than_there_is_room_for(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(run_log, "ASIDE_BYTES", 100)

        fold = scene.fold("2 3 4 1")

        assert "too much" in fold.frozen[RUN]

    def test_records_that_an_unreadable_one_drops_take_no_room(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        aside = [scene.records["2"], scene.records["3"]]
        monkeypatch.setattr(run_log, "ASIDE_BYTES", sum(map(len, (record.value or b"" for record in aside))))
        fold, newer = scene.fold("2 3", settle=False), b"whatever will be"
        fold.feed(log_key(RUN, 9, entry_id(newer)), b"\0\0\0\x03\xe7" + newer)
        fold.forget(RUN)

        for record in (*aside, scene.records["1"]):
            fold.feed(record.key, record.value)

        assert (scene.name(fold), fold.frozen) == ("3", {})


class TestRivals:
    def test_in_a_log_that_nobody_disturbed_the_first_to_extend_wins(self, scene: Scene) -> None:
        fold = scene.fold("1 2 f 3 4")

        assert (scene.name(fold), fold.frozen) == ("4", {})

    @pytest.mark.parametrize(
        ("order", "late"),
        [("1 f 3 2", ""), ("1 f 2 3 2", ""), ("3 1 2 f", ""), ("1 f g 3 2 4", ""), ("1 f 2", "2"), ("3 f 2 1", "")],
    )
    def test_where_order_would_have_to_decide_the_run_stalls(self, scene: Scene, order: str, late: str) -> None:
        assert scene.fold(order, late=late).frozen == {RUN: FORKED}

    def test_a_tombstone_decides(self, scene: Scene) -> None:
        assert scene.name(scene.fold("1 3 2 f -f")) == "3"
        assert not scene.fold("1 3 2 f -f").frozen

    def test_the_tombstone_of_what_seemed_to_count_says_that_order_has_lied(self, scene: Scene) -> None:
        fold = scene.fold("1 f 2 3 -f")

        assert fold.frozen == {RUN: FORKED}

    @pytest.mark.parametrize("order", ["1 f 3 2 4", "1 f 2 3 4", "2 1 f 3 4", "1 f g 4 2 3"])
    def test_copies_in_order_and_tombstones_mend_it(self, scene: Scene, order: str) -> None:
        live, repair = scene.fold(order, late="2"), "1 2 3 4 -f -g"

        judged = [
            live.feed(scene.records[name.lstrip("-")].key, None if name[0] == "-" else scene.records[name].value)
            for name in repair.split()
        ]

        assert any(each.mended for each in judged)
        assert (scene.name(live), live.frozen) == ("4", {})
        late = scene.fold(f"{order} {repair}", late="2")
        assert (scene.name(late), late.frozen) == ("4", {})

    def test_a_stalled_run_takes_nothing_in(self, scene: Scene) -> None:
        fold = scene.fold("1 f 3 2")
        scene.make("h", "f")

        assert fold.feed(scene.records["h"].key, scene.records["h"].value).void == "stalled"


class TestSweeping:
    def test_a_live_fold_names_what_can_never_count(self, scene: Scene) -> None:
        fold = scene.fold("1 2")
        for name in ("f", "g", "1"):
            fold.feed(scene.records[name].key, scene.records[name].value)
        assert fold.sweep == [scene.records["f"].key]

        fold.feed(scene.records["3"].key, scene.records["3"].value)

        assert fold.sweep == [scene.records["f"].key, scene.records["g"].key]

    def test_what_may_still_count_is_kept(self, scene: Scene) -> None:
        fold = scene.fold("1")

        fold.feed(scene.records["3"].key, scene.records["3"].value, offset=7)

        assert (fold.sweep, fold.oldest_aside) == ([], 7)
        fold.feed(scene.records["2"].key, scene.records["2"].value, offset=8)
        assert (fold.sweep, fold.oldest_aside) == ([], None)

    @pytest.mark.parametrize("order", ["1 3 f 2 4", "1 3 4 f 2", "1 4 f 3 2"])
    def test_what_a_repair_chose_is_not_swept_where_it_stood_before_its_beginning(
        self, scene: Scene, order: str
    ) -> None:
        live = scene.fold(order, late="2")
        assert live.frozen == {RUN: FORKED}

        for name in ("1", "2", "3", "4", "-f"):
            record = scene.records[name.lstrip("-")]
            live.feed(record.key, None if name[0] == "-" else record.value)

        assert (scene.name(live), live.frozen, live.oldest_aside) == ("4", {}, None)
        assert not live.sweep, "the next cleaning takes away what counts"

    def test_nothing_is_swept_that_was_read_before_the_end(self, scene: Scene) -> None:
        assert scene.fold("1 2 f g 3").sweep == []


class TestModel:
    def test_at_absurd_rates_no_history_becomes_another(self) -> None:
        outcomes, wrong = played(ABSURD)

        assert wrong == []
        assert outcomes["equal"] > SCHEDULES / 2

    def test_copies_alone_stall_nothing(self) -> None:
        outcomes, wrong = played(replace(ABSURD, zombie=0, strand=0, delay=0, copy=10))

        assert (wrong, outcomes["stalled"]) == ([], 0)

    def test_zombies_alone_stall_nothing(self) -> None:
        outcomes, wrong = played(replace(ABSURD, copy=0, delay=0))

        assert (wrong, outcomes["stalled"]) == ([], 0)

    @pytest.mark.parametrize("bug", ["late", "copies are swept", "no linking", "no stalling", "orphans at once"])
    def test_the_model_finds_each_rule_that_is_missing(self, bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
        PLANTED[bug](monkeypatch)

        _, wrong = played(ABSURD)

        assert wrong


def _never_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run_log, "LATE_MS", 1 << 60)


def _sweeps_copies(patch: pytest.MonkeyPatch) -> None:
    original = LogFold._note_copy

    def note(self: LogFold, held: run_disorder.Aside) -> run_log.Judged:
        self._sweep(held)
        return original(self, held)

    patch.setattr(LogFold, "_note_copy", note)


def _never_links(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogFold, "_link", lambda self, disorder, last: ())


def _never_stalls(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run_disorder.Disorder, "contested", property(lambda self: False))


def _sweeps_orphans(patch: pytest.MonkeyPatch) -> None:
    original = LogFold._set_aside

    def hold(self: LogFold, held: run_disorder.Aside, state: object) -> None:
        original(self, held, state)  # type: ignore[arg-type]
        self._sweep(held)

    patch.setattr(LogFold, "_set_aside", hold)


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "late": _never_late,
    "copies are swept": _sweeps_copies,
    "no linking": _never_links,
    "no stalling": _never_stalls,
    "orphans at once": _sweeps_orphans,
}
