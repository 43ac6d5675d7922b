"""What lanes tell each other of the limits that they share: by how much one can be passed, and what a crash loses."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import cycle, product

import pytest

from refold import App, Limit
from refold.cli.platform import Shell
from refold.client.operations.runs import Runs
from refold.core.events import CallBilled, CallDispatched, CallReserved
from refold.core.messages import ToolRequest, ToolResult, WindowSpent
from refold.core.planning.windows import WindowKey, value_digest
from refold.core.run.account import Amount
from refold.core.wire import codec
from refold.engine.adapters.memory.log import MemoryLogReader
from refold.engine.planner.log.windows import KEEP_MS, TELL_MS
from refold.engine.ports.log import Delivery, Outgoing
from tests.cli.terminal import refold
from tests.planner.paid import Answer, Paid, ended, made, pays
from tests.planner.test_windows import HOUR, TODAY, A, living_in, sent, status, total
from tests.recovery.rig import SPENT

TENANT = WindowKey(TODAY, "", "tenant", value_digest("a"))
DAILY = Limit("day", label="tenant", calls=10)


class PowerCutError(Exception):
    """The process dies while it writes."""


class Frail(Paid):
    """A planner of two lanes that dies before it writes its records of these numbers."""

    dies_at: tuple[int, ...] = ()

    def __init__(self, code: App, answer: Answer = pays, *, partitions: int = 2) -> None:
        self.written = 0
        super().__init__(code, answer, partitions=partitions)

    def _append(self, record: Outgoing) -> Delivery:
        self.written += 1
        if self.written in self.dies_at:
            raise PowerCutError
        return super()._append(record)

    def survive(self) -> None:
        """Goes on until nothing happens any more, in other processes if need be, through a few rounds of snapshots."""
        for _ in range(4):
            try:
                self.pump()
                self.later(5_000)
            except PowerCutError:
                self.boot()

    def boot(self) -> None:
        try:
            super().boot()
        except PowerCutError:
            self.boot()


def spent(world: Paid, lane: int | None = None) -> dict[bytes, WindowSpent]:
    """What is told, by key, in all copies or that of a lane."""
    records = world.records(SPENT) if lane is None else world.broker.log(SPENT, lane).records
    last = {(each.partition, each.key): each for each in records}
    return {each.key or b"": codec.decode(WindowSpent, each.value) for each in last.values() if each.value}


def by_the_log(world: Paid) -> Amount:
    """What all runs took, by a reading of their own."""
    taken = Amount()
    for read in world._chain():
        for event in read.entry.events:
            if isinstance(event, CallDispatched):
                taken = taken.plus(Amount(calls=1))
            elif isinstance(event, CallReserved) and event.attempt:
                taken = taken.plus(Amount(event.tokens, event.nano_usd))
            elif isinstance(event, CallBilled):
                took = Amount(event.tokens - event.for_tokens, event.nano_usd - event.for_nano_usd)
                taken = taken.plus(took)
    return taken


def test_lanes_hear_of_each_other_within_a_second() -> None:
    world = Frail(made(limits=[DAILY]))
    world.start(living_in(0), "looker", labels=A, times=6)
    world.pump()

    world.later(TELL_MS)
    world.start(living_in(1), "looker", labels=A, times=6)
    world.pump()

    assert [sent(world, living_in(lane)) for lane in (0, 1)] == [6, 4]
    assert status(world, living_in(1)) == "limit_calls"


def test_a_limit_is_passed_by_what_lanes_let_out_before_they_hear_of_each_other() -> None:
    world = Frail(made(limits=[DAILY]))

    for lane in (0, 1):
        world.start(living_in(lane), "crowd", labels=A, times=8)
    world.pump()
    world.later(TELL_MS)
    for lane in (0, 1):
        world.start(living_in(lane, 1), "looker", labels=A, times=1)
    world.pump()

    assert [sent(world, living_in(lane)) for lane in (0, 1)] == [8, 8]
    assert [status(world, living_in(lane, 1)) for lane in (0, 1)] == ["limit_calls"] * 2


def test_a_lane_passes_no_limit_by_itself_however_late_others_hear() -> None:
    world = Frail(made(limits=[DAILY]))

    for number in range(9):
        world.start(living_in(0, number), "crowd", labels=A, times=3)
    world.pump()

    assert sent(world, *(living_in(0, number) for number in range(9))) == 9


CUTS = [(cut, again) for cut, again in zip(range(1, 121, 4), cycle((0, 9, 14, 23)), strict=False)]


@pytest.mark.parametrize(("cut", "again"), CUTS)
def test_a_take_over_loses_nothing_and_counts_nothing_twice(cut: int, again: int) -> None:
    def unsteady(asked: ToolRequest) -> ToolResult:
        return ended(asked, "unknown") if asked.attempt == 1 and asked.step == 2 else pays(asked)

    world = Frail(made(limits=[Limit("day", label="tenant", usd="5")]), unsteady)
    world.dies_at = world.written + cut, world.written + cut + again

    for number in range(3):
        for lane in (0, 1):
            world.start(living_in(lane, number), "thinker", labels=A, times=2)
        world.survive()
    world.boot()
    world.survive()
    world.broker.compact(SPENT, 0)
    world.broker.compact(SPENT, 1)
    world.boot()
    world.survive()

    assert [total(world, TENANT, lane) for lane in (0, 1)] == [by_the_log(world)] * 2


def test_nothing_is_kept_of_a_run_that_is_over_before_others_are_told_what_it_took() -> None:
    for cut, again in product((8, 10), range(4, 9)):  # it dies when the run is over, and again when it keeps that
        world = Frail(made(limits=[Limit("day", label="tenant", usd="5")]), partitions=1)
        world.dies_at = world.written + cut, world.written + cut + again

        world.start("r1", "thinker", labels=A, times=2)
        world.survive()
        world.boot()
        world.survive()

        assert total(world, TENANT) == by_the_log(world), (cut, again)


def test_a_planner_that_was_given_up_lowers_no_sum() -> None:
    world = Frail(made(limits=[DAILY]), partitions=1)
    world.start("r1", "looker", labels=A, times=2)
    world.pump()
    old, told = world.planner, list(world.records(SPENT))
    world.boot()
    world.start("r2", "looker", labels=A, times=3)
    world.pump()
    world.later(6_000)

    assert old is not world.planner
    for each in told:  # it wakes, and says what it knew
        world.broker.write(Outgoing(SPENT, 0, each.key or b"", each.value, (), 0))
    world.broker.compact(SPENT, 0)
    world.run()
    world.boot()

    assert total(world, TENANT) == Amount(calls=5)
    world.later(2 * TELL_MS)
    assert {said.member for said in spent(world).values()} == {"p-3"}
    assert [said.calls for said in spent(world).values()] == [5]


def test_a_sum_is_told_in_every_copy_and_by_its_lane_alone() -> None:
    world = Frail(made(limits=[DAILY]))
    world.start(living_in(1), "looker", labels=A, times=2)
    world.pump()
    world.later(TELL_MS)

    for copy in (0, 1):
        [said] = spent(world, copy).values()
        assert (said.lane, said.window, said.value, said.calls, said.limits.calls) == (
            1,
            TODAY,
            value_digest("a"),
            2,
            10,
        )


def test_windows_that_are_long_over_are_forgotten() -> None:
    world = Frail(made(limits=[DAILY]))
    world.start(living_in(0), "looker", labels=A, times=2)
    world.pump()
    world.later(TELL_MS)

    world.later(KEEP_MS + 2 * HOUR)
    for lane in (0, 1):
        world.start(living_in(lane, 1), "looker", labels=A, times=1)
    world.pump()
    world.later(TELL_MS)
    for lane in (0, 1):
        assert {said.window for said in spent(world, lane).values()} == {"2023-11-17"}

    world.boot()
    assert total(world, TENANT) == Amount()


def test_a_log_that_has_lost_its_end_has_nothing_counted_twice_and_all_that_follows() -> None:
    world = Frail(made(limits=[DAILY]), partitions=1)
    for run in ("r1", "r2"):
        world.start(run, "looker", labels=A, times=3)
        world.pump()
        world.later(6_000)
        world.later(6_000)

    world.broker.truncate("run-log", 0, world.broker.log("run-log", 0).end - 4)
    world.boot()
    world.start("r3", "looker", labels=A, times=2)
    world.pump()

    assert "log.shrunk" in world.news
    assert total(world, TENANT).calls == 8


def test_of_what_is_told_of_another_lane_that_counts_which_goes_furthest() -> None:
    world = Frail(made(limits=[DAILY]))
    world.start(living_in(0), "looker", labels=A, times=2)
    world.pump()
    world.later(TELL_MS)
    [name, said] = next(iter(spent(world, 1).items()))

    late = replace(said, log=said.log - 1, calls=1, member="somebody")
    world.broker.write(Outgoing(SPENT, 1, name + b"-old", codec.encode(late), (), 0))
    world.run()

    assert total(world, TENANT, lane=1).calls == 2


def test_what_was_spent_is_listed_of_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Frail(
        made(limits=[Limit("day", label="tenant", calls=4, usd="1"), Limit("month", agent="looker", tokens=9)])
    )
    for lane in (0, 1):
        world.start(living_in(lane), "looker", labels=A, times=2)
    world.pump()
    world.later(TELL_MS)
    world.boot()
    monkeypatch.setattr(Shell, "runs", Runs(MemoryLogReader(world.broker)))

    found = json.loads(refold("limits", "--json", "--value", "a").stdout)
    shown = refold("limits").stdout

    assert found == [
        {
            "window": TODAY,
            "agent": "",
            "label": "tenant",
            "value": value_digest("a"),
            "spent": {"tokens": 0, "nano_usd": 0, "calls": 4},
            "limits": {"tokens": 0, "nano_usd": 1_000_000_000, "calls": 4},
            "soft_percent": 80,
            "then": "warn",
            "reached": "hard",
        }
    ]
    assert [line.split() for line in shown.splitlines() if line.strip().startswith("2023")] == [
        [TODAY, "tenant", value_digest("a"), "$0.00", "of", "$1.00", "0", "4", "of", "4", "hard"],
        ["2023-11", "agent", "looker", "$0.00", "0", "of", "9", "4"],
    ]


def test_what_nobody_can_read_is_passed_over_and_told() -> None:
    world = Frail(made(limits=[DAILY]), partitions=1)

    world.broker.write(Outgoing(SPENT, 0, b"2023-11-14/x/0/eve", b"\0nonsense", (), 0))
    world.start("r1", "looker", labels=A, times=2)
    world.pump()

    assert "spent.void" in world.news
    assert total(world, TENANT) == Amount(calls=2)
