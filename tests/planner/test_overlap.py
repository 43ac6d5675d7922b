"""Entries are on their way while the planner goes on: what is known of them comes in any order, and counts once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.core import topics
from refold.core.events import Entry
from refold.core.ids import RunId, log_key
from refold.core.messages import RunSignal
from refold.core.run.log import LogFold
from refold.core.wire import codec
from refold.engine.planner.intake.inbox import LEAST, WaitsFor
from refold.engine.planner.lane import Lane
from refold.engine.ports import effects
from refold.engine.ports.log import Delivery, Outgoing
from tests.planner.clocked import Rig, is_entry


class SlowRig(Rig):
    """A rig whose entries are in the log when `land` is called, at once with `lands`, and are told of by `report`."""

    def __init__(self, *, lands: bool = True, waiting: int = 4_000) -> None:
        self.coming: list[Outgoing] = []
        self.landed: list[Delivery] = []
        self.lands = lands
        super().__init__(waiting=waiting)
        self.run()

    @property
    def lane(self) -> Lane:
        """The one lane of the planner."""
        lanes = list(self.planner.lanes)
        assert len(lanes) == 1, "it is not begun anew"
        return lanes[0]

    def _carry_out(self, effect: effects.Effect) -> None:
        if not isinstance(effect, effects.Publish):
            super()._carry_out(effect)
            return
        entries = [record for record in effect.records if is_entry(record)]
        super()._carry_out(effects.Publish([record for record in effect.records if record not in entries]))
        self.coming += entries
        self.appended += len(entries)
        if self.lands:
            self.land()

    def land(self, count: int | None = None) -> None:
        """The broker takes entries, the first `count` of them."""
        landing, self.coming = self.coming[:count], self.coming[len(self.coming) if count is None else count :]
        self.landed += map(self.broker.write, landing)

    def report(self, *, known: bool = True) -> None:
        """The planner is told of what the broker has taken, or that nobody knows."""
        self._answers += [delivery if known else delivery._replace(offset=None) for delivery in self.landed]
        self.landed.clear()

    def lose(self) -> None:
        """What is on its way never comes, and nobody knows."""
        self._answers += [Delivery(record.token, None) for record in self.coming]
        self.coming.clear()

    def reads(self, *, log: bool) -> None:
        """Whether the planner reads the run log."""
        (self.log.resume if log else self.log.pause)(topics.RUN_LOG, 0)

    def settled(self) -> bool:
        """Whether all requests of runs are."""
        return self.lane.low_water()[topics.RUN_REQUESTED, 0] == self.broker.log(topics.RUN_REQUESTED, 0).end


def counts(rig: Rig) -> tuple[int, ...]:
    """What a planner counts when something is not as it thought."""
    names = ("record.foreign", "record.void", "append.unknown", "event.replayed")
    return tuple(rig.planner.counts[name] for name in names)


def kinds(rig: SlowRig) -> list[str]:
    """The events that count of the run."""
    fold = LogFold()
    judged = [fold.feed(record.key, record.value) for record in rig.broker.log(topics.RUN_LOG, 0).records]
    return [type(event).__name__ for each in judged if each.entry and not each.void for event in each.entry.events]


def remind(rig: SlowRig, name: str) -> None:
    """A signal for which the run's code does not wait: an entry of its own."""
    value = codec.encode(RunSignal(RunId("r"), name, "signal", "null", "ann", name=name))
    rig.write(topics.RUN_SIGNALLED, f"r/{name}", value)
    rig.run()


def finish(rig: SlowRig) -> list[str]:
    """All goes well from here on: the run's calls are answered, and it ends; the kinds of its events."""
    rig.lands = True
    rig.land()
    while True:
        rig.report()
        rig.run()
        for request in rig.take():
            rig.answer(request)
        rig.run()
        if not rig.landed:
            return kinds(rig)


def of_another(record: Outgoing) -> Outgoing:
    """An entry as another planner would have written it."""
    entry = codec.decode(Entry, record.value or b"")
    name, other = codec.encode_entry(replace(entry, nonce=b"another".ljust(16), actor="another"))
    return record._replace(key=log_key(entry.run_id, entry.seq, name), value=other)


def started(rig: SlowRig) -> None:
    """A run whose first entry is on its way."""
    rig.start("r", "looking", {"what": "it"})
    rig.run()


@pytest.mark.parametrize("known", [True, False])
def test_an_entry_that_is_read_before_its_report_counts_then_and_once(known: bool) -> None:
    rig = SlowRig()
    started(rig)

    assert (rig.lane.log.flying, len(rig.requests()), rig.settled()) == (1, 1, True)

    rig.report(known=known)
    rig.run()

    assert (rig.lane.log.flying, len(rig.requests()), rig.settled(), rig.lane.log.blocked) == (0, 1, True, False)
    assert finish(rig)[-1] == "RunCompleted"
    assert counts(rig) == (0, 0, 0, 0)
    assert (len(rig.outcomes()), rig.appended) == (1, 2)


def test_no_call_begins_before_its_entry_counts_however_many_follow() -> None:
    rig = SlowRig(lands=False)
    started(rig)
    remind(rig, "one")

    assert (len(rig.coming), rig.lane.log.flying, rig.requests(), rig.settled()) == (2, 2, [], False)

    rig.land(1)
    rig.run()

    assert (len(rig.requests()), rig.settled()) == (1, True)
    assert finish(rig)[-1] == "RunCompleted"
    assert counts(rig) == (0, 0, 0, 0)


def test_an_entry_with_unknown_outcome_that_is_in_the_log_is_read_there() -> None:
    rig = SlowRig()
    rig.reads(log=False)
    started(rig)
    rig.report(known=False)
    rig.run()

    assert (rig.requests(), rig.lane.log.blocked, rig.settled()) == ([], True, False)

    rig.reads(log=True)
    rig.run()

    assert (len(rig.requests()), rig.lane.log.blocked, rig.settled()) == (1, False, True)
    assert finish(rig)[-1] == "RunCompleted"
    assert (counts(rig)[:3], rig.appended) == ((1, 0, 1), 2)


def test_an_entry_with_unknown_outcome_that_never_comes_is_decided_again() -> None:
    rig = SlowRig(lands=False)
    started(rig)
    rig.lands = True
    rig.lose()
    rig.run()

    assert (len(rig.requests()), rig.settled()) == (1, True)
    assert finish(rig)[-1] == "RunCompleted"
    assert (counts(rig)[:3], rig.appended) == ((0, 0, 1), 3)


def test_an_entry_that_comes_too_late_takes_back_nothing_that_stands_on_what_came_first() -> None:
    rig = SlowRig(lands=False)
    started(rig)
    rig.broker.write(of_another(rig.coming[0]))
    rig.run()  # another planner has started the run
    remind(rig, "one")
    rig.land(1)
    rig.report()
    rig.run()  # the own start is void
    remind(rig, "two")

    assert len(rig.coming) == 2  # both signals, one on top of the other

    assert finish(rig)[-1] == "RunCompleted"
    assert counts(rig)[:3] == (1, 1, 0)
    assert (len(rig.requests()), len(rig.outcomes()), rig.settled()) == (1, 1, True)


@pytest.mark.parametrize("known", [True, False])
def test_what_stands_on_a_lost_race_is_decided_again(known: bool) -> None:
    rig = SlowRig(lands=False)
    started(rig)
    remind(rig, "one")
    rig.broker.write(of_another(rig.coming[0]))
    rig.land()
    rig.lands = True
    rig.report(known=known)
    rig.run()

    assert finish(rig)[-1] == "RunCompleted"
    assert (counts(rig)[0], counts(rig)[1] > 0, len(rig.requests()), len(rig.outcomes())) == (1, True, 1, 1)
    assert kinds(rig).count("SignalReceived") == 1


def test_a_key_alone_makes_no_record_an_own_one() -> None:
    rig = SlowRig(lands=False)
    started(rig)
    own, other = rig.coming[0], of_another(rig.coming[0])
    rig.broker.write(own._replace(value=other.value))
    rig.run()

    assert (rig.requests(), rig.settled()) == ([], False)

    assert finish(rig)[-1] == "RunCompleted"
    assert (counts(rig)[:2], rig.settled()) == ((0, 1), True)


@pytest.mark.parametrize(("letters", "most"), [(10, 40), (20_000, 3)])
def test_entries_on_their_way_are_bounded_in_number_and_in_bytes(letters: int, most: int) -> None:
    rig = SlowRig(lands=False, waiting=100)
    rig.settings = replace(rig.settings, limits=replace(rig.settings.limits, flying_entries=40))
    rig.successor()
    rig.run()
    for number in range(100):
        rig.start(f"r-{number}", "looking", {"what": "a" * letters})
        rig.run()

    assert rig.lane.log.flying == most

    finish(rig)

    assert len(rig.requests()) == 100


def test_a_turn_answers_a_part_of_what_waits() -> None:
    rig = SlowRig()
    rig.settings = replace(rig.settings, limits=replace(rig.settings.limits, flying_entries=LEAST * 6))
    rig.successor()
    rig.run()
    for number in range(LEAST * 3):
        rig.start(f"r-{number}", "looking", {"what": "it"})
    rig.run()
    for request in rig.take():
        rig.answer(request)
    before, parts = rig.appended, list[int]()
    while rig.planner.next_due_ms() == 0 or not parts:
        rig.turn()
        parts.append(rig.appended - before - sum(parts))

    assert parts == [LEAST * 3 // 2, LEAST, LEAST // 2]
    rig.run()
    assert len(rig.outcomes()) == LEAST * 3


def test_an_input_without_an_entry_is_settled_however_busy_the_lane_is() -> None:
    rig = SlowRig()
    started(rig)
    finish(rig)
    rig.start("busy", "looking", {"what": "it"})
    rig.run()
    rig.start("r", "looking", {"what": "it"})
    rig.run()

    assert rig.lane.log.flying == 1
    assert (rig.settled(), rig.lane.inbox.waiting.counts()[WaitsFor.LOG]) == (True, 0)


def test_a_planner_that_ends_waits_for_its_entries() -> None:
    rig = SlowRig(lands=False)
    started(rig)
    ended = [rig.planner.drain() for _ in range(3)]
    rig.land()
    rig.report()
    rig.turn()
    rig.turn()

    assert (ended, rig.planner.drain(), len(rig.requests())) == ([False] * 3, True, 1)
