"""Schedules: each tick starts one run, whatever crashes, pauses, and clocks do. The oracle is cronsim itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from refold import App, Context, Schedule, UsageError
from refold.core.run.intents import SCHEDULE_AGENT
from refold.sdk.schedule import GENERATION_TICKS
from refold.testing import AgentRun
from refold.testing.reading import Boundary

FAR = Boundary("planner", 10**9)
"""A kill that never comes: the kit then leaves out its own comparison after each entry."""

app = App("clock")


@app.agent
async def quick(ctx: Context) -> None:
    """Ends at once."""


@app.agent
async def slow(ctx: Context) -> None:
    """Ends when it is told so."""
    if (await ctx.wait_for("end")).data:
        raise ValueError("no")


app.every("any", quick, every=timedelta(hours=1))


def begun(agent: str = "quick", *, boundary: Boundary | None = None, **options: Any) -> AgentRun:
    spec = Schedule(agent=agent, **options)
    return AgentRun(app, SCHEDULE_AGENT, {"spec": spec.model_dump(mode="json")}, name="s", boundary=boundary)


def at(run: AgentRun) -> datetime:
    return datetime.fromtimestamp(run.now_ms / 1000, UTC)


def ticks(run: AgentRun) -> list[str]:
    """Labels of all runs that the schedule has started, over all generations."""
    requests = [child.state.request for child in run.family if child.agent != SCHEDULE_AGENT]
    return [request.labels["tick"] for request in requests if request]


def sleeping(run: AgentRun) -> int:
    """The sleep that ends first."""
    return min((opened.due_ms, step) for step, opened in run.state.open.items() if opened.phase == "sleep")[1]


def turn(run: AgentRun) -> AgentRun:
    """The next tick. Returns the generation that goes on."""
    run.latest.settle(sleeping(run.latest))
    return run.latest


def late(run: AgentRun) -> bool:
    """True if the next tick lies in the past."""
    return run.latest.state.open[sleeping(run.latest)].due_ms <= run.now_ms


def gaps(run: AgentRun) -> list[timedelta]:
    """Times between the ticks of runs that were started one after the other."""
    hours = [datetime.fromisoformat(tick) for tick in ticks(run)]
    return [later - earlier for earlier, later in pairwise(hours)]


def jump(run: AgentRun, **by: float) -> None:
    run.executors.now_ms += int(timedelta(**by).total_seconds() * 1000)


def due(cron: str, zone: str, after: datetime, until: datetime) -> list[str]:
    found: Iterator[datetime] = CronSim(cron, after.astimezone(ZoneInfo(zone)))
    return [tick.isoformat() for tick in takewhile(lambda tick: tick <= until, found)]


def test_each_tick_starts_one_run_with_its_time() -> None:
    run = begun(every=timedelta(minutes=5))

    for _ in range(3):
        turn(run)

    first = datetime.fromisoformat(ticks(run)[0])
    assert [datetime.fromisoformat(tick) - first for tick in ticks(run)] == [timedelta(minutes=5 * n) for n in range(3)]
    assert first.minute % 5 == 0
    shown = run.values["schedule"]
    assert shown["started"] == 3
    assert [each["status"] for each in shown["outcomes"]] == ["completed"] * 3
    assert len(shown["next"]) == 10
    assert datetime.fromisoformat(shown["next"][0]) - first == timedelta(minutes=15)


@pytest.mark.parametrize("cron", ["30 2 * * *", "30 * * * *", "15 0 28-31 * 0", "0 12 29 2 *"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Pacific/Apia"])
def test_the_runs_are_those_of_the_expression_also_when_clocks_change(cron: str, zone: str) -> None:
    run = begun(cron=cron, zone=zone, boundary=FAR)
    start = at(run)
    if cron == "30 * * * *":  # a week around a change of clocks
        run.update("set", {"spec": Schedule(agent="quick", cron="0 0 1 * *", zone=zone).model_dump(mode="json")})
        while at(run).month not in (3, 10):
            turn(run)
        run.update("set", {"spec": Schedule(agent="quick", cron=cron, zone=zone).model_dump(mode="json")})
        start, before = at(run), len(ticks(run))
    else:
        before = 0

    for _ in range(40):
        turn(run)

    assert ticks(run)[before:] == due(cron, zone, start, at(run))


@pytest.mark.parametrize("catch_up", ["last", "none", "all"])
def test_missed_ticks_are_taken_as_declared(catch_up: Any) -> None:
    window = timedelta(hours=5)
    run = begun(every=timedelta(hours=1), catch_up=catch_up, catch_up_window=window)
    turn(run)
    before = at(run)

    run.pause()
    jump(run, hours=30, minutes=20)
    run.resume()
    turn(run)
    while late(run):
        turn(run)

    taken = [datetime.fromisoformat(tick) for tick in ticks(run)[1:]]
    last = before + timedelta(hours=30)
    wanted = {"last": [last], "none": [], "all": [last - timedelta(hours=n) for n in (4, 3, 2, 1, 0)]}
    assert taken == wanted[catch_up]
    assert [kind for kind, _ in run.notes] == ["missed ticks"]
    turn(run)
    assert datetime.fromisoformat(ticks(run)[-1]) == last + timedelta(hours=1)


def test_an_outage_longer_than_the_window_starts_nothing() -> None:
    run = begun(cron="0 0 1 1 *", catch_up_window=timedelta(hours=1))

    run.pause()
    jump(run, days=500)
    run.resume()
    turn(run)
    turn(run)

    assert ticks(run) == []
    assert run.values["schedule"]["skipped"] == 1


def test_a_clock_that_goes_back_repeats_no_tick() -> None:
    run = begun(every=timedelta(hours=1))
    for _ in range(3):
        turn(run)

    jump(run, days=-1)
    for _ in range(3):
        turn(run)

    assert len(ticks(run)) == len(set(ticks(run))) == 6
    assert ticks(run) == sorted(ticks(run))


def test_a_clock_that_jumps_ahead_skips_no_tick_of_the_future() -> None:
    run = begun(every=timedelta(hours=1), catch_up="all", catch_up_window=timedelta(days=3))
    turn(run)
    jump(run, days=1)
    turn(run)
    while late(run):
        turn(run)
    turn(run)

    assert gaps(run) == [timedelta(hours=1)] * 25


def end(run: AgentRun, number: int, *, failing: bool = False) -> None:
    children = [child for child in run.family if child.agent == "slow"]
    children[number].signal("end", failing)


def outcomes(run: AgentRun) -> list[str]:
    return [each["status"] for each in run.latest.values["schedule"]["outcomes"]]


def test_a_tick_is_skipped_while_a_run_goes_on() -> None:
    run = begun("slow", every=timedelta(hours=1))
    for _ in range(3):
        turn(run)

    assert len(ticks(run)) == 1
    assert run.values["schedule"]["skipped"] == 2
    end(run, 0, failing=True)
    turn(run)
    assert outcomes(run) == ["failed"]
    assert len(ticks(run)) == 2


def test_one_tick_waits_for_the_run_that_goes_on() -> None:
    run = begun("slow", every=timedelta(hours=1), overlap="queue")
    for _ in range(3):
        turn(run)
    second = at(run) - timedelta(hours=1)

    end(run, 0)

    assert datetime.fromisoformat(ticks(run)[1]) == second
    assert (len(ticks(run)), run.values["schedule"]["skipped"]) == (2, 1)


def test_a_tick_cancels_the_run_that_goes_on() -> None:
    run = begun("slow", every=timedelta(hours=1), overlap="cancel")
    for _ in range(3):
        turn(run)

    assert len(ticks(run)) == 3
    assert outcomes(run) == ["cancelled", "cancelled"]
    assert [child.status for child in run.family if child.agent == "slow"] == ["cancelled", "cancelled", "suspended"]


def test_so_many_runs_go_on_at_a_time() -> None:
    run = begun("slow", every=timedelta(hours=1), overlap=2)
    for _ in range(4):
        turn(run)

    assert len(ticks(run)) == 2


def test_a_trigger_starts_a_run_beside_the_ticks() -> None:
    run = begun("slow", every=timedelta(hours=1))
    turn(run)
    jump(run, minutes=7)

    answer = run.update("trigger", {})

    assert datetime.fromisoformat(answer) == datetime.fromisoformat(ticks(run)[1]) == at(run)
    turn(run)
    assert len(ticks(run)) == 2


def test_a_backfill_starts_one_run_after_another() -> None:
    run = begun("slow", every=timedelta(hours=1))
    now = at(run)

    count = run.update("backfill", {"start": (now - timedelta(hours=4)).isoformat(), "end": "2100-01-01T00:00:00Z"})
    for number in range(count):
        while len([child for child in run.family if child.agent == "slow"]) <= number:
            turn(run)
        end(run, number)

    assert count == 4
    assert gaps(run) == [timedelta(hours=1)] * 3
    assert datetime.fromisoformat(ticks(run)[-1]) <= now


def test_another_declaration_holds_from_now_on() -> None:
    run = begun(every=timedelta(hours=1))
    turn(run)
    jump(run, minutes=10)
    new = Schedule(agent="slow", every=timedelta(minutes=30), overlap=9)

    answer = run.update("set", {"spec": new.model_dump(mode="json")})
    turn(run)

    assert len(answer) == 10
    assert datetime.fromisoformat(answer[0]) == datetime.fromisoformat(ticks(run)[1])
    assert run.values["schedule"]["spec"]["agent"] == "slow"
    assert [child.agent for child in run.family][1:] == ["quick", "slow"]


def test_a_schedule_goes_on_in_a_new_generation() -> None:
    run = begun(every=timedelta(minutes=1), boundary=FAR)
    run.update("set", {"spec": Schedule(agent="quick", every=timedelta(hours=1)).model_dump(mode="json")})

    for _ in range(GENERATION_TICKS + 5):
        turn(run)

    assert run.status == "continued"
    assert run.latest.state.run_id == "s+2"
    assert gaps(run) == [timedelta(hours=1)] * (GENERATION_TICKS + 4)
    shown = run.latest.values["schedule"]
    assert shown["started"] == GENERATION_TICKS + 5
    assert shown["outcomes"][-1]["run"] == run.family[-1].state.run_id


def test_jitter_is_the_same_for_all_ticks_and_another_for_each_schedule() -> None:
    run = begun(every=timedelta(hours=1), jitter=timedelta(hours=1))
    late = []
    for _ in range(3):
        turn(run)
        late.append(at(run) - datetime.fromisoformat(ticks(run)[-1]))

    assert len(set(late)) == 1
    assert timedelta() < late[0] < timedelta(hours=1)


@pytest.mark.parametrize("seed", range(6))
def test_random_pauses_outages_and_clocks(seed: int) -> None:
    """Every tick of the expression is started or, as it was missed, noted; none twice."""
    draw = random.Random(seed)
    cron = draw.choice(["*/20 * * * *", "5 */3 * * *", "30 2 * * *"])
    zone, catch_up = draw.choice(["Europe/Berlin", "Asia/Tehran"]), draw.choice(["last", "all"])
    run = begun(cron=cron, zone=zone, catch_up=catch_up, catch_up_window=timedelta(days=9), boundary=FAR)
    start = at(run)
    for _ in range(60):
        what = draw.random()
        if what < 0.1:
            run.latest.pause()
            jump(run, hours=draw.uniform(0, 80))
            run.latest.resume()
        elif what < 0.2:
            jump(run, hours=draw.uniform(-24, 24))
        elif what < 0.3:
            run.latest.take_over()
        turn(run)
    while late(run):
        turn(run)

    last = max(datetime.fromisoformat(tick) for tick in ticks(run))
    missed: set[str] = set()
    for kind, note in run.notes:
        assert kind == "missed ticks"
        if note["catch_up"] == "last":
            first, to = datetime.fromisoformat(note["from"]), datetime.fromisoformat(note["to"])
            missed |= {*due(cron, zone, first - timedelta(seconds=1), to - timedelta(seconds=1))}
    assert len(ticks(run)) == len(set(ticks(run)))
    assert set(ticks(run)) == set(due(cron, zone, start, last)) - missed


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "give either cron= or every="),
        ({"cron": "* * * * *", "every": timedelta(hours=1)}, "give either cron= or every="),
        ({"cron": "61 * * * *"}, "cron='61 \\* \\* \\* \\*'"),
        ({"cron": "* * * * *", "zone": "Mars/Olympus"}, "Mars/Olympus"),
        ({"cron": "0 0 30 2 *"}, "has no tick|30 2"),
        ({"every": timedelta(milliseconds=10)}, "at least one second"),
        ({"every": timedelta(hours=1), "jitter": timedelta(hours=2)}, "jitter= is at most"),
        ({"every": timedelta(hours=1), "overlap": 0}, "overlap"),
        ({"every": timedelta(hours=1), "input": {"no": 1}}, "no"),
        ({"every": timedelta(hours=1), "at": "noon"}, "at"),
    ],
)
def test_a_wrong_declaration_is_refused_when_the_app_loads(options: dict[str, Any], reason: str) -> None:
    fresh = App("wrong")
    fresh.agent(quick)

    with pytest.raises(UsageError, match=reason):
        fresh.every("s", quick, **options)


def test_a_name_is_there_once() -> None:
    with pytest.raises(UsageError, match="two schedules any"):
        app.every("any", quick, every=timedelta(hours=1))
