"""Live figures: what a gateway shows of `run-insight`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from refold.console.gateway.figures import WINDOW_MS, LiveFigures
from refold.console.pages.records import now_grid
from refold.core.errors import UnreachableError
from refold.core.messages import RunInsight
from refold.core.topics import RUN_INSIGHT
from refold.core.wire import codec
from refold.engine.ports.log import Record
from tests.waiting import eventually


def now_ms() -> int:
    return int(time.time() * 1000)


def record(key: str, value: RunInsight | bytes | None) -> Record:
    framed = codec.encode(value) if isinstance(value, RunInsight) else value
    return Record(RUN_INSIGHT, 0, 0, key.encode(), framed, list, now_ms())


def of_agent(now: int, minutes_ago: int, calls: int, name: str = "shop") -> Record:
    at = now - minutes_ago * 60_000
    return record(f"agent/{at // 60_000}/{name}", RunInsight("agent", at, name, requested=1, calls=calls, tokens=10))


def test_minutes_are_added_up_and_what_is_old_or_taken_back_does_not_count() -> None:
    now = now_ms()  # of this test: a suite may take longer than the window that figures count in
    failing = RunInsight("failing", now, "pay", failed=9)
    records = [
        *(of_agent(now, 2, 5), of_agent(now, 1, 3), of_agent(now, 1, 4), of_agent(now, 1, 2, "desk")),
        of_agent(now, WINDOW_MS // 60_000 + 1, 50),
        *(record("failing/1/pay", failing), record("failing/2/pay", failing), record("failing/2/pay", None)),
        record("loop/r-1", RunInsight("loop", now, "look", "r-1", equal_calls=6)),
        record("agent/0/shop", b"\0garbage"),
    ]

    def read() -> Iterator[Record | None]:
        yield from records
        yield None

    found = LiveFigures(read).latest()

    assert {(each.kind, each.name): (each.calls, each.tokens, each.requested) for each in found} == {
        ("agent", "shop"): (9, 20, 2),
        ("agent", "desk"): (2, 10, 1),
        ("failing", "pay"): (0, 0, 0),
        ("loop", "look"): (0, 0, 0),
    }
    rows = [[cell.value for cell in row] for row in now_grid(found).rows]
    assert rows[:2] == [["loop of equal calls", "look", "", 6, 0, 0, 0, 0], ["failing tool", "pay", "", 9, 0, 9, 0, 0]]
    assert [row[1] for row in rows[2:]] == ["shop", "desk"]


def test_a_topic_that_cannot_be_read_shows_nothing_and_is_tried_again() -> None:
    tries = []

    def read() -> Iterator[Record | None]:
        tries.append(1)
        if len(tries) < 3:
            raise UnreachableError("Kafka is away")
        yield of_agent(now_ms(), 0, 1)
        yield None

    figures = LiveFigures(read)

    assert figures.latest() == []
    assert eventually(figures.latest)[0].calls == 1
    assert now_grid([]).command == "refold serve insights"
