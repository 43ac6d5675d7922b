"""What is asked of the platform: small agents, their tools, inputs of every kind, and an operator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from refold.core.errors import CallFailed
from refold.core.ids import home
from refold.sdk.app import App
from refold.sdk.context import Context
from refold.sdk.retry import Retry
from refold.sdk.tool import DID_NOT_HAPPEN

PARTITIONS = 2
app = App("simulated")
_TIMEOUT = timedelta(milliseconds=800)
_RETRY = Retry(attempts=3, base=timedelta(milliseconds=100), cap=timedelta(milliseconds=400))


@app.tool(effect="pure", timeout=_TIMEOUT, retry=_RETRY)
def look(n: int) -> dict[str, int]:
    """Reads something."""
    return {"effect": n}


@app.tool(effect="keyed", timeout=_TIMEOUT, retry=_RETRY)
def push(n: int) -> dict[str, int]:
    """Acts on a receiver that knows keys."""
    return {"effect": n}


@app.tool(effect="keyed", key_window=timedelta(milliseconds=1_500), timeout=_TIMEOUT, retry=_RETRY)
def pushed_briefly(n: int) -> dict[str, int]:
    """Acts on a receiver that forgets keys."""
    return {"effect": n}


@app.tool(effect="probed", probe=lambda n: DID_NOT_HAPPEN, timeout=_TIMEOUT, retry=_RETRY)
def book(n: int) -> dict[str, int]:
    """Acts on a receiver that can be asked."""
    return {"effect": n}


@app.tool(effect="once", timeout=_TIMEOUT, retry=_RETRY)
def pay(n: int) -> dict[str, int]:
    """Acts, and nobody can say afterwards."""
    return {"effect": n}


@app.agent
async def one(ctx: Context, tool: str) -> Any:
    """One call."""
    return await ctx.call(tool, 1)


@app.agent
async def three(ctx: Context) -> list[Any]:
    """Three calls in a row, of three classes, with a note."""
    await ctx.note("plan", ["push", "book", "pay"])
    return [await ctx.call("push", 1), await ctx.call("book", 2), await ctx.call("pay", 3)]


@app.agent
async def fan(ctx: Context) -> list[Any]:
    """Three calls at once."""
    return await ctx.gather(ctx.call("push", 1), ctx.call("look", 2), ctx.call("book", 3))


@app.agent
async def twins(ctx: Context) -> list[Any]:
    """Two `once` calls at once with equal arguments."""
    return await ctx.gather(ctx.call("pay", 1), ctx.call("pay", 1))


@app.agent
async def sleeper(ctx: Context) -> Any:
    """Sleeps, then acts."""
    await ctx.sleep(timedelta(milliseconds=700))
    return await ctx.call("push", 1)


@app.agent
async def failing(ctx: Context) -> None:
    """Acts, then raises."""
    await ctx.call("push", 1)
    raise ValueError("the agent gives up")


@app.agent
async def handling(ctx: Context, tool: str) -> Any:
    """Handles a call that failed."""
    try:
        return await ctx.call(tool, 1)
    except CallFailed as failure:
        await ctx.note("failed", failure.fields["code"])
        return await ctx.call("push", 2)


Kind = Literal["run", "repeat", "conflict", "signal", "poison"]


@dataclass(frozen=True, slots=True)
class Input:
    """A record that a client publishes. Of a `poison` and a `conflict` one dead letter is expected, of others none."""

    at_ms: int
    kind: Kind
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Scenario:
    """A case before its faults. `verdict` is what the operator says of a call in doubt; `truth` asks the receiver."""

    name: str
    inputs: tuple[Input, ...]
    scripts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    verdict: str = "truth"
    changes: Mapping[str, Any] = field(default_factory=dict)


def start(
    run: str, agent: str, given: Any = None, *, at_ms: int = 0, kind: Kind = "run", stray: bool = False, **more: Any
) -> Input:
    """A request to start a run, at its home or in another partition."""
    value = json.dumps({"run_id": run, "agent": agent, "input": given, **more}).encode()
    place = home(run, PARTITIONS) + stray
    return Input(at_ms, kind, "run-requested", place % PARTITIONS, run.encode(), value)


def signal(run: str, name: str, kind: str, data: Any = None, *, at_ms: int = 0) -> Input:
    """A signal for a run."""
    value = json.dumps({"run_id": run, "signal_id": name, "kind": kind, "data": data, "actor": "operator"}).encode()
    return Input(at_ms, "signal", "run-signalled", home(run, PARTITIONS), f"{run}/{name}".encode(), value)


def poison(topic: str, value: bytes | None, *, at_ms: int = 0, key: bytes = b"r-1") -> Input:
    """Bytes that mean nothing."""
    return Input(at_ms, "poison", topic, 0, key, value)


def _one(name: str, tool: str, *scripts: str, verdict: str = "truth", agent: str = "one", **changes: Any) -> Scenario:
    return Scenario(name, (start("r-1", agent, {"tool": tool}),), {tool: scripts}, verdict, changes)


def _cancelled(name: str, tool: str, script: str, at_ms: int) -> Scenario:
    inputs = (start("r-1", "one", {"tool": tool}), signal("r-1", "c", "cancel", {"reason": "enough"}, at_ms=at_ms))
    return Scenario(name, inputs, {tool: (script,)})


SMALLEST = ("pure", "keyed", "probed", "once")

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        _one("pure", "look"),
        _one("keyed", "push"),
        _one("probed", "book"),
        _one("once", "pay"),
        _one("keyed-eager", "push", commit_ms=1),
        Scenario("three", (start("r-1", "three"),)),
        Scenario("fan", (start("r-1", "fan"),)),
        Scenario("twins", (start("r-1", "twins"),)),
        _one("keyed-retried", "push", "not-done", "raises-after", "ok"),
        _one("probed-retried", "book", "raises-before", "raises-after"),
        _one("pure-exhausted", "look", "raises-before", "not-done", "raises-before"),
        _one("keyed-terminal", "push", "terminal", agent="handling"),
        _one("keyed-exhausted", "push", "raises-after", "raises-after", "hangs-before"),
        _one("keyed-slow", "push", "slow"),
        _one("keyed-late", "push", "late"),
        _one("keyed-hangs", "push", "hangs-after"),
        _one("keyed-window", "pushed_briefly", "hangs-after", "late"),
        _one("keyed-broken", "push", "broken", agent="handling"),
        _one("probed-slower", "book", "slower"),
        _one("probed-hangs", "book", "hangs-after"),
        _one("probed-late", "book", "late"),
        _one("once-not-done", "pay", "not-done", "ok"),
        _one("once-raises", "pay", "raises-after"),
        _one("once-did-not", "pay", "raises-before"),
        _one("once-hangs", "pay", "hangs-before"),
        _one("once-gives-up", "pay", "raises-after", verdict="give_up", agent="handling"),
        _one("once-happened", "pay", "hangs-before", verdict="happened"),
        _one("once-wrongly-not", "pay", "late", verdict="did_not_happen"),
        _one("once-late", "pay", "late"),
        Scenario("sleep", (start("r-1", "sleeper"),)),
        Scenario("failing", (start("r-1", "failing"),)),
        Scenario("unknown-agent", (start("r-1", "nobody"),)),
        _cancelled("cancel-keyed", "push", "slow", 100),
        _cancelled("cancel-once", "pay", "slower", 100),
        _cancelled("cancel-doubt", "pay", "raises-after", 300),
        Scenario("two-runs", (start("r-1", "one", {"tool": "pay"}), start("r-2", "one", {"tool": "push"}))),
        Scenario(
            "two-runs-eager",
            (start("r-1", "one", {"tool": "push"}), start("r-2", "one", {"tool": "push"})),
            changes={"commit_ms": 1},
        ),
        Scenario(
            "repeated", (start("r-1", "one", {"tool": "push"}), start("r-1", "one", {"tool": "push"}, kind="repeat"))
        ),
        Scenario(
            "conflict",
            (start("r-1", "one", {"tool": "push"}), start("r-1", "one", {"tool": "pay"}, at_ms=30, kind="conflict")),
        ),
        Scenario("stray", (start("r-1", "one", {"tool": "push"}, stray=True),)),
        Scenario("not-before", (start("r-1", "one", {"tool": "push"}, not_before_ms=1_700_000_000_900),)),
        Scenario(
            "poison",
            (
                poison("run-requested", b"\xff not json"),
                start("r-1", "one", {"tool": "push"}),
                poison("run-signalled", b'{"run_id": "r-1", "extra": 1}'),
                poison("tool-completed", b"\0\0\0\0\x09nonsense"),
                poison("tool-requested.default", b"{}"),
                poison("run-requested", None, at_ms=20),
            ),
        ),
        Scenario("early-signal", (signal("r-1", "c", "cancel"), start("r-1", "one", {"tool": "push"}, at_ms=300))),
        _one("once-shared", "pay", "slow", planners=2, executors=2, sharing=True),
        _one("probed-shared", "book", planners=2, executors=2, sharing=True),
    )
}
