"""An agent that asks again and again for what a policy denies: its planner has other runs, too."""

from __future__ import annotations

from dataclasses import replace

from refold import App, CallFailed, Context
from refold.core.events import CallProposed, Event, RunFailed
from refold.core.planning.verdict import AppFacts
from refold.core.run.fold import advance
from refold.core.run.state import RunState
from refold.engine.planner.agents.agent_host import MOST_DENIED, Agents
from tests.core import approvals
from tests.core.histories import NOW, RULES, Log, start

app = App("stubborn")


@app.tool(effect="once", name="push")
def push(n: int) -> int:
    """Is denied."""
    return n


@app.agent
async def insist(ctx: Context, tries: int) -> str:
    """Tries so often, without waiting in between."""
    for n in range(tries):
        try:
            await ctx.call(push, n)
        except CallFailed:
            continue
    return "gave up"


def reaction(tries: int) -> list[Event]:
    """What the agent adds to its run at first."""
    denying = approvals.authority({"rules": [{"name": "never", "when": "true", "deny": "no"}]})
    rules = replace(RULES, authority=denying, app=AppFacts(versions={"insist": app.agents["insist"].version}))
    log = Log(rules=rules)
    log.feed(start(agent="insist", input=f'{{"tries":{tries}}}'))
    state: RunState = log.live
    found = Agents(app, rules, "test").react(state, log.entries[-1][1].events, NOW)
    advance(state, found, seq=state.head.seq + 1, at_ms=NOW)
    return found


def test_an_agent_may_be_denied_often_and_give_up() -> None:
    found = reaction(MOST_DENIED)

    assert sum(isinstance(event, CallProposed) for event in found) == MOST_DENIED
    assert not isinstance(found[-1], RunFailed)


def test_a_run_that_never_stops_asking_fails() -> None:
    (failed,) = reaction(10**9)

    assert isinstance(failed, RunFailed)
    assert failed.failure.code == "denied"
    assert "1,000 calls" in failed.failure.message
