"""The host carries effects out in their order: a tool begins before anything that may wait."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from refold.core.messages import ToolRequest
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.adapters.memory.log import MemoryEventLog
from refold.engine.ports.effects import Append, Effect, Item, LanesNow, News, Now, Read, StartTool, StopTool
from refold.engine.ports.log import Delivery, Membership, Outgoing
from refold.engine.runtime.host import Host

_REQUEST = ToolRequest("r-1/3", "r-1", 1, 1, 0, "pay", "{}", "k", "once", 1_000)


class Once:
    """A service that wants its effects once."""

    def __init__(self, effects: list[Effect]) -> None:
        self.counts: Counter[str] = Counter()
        self.news: list[News] = []
        self._effects = effects

    def turn(self, inbox: list[Item], now: Now) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def next_due_ms(self) -> int | None:
        return None

    def lanes_now(self) -> LanesNow:
        return LanesNow()

    def drain(self) -> bool:
        return True


class Diary:
    """Tools that write down what they are told."""

    alive = True

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def start(self, orders: Sequence[StartTool]) -> None:
        self._lines += [f"start {order.number}" for order in orders]

    def stop(self, order: StopTool) -> None:
        self._lines.append(f"stop {order.number}")

    def close(self) -> None:
        self._lines.append("close")


class TellingLog(MemoryEventLog):
    """A log that writes down when it appends, which on Kafka is when it waits."""

    lines: list[str]

    def append(self, records: Sequence[Outgoing]) -> list[Delivery]:
        self.lines.append("append")
        return super().append(records)


class Slow:
    """A service whose partition goes and comes back while it thinks, as it can where another thread reads."""

    def __init__(self, log: MemoryEventLog, stop: threading.Event) -> None:
        self.counts: Counter[str] = Counter()
        self.news: list[News] = []
        self._log, self._stop = log, stop

    def turn(self, inbox: list[Item], now: Now) -> list[Effect]:
        self._stop.set()
        self._log.reopen(0)
        self._log.take(1, 0)
        return [Read("runs", 0, 0)]

    def next_due_ms(self) -> int | None:
        return None

    def lanes_now(self) -> LanesNow:
        return LanesNow()

    def drain(self) -> bool:
        return True


def test_what_a_turn_orders_is_meant_for_the_assignment_that_it_knows() -> None:
    broker, stop = MemoryBroker(["runs"]), threading.Event()
    log = MemoryEventLog(broker, Membership("g", "m", ("runs",)), keep_place=True)
    log.append([Outgoing("runs", 0, b"k", b"v", (), 1)])

    Host([Slow(log, stop)], log).run(stop.is_set)

    assert log.take(10, 0).records == []


def test_tools_begin_and_stop_in_the_order_of_the_turn() -> None:
    lines: list[str] = []
    log = TellingLog(
        MemoryBroker(["tool-claimed.default", "tool-requested.default"]),
        Membership("g", "m", ("tool-claimed.default",)),
    )
    log.lines = lines
    effects: list[Effect] = [
        StartTool(1, _REQUEST, probe=False),
        StartTool(2, _REQUEST, probe=False),
        StopTool(2, "cancelled"),
        Append([Outgoing("tool-claimed.default", 0, b"k", b"v", (), 7)]),
    ]
    host = Host([Once(effects)], log, tools=lambda _: Diary(lines))

    host.pump([])

    assert lines == ["start 1", "start 2", "stop 2", "append"]
