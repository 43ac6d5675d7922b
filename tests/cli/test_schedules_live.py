"""Schedules on a real platform: begun by `refold dev`, killed in between, changed by another version of the code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.terminal import Dev, refold, served
from tests.cli.test_gateway_live import answers
from tests.waiting import eventually

APP = """
from datetime import timedelta
from pathlib import Path
from refold import App, Context
app = App("clock")

@app.tool(effect="keyed")
def leave(tick: str, *, idempotency_key: str) -> None:
    with Path({effects!r}).open("a") as file:
        file.write(f"{{tick}} {{idempotency_key}}\\n")

@app.agent
async def work(ctx: Context, of: str) -> None:
    await ctx.call(leave, of)

app.every("pulse", work, every=timedelta(seconds=1), input={{"of": "{of}"}}, overlap=50, catch_up="all")
app.every("yearly", work, cron="0 0 1 1 *", zone="Europe/Berlin", input={{"of": "year"}})
"""


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    folder = tmp_path_factory.mktemp("clock")
    written(folder, "one")
    with served(folder / "app.py", folder) as dev:
        yield dev


def written(folder: Path, of: str) -> None:
    (folder / "app.py").write_text(APP.format(effects=str(folder / "effects"), of=of))


def rows(dev: Dev) -> dict[str, dict[str, Any]]:
    """Schedules by name; nothing while the broker is away."""
    found = refold("schedule", "list", "--json", "--data", str(dev.data))
    return {row["schedule"]: row for row in json.loads(found.stdout)} if found.exit_code == 0 else {}


def started(dev: Dev) -> int:
    return int(rows(dev).get("pulse", {}).get("started", 0))


def ran(dev: Dev, name: str) -> list[dict[str, Any]]:
    """The runs that a schedule has started."""
    found = dev.read("run", "list", "--label", f"schedule={name}", "--agent", "work", "--limit", "1000")
    return sorted(found, key=lambda row: str(row["labels"]["tick"]))


def test_each_second_has_one_run_whatever_is_killed(clock: Dev) -> None:
    eventually(lambda: started(clock) >= 3, what="the first ticks")
    for service in ("planner", "broker", "valkey", "planner"):
        clock.kill(service)
        enough = eventually(partial(started, clock), what="the schedule") + 3
        eventually(lambda enough=enough: started(clock) >= enough, what="more ticks")  # type: ignore[misc]

    paused = clock.read("schedule", "pause", "pulse", "--reason", "enough")
    eventually(lambda: all(row["status"] == "completed" for row in ran(clock, "pulse")), what="the end of all runs")
    ticks = [datetime.fromisoformat(row["labels"]["tick"]) for row in ran(clock, "pulse")]
    effects = Counter(line.split()[1] for line in (clock.data / "effects").read_text().splitlines())

    assert paused["status"] == "paused"
    assert {later - earlier for earlier, later in pairwise(ticks)} == {timedelta(seconds=1)}
    assert len(effects) == len(ticks)


def test_a_schedule_is_seen_triggered_and_filled_in(clock: Dev) -> None:
    with httpx.Client(base_url=clock.state["gateway"], timeout=60) as http:
        eventually(lambda: answers(http))
        before = len(ran(clock, "yearly"))
        answer = clock.read("schedule", "trigger", "yearly")
        past = "--from", "2021-06-01T00:00Z", "--to", "2024-06-01T00:00Z"
        filled = clock.read("schedule", "backfill", "yearly", *past)
        eventually(lambda: len(ran(clock, "yearly")) == before + 4, what="the ticks of the past")
        eventually(lambda: len(rows(clock)["yearly"]["outcomes"]) == 4, what="their ends")
        shown = clock.read("schedule", "show", "yearly")
        clock.refold("schedule", "show", "nothing", code=3)

        assert filled["ticks"] == 3
        assert answer["tick"]
        assert shown["next"][0].endswith("-01-01T00:00:00+01:00")
        years = [f"{year}-01-01T00:00:00+01:00" for year in (2022, 2023, 2024)]
        assert [row["labels"]["tick"] for row in ran(clock, "yearly")][:3] == years
        eventually(lambda: {row["schedule"]: row for row in http.get("/api/schedules").json()}["yearly"] == shown)
        page = http.get("/schedules").text
        assert all(name in page for name in ("yearly", "pulse", "Europe/Berlin", "paused"))


def test_another_version_of_the_code_changes_its_schedules(clock: Dev) -> None:
    clock.read("schedule", "resume", "pulse")
    same = clock.read("schedule", "apply", "--app", str(clock.data / "app.py"))

    written(clock.data, "two")
    eventually(lambda: any(line.startswith("two ") for line in effects(clock)), what="a run with the other input")

    assert [row["outcome"] for row in same] == ["unchanged", "unchanged"]


def effects(dev: Dev) -> list[str]:
    return (dev.data / "effects").read_text().splitlines()


def test_a_removed_schedule_can_begin_again(clock: Dev) -> None:
    removed = clock.read("schedule", "remove", "yearly")
    clock.refold("schedule", "trigger", "yearly", code=3)
    applied = clock.read("schedule", "apply", "--app", str(clock.data / "app.py"))

    assert removed["status"] == "cancelled"
    assert {"schedule": "yearly", "outcome": "started"} in applied
    assert rows(clock)["yearly"]["run_id"] == "yearly:2"
