"""A tool that ends its process takes planner and executors with it: all go on, by the class of the call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.terminal import served
from tests.waiting import eventually

APP = """
import asyncio, ctypes, os
from pathlib import Path

from refold import App, Context

app = App("crashing")
here = Path(__file__).parent


def begin(name: str, end) -> int:
    with (here / name).open("a") as lines:
        lines.write("begun\\n")
    if len((here / name).read_text().split()) == 1:
        end()
    return 1


@app.tool(effect="keyed")
def falls(name: str, *, idempotency_key: str) -> int:
    return begin(name, lambda: os._exit(3))


@app.tool(effect="pure")
def segfaults(name: str) -> int:
    return begin(name, lambda: ctypes.string_at(0))


@app.tool(effect="once")
def acts(name: str) -> int:
    return begin(name, lambda: os._exit(3))


@app.agent
async def steps(ctx: Context) -> list[int]:
    found = [await ctx.call(falls, name="keyed"), await ctx.call(segfaults, name="pure")]
    return [*found, await ctx.call(acts, name="once")]


@app.agent
async def waits(ctx: Context) -> str:
    await asyncio.sleep(5)
    return "on time"
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_tool_that_ends_the_process_costs_no_run_and_no_effect(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "app.py").write_text(APP)
    with served(tmp_path / "app.py", tmp_path / "data", REFOLD_EXECUTOR__CHAINED_LEASE_MS="4000") as dev:
        dev.refold("run", "start", "waits", "--id", "w-1")
        dev.refold("run", "start", "steps", "--id", "s-1")
        asked = eventually(lambda: dev.read("approval", "list"), within=120, what="the doubt of the third call")
        dev.refold("run", "resolve", asked[0]["approval"], "--happened", "7", "--actor", "ann")
        eventually(lambda: dev.read("run", "show", "s-1")["status"] == "completed", within=60)

        assert dev.read("run", "show", "s-1")["result"] == [1, 1, 7]
        eventually(lambda: dev.read("run", "show", "w-1")["status"] == "completed", within=60)
        lines = {name: len((tmp_path / name).read_text().split()) for name in ("keyed", "pure", "once")}
        assert lines == {"keyed": 2, "pure": 2, "once": 1}
        restarts = {row["role"]: row["restarts"] for row in dev.read("dev", "status")["processes"]}
        assert restarts["planner"] == restarts["executor"] == 3
