"""What a change makes of a recorded run: what is answered goes on, and what is not ends the fork."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import Any

import pytest

from refold import App, CallFailed, Context, UsageError
from refold.core.events import ApprovalRequested
from refold.core.ids import RunId
from refold.core.messages import ToolRequest, ToolResult
from refold.lab.forks.engine import PeopleSaid
from refold.lab.forks.record import RecordedRun
from refold.testing import attempts, reject
from tests.forks.recording import family_of, fork
from tests.forks.zoo import POLICY, RUNS, app, buy, look, start
from tests.forks.zoo import middle as zoo_middle

GOLD = {
    "rules": [
        {"name": "no tea", "when": 'tool.name == "buy" && args.item == "tea"', "deny": "none"},
        {"name": "rest", "when": "true", "allow": True},
    ]
}


def other(without: str) -> App:
    """The app without an agent, which a test gives other code."""
    found = App("zoo")
    for tool in app.tools.values():
        found.add_tool(tool)
    found._by_function, found._agent_by_function = app._by_function, app._agent_by_function
    found.agents = {name: agent for name, agent in app.agents.items() if name != without}
    return found


def test_a_call_that_the_record_has_not_ends_the_fork_before_it_fires() -> None:
    report = fork(app, family_of(RUNS["plain"]()), "r-1", 4, edits={4: '{"item":"silk","many":1}'})

    (want,) = report.stopped
    assert report.verdict == "stopped"
    assert (want.phase, want.tool, want.args, want.effect, want.judgement) == (
        "dispatched",
        "buy",
        {"item": "silk", "many": 1},
        "once",
        "allow",
    )
    assert [(call.change, call.tool, call.after) for call in report.calls] == [("added", "buy", 4)]


def _patient(seconds: float) -> App:
    found = App("patient")

    @found.tool(effect="pure")
    def see(what: str) -> str:
        return what

    @found.agent
    async def waits(ctx: Context) -> str:
        try:
            async with asyncio.timeout(seconds):
                return str(await ctx.call(see, "it"))
        except TimeoutError:
            return (await ctx.wait_for("go")).name

    return found


def test_a_call_that_the_record_gave_up_is_named_where_the_fork_needs_its_answer() -> None:
    run = start(_patient(0.5), "waits")
    run.settle(1)
    report = fork(_patient(math.inf), family_of(run.signal("go").finish()), "r-1", 0)

    (want,) = report.stopped
    assert (report.verdict, want.phase, want.tool, want.args) == ("stopped", "dispatched", "see", {"what": "it"})


def _looks(*, sleeps: bool) -> App:
    found = App("looks")

    @found.tool(effect="pure")
    def see(what: int) -> int:
        return what

    @found.agent
    async def looks(ctx: Context) -> list[int]:
        waits = [asyncio.sleep(0.5)] if sleeps else []
        seen = await asyncio.gather(*(ctx.call(see, number) for number in range(3)), *waits)
        return [*filter(None, seen)]

    return found


def test_a_timer_that_the_record_has_not_is_due_once_a_pause_is_over() -> None:
    run = start(_looks(sleeps=False), "looks").pause("look first")
    run.settle(1)
    run.settle(2)
    report = fork(_looks(sleeps=True), family_of(run.resume().finish()), "r-1", 0)

    assert (report.status, report.result) == (("completed", "completed"), ([1, 2], [1, 2]))


def test_an_answer_is_for_the_tool_and_the_arguments_and_not_for_the_tool_alone() -> None:
    run = start(app, "shops", items=["tea", "milk"], tools={buy: attempts("t", "m")}).finish()
    report = fork(app, family_of(run), "r-1", 0, input='{"items":["milk","tea"]}')

    assert (report.verdict, report.result[1]) == ("other", ["m", "t"])
    assert fork(app, family_of(run), "r-1", 0, input='{"items":["milk","silk"]}').verdict == "stopped"


def test_the_kth_of_equal_calls_has_the_answer_of_the_kth() -> None:
    run = start(app, "shops", items=["tea", "tea", "tea"], tools={buy: attempts("1", "2", "3")}).finish()

    more = fork(app, family_of(run), "r-1", 0, input='{"items":["tea","tea","tea","tea"]}')
    fewer = fork(app, family_of(run), "r-1", 0, input='{"items":["tea","tea"]}')

    assert (more.verdict, more.answered["record"], len(more.stopped)) == ("stopped", 3, 1)
    assert fewer.result[1] == ["1", "2"]
    assert [(call.change, call.before) for call in fewer.calls] == [("left out", 6)]


def test_a_recorded_decision_comes_with_all_its_words() -> None:
    run = start(app, "shops", items=["tea"], policy=POLICY, decisions={"buy": reject("too dear")}).finish()
    report = fork(app, family_of(run), "r-1", 0, input='{"items":["gold","tea"]}', policy=POLICY)

    assert report.result[1][1] == "buy failed: too dear"
    assert report.verdict == "other"


def test_people_say_something_else_in_a_fork() -> None:
    run = start(app, "shops", items=["tea"], policy=POLICY, decisions={"buy": reject("too dear")}).finish()
    call, family = "r-1/4", family_of(run)

    yes = fork(app, family, "r-1", 4, policy=POLICY, decisions={call: PeopleSaid("approve")})
    edited = fork(
        app, family, "r-1", 4, policy=POLICY, decisions={call: PeopleSaid("edit", content='{"item":"tea","many":9}')}
    )
    given = fork(app, family, "r-1", 4, policy=POLICY, decisions={call: PeopleSaid("answer", content='"free"')})

    assert (yes.verdict, yes.stopped[0].phase) == ("stopped", "dispatched")
    assert edited.stopped[0].args == {"item": "tea", "many": 9}
    assert (given.verdict, given.result[1], given.answered["decided"]) == ("other", ["free"], 1)


def test_another_result_takes_the_place_of_the_recorded_one() -> None:
    family = family_of(RUNS["plain"]())
    report = fork(app, family, "r-1", 4, results={2: '"none"'})

    assert (report.verdict, report.result[1]) == ("other", ["none", "1 tea", "1 milk"])
    assert report.calls == []


def test_a_stub_answers_by_tool_what_the_record_has_not() -> None:
    family = family_of(RUNS["plain"]())
    report = fork(app, family, "r-1", 0, input='{"items":["tea","silk"]}', stubs={"buy": '"from the stub"'})

    assert report.result[1] == ["1 tea", "from the stub"]
    assert report.answered == {"record": 1, "stub": 1}


def test_a_draft_policy_judges_anew_and_asks_nobody() -> None:
    run = start(app, "shops", items=["tea", "milk"]).finish()
    family = family_of(run)

    denied = fork(app, family, "r-1", 0, draft=GOLD)
    asked = fork(app, family, "r-1", 0, draft=POLICY)

    assert (denied.verdict, denied.result[1][0]) == ("other", "buy failed: none")
    assert [(each.before, each.after, each.rule) for each in denied.judgements] == [("allow", "deny", "no tea")]
    assert (asked.verdict, asked.stopped[0].phase, asked.stopped[0].approvers) == ("stopped", "approval", ["role:lead"])


def test_a_draft_that_asks_goes_on_with_a_yes_and_the_recorded_result() -> None:
    family = family_of(start(app, "shops", items=["tea"], tools={buy: "t"}).finish())
    report = fork(app, family, "r-1", 0, draft=POLICY, decisions={"r-1/4": PeopleSaid("approve")})

    assert (report.verdict, report.result[1]) == ("other", ["t"])
    assert [each.after for each in report.judgements] == ["require 2 of role:lead"]


def test_a_draft_judges_what_comes_behind_the_cut_though_the_run_began_under_another_policy() -> None:
    run = start(app, "shops", items=["milk", "tea"], policy=POLICY).finish()
    report = fork(app, family_of(run), "r-1", 7, policy=POLICY, draft=GOLD)

    assert report.kept == {"r-1": 1}
    assert report.result[1] == ["1 milk", "buy failed: none"]


class Counted:
    """Runs nothing, and counts what it should have run."""

    def __init__(self, budget: int) -> None:
        self.budget, self.asked = budget, list[ToolRequest]()

    @property
    def left(self) -> bool:
        return len(self.asked) < self.budget

    def __call__(self, request: ToolRequest) -> ToolResult:
        self.asked.append(request)
        return ToolResult(request.call_id, request.run_id, request.step, request.attempt, "completed", '"seen"')


def test_pure_calls_run_here_until_the_budget_is_used_up_and_others_never() -> None:
    family, one, none = family_of(RUNS["fans"]()), Counted(1), Counted(9)
    looks = fork(app, family, "r-1", 0, input='{"many":6}', act=one)
    buys = fork(app, family_of(RUNS["plain"]()), "r-1", 0, input='{"items":["silk"]}', act=none)

    assert ([request.tool for request in one.asked], looks.verdict) == (["look"], "stopped")
    assert (none.asked, buys.stopped[0].tool) == ([], "buy")


def test_code_that_does_not_agree_before_the_cut_is_told_where_it_still_does() -> None:
    run = start(app, "shops", items=["tea", "milk"]).finish()
    changed = other("shops")

    @changed.agent
    async def shops(ctx: Context, items: list[str]) -> list[str]:
        """Buys milk in another way."""
        done = []
        for item in items:
            ctx.note("want", {"item": item, "at": ctx.now().isoformat()})
            done.append(await (ctx.call(look, item) if item == "milk" else ctx.call(buy, item)))
        return done

    late = fork(changed, family_of(run), "r-1", run.state.head.seq - 1)
    early = fork(changed, family_of(run), "r-1", late.fork_at)

    assert (late.verdict, late.step) == ("disagrees", 4)
    assert late.fork_at == 5
    assert (early.verdict, early.stopped[0].tool) == ("stopped", "look")
    assert [call.change for call in early.calls] == ["added"]


def test_an_agent_that_sees_other_times_would_be_another_run() -> None:
    """The clock of a fork is that of the log: the notes of this agent hold the time."""
    report = fork(app, family_of(RUNS["plain"]()), "r-1", 0)

    assert report.verdict == "same"


def test_children_are_forked_with_their_parent() -> None:
    run = start(app, "parent").finish()
    changed = other("middle")

    @changed.agent
    async def middle(ctx: Context) -> str:
        """Asks for more than before."""
        return str(await ctx.run("fans", {"many": 3}))

    changed._agent_by_function = {**app._agent_by_function, zoo_middle: changed.agents["middle"]}

    report = fork(changed, family_of(run), "r-1", 0)

    assert (report.verdict, report.stopped[0].run_id, report.stopped[0].tool) == ("stopped", "r-1.3.1", "look")


def test_signals_come_when_they_came_and_time_passes_without_them() -> None:
    run = start(app, "waits").signal("go", 3).finish()
    family = family_of(run)

    report = fork(app, family, "r-1", 2)

    assert report.verdict == "same"


@pytest.mark.parametrize(
    ("at", "change"),
    [
        (5, {"edits": {2: "{}"}}),
        (9, {"results": {2: "1"}}),
        (5, {"input": '{"items":[]}'}),
    ],
)
def test_a_change_of_what_is_kept_is_refused(at: int, change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        fork(app, family_of(RUNS["plain"]()), "r-1", at, **change)


def test_an_edit_of_a_call_in_doubt_is_refused_as_that_was_sent() -> None:
    run = RUNS["doubted"]()
    call = next(event for event in run.events if isinstance(event, ApprovalRequested) and event.about == "doubt")

    decided = PeopleSaid("edit", content='{"item":"milk","many":1}')
    with pytest.raises(UsageError, match="sent once"):
        fork(app, family_of(run), "r-1", 0, decisions={run.state.call_id(call.step): decided})


def test_a_history_that_a_mirror_has_brought_in_another_order_is_cut_where_it_ends() -> None:
    rows = family_of(RUNS["plain"]())[RunId("r-1")]
    first, second, third, *rest = [row.place for row in rows]
    mirrored = [row._replace(place=place) for row, place in zip(rows, (first, third, second, *rest), strict=True)]
    at = RecordedRun.of(rows[:2]).state.head.seq
    report = fork(app, {RunId("r-1"): mirrored}, "r-1", at)

    assert (report.kept, report.verdict) == ({"r-1": 2}, "same")


def test_a_change_to_which_the_fork_never_comes_is_named() -> None:
    family = family_of(RUNS["plain"]())
    said = {"r-1/77": PeopleSaid("approve")}
    changed = fork(app, family, "r-1", 0, edits={99: "{}"}, results={98: "1"}, decisions=said)

    assert (changed.verdict, changed.message) == ("same", "it never came to step 99, the result of step 98, r-1/77")


def test_a_result_that_people_give_first_and_a_decision_that_nobody_is_asked_for_are_named() -> None:
    run = start(app, "shops", items=["tea"], policy=POLICY, decisions={"buy": reject("too dear")}).finish()
    step = run.state.step_of(4)
    given = fork(app, family_of(run), "r-1", 0, policy=POLICY, results={step: '"free"'})
    said = fork(app, family_of(RUNS["plain"]()), "r-1", 0, decisions={"r-1/3": PeopleSaid("reject")})

    assert (given.verdict, given.message) == ("same", f"it never came to the result of step {step}")
    assert (said.verdict, said.message) == ("same", "it never came to r-1/3")


def test_a_call_that_people_reject_in_a_fork_makes_another_run_of_the_same_end() -> None:
    anew = other("")

    @anew.agent
    async def carefree(ctx: Context) -> str:
        with suppress(CallFailed):
            await ctx.call(buy, "tea")
        return "done"

    run = start(anew, "carefree", policy=POLICY).finish()
    said = {run.state.call_id(1): PeopleSaid("reject", "no")}
    report = fork(anew, family_of(run), "r-1", 0, policy=POLICY, decisions=said)

    assert (report.verdict, report.result) == ("other", ("done", "done"))
