"""Agents in memory: what they may do there, what is refused and when, and that nothing of it is in the log."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from refold import App, CallFailed, Context, NotDone, Retry, TerminalError, TransientError
from refold.testing import attempts, crash_matrix, run, start
from tests.waiting import eventually

SHORT = Retry(attempts=3, base=timedelta(milliseconds=1), cap=timedelta(milliseconds=2))
TWO_ENTRIES = ["RunRequested", "RunStarted", "CallProposed", "CallDispatched", "CallCompleted", "RunCompleted"]

app = App("in-memory")
SEEN: Counter[str] = Counter()
ROUND = threading.Barrier(8)


class City(BaseModel):
    """What a tool gives."""

    name: str
    people: int


@app.tool(effect="pure")
async def double(n: int) -> int:
    SEEN["double"] += 1
    await asyncio.sleep(0)
    return 2 * n


@app.tool(effect="pure")
def meet(n: int) -> int:
    ROUND.wait(timeout=60)
    return n


@app.tool(effect="pure")
def look_up(name: str) -> City:
    return City(name=name, people=3)


@app.tool(effect="pure", retry=SHORT)
def flaky() -> int:
    raise AssertionError("scripted")


@app.tool(effect="pure", retry=Retry(attempts=1))
async def never() -> None:
    SEEN["begun"] += 1
    try:
        await asyncio.sleep(3600)
    finally:
        SEEN["stopped"] += 1


@app.tool(effect="pure")
def keys(*, idempotency_key: str) -> str:
    return idempotency_key


@app.tool(effect="keyed")
def pay(n: int, *, idempotency_key: str) -> int:
    SEEN["paid"] += 1
    return n


@app.agent(durability="memory")
async def sums(ctx: Context, n: int = 1) -> int:
    """In sequence, in a gather, in a group."""
    first = await ctx.call(double, n)
    second = sum(await asyncio.gather(*(ctx.call(double, each) for each in range(3))))
    async with asyncio.TaskGroup() as group:
        third = [group.create_task(ctx.call(double, each)) for each in range(2)]
    return first + second + sum(task.result() for task in third)


@app.agent(durability="memory")
async def facts(ctx: Context) -> dict[str, Any]:
    """Everything of a context that needs no log."""
    ctx.note("plan", [1])
    ctx.checkpoint("begun")
    ctx.status("working")
    ctx.log.info("hello")
    before = ctx.now()
    await asyncio.sleep(0.05)
    return {
        "run": ctx.run_id,
        "replaying": ctx.replaying,
        "patched": ctx.patched("new"),
        "later": (ctx.now() - before).total_seconds() >= 0.05,
        "now": ctx.now().timestamp(),
        "drawn": [ctx.random.random(), str(ctx.uuid())],
        "keys": [await ctx.call(keys), await ctx.call(keys)],
    }


@app.agent(durability="memory")
async def read(ctx: Context, city: str) -> City:
    return await ctx.call(look_up, city)


@app.agent(durability="memory")
async def tries(ctx: Context) -> int:
    return await ctx.call(flaky)


@app.agent(durability="memory")
async def careful(ctx: Context) -> str:
    try:
        await ctx.call(flaky)
    except CallFailed as failed:
        return str(failed.fields["code"])
    return ""


@app.agent(durability="memory")
async def impatient(ctx: Context) -> list[str]:
    """Three ways not to wait for a tool that never answers."""
    said = []
    try:
        async with asyncio.timeout(0.05):
            await ctx.call(never)
    except TimeoutError:
        said.append("timeout")
    task = asyncio.create_task(ctx.call(never))
    await asyncio.sleep(0.05)
    task.cancel()
    said.append(type((await asyncio.gather(task, return_exceptions=True))[0]).__name__)
    try:
        await ctx.call(never, timeout=timedelta(milliseconds=50))
    except CallFailed as failed:
        said.append(failed.fields["code"])
    return said


@app.agent(durability="memory")
async def blocking(ctx: Context) -> list[int]:
    return await asyncio.gather(*(ctx.call(meet, each) for each in range(8)))


@app.agent(durability="memory")
async def parent_of(ctx: Context) -> None:
    raise KeyError("nothing")


@app.agent
async def asks(ctx: Context, n: int) -> int:
    return int(await ctx.run(sums, {"n": n}))


def test_a_run_in_memory_is_one_call_and_two_entries() -> None:
    ran = run(app, "sums", n=4)

    assert ran.value == 16
    assert (ran.entries, ran.history) == (2, TWO_ENTRIES)
    assert [(call.tool, call.args, call.attempts) for call in ran.calls] == [("agent:sums", {"input": {"n": 4}}, 1)]


def test_its_context_is_that_of_any_agent() -> None:
    began = time.time()

    ran = run(app, "facts")

    assert began - 0.001 <= ran.value["now"] <= time.time()
    assert ran.value["run"] == "r-1"
    assert (ran.value["replaying"], ran.value["patched"], ran.value["later"]) == (False, True, True)
    assert len(set(ran.value["keys"])) == 2
    assert (ran.notes, ran.checkpoints, ran.says) == ([], [], "")
    assert run(app, "facts").value["drawn"] == ran.value["drawn"]


def test_results_have_their_types() -> None:
    assert run(app, "read", city="Rome").value == City(name="Rome", people=3)


def test_a_tool_is_tried_again_by_its_own_policy() -> None:
    ran = run(app, "tries", tools={"flaky": attempts(NotDone("busy"), ValueError("lost"), 7)})

    assert ran.value == 7
    assert ran.calls[0].attempts == 1


def test_an_agent_hears_of_a_tool_that_fails_for_good() -> None:
    assert run(app, "careful", tools={"flaky": attempts(TerminalError("no"))}).value == "terminal"
    assert run(app, "careful", tools={"flaky": ValueError("no")}).value == "ValueError"


def test_a_failure_that_the_agent_does_not_handle_reads_as_it_does_with_a_log() -> None:
    scripts = {"flaky": TerminalError("no")}
    logged = App("logged")
    logged.tool(effect="pure", retry=SHORT)(flaky)
    logged.agent(tries)

    in_memory, in_log = run(app, "tries", tools=scripts).failure, run(logged, "tries", tools=scripts).failure
    assert in_memory
    assert in_log
    # Where the agent is a tool its own frames are the tool's, and no place of a place is kept.
    assert (in_memory.code, in_memory.message) == (in_log.code, in_log.message)
    failure = run(app, "parent_of").failure
    assert failure is not None
    assert (failure.code, failure.message) == ("KeyError", "'nothing'")


def test_who_does_not_wait_any_more_stops_the_tool() -> None:
    SEEN.clear()

    assert run(app, "impatient").value == ["timeout", "CancelledError", "timeout"]
    eventually(lambda: SEEN["begun"] == SEEN["stopped"])


def test_sync_tools_run_side_by_side() -> None:
    assert run(app, "blocking").value == list(range(8))


def test_it_is_a_child_as_any_other() -> None:
    ran = run(app, "asks", n=1)

    assert ran.value == 10
    assert [child.entries for child in ran.children] == [2]


def test_all_of_it_is_tried_again_by_its_own_policy() -> None:
    other = App("other")
    left = [TransientError("no"), ValueError("no")]

    @other.tool(effect="pure")
    def one() -> int:
        return 1

    @other.agent(durability="memory", retry=SHORT)
    async def again(ctx: Context) -> int:
        first = await ctx.call(one)
        if left:
            raise left.pop()
        return first

    ran = run(other, "again")

    assert ran.value == 1
    assert (ran.calls[0].attempts, ran.ran) == (3, {"agent:again": 3})


def test_what_is_wrong_with_the_code_is_not_tried_again() -> None:
    other = App("other")

    @other.agent(durability="memory", retry=SHORT)
    async def wrong(ctx: Context) -> None:
        await ctx.call("nothing")

    ran = run(other, "wrong")

    assert (ran.calls[0].attempts, ran.status) == (1, "failed")
    assert ran.failure is not None
    assert ran.failure.code == "usage"


@pytest.mark.parametrize("name", ["sums", "facts", "blocking"])
def test_it_may_be_killed_at_any_moment(name: str) -> None:
    report = crash_matrix(app, name, {})

    assert (report.entries, report.tools_run) == (2, 1)


def test_it_may_be_scripted_as_a_tool_is() -> None:
    assert run(app, "asks", n=1, tools={"agent:sums": 99}).value == 99


def test_code_that_waits_for_nothing_fails() -> None:
    other = App("other")

    @other.agent(durability="memory")
    async def stuck(ctx: Context) -> None:
        await asyncio.Event().wait()

    ran = run(other, "stuck")

    assert ran.failure is not None
    assert ran.failure.code == "waits_for_nothing"


def test_the_guard_stands_around_its_code_and_not_around_its_tools(tmp_path: Any) -> None:
    other, path = App("other"), tmp_path / "file"

    def write() -> None:
        path.write_text("1")

    @other.tool(effect="pure")
    def writes() -> int:
        write()
        return 1

    @other.agent(durability="memory")
    async def writer(ctx: Context) -> int:
        await ctx.call(writes)
        getattr(path, "write_text")("2")  # noqa: B009 - the scan is not to see it
        return 0

    ran = run(other, "writer")

    assert path.read_text() == "1"
    assert ran.failure is not None
    assert "a replay would do again" in ran.failure.message


POLICY = {"fallback": {"approvers": ["*"]}, "rules": [{"name": "all", "when": "true", "allow": True}]}


def ruled(when: str, **outcome: Any) -> dict[str, Any]:
    """A policy with one rule before that which allows all."""
    return {**POLICY, "rules": [{"name": "ours", "when": when, **outcome}, *POLICY["rules"]]}


def test_a_policy_judges_all_of_it_as_one_call() -> None:
    denied = run(app, "sums", n=4, policy=ruled("tool.name == 'agent:sums' && args.input.n > 3", deny="too much"))
    waits_for_people = start(app, "sums", n=4, policy=ruled("tool.name == 'agent:sums'", require={"approvers": ["*"]}))

    assert denied.failure is not None
    assert (denied.failure.code, denied.failure.message) == ("denied", "too much")
    assert waits_for_people.status == "suspended"
    assert waits_for_people.finish().value == 16


def test_a_policy_judges_each_call_in_memory_too() -> None:
    SEEN.clear()
    rule = "tool.name == 'double' && args.n == 2"

    denied = run(app, "sums", policy=ruled(rule, deny="not two"))
    asked = run(app, "sums", policy=ruled(rule, require={"approvers": ["*"]}))
    unknown = run(
        app, "sums", policy=ruled("tool.name == 'double' && run.labels.team == 'a'", require={"approvers": ["*"]})
    )

    assert denied.failure is not None
    assert (denied.failure.code, denied.failure.message) == ("denied", "double failed: not two")
    assert asked.failure is not None
    assert "nobody can be asked there about double" in asked.failure.message
    assert unknown.status == "failed"
