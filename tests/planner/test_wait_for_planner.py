"""The time for which a request waits until a planner takes it is part of its run."""

from __future__ import annotations

from dataclasses import replace

from refold.client.operations.runs import Runs
from refold.client.reading.run import info_of
from refold.core.events import RunRequested
from refold.engine.adapters.memory.log import MemoryLogReader
from tests.cli.chronicle import NOW, Chronicle, requested
from tests.cli.test_views import drawn
from tests.planner.clocked import NOW as BEGUN
from tests.planner.clocked import Rig


def test_a_run_begins_when_its_request_was_appended_and_not_when_a_planner_took_it() -> None:
    rig = Rig()
    rig.start("r-1", "idling", {})
    rig.now += 12_000  # no planner runs
    rig.run()

    info = info_of(Runs(MemoryLogReader(rig.broker)).get("r-1"))

    assert (info.status, info.requested_ms, info.waited_ms) == ("completed", BEGUN, 12_000)


def test_the_wait_is_shown_once_it_is_longer_than_a_turn() -> None:
    def shown(wait_ms: int) -> str:
        chronicle, (first, *others) = Chronicle(), requested()
        assert isinstance(first, RunRequested)
        chronicle.add("r", [replace(first, sent_ms=NOW + 1 - wait_ms), *others], emit=False)
        return drawn(chronicle)

    assert "waited 12.0 s for a planner" in shown(12_000)
    assert "for a planner" not in shown(40)


def test_a_time_that_cannot_be_that_of_a_request_counts_as_none() -> None:
    request = RunRequested("a", "1", "d", "s")

    assert [replace(request, sent_ms=ms).asked_ms(1_000) for ms in (-1, 0, 1_001, 10**17)] == [1_000] * 4
