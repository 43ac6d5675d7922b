"""The app under faults: a tool of every class, with and without people before it, and an agent that mixes them.

A `plan` says what a tool does besides its effect; half of the time it does not, so that a retry may do better. With
`busy-N` it does nothing before second N since 1970, so that decisions grow old.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

from refold import App, Context, Retry
from refold.core.errors import CallFailed, NotDone, TerminalError
from refold.sdk.tool import DID_NOT_HAPPEN
from tests.chaos import recorder
from tests.simulator.programs.perform import perform

LEASE = timedelta(seconds=3)
TIMEOUT = timedelta(seconds=3)
RISKY = ("risky",)
PLANS = ("not_done", "refused", "raises_before", "raises_after", "slow", "hangs")
KINDS = ("any", "two", "short", "later", "brief")
"""By which rule people are asked about a dangerous call: the end of its label."""

AMOUNT = 100
"""What the agent asks for in every dangerous call; people may agree to something else."""

RETRY = Retry(attempts=8, base=timedelta(milliseconds=50), cap=timedelta(milliseconds=800))

FAT = 1_000_000
"""Characters of a large argument, and of a large result: with all around them nearly the megabyte that is allowed."""


def _deployed() -> dict[str, Any]:
    """The code that is deployed: nothing for this one, else how it differs, and for which runs."""
    path = Path(os.environ.get("CHAOS_DEPLOYED", ""))
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


DEPLOYED = _deployed()
if DEPLOYED.get("code") == "broken":
    raise ImportError("a package of this deploy is not installed")

# What a deploy changes lies in a file, which is not part of the version of the code unless somebody says so.
app = App("chaos", version=DEPLOYED.get("code", "right"))


def _ask(do: str, begun: int, **what: Any) -> dict[str, Any]:
    extra = {"begun": begun, "pid": os.getpid()} if do == "apply" else {}
    return {"do": do, **extra, **what}


async def _send(ask: dict[str, Any]) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ["CHAOS_RECORDER"]))
    try:
        writer.write((json.dumps(ask) + "\n").encode())
        return json.loads(await reader.readline())["value"]
    finally:
        writer.close()


def _before(plan: str) -> None:
    """What goes wrong before anything was sent."""
    now_s = time.clock_gettime(time.CLOCK_REALTIME)  # the receiver's clock, which is right: see `clocks`
    if plan.startswith("busy-") and (wait_s := int(plan.removeprefix("busy-")) - now_s) > 0:
        raise NotDone("the receiver is busy", retry_after=wait_s)
    if random.random() < 0.5:
        if plan == "not_done":
            raise NotDone("the receiver is busy")
        if plan == "refused":
            raise TerminalError("the receiver will never take this")
        if plan == "raises_before":
            raise RuntimeError("lost the way")


def _pause_after(plan: str) -> float:
    """What goes wrong, or merely takes long, after the effect."""
    if random.random() < 0.5:
        if plan == "raises_after":
            raise RuntimeError("lost the answer")
        if plan == "hangs":
            return TIMEOUT.total_seconds() + 1
        if plan == "slow":
            return 1.8
    return random.uniform(0.002, 0.04)


async def _act(effect: str, run: str, label: str, *, plan: str, key: str, amount: int = 0) -> int | str:
    begun = time.monotonic_ns()
    _before(plan)
    ask = _ask("apply", begun, effect=effect, run=run, label=label, key=key, amount=amount)
    value: int = await _send(ask)
    await asyncio.sleep(_pause_after(plan))
    return f"{value}{' ' * FAT}" if plan.startswith("fat") else value


def _act_sync(effect: str, run: str, label: str, *, plan: str, key: str) -> int:
    begun = time.monotonic_ns()
    _before(plan)
    ask = _ask("apply", begun, effect=effect, run=run, label=label, key=key, amount=0)
    value: int = recorder.call(int(os.environ["CHAOS_RECORDER"]), ask)
    time.sleep(_pause_after(plan))
    return value


async def _probe(*, idempotency_key: str) -> int | object:
    value = await _send(_ask("ask", 0, key=idempotency_key))
    return DID_NOT_HAPPEN if value is None else value


@app.tool(effect="pure", timeout=TIMEOUT, retry=RETRY)
async def look(run: str, label: str, plan: str, *, idempotency_key: str) -> int | str:
    """Reads; may be repeated."""
    return await _act("pure", run, label, plan=plan, key=idempotency_key)


@app.tool(effect="pure", timeout=timedelta(minutes=1), retry=RETRY)
async def dwell(run: str, label: str, plan: str, *, idempotency_key: str) -> int | str:
    """Reads for as many seconds as the plan says: longer than anybody waits for a partition."""
    await asyncio.sleep(float(plan))
    return await _act("pure", run, label, plan="ok", key=idempotency_key)


@app.tool(effect="keyed", timeout=TIMEOUT, retry=RETRY)
async def stamp(run: str, label: str, plan: str, *, idempotency_key: str) -> int | str:
    """The receiver deduplicates on the key."""
    return await _act("keyed", run, label, plan=plan, key=idempotency_key)


@app.tool(effect="keyed", timeout=TIMEOUT, retry=RETRY)
def stamp_sync(run: str, label: str, plan: str, *, idempotency_key: str) -> int:
    """The same in a thread, which nobody can interrupt."""
    return _act_sync("keyed", run, label, plan=plan, key=idempotency_key)


@app.tool(effect="probed", probe=_probe, lease=LEASE, timeout=TIMEOUT, retry=RETRY)
async def poke(run: str, label: str, plan: str, *, idempotency_key: str) -> int | str:
    """The receiver minds no key, but can be asked."""
    return await _act("probed", run, label, plan=plan, key=idempotency_key)


@app.tool(effect="once", lease=LEASE, timeout=TIMEOUT, retry=RETRY)
async def fire(run: str, label: str, plan: str, *, idempotency_key: str) -> int | str:
    """The receiver neither minds a key nor can be asked."""
    return await _act("once", run, label, plan=plan, key=idempotency_key)


@app.tool(effect="once", lease=LEASE, timeout=TIMEOUT, retry=RETRY)
def fire_sync(run: str, label: str, plan: str, *, idempotency_key: str) -> int:
    """The same in a thread."""
    return _act_sync("once", run, label, plan=plan, key=idempotency_key)


@app.tool(effect="pure", approval="required", timeout=TIMEOUT, retry=RETRY, tags=RISKY)
async def risky_look(run: str, label: str, plan: str, amount: int, *, idempotency_key: str) -> int | str:
    """Reads what not everybody may read."""
    return await _act("pure", run, label, plan=plan, key=idempotency_key, amount=amount)


@app.tool(effect="keyed", approval="required", timeout=TIMEOUT, retry=RETRY, tags=RISKY)
async def risky_stamp(run: str, label: str, plan: str, amount: int, *, idempotency_key: str) -> int | str:
    """Like `stamp`, after people have agreed to the amount."""
    return await _act("keyed", run, label, plan=plan, key=idempotency_key, amount=amount)


@app.tool(effect="probed", approval="required", probe=_probe, lease=LEASE, timeout=TIMEOUT, retry=RETRY, tags=RISKY)
async def risky_poke(run: str, label: str, plan: str, amount: int, *, idempotency_key: str) -> int | str:
    """Like `poke`, after people have agreed to the amount."""
    return await _act("probed", run, label, plan=plan, key=idempotency_key, amount=amount)


@app.tool(effect="once", approval="required", lease=LEASE, timeout=TIMEOUT, retry=RETRY, tags=RISKY)
async def risky_fire(run: str, label: str, plan: str, amount: int, *, idempotency_key: str) -> int | str:
    """Like `fire`, after people have agreed to the amount."""
    return await _act("once", run, label, plan=plan, key=idempotency_key, amount=amount)


async def _one(ctx: Context, call: dict[str, str]) -> int:
    """A call whose failure the agent takes note of: -1."""
    amount = (AMOUNT,) if call["tool"].startswith("risky") else ()
    try:
        found: int | str = await ctx.call(call["tool"], ctx.run_id, call["label"], _plan(call), *amount)
    except CallFailed:
        return -1
    return int(found)


def _plan(call: dict[str, str]) -> str:
    """What a tool is told to do besides; a large call is told at length."""
    return call["plan"].ljust(FAT) if call["plan"] == "fat" else call["plan"]


class Calling:
    """A context whose calls are those of this app. What their tools do besides is drawn by run and number."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def call(self, tool: str, n: int, **more: Any) -> Any:
        return self._ctx.call(tool, **arguments(self._ctx.run_id, tool, n), **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def arguments(run: str, tool: str, n: int) -> dict[str, Any]:
    """What a part of a program gives a tool."""
    chance = crc32(f"{run}/{n}".encode())
    plan = PLANS[chance // 8 % len(PLANS)] if chance % 5 == 0 else "ok"
    if tool.startswith("risky"):
        return {"run": run, "label": f"c{n}-{KINDS[chance // 64 % len(KINDS)]}", "plan": plan, "amount": AMOUNT}
    return {"run": run, "label": f"c{n}", "plan": plan}


@app.agent
async def program(ctx: Context, tree: Any) -> Any:
    """Whatever a tree says."""
    _misdeployed(ctx)
    return await perform(Calling(ctx), tree)


@app.on("left")
async def hearing(ctx: Context, tool: str) -> int | None:
    """Hears of an event."""
    try:
        return int(await Calling(ctx).call(tool, 0))
    except CallFailed:
        return None


def _misdeployed(ctx: Context) -> None:
    """What a wrong deploy makes of the runs that it was made for."""
    if ctx.run_id in DEPLOYED.get("runs", ()):
        if DEPLOYED["code"] == "raising":
            raise RuntimeError("a mistake of this deploy")
        ctx.note("another order", 0)


@app.agent
async def errand(ctx: Context, groups: list[list[dict[str, str]]], nap_ms: int, give_up: bool = False) -> list[int]:
    """Calls group after group, a group of several at once, with a note and a nap in between."""
    _misdeployed(ctx)
    results: list[int] = []
    for number, group in enumerate(groups):
        if len(group) == 1:
            results.append(await _one(ctx, group[0]))
        else:
            results += await asyncio.gather(*(_one(ctx, call) for call in group))
        ctx.note("checkpoint", number)
        if nap_ms:
            await asyncio.sleep(nap_ms / 1000)
    if give_up:
        raise ValueError("the errand was of no use")
    return results
