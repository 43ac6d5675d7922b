"""The page of workers and its route: red where people have to start one; and calls that wait for an executor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from refold.client.operations.runs import Runs
from refold.client.platform import Platform
from refold.client.reading.member import Worker, WorkerGroup, Workers
from refold.core.events import CallDispatched, CallProposed, RetryPolicy
from refold.engine.adapters.kafka.groups import GroupState
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.adapters.memory.log import MemoryLogReader
from tests.cli.chronicle import TOPICS
from tests.gateway.test_reading import Bench
from tests.projections.histories import begun, entries

MAIL = WorkerGroup(
    role="executor", pool="mail", members=0, unserved=[0, 1], needed=True, waiting=3, oldest_s=150.0, lag={}
)
PLANNER = WorkerGroup(
    role="planner", pool="", members=1, unserved=[], needed=True, waiting=0, oldest_s=0.0, lag={"run-requested": 2}
)
GONE = Worker(
    role="executor", pool="mail", member="mail-1", alive=False, slots=200, slots_used=7, seen_ms=1_700_000_000_000
)
ALIVE = Worker(role="planner", pool="", member="planner-1", alive=True, partitions=[0, 1], versions=["order 1"])


class Watched(Platform):
    """A platform with a planner, and with no executor of the pool mail."""

    runs = Runs(MemoryLogReader(MemoryBroker(TOPICS, 1)))

    def knock(self) -> None:
        """It is there."""

    def groups(self, names: Iterable[str]) -> dict[str, GroupState]:
        """No group has a member."""
        return {name: GroupState((), {}) for name in names}

    def workers(self) -> Workers:
        """One lives, one was killed."""
        return Workers(groups=[PLANNER, MAIL], workers=[ALIVE, GONE])


@pytest.fixture
def site() -> Iterator[Bench]:
    bench = Bench(Watched)
    call = CallProposed(1, "send", "{}", "k", "mail", "once", 1_000, RetryPolicy())
    for key, value in entries("waits-1", begun(), [call, CallDispatched(1, 1, 1_700_000_060_000)]):
        bench.log.write(key, value)
    bench.catch_up()
    with bench.http:
        yield bench


def text_of(site: Bench, path: str) -> str:
    """The words of a page."""
    answer = site.http.get(path)
    assert answer.status_code == 200, answer.text
    return " ".join(re.sub(r"<[^>]+>", " ", answer.text).split())


def test_the_page_names_what_is_missing_with_the_command_and_marks_the_killed(site: Bench) -> None:
    text, html = text_of(site, "/workers"), site.http.get("/workers").text

    assert "executor of pool mail missing refold serve executor --app APP --pool mail" in text
    assert html.count('class="pill missing"') == 1
    assert html.count('class="pill gone"') == 1
    assert "mail-1 executor gone mail 7 / 200 0" in text
    assert "planner-1 planner alive" in text


def test_the_old_address_leads_to_the_page_and_the_api_has_the_same(site: Bench) -> None:
    moved = site.http.get("/health", follow_redirects=False)
    found: dict[str, Any] = site.get("/api/workers")

    assert (moved.status_code, moved.headers["location"]) == (308, "/workers")
    assert [(each["role"], each["pool"], each["members"]) for each in found["groups"]] == [
        ("planner", "", 1),
        ("executor", "mail", 0),
    ]
    assert [each["alive"] for each in found["workers"]] == [True, False]


def test_a_call_whose_pool_has_no_executor_says_so_on_its_page_and_in_the_api(site: Bench) -> None:
    waits = "waits for an executor of pool mail: none is there"

    assert waits in text_of(site, "/runs/waits-1")
    assert [step["waits"] for step in site.get("/api/runs/waits-1")["timeline"]] == [waits]
    assert waits not in text_of(site, "/runs/waits-1?at=1"), "then it was not asked for"
