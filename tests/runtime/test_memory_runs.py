"""Agents in memory as an executor runs them: told to stop, hanging, crowded, judged; and others beside them."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from queue import SimpleQueue
from typing import Any

import pytest

from refold import App, Budget, Cancelled, Context, Heartbeat, Reserve, Retry, Secret, UsageError
from refold.core.approval.catalog import HALT, Catalog
from refold.core.approval.decision import Refusal
from refold.core.ids import CallId, run_id
from refold.core.messages import ToolRequest
from refold.engine.adapters.tools.memory import AT_ONCE
from refold.engine.adapters.tools.toolbox import Toolbox
from refold.engine.executor.gate import Gate, NestedPolicy
from refold.engine.ports.effects import StartTool, StopTool, ToolEnded, Within
from refold.sdk.memory import AgentTool
from tests.core.policies import policy, rule
from tests.roots import TRUST, publish
from tests.waiting import eventually

TOLD: list[str] = []
GO_ON = threading.Event()
app = App("memory-runs", secrets=lambda name: f"the value of {name}")


@app.tool(effect="pure")
def beats(*, heartbeat: Heartbeat) -> None:
    """A sync tool that asks whether it is wanted."""
    TOLD.append("begun")
    try:
        while True:
            heartbeat()
            time.sleep(0.01)
    except Cancelled as cancelled:
        TOLD.append(cancelled.reason)
        raise


@app.tool(effect="pure")
async def sleeps() -> None:
    """An async one that never ends."""
    TOLD.append("begun")
    try:
        await asyncio.sleep(3600)
    finally:
        TOLD.append("cancelled")


class Crowd:
    """How many are in there, and were at most."""

    now = most = 0


@app.tool(effect="pure")
async def crowd(n: int) -> int:
    Crowd.now += 1
    Crowd.most = max(Crowd.most, Crowd.now)
    await asyncio.sleep(0.01)
    Crowd.now -= 1
    return n


@app.tool(effect="pure", retry=Retry(attempts=1))
def unlock(with_: Secret) -> int:
    raise ValueError(f"not with {with_.reveal()}")


@app.tool(effect="pure")
async def ping() -> str:
    return "pong"


@app.agent(durability="memory")
async def beating(ctx: Context) -> None:
    await ctx.call(beats)


@app.agent(durability="memory")
async def sleeping(ctx: Context) -> None:
    await ctx.call(sleeps)


@app.agent(durability="memory")
async def crowded(ctx: Context, many: int) -> int:
    return sum(await asyncio.gather(*(ctx.call(crowd, n) for n in range(many))))


def _spin() -> None:
    while not GO_ON.is_set():
        pass


@app.agent(durability="memory")
async def hanging(ctx: Context) -> str:
    TOLD.append("begun")
    _spin()
    return await ctx.call(ping)


@app.agent(durability="memory")
async def busy(ctx: Context) -> None:
    while True:  # noqa: ASYNC110 - this is what it is about
        await asyncio.sleep(0)


@app.agent(durability="memory")
async def opening(ctx: Context) -> int:
    return await ctx.call(unlock, Secret("door"))


@app.agent(durability="memory")
async def pinging(ctx: Context) -> list[str]:
    return [await ctx.call(ping), await ctx.call(ping)]


@app.tool(effect="pure", cost="0.01")
async def priced() -> str:
    return "pong"


@app.agent(durability="memory", reserve=Reserve(usd=Decimal("0.025")))
async def paying(ctx: Context, calls: int) -> list[str]:
    return [await ctx.call(priced) for _ in range(calls)]


@app.agent(durability="memory")
async def asking(ctx: Context) -> str:
    return await ctx.call(ping, reserve=Reserve(usd=Decimal("0.01")))


def request_of(runs: str, args: str = '{"input":{}}', **more: Any) -> ToolRequest:
    """The order of a whole run."""
    return ToolRequest(CallId("r-1/3"), run_id("r-1"), 1, 1, 0, f"agent:{runs}", args, "k", "pure", 1_000, **more)


class Bench:
    """A toolbox, and what has ended in it."""

    def __init__(self) -> None:
        self.ended: SimpleQueue[ToolEnded] = SimpleQueue()
        self.box = Toolbox(app, self.ended.put, threads=2, max_result=1_000)

    def start(self, request: ToolRequest, number: int = 1, within: Within | None = None) -> None:
        self.box.start([StartTool(number, request, False, within)])

    def run(self, request: ToolRequest, within: Within | None = None) -> ToolEnded:
        self.start(request, within=within)
        return self.ended.get(timeout=60)


@pytest.fixture
def bench() -> Iterator[Bench]:
    TOLD.clear()
    GO_ON.clear()
    made = Bench()
    yield made
    GO_ON.set()
    made.box.close()


@pytest.mark.parametrize("agent", ["beating", "sleeping"])
@pytest.mark.parametrize("reason", ["timeout", "cancelled", "handed_over"])
def test_what_is_told_to_stop_stops_its_tools(bench: Bench, agent: str, reason: str) -> None:
    bench.start(request_of(agent))
    eventually(lambda: "begun" in TOLD)

    bench.box.stop(StopTool(1, reason))

    assert bench.ended.get(timeout=60).status == "unknown"
    assert eventually(lambda: TOLD[1:]) == ["cancelled"]


def test_no_more_are_under_way_at_once_than_a_run_may_have(bench: Bench) -> None:
    ended = bench.run(request_of("crowded", '{"input":{"many":200}}'))

    assert (ended.status, ended.result) == ("completed", str(sum(range(200))))
    assert Crowd.most == AT_ONCE


def test_code_that_hangs_holds_up_nobody_else_and_its_slot_until_it_ends(bench: Bench) -> None:
    bench.start(request_of("hanging"))
    eventually(lambda: TOLD)
    bench.box.stop(StopTool(1, "timeout"))

    for number in range(2, 5):
        bench.start(request_of("pinging"), number)
        assert bench.ended.get(timeout=60) == ToolEnded(number, "completed", '["pong","pong"]')

    assert bench.ended.empty()
    eventually(gc.isenabled, what="the collector of the process")
    GO_ON.set()
    assert bench.ended.get(timeout=60).number == 1


def test_code_that_never_waits_fails(bench: Bench) -> None:
    ended = bench.run(request_of("busy"))

    assert (ended.status, ended.code, ended.retryable) == ("failed", "budget_turn", False)


def test_its_tools_have_their_secrets_and_nobody_reads_them(bench: Bench) -> None:
    ended = bench.run(request_of("opening"))

    assert ended.code == "ValueError"
    assert "not with" in ended.message
    assert "the value of" not in ended.message


def test_an_input_that_does_not_fit_is_refused(bench: Bench) -> None:
    ended = bench.run(request_of("crowded", '{"input":{"much":1}}'))

    assert (ended.status, ended.code, ended.retryable) == ("failed", "usage", False)


def test_nothing_is_left_of_runs_that_are_over(bench: Bench) -> None:
    before = threading.active_count()

    for _ in range(20):
        assert bench.run(request_of("pinging")).status == "completed"

    eventually(lambda: threading.active_count() <= before + 1)


def gate(**more: Any) -> Gate:
    """The gate of an executor with this app."""
    return Gate({tool.name: tool.facts for tool in app.tools.values()}, **more)


def ruled(*rules: dict[str, Any]) -> tuple[Catalog, str]:
    """A catalog with one policy, and its digest."""
    catalog, made = Catalog(TRUST), policy(*rules, fallback={"approvers": ["*"]})
    catalog.policies[made.digest], catalog.current = made, made.digest
    return catalog, made.digest


@pytest.mark.parametrize(
    ("when", "outcome", "code"),
    [
        ("tool.name == 'ping'", {"deny": "no"}, "denied"),
        ("tool.name == 'ping'", {"require": {"approvers": ["*"]}}, "needs_decision"),
        ("run.labels.team == 'a'", {"deny": "no"}, "denied"),
        ("run.session == 'vip'", {"require": {"approvers": ["*"]}}, "needs_decision"),
        ("run.calls > 3", {"deny": "no"}, "denied"),
        ("agent == 'pinging' && actor == 'ada' && run.input.a == 1", {"deny": "no"}, "denied"),
    ],
)
def test_an_executor_judges_calls_in_memory_by_the_policy_of_the_run(when: str, outcome: Any, code: str) -> None:
    catalog, digest = ruled(rule(when, "ours", **outcome), rule("true"))
    request = request_of("pinging", '{"input":{"a":1}}', policy=digest, agent="pinging", requester="ada")

    refused = NestedPolicy(gate(), request, catalog)("ping", "{}", 4)

    assert refused is not None
    assert refused.code == code


def test_a_policy_that_rechecks_counts_in_memory_too() -> None:
    catalog, old = ruled(rule("true"))
    new = policy(rule("true", "no", deny="not any more"), recheck=True)
    within = NestedPolicy(gate(), request_of("pinging", policy=old), catalog)
    assert within("ping", "{}", 0) is None

    catalog.policies[new.digest], catalog.current = new, new.digest

    assert within("ping", "{}", 0) == Refusal("denied", "not any more", stale=False)


def test_what_an_operator_names_is_not_called_in_memory() -> None:
    refused = NestedPolicy(gate(required=("pi*",)), request_of("pinging"), Catalog(TRUST))("ping", "{}", 0)

    assert refused is not None
    assert refused.code == "needs_decision"


@pytest.mark.parametrize("name", ["halt/tool/ping", "halt/agent/pinging", "halt/pool/default", "halt/all"])
def test_a_halt_stops_a_run_in_memory_before_its_next_call(bench: Bench, name: str) -> None:
    catalog = Catalog(TRUST)
    within = NestedPolicy(gate(), request_of("pinging", agent="pinging"), catalog)
    publish(catalog, name, HALT, "look first")

    ended = bench.run(request_of("pinging"), within)

    assert (ended.status, ended.code, ended.retryable) == ("failed", "halted", True)
    assert "look first" in ended.message


def test_its_version_is_for_those_who_judge_it() -> None:
    tool = app.tools["agent:pinging"]

    assert isinstance(tool, AgentTool)
    assert tool.facts.version == app.agents["pinging"].code


def test_what_costs_is_called_within_what_the_whole_reserves(bench: Bench) -> None:
    within = bench.run(request_of("paying", '{"input":{"calls":2}}'))
    beyond = bench.run(request_of("paying", '{"input":{"calls":3}}'))

    assert (within.status, within.result) == ("completed", '["pong","pong"]')
    assert beyond.code == "over_reserve"
    assert app.tools["agent:paying"].reserve == Reserve(usd=Decimal("0.025"))


def test_nothing_that_costs_is_called_where_no_budget_sees_it(bench: Bench) -> None:
    ended = bench.run(request_of("asking"))

    assert (ended.status, "no limit would see" in ended.message) == ("failed", True)
    with pytest.raises(UsageError, match="no limit would see"):

        @app.agent(durability="memory")
        async def free(ctx: Context) -> str:
            return await ctx.call(priced)


def test_a_budget_of_such_an_agent_counts() -> None:
    bounded = App("bounded")

    @bounded.agent(durability="memory", budget=Budget(calls=1))
    async def once(ctx: Context) -> None: ...

    assert bounded.budgets["once"].calls == 1
