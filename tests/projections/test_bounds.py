"""A projection whose code is slow, or makes huge rows, stops by name, run and event; others go on."""

from __future__ import annotations

import time
from typing import ClassVar

import pytest

from refold.console.projections.shipped.projection import Shipped
from refold.core.events import CallCompleted
from refold.sdk.projection import Projection, Recorded, View, key, table
from tests.projections.memory_views import MemoryViewDatabase
from tests.projections.source import ListedLog, attentive
from tests.projections.test_service import settle


class Greedy(Projection):
    """Sleeps, or writes what is too large."""

    events = (CallCompleted,)
    texts = table("greedy_texts", key(run_id=str, step=int), text=str)
    slow: ClassVar[bool] = False

    def apply(self, view: View, recorded: Recorded) -> None:
        if self.slow:
            time.sleep(0.2)
        view.put(self.texts, step=recorded.call.step, text="" if self.slow else "x" * (10 << 20))


@pytest.mark.parametrize("slow", [False, True], ids=["large", "slow"])
def test_a_projection_that_takes_too_much_stops_alone(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Greedy, "slow", slow)
    log, database = ListedLog(), MemoryViewDatabase()
    log.finish("r-1", "r-2")
    greedy, ours = (attentive(each, database, log) for each in (Greedy(), Shipped()))

    settle(greedy, ours)

    assert greedy.stopped.startswith("Greedy.apply, run r-")
    assert ("s for a batch" if slow else "10485763 characters") in greedy.stopped
    assert ", seq " in greedy.stopped
    assert len(list(database.public["runs"].scan(Shipped.runs))) == 2
    assert list(database.store("greedy", 1).scan(Greedy.texts)) == []
