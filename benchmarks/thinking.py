"""What it costs that an agent of pydantic-ai is durable: CPU per request to its model, bytes stored, steps a second.

`python -m benchmarks.thinking` prints JSON; `--picture docs/images/storage.svg` draws what is stored. `--rate` needs
the embedded broker; beside it, in the same sitting, runs `benchmarks/thinking_peers.py`, which says what to install.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from benchmarks.engine import alone
from benchmarks.growth import Outside, cluster, put
from benchmarks.reader import reader
from benchmarks.thinkers import ONE_POOL, PAGES
from pydantic_ai.usage import UsageLimits

from refold import App
from refold.contrib.pydantic_ai import durable
from refold.core import topics
from refold.core.events import CallCompleted
from refold.core.messages import ToolRequest, ToolResult
from refold.core.wire import codec
from refold.core.wire.headers import BASE
from refold.engine.adapters.memory.log import MemoryEventLog
from refold.engine.executor.inputs import SeenCalls
from refold.engine.executor.settings import ExecutorSettings
from refold.engine.planner.service import Planner
from refold.engine.planner.settings import PlannerSettings
from refold.engine.ports.log import Outgoing
from refold.engine.runtime import logging
from refold.engine.runtime.host import Host
from refold.testing import AgentRun, Boundary
from refold.testing.reruns import same_end

REQUESTS = 50
CALLS, CHARACTERS = 100, 8_360
"""A hundred calls that grow to 209,000 tokens of four characters."""

LIVE = 50
GOALS = {
    "CPU ms of Refold per model step": ("<=", 0.9, 1.2),
    "MB of orders, 100 calls that grow to 209,000 tokens": ("<=", 2.0, 5.0),
    "bytes stored, of what is new": ("<=", 1.3, 1.6),
    "agent steps/s, 50 live": (">=", 100, 100),
}
"""Figure, direction, goal, must."""

_NOWHERE = Boundary("planner", -1)
"""Nothing is killed, and fresh code runs along the history at its end only."""

_NO_LIMIT = UsageLimits(request_limit=None)


def _app(turns: int, characters: int) -> App:
    app = App("thinking")
    durable(app, reader(turns, characters), ONE_POOL, usage_limits=_NO_LIMIT)
    return app


def recorded(turns: int, characters: int) -> AgentRun:
    """A run that has read so many pages."""
    return AgentRun(_app(turns, characters), "reader", {"prompt": "read"}, boundary=_NOWHERE).finish()


def _cpu(work: Callable[[], Any]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


class _Told(Outside):
    """The world outside of a planner: it answers each call as it was answered in a run before.

    It keeps of conversations what an executor does, and says so; `orders` is the bytes of all orders.
    """

    before: dict[int, str]
    kept: SeenCalls
    orders: int

    def _answer(self, request: ToolRequest, partition: int) -> None:
        self.orders += len(codec.encode(request))
        found = self.kept.whole(request)
        assert found is not None, "it forgets nothing"
        names = request.call_id, request.run_id, request.step, request.attempt
        result = ToolResult(*names, "completed", self.before[request.step], executor="outside")
        held = [(BASE, found[1].digest.encode())] if found[1] else []
        topic, value = topics.tool_completed("default"), codec.encode(result)
        self.broker.write(Outgoing(topic, partition, request.call_id.encode(), value, held, 0))


def _planned(app: App, run: AgentRun, *, keeps: bool = True) -> _Told:
    """A planner for a run, on logs in memory. What the world outside costs is not counted in its CPU.

    `keeps`: executors keep of conversations what orders have brought.
    """
    broker, pools = cluster(), ("default",)
    settings = PlannerSettings(partitions=1, pools=pools)
    put(broker, topics.RUN_REQUESTED, "r-1", orjson.dumps({"run_id": "r-1", "agent": "reader", "input": run_input()}))
    world = _Told(broker, lambda world: bool(world.ended))
    own = ExecutorSettings()
    world.kept, world.orders = SeenCalls(own.conversation_bytes if keeps else 0, own.conversation_least), 0
    world.before = {event.step: event.result for event in run.events if isinstance(event, CallCompleted)}
    planner = Planner(app, settings, nonce=lambda: os.urandom(16))
    Host([planner], MemoryEventLog(broker, settings.membership)).run(world.is_set, grace_s=0.0)
    return world


def run_input() -> dict[str, Any]:
    """What the run is started on."""
    return {"prompt": "read"}


def cpu(rounds: int = 5) -> dict[str, float]:
    """CPU milliseconds for each request to a model and the tool call that follows, the best of some rounds in turns."""
    run, app, agent = recorded(REQUESTS - 1, 200), _app(REQUESTS - 1, 200), reader(REQUESTS - 1)
    assert run.value == "read", run.failure
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, work in {
            "alone": lambda: asyncio.run(agent.run("read", usage_limits=_NO_LIMIT)),
            "driver": lambda: same_end(app, "reader", run.state),
            "both": lambda: recorded(REQUESTS - 1, 200),
        }.items():
            found.setdefault(name, []).append(_cpu(work))
        found.setdefault("planner", []).append(_planned(app, run).spent)
    best = {name: min(times) / REQUESTS * 1000 for name, times in found.items()}
    best["executor"] = best["both"] - best["planner"] - best["driver"]  # it looks once whether code decides the same
    own = {f"{name}, beyond it": best[name] - best["alone"] for name in ("driver", "planner")}
    return {name: round(value, 3) for name, value in {**best, **own}.items()}


def storage() -> dict[str, Any]:
    """What a conversation takes of the log, call by call: with Refold, in full each time, and what is new in it."""
    run = recorded(CALLS, CHARACTERS)
    kept = sum(len(value) for _, value in run.records)
    each, so_far = [0], 0
    for _, value in run.records:
        so_far += len(value)
        if b"page " in value and len(value) > CHARACTERS:
            each.append(so_far)
    new = [CHARACTERS * n for n in range(CALLS + 1)]
    whole = [0]
    for size in new[1:]:
        whole.append(whole[-1] + size)
    return {"kept": kept, "new": new[-1], "ratio": round(kept / new[-1], 3), "curve": each[: CALLS + 1], "whole": whole}


def orders() -> dict[str, float]:
    """Megabytes of the orders of a conversation, with executors that keep what they have seen, and without."""
    run, app = recorded(CALLS, CHARACTERS), _app(CALLS, CHARACTERS)
    return {
        "mb": round(_planned(app, run).orders / 1e6, 2),
        "whole_mb": round(_planned(app, run, keeps=False).orders / 1e6, 2),
    }


def picture(found: dict[str, Any]) -> str:
    """The curves as SVG: calls to the right, megabytes upwards."""
    wide, high, left, below = 640, 320, 60, 40
    most = found["whole"][-1] / 1e6

    def line(values: list[int], colour: str) -> str:
        points = " ".join(
            f"{left + n * (wide - left - 10) / (len(values) - 1):.1f},{high - below - v / 1e6 / most * (high - 60):.1f}"
            for n, v in enumerate(values)
        )
        return f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>'

    def text(x: float, y: float, words: str, anchor: str = "start") -> str:
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'

    last = found["kept"] / 1e6
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="12">',
        f'<rect width="{wide}" height="{high}" fill="white"/>',
        f'<path d="M{left} 20V{high - below}H{wide - 10}" fill="none" stroke="black"/>',
        line(found["whole"], "#c0392b"),
        line(found["curve"], "#2471a3"),
        text(left - 6, 24, f"{most:.0f} MB", "end"),
        text(left - 6, high - below, "0", "end"),
        text(wide - 10, high - below + 16, f"{CALLS} calls, 209,000 tokens", "end"),
        text(wide - 190, 90, "each call with all before it", "end"),
        text(wide - 16, high - below - 14, f"Refold: {last:.2f} MB for {found['new'] / 1e6:.2f} MB of text", "end"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def rate(rounds: int = 3) -> dict[str, Any]:
    """Steps a second of 50 agents that live at once, with one planner and one executor on a broker of their own."""
    rates, spent = [], []
    with alone("thinking", app="benchmarks.thinkers:app") as engine:
        engine.client.finish(engine.client.start("reader", 1, run_input()), timeout_s=90)
        for _ in range(rounds):
            begun = time.perf_counter()
            engine.client.finish(engine.client.start("reader", LIVE, run_input()), timeout_s=300)
            spent.append(time.perf_counter() - begun)
            rates.append(round(LIVE * (2 * PAGES + 1) / spent[-1]))
    return {"steps_per_s": sorted(rates), "requests_per_s": sorted(round(LIVE * (PAGES + 1) / each) for each in spent)}


def main() -> int:
    """Prints what was asked for; exit code 1 when a figure misses its must."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path, help="where the curve of what is stored goes, as SVG")
    parser.add_argument("--rate", action="store_true", help="the rate as well, and nothing else")
    options = parser.parse_args()
    logging.configure("bench")  # stdout is for the figures
    figures: dict[str, float] = {}
    if options.rate:
        found: dict[str, Any] = {"rate": rate()}
        figures["agent steps/s, 50 live"] = statistics.median(found["rate"]["steps_per_s"])
    else:
        kept = storage()
        if options.picture:
            options.picture.write_text(picture(kept))
        found = {"cpu_ms": cpu(), "storage": {name: kept[name] for name in ("kept", "new", "ratio")}}
        found["orders"] = orders()
        figures["MB of orders, 100 calls that grow to 209,000 tokens"] = found["orders"]["mb"]
        figures["CPU ms of Refold per model step"] = found["cpu_ms"]["planner, beyond it"]
        figures["bytes stored, of what is new"] = kept["ratio"]
    found["figures"] = {name: _judged(value, *GOALS[name]) for name, value in figures.items()}
    print(json.dumps({"load": os.getloadavg(), **found}, indent=2))
    return int(any(each["verdict"] == "MISSED" for each in found["figures"].values()))


def _judged(value: float, direction: str, goal: float, must: float) -> dict[str, Any]:
    sign = 1 if direction == "<=" else -1
    verdict = "goal" if sign * value <= sign * goal else "ok" if sign * value <= sign * must else "MISSED"
    return {"value": value, "goal": f"{direction} {goal}", "must": f"{direction} {must}", "verdict": verdict}


if __name__ == "__main__":
    sys.exit(main())
