"""Dead letters, limits and stalled runs out of a view, while Kafka is away."""

from __future__ import annotations

import dataclasses

import pytest
from benchmarks.prefill import finished

from refold.client.letters import find_letter, replayed
from refold.core.errors import ConflictError, NotFoundError, UsageError
from refold.core.events import Spendable
from refold.core.ids import RunId, hold_key, home
from refold.core.messages import DeadLetter, Hold, WindowSpent
from refold.core.topics import BUDGET_SPENT, DEAD_LETTER, RUN_SIGNALLED, RUN_SNAPSHOT
from refold.core.wire import codec
from tests.gateway.test_reading import Bench, site

__all__ = ["site"]
AT_MS = 1_790_000_000_000


def test_dead_letters_are_listed_by_run_code_and_time(site: Bench) -> None:
    for number, code in enumerate(("late", "late", "unknown")):
        letter = DeadLetter("run-signalled", 0, 7 + number, code, "it is over", b"k", b"v", "planner-1", AT_MS + number)
        site.log.append(DEAD_LETTER, 0, f"run-{number % 2}/s".encode(), codec.encode(letter))
    site.catch_up()

    assert [row["letter"] for row in site.get("/api/dead-letters")] == ["0/2", "0/1", "0/0"]
    assert [row["from"] for row in site.get("/api/dead-letters?run=run-1")] == ["run-signalled/0/8"]
    assert [row["letter"] for row in site.get(f"/api/dead-letters?code=late&since_ms={AT_MS + 1}")] == ["0/1"]
    assert site.get("/api/dead-letters?code=none") == []


def test_what_needs_kafka_says_that_it_is_away(site: Bench) -> None:
    replay = "/api/dead-letters/0/1/replay?dry_run=true"

    assert site.get("/api/dead-letters/0/0", 503)["code"] == "unreachable"
    assert site.http.post(replay, headers={"content-type": "application/json"}).status_code == 503


@pytest.mark.parametrize("place", ["nonsense", "executor/0/99999999999999999999", "../0", "0/-1", "x/0/0", "0/0\n"])
def test_what_is_no_place_of_a_letter_is_refused(site: Bench, place: str) -> None:
    with pytest.raises(UsageError, match="is not a dead letter"):
        find_letter(site.log, place)


def test_a_letter_is_found_by_its_place_and_its_input_where_it_lies(site: Bench) -> None:
    site.log.append(RUN_SIGNALLED, 1, b"run-1/s", b"what was said")
    letter = DeadLetter(RUN_SIGNALLED, 1, 0, "late", "it is over", b"run-1/s", b"what was said", "planner-1", AT_MS)
    forged = dataclasses.replace(letter, value=b"something else")
    for each in (letter, forged):
        site.log.append(DEAD_LETTER, 1, b"run-1/s", codec.encode(each))

    found, at = replayed(site.log, "1/0")
    assert (found.topic, found.value, at) == (RUN_SIGNALLED, b"what was said", home(RunId("run-1"), 2))
    with pytest.raises(ConflictError, match="is not what letter 1/1 says"):
        replayed(site.log, "1/1")
    with pytest.raises(UsageError, match="not sent again"):
        replayed(site.log, "approval/1/0")
    for place in ("1/2", "7/0"):
        with pytest.raises(NotFoundError):
            find_letter(site.log, place)


def test_limits_are_those_of_the_fold(site: Bench) -> None:
    spent = WindowSpent("2026-11", "shop", "", "", 0, 5, 90, 7, 1, Spendable(100, soft_percent=80), "planner-1")
    for partition in (0, 1):
        site.log.append(BUDGET_SPENT, partition, b"m/shop/0/a", codec.encode(spent))
    site.catch_up()

    (limit,) = site.get("/api/limits")
    assert (limit["window"], limit["spent"]["tokens"], limit["reached"]) == ("2026-11", 90, "soft")


def test_stalled_are_the_runs_with_a_hold_that_are_not_over(site: Bench) -> None:
    ended, live = RunId("run-1"), RunId("run-live")
    for key, value in list(finished(live, AT_MS))[:-1]:
        site.log.write(key, value)
    site.catch_up()
    assert site.get("/api/runs?state=stalled")["runs"] == []

    for run in (ended, live):
        hold = Hold(run, "stalled", "no_agent", "nobody has it")
        site.log.append(RUN_SNAPSHOT, home(run, 2), hold_key(run), codec.encode(hold))
    site.catch_up()

    assert [run["run_id"] for run in site.get("/api/runs?state=stalled")["runs"]] == ["run-live"]
