"""An agent starts a run with a home of its own: once, whatever becomes of the planner that asks for it."""

from __future__ import annotations

from typing import Any

import pytest

from refold import App, Context
from refold.core.errors import UsageError
from refold.core.events import Entry, RunRequested, RunSubmitted
from refold.core.ids import RunId, home
from refold.core.messages import RunRequest
from refold.core.planning.commands import commands
from refold.core.run.state import RunState
from refold.engine.planner.settings import Bounds
from refold.testing import crash_matrix, run
from tests.recovery.rig import Rig

app = App("submitting")


@app.agent
async def report(ctx: Context, day: int) -> int:
    """Returns its day."""
    return day


@app.agent
async def front(ctx: Context, days: int, agent: str = "report") -> str:
    """Submits a run for each day."""
    for day in range(days):
        ctx.submit(agent, {"day": day}, id=f"day-{day}")
    return "submitted"


@app.agent
async def patient(ctx: Context) -> str:
    """Submits a run, and waits for a signal."""
    ctx.submit("report", {"day": 0}, id="day-0")
    return (await ctx.wait_for("go")).id


def test_each_submitted_run_begins_in_its_own_home() -> None:
    rig = Rig(app, partitions=3)
    rig.start("f", "front", days=6, labels={"tenant": "acme"})
    rig.run()

    for day in range(6):
        assert rig.state(f"day-{day}").end is not None
    assert len({home(f"day-{day}", 3) for day in range(6)}) > 1
    request = rig.state("day-5").request
    assert request is not None
    assert (request.requester, request.labels, request.token) == ("ann", {"tenant": "acme"}, "")
    assert (request.deadline_ms, request.above, request.outlives) == (0, [], False)
    assert rig.letters() == 0


@pytest.mark.parametrize("deaths", range(1, 12))
def test_it_begins_once_though_the_planner_dies_anywhere(deaths: int) -> None:
    rig = Rig(app)
    rig.start("f", "front", days=2)
    for _ in range(deaths):
        rig._turn()
    rig.deploy(app)
    rig.run()

    begun = [event for day in range(2) for event in rig.history(f"day-{day}") if isinstance(event, RunRequested)]
    assert len(begun) == 2
    assert rig.letters() == 0


def test_a_request_that_conflicts_is_a_dead_letter_and_ends_nothing() -> None:
    rig = Rig(app)
    rig.start("day-0", "report", day=7)
    rig.start("f", "front", days=1)
    rig.run()

    assert getattr(rig.state("day-0").end, "result", "") == "7"
    assert rig.letters() == 1
    assert rig.state("f").status == "completed"


def test_a_request_that_its_topic_refuses_is_dropped() -> None:
    rig = Rig(app)
    rig.refuses = {"run-requested": 10}
    rig.start("f", "front", days=1)
    rig.run()

    assert rig.state("f").status == "completed"
    assert rig.state("day-0").request is None


def test_submitted_runs_count_as_started_ones() -> None:
    rig = Rig(app, Bounds(children=3))
    rig.start("f", "front", days=4)
    rig.run()

    assert "budget_children" in str(rig.state("f").end)


def test_what_is_submitted_is_checked_where_the_code_asks() -> None:
    async def body(ctx: Context, how: str) -> None:
        ways: dict[str, tuple[Any, Any, str]] = {
            "agent": ("nobody", None, "r"),
            "input": ("wants", {"text": 1}, "r"),
            "id": ("wants", {"text": "a"}, "a run"),
            "child": ("wants", {"text": "a"}, "r-1.1"),
        }
        agent, given, run_id = ways[how]
        ctx.submit(agent, given, id=run_id)

    async def wants(ctx: Context, text: str) -> None:
        """Takes a text."""

    checked = App("checked")
    checked.agent(name="wrong")(body)
    checked.agent(wants)
    for how in ("agent", "input", "id", "child"):
        ended = run(checked, "wrong", how=how)
        assert ended.failure is not None, how
        assert ended.failure.code == UsageError.code, how


def test_the_testing_kit_collects_requests_and_kills_the_planner_between_them() -> None:
    ended = run(app, "front", days=2)

    assert [(request.run_id, request.input) for request in ended.submitted] == [
        ("day-0", '{"day":0}'),
        ("day-1", '{"day":1}'),
    ]
    assert crash_matrix(app, "front", {"days": 2}).ok


def test_a_child_submits_in_the_name_of_its_family_and_without_the_token() -> None:
    state = RunState(RunId("r-1.2"))
    state.request = RunRequested(
        "front", "null", "", "", requester="ann", token="signed", sessions=["s"], deadline_ms=9
    )
    entry = Entry(RunId("r-1.2"), 1, b"", 1, None, "p", b"", [RunSubmitted(1, "day-0", "report", "{}")])

    (command,) = commands(state, entry, 0)

    assert command.message == RunRequest(RunId("day-0"), "report", "{}", "ann", sessions=["s"])
    assert (command.topic, command.key) == ("run-requested", "day-0")


def test_a_live_fork_does_not_repeat_what_its_source_has_submitted() -> None:
    rig = Rig(app)
    rig.start("f", "patient")
    rig.run()
    head = rig.state("f").heads[0]
    rig.operate("g", "fork", source="f", at=head.seq, head=head.id.hex())
    rig.run()

    assert "RunForked" in rig.events("g")
    assert any(isinstance(event, RunSubmitted) for event in rig.history("g"))
    assert len([record for record in rig.records("run-requested") if record.key == b"day-0" and record.value]) == 1
