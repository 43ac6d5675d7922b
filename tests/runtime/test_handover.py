"""Records that are handed over and fetched reach their reader once, in order of offset, and none before its topic."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from refold.engine.ports.log import Assigned, Outgoing, Reached, Record, Revoked, Shrunk, Taken
from refold.engine.runtime import handover
from refold.engine.runtime.handover import HandedRecords, Handover

TOPIC = "tool-requested.default"


def record(offset: int, value: bytes | None = None, *, topic: str = TOPIC) -> Record:
    return Record(topic, 0, offset, b"k%d" % offset, b"v%d" % offset if value is None else value, lambda: None, 7)


class Desk:
    """A reader of one topic, with its queue."""

    def __init__(self, begun: int | None = 0) -> None:
        self.queue: list[Record] = []
        self.handover = Handover()
        self.handed = HandedRecords(frozenset({TOPIC}))
        self.handover.connect(iter([TOPIC]), self.queue.append)
        self.read: list[int] = []
        if begun is not None:
            self.fetch(begun={(TOPIC, 0): begun})

    def hand(self, *offsets: int) -> None:
        """Have records acknowledged, and take them off the queue."""
        for offset in offsets:
            self.handover.stored(Outgoing(TOPIC, 0, b"k%d" % offset, b"v%d" % offset, (), 1), offset, 7)
            self.take()

    def take(self) -> None:
        while self.queue:
            self.read += [each.offset for each in self.handed.take(self.queue.pop(0))]

    def fetch(self, *offsets: int, **more: object) -> Taken:
        batch = Taken(records=[record(offset) for offset in offsets], **more)  # type: ignore[arg-type]
        self.read += [each.offset for each in self.handed.merge(batch)]
        return batch


def test_an_acknowledged_record_is_read_at_once_and_its_fetch_is_passed_over() -> None:
    desk = Desk()

    desk.hand(0, 1)
    desk.fetch(0, 1, 2)

    assert desk.read == [0, 1, 2]


def test_what_was_fetched_before_its_writer_knew_is_not_read_again() -> None:
    desk = Desk()

    desk.fetch(0, 1)
    desk.hand(0, 1, 2)

    assert desk.read == [0, 1, 2]


def test_a_record_behind_one_of_another_writer_waits_for_the_fetch() -> None:
    desk = Desk()

    desk.hand(0, 2, 3)
    assert desk.read == [0]
    desk.fetch(0, 1)

    assert desk.read == [0, 1, 2, 3]


def test_only_what_lies_without_a_gap_follows_a_fetch() -> None:
    desk = Desk()

    desk.hand(1, 2, 5, 6)
    desk.fetch(0, 1, 2, 3)
    assert desk.read == [0, 1, 2, 3]
    desk.fetch(4)

    assert desk.read == [0, 1, 2, 3, 4, 5, 6]


def test_records_behind_a_gap_are_bounded_and_the_oldest_come_by_the_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "AHEAD", 3)
    desk = Desk()

    desk.hand(*range(1, 10))
    desk.fetch(*range(8))

    assert desk.read == list(range(10))


def test_what_no_fetch_confirms_for_long_ends_the_hand_over_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "UNCONFIRMED", 2)
    desk = Desk()

    desk.hand(0, 1, 2, 3)
    assert desk.read == [0, 1]
    desk.fetch(0, 1, 2)

    assert desk.read == [0, 1, 2, 3]


def test_a_paused_place_gets_nothing_and_a_resumed_one_what_is_fetched() -> None:
    desk = Desk()

    desk.handed.flow((TOPIC, 0), paused=True)
    desk.hand(0, 1)
    assert desk.read == []
    desk.handed.flow((TOPIC, 0), paused=False)
    desk.fetch(0, 1)
    desk.hand(2)

    assert desk.read == [0, 1, 2]


def test_nothing_is_handed_over_before_the_place_is_read_here() -> None:
    desk = Desk(begun=None)

    desk.hand(0)
    desk.fetch(begun={(TOPIC, 0): 0})
    desk.fetch(0)
    desk.hand(1)

    assert desk.read == [0, 1]


@pytest.mark.parametrize("change", [Revoked(0), Assigned(0, {}, {}, {})], ids=["revoked", "assigned again"])
def test_a_place_that_went_gets_nothing_more_until_it_is_read_again(change: Revoked | Assigned) -> None:
    desk = Desk()

    desk.hand(0)
    desk.fetch(rebalances=[change])
    desk.hand(1)
    assert desk.read == [0]
    desk.fetch(begun={(TOPIC, 0): 1})
    desk.hand(2)
    desk.fetch(1)

    assert desk.read == [0, 1, 2]


def test_a_seek_reads_again_what_was_handed_over() -> None:
    desk = Desk()

    desk.hand(0, 1)
    desk.fetch(begun={(TOPIC, 0): 0})
    desk.hand(2)  # behind what is to be read again
    desk.fetch(0, 1)

    assert desk.read == [0, 1, 0, 1, 2]


def test_a_hole_is_passed_and_what_follows_it_is_handed_over() -> None:
    desk = Desk()

    desk.hand(0)
    desk.fetch(reached=[Reached(TOPIC, 0, 3)])
    desk.hand(3)

    assert desk.read == [0, 3]


def test_another_record_at_the_offset_of_an_acknowledged_one_is_a_log_that_shrank() -> None:
    desk = Desk()

    desk.hand(0, 1)
    batch = Taken(records=[record(0), record(1, b"other"), record(2)])
    desk.handed.merge(batch)
    desk.hand(3)

    assert batch.shrunk == [Shrunk(TOPIC, 0, 1)]
    assert desk.read == [0, 1]


def test_a_log_that_shrank_is_followed_from_where_it_is_read_again() -> None:
    desk = Desk()

    desk.hand(0, 1)
    desk.fetch(shrunk=[Shrunk(TOPIC, 0, 1)])
    desk.hand(2)
    desk.fetch(begun={(TOPIC, 0): 0})
    desk.fetch(0)
    desk.hand(1)

    assert desk.read == [0, 1, 0, 1]


def test_other_topics_of_the_reader_are_as_they_were() -> None:
    desk = Desk()

    batch = Taken(records=[record(5, topic="catalog"), record(5, topic="catalog")])

    assert [each.offset for each in desk.handed.merge(batch)] == [5, 5]
    desk.handover.stored(Outgoing("catalog", 0, b"k", b"v", (), 1), 6, 7)
    assert desk.queue == []


def test_a_handed_record_is_the_one_that_was_written() -> None:
    desk = Desk()

    desk.handover.stored(Outgoing(TOPIC, 0, b"key", None, [("a", b"b")], 1), 0, 12)
    (handed,) = desk.handed.take(desk.queue.pop())

    assert handed[:5] == (TOPIC, 0, 0, b"key", None)
    assert (handed.read_headers(), handed.at_ms) == ([("a", b"b")], 12)


@pytest.mark.parametrize("seed", range(50))
def test_in_any_order_of_events_each_record_is_read_once_in_order(seed: int) -> None:
    """Own and foreign records, acknowledged and fetched at any time: nothing is lost, doubled or turned round."""
    rng, desk = Random(seed), Desk()
    written, acknowledged, fetched = 0, list[int](), 0

    def some(most: int) -> Iterable[int]:
        return range(rng.randrange(1, most))

    while written < 200:
        step = rng.choice(("write", "write", "deliver", "fetch", "pause", "resume"))
        if step == "write":
            for _ in some(4):
                if rng.random() < 0.9:
                    acknowledged.append(written)
                written += 1
        elif step == "deliver":
            for _ in some(6):
                if acknowledged:
                    desk.hand(acknowledged.pop(0))
        elif step == "fetch":
            upto = rng.randint(fetched, written)
            desk.fetch(*range(fetched, upto))
            fetched = upto
        else:
            desk.handed.flow((TOPIC, 0), paused=step == "pause")
    desk.handed.flow((TOPIC, 0), paused=False)
    desk.fetch(*range(fetched, written))
    desk.hand(*acknowledged)

    assert desk.read == list(range(written))
