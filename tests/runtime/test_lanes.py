"""The corridor of all services: routing, catching up, throttling, committing, tokens, parking."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from weakref import ref

from refold.engine.ports.effects import Commit, Flow, Now, Read, Reopen
from refold.engine.ports.log import Assigned, End, Reached, Record, Revoked, Shrunk
from refold.engine.runtime.lanes import CatchUp, Journal, Lanes, Outstanding, Owed, Tokens, resumed
from refold.engine.runtime.unresolved import UnresolvedInputs


@dataclass
class Counter:
    """A lane that counts what it is fed; what it was fed may be committed."""

    partition: int
    fed: list[Record | Reached | End] = field(default_factory=list)
    waiting: int = 0
    woken: int = 0

    def feed(self, item: Record | Reached | End) -> None:
        self.fed.append(item)

    def reads(self) -> Mapping[str, int]:
        return {"inputs": len(self.fed)}

    def wake(self, assigned: Assigned) -> None:
        self.woken += 1

    def low_water(self) -> Mapping[tuple[str, int], int]:
        return {("inputs", self.partition): len(self.fed)} if self.fed else {}


def lanes(left: list[int] | None = None, *, lasting: bool = True) -> Lanes[Counter]:
    gone = left if left is not None else []
    return Lanes(
        lambda assigned: Counter(assigned.partition),
        leave=lambda lane: gone.append(lane.partition),
        wake=Counter.wake if lasting else None,
        commit_ms=100,
    )


def assigned(partition: int, **ends: int) -> Assigned:
    return Assigned(partition, committed={}, starts={}, ends=ends)


def record(partition: int, offset: int = 0) -> Record:
    return Record("inputs", partition, offset, b"k", b"v", lambda: None)


def test_what_was_read_goes_to_the_lane_of_its_partition_and_nowhere_else() -> None:
    ours = lanes()
    ours.route(assigned(1))

    for item in (record(1), Reached("inputs", 1, 5), End("inputs", 1, 6), record(2)):
        assert ours.route(item) == []

    [lane] = ours
    assert [type(item) for item in lane.fed] == [Record, Reached, End]
    assert ours.get(2) is None


def test_a_revoked_lane_sleeps_and_reads_on_where_it_was() -> None:
    left: list[int] = []
    ours = lanes(left)
    first = ours.route(assigned(1))
    [lane] = ours
    ours.route(record(1))

    assert ours.route(Revoked(1)) == []
    assert (left, len(ours), ours.route(record(1))) == ([1], 0, [])
    again = ours.route(assigned(1, inputs=5))

    assert (first, again) == ([Read("inputs", 1, 0)], [Read("inputs", 1, 1)])
    assert list(ours) == [lane]
    assert (lane.woken, [type(item) for item in lane.fed]) == (1, [Record])


def test_a_lane_that_does_not_last_begins_anew() -> None:
    left: list[int] = []
    ours = lanes(left, lasting=False)
    ours.route(assigned(2))
    ours.route(record(2))
    kept = ref(ours.get(2))
    ours.route(Revoked(2))
    asleep = kept()

    effects = ours.route(assigned(2, inputs=5))

    assert (asleep, left, effects) == (None, [2], [Read("inputs", 2, 0)])
    assert [(lane.woken, lane.fed) for lane in ours] == [(0, [])]


def test_nothing_is_kept_of_a_lane_whose_log_got_shorter() -> None:
    left: list[int] = []
    ours = lanes(left)
    ours.route(assigned(1))
    ours.route(record(1))

    effects = [ours.route(Shrunk("inputs", 1, 0)), ours.route(Shrunk("inputs", 1, 0)), ours.route(Revoked(1))]
    begins = ours.route(assigned(1, inputs=5))

    assert effects == [[Reopen(1)], [], []]
    assert (left, begins) == ([1], [Read("inputs", 1, 0)])


def test_a_position_is_what_the_group_has_unless_the_topic_has_lost_it() -> None:
    given = Assigned(0, {"a": 7, "b": 9, "c": 1}, {"a": 0, "b": 2, "c": 3, "d": 4}, dict.fromkeys("abcd", 8))

    assert resumed(given, "abcd") == {"a": 7, "b": 2, "c": 3, "d": 4}


def test_a_partition_that_comes_again_commits_anew() -> None:
    left: list[int] = []
    ours = lanes(left)
    ours.route(assigned(1))
    ours.route(record(1))
    for _ in range(2):
        assert ours.commit(Now(0, 100 * len(left) + 100)) == [Commit({("inputs", 1): 1})]
        ours.route(assigned(1, inputs=1))

    assert left == [1, 1]


def test_only_what_has_changed_is_committed_and_only_when_it_is_time() -> None:
    ours = lanes()
    ours.route(assigned(1))
    ours.route(assigned(2))
    ours.route(record(1))

    first, early = ours.commit(Now(0, 50)), ours.commit(Now(0, 149))
    unchanged = ours.commit(Now(0, 150))
    ours.route(record(2))
    second = ours.commit(Now(0, 250))

    assert first == [Commit({("inputs", 1): 1})]
    assert early == unchanged == []
    assert second == [Commit({("inputs", 2): 1})]


def test_a_lane_with_too_much_is_paused_until_the_half_of_it_is_worked_off() -> None:
    ours = lanes()
    ours.route(assigned(1))
    [lane] = ours
    effects = []
    for waiting in (10, 11, 12, 5, 4, 11):
        lane.waiting = waiting
        effects.append(ours.throttle(lambda lane: lane.waiting, limit=10, topics=("inputs",)))

    pause, resume = [Flow("pause", "inputs", 1)], [Flow("resume", "inputs", 1)]
    assert effects == [[], pause, [], [], resume, pause]


def test_a_partition_that_was_paused_and_comes_again_is_not_taken_for_paused() -> None:
    ours = lanes()
    ours.route(assigned(1))
    ours.throttle(lambda lane: 11, limit=10, topics=("inputs",))
    ours.route(Revoked(1))
    ours.route(assigned(1))

    assert ours.throttle(lambda lane: 11, limit=10, topics=("inputs",)) == [Flow("pause", "inputs", 1)]


def test_reading_has_caught_up_when_every_captured_end_is_reached() -> None:
    catch_up = CatchUp(assigned(0, log=3, catalog=1, empty=0), ("log", "catalog", "empty"))

    steps = []
    for topic, offset in (("log", 2), ("catalog", 1), ("empty", 7), ("log", 3), ("log", 1)):
        catch_up.reached(topic, offset)
        steps.append(catch_up.done)

    assert steps == [False, False, False, True, True]


def test_a_token_names_its_asker_once() -> None:
    numbers = iter(range(7, 99))
    tokens: Tokens[str] = Tokens(lambda: next(numbers))

    given = [tokens.give("a"), tokens.give("b")]

    assert given == [7, 8]
    assert [tokens.take(8), tokens.take(8), tokens.take(9), tokens.take(7)] == ["b", None, None, "a"]
    assert len(tokens) == 0


def test_what_is_forgotten_has_no_asker() -> None:
    tokens: Tokens[str] = Tokens(iter(range(9)).__next__)
    given = [tokens.give(asker) for asker in ("gone", "here", "gone")]

    tokens.forget(lambda asker: asker == "gone")

    assert [tokens.take(token) for token in given] == [None, "here", None]


def test_a_journal_counts_what_it_tells() -> None:
    journal = Journal()
    journal.tell("lane.live", partition=3)

    assert journal.news == [("lane.live", {"partition": 3})]
    assert journal.counts["lane.live"] == 1


def test_parked_items_come_back_by_what_they_wait_for_or_past_the_end_that_was_asked_for_after_them() -> None:
    parking = UnresolvedInputs[str]()
    for awaited, item in (("a", "first"), ("b", "second")):
        parking.park(awaited, item, 10)
    asked = [parking.has_fresh()]
    parking.park("b", "third", 5)
    asked.append(parking.has_fresh())
    parking.reached_end(40)

    assert asked == [True, False]
    assert parking.take("a") == ["first"]
    assert parking.over(39) == []
    assert parking.over(40) == ["second"]
    assert (parking.has_fresh(), parking.bytes) == (True, 5)
    parking.reached_end(50)
    assert (parking.over(50), parking.bytes) == (["third"], 0)


def test_what_was_taken_and_parked_again_waits_for_an_end_of_its_own() -> None:
    parking = UnresolvedInputs[str]()
    parking.park("a", "early", 1)
    parking.has_fresh()
    parking.take("a")
    parking.park("a", "late", 1)
    parking.reached_end(10)

    assert parking.over(10) == []
    assert parking.take("a") == ["late"]


def test_an_input_that_is_owed_for_long_keeps_nothing_of_what_was_done_since() -> None:
    outstanding, owed, late = Outstanding(), Owed(), Owed()
    most = 0

    for offset in range(100_000):
        outstanding.add(offset, {10: owed, 70_000: late}.get(offset) or Owed(done=True))
        most = max(most, len(outstanding._inputs))
    before = outstanding.low_water()
    owed.done = True
    between = outstanding.low_water()
    late.done = True

    assert most < 2_000
    assert (before, between, outstanding.low_water()) == (10, 70_000, 100_000)


def test_positions_are_those_of_an_input_that_is_done_in_any_order() -> None:
    rng = random.Random(3)
    outstanding, inputs = Outstanding(), [Owed() for _ in range(5_000)]

    for offset, owed in enumerate(inputs):
        outstanding.add(offset, owed)
        for each in rng.sample(inputs[: offset + 1], k=min(offset + 1, 2)):
            each.done = True
        first = next((at for at, each in enumerate(inputs[: offset + 1]) if not each.done), offset + 1)

        assert (outstanding.low_water() or 0) == first
