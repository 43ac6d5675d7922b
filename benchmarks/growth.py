"""What a step costs as its run grows, and a gather of thousands: the real planner on a log in memory. Prints JSON.

The executors are played: whatever is ordered is answered in the next turn. Only the planner's own processor time
counts, so what is measured is what a run with a long history takes from all others of its process.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from itertools import count

from refold import App, Context
from refold.adapters.memory.log import MemoryBroker, MemoryEventLog
from refold.core import topics
from refold.core.messages import RunRequest, ToolRequest, ToolResult
from refold.core.wire import codec
from refold.planner.service import Planner
from refold.planner.settings import PlannerSettings
from refold.ports.log import Outgoing
from refold.runtime import logging
from refold.runtime.host import Host

app = App("growth")


@app.tool(effect="keyed")
async def nothing(i: int, *, idempotency_key: str) -> int:
    """Never runs: its result is played."""
    return i


@app.agent
async def one_by_one(ctx: Context, steps: int) -> int:
    """Steps, one after the other."""
    return sum([await ctx.call(nothing, i) for i in range(steps)])


@app.agent
async def at_once(ctx: Context, steps: int) -> int:
    """All steps at once."""
    return sum(await ctx.gather(*(ctx.call(nothing, i) for i in range(steps))))


class Played:
    """A planner on a log in memory, with executors that answer at once."""

    def __init__(self) -> None:
        pool = topics.tool_requested("default")
        names = [value for name, value in vars(topics).items() if name.isupper() and isinstance(value, str)]
        self._broker = MemoryBroker([*names, pool])
        nonces = count(1)
        settings = PlannerSettings(1)
        self._planner = Planner(app, settings, lambda: next(nonces).to_bytes(16))
        self._log = MemoryEventLog(self._broker, settings.membership)
        self._host = Host([self._planner], self._log)
        self._requests = self._broker.log(pool, 0)
        self._answered = 0

    def start(self, run: str, agent: str, steps: int) -> None:
        """Asks for a run."""
        request = RunRequest(run, agent, json.dumps({"steps": steps}))
        self._broker.write(Outgoing(topics.RUN_REQUESTED, 0, run.encode(), codec.encode(request), (), 0))

    def pump(self) -> float:
        """The answers to what was ordered, then turns until nothing comes; the processor time of those in seconds."""
        for record in self._requests.records[self._answered :]:
            if record.value is not None:
                ask = codec.decode(ToolRequest, record.value)
                result = ToolResult(ask.call_id, ask.run_id, ask.step, ask.attempt, "completed", "1")
                value = codec.encode(result)
                self._broker.write(Outgoing(topics.TOOL_COMPLETED, 0, ask.call_id.encode(), value, (), 0))
        self._answered = len(self._requests.records)
        started = time.process_time()
        while True:
            taken = self._log.take(500, 0)
            items = [*taken.rebalances, *taken.records, *taken.reached, *taken.deliveries]
            if not items:
                return time.process_time() - started
            self._host.pump(items)

    @property
    def over(self) -> int:
        """How many runs are over."""
        return len(self._broker.log(topics.RUN_COMPLETED, 0).records)


def steps(total: int) -> dict[str, float]:
    """Milliseconds per step at the beginning and at the end of a run of so many sequential calls."""
    played = Played()
    played.start("long", "one_by_one", total)
    taken = []
    while not played.over:
        taken.append(played.pump() * 1000)
    early, late = (statistics.median(taken[at - 100 : at + 100]) for at in (200, total - 200))
    return {"step_100_ms": round(early, 4), f"step_{total}_ms": round(late, 4), "ratio": round(late / early, 2)}


def gather(calls: int) -> float:
    """Processor seconds of a planner for a run that makes so many calls at once."""
    played = Played()
    played.start("wide", "at_once", calls)
    taken = 0.0
    while not played.over:
        taken += played.pump()
    return round(taken, 3)


def main(most: int) -> dict[str, object]:
    return {**steps(most), "gather_s": {calls: gather(calls) for calls in (100, 1_000, 4_000)}}


if __name__ == "__main__":
    logging.configure("bench")  # stdout is for the figures
    print(json.dumps(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000), indent=2))
