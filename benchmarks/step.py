"""Instructions that a step costs planner, executor and relay: `python -m benchmarks.step`, or `make bench-step`.

The real services run on logs and a ledger in memory, in virtual time and in one thread: each figure is the same every
time and on every machine. It counts the bytecode instructions of a service's turns. Work in C is not counted, nor that
of broker, Redis and host. `step.json` keeps the figures of each minor version of Python, and a figure more than 2 %
above fails. `--keep` writes them anew; the commit gives the reason.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
from benchmarks.workload import app

from refold.core import topics
from refold.core.ids import home
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.adapters.memory.ledger import MemoryLedger
from refold.engine.adapters.memory.log import MemoryEventLog
from refold.engine.executor.gate import Gate
from refold.engine.executor.service import Executor
from refold.engine.executor.settings import ExecutorSettings
from refold.engine.planner.service import Planner
from refold.engine.planner.settings import PlannerSettings
from refold.engine.ports import effects
from refold.engine.ports.log import End, Membership, Outgoing
from refold.engine.relay.service import Relay
from refold.engine.relay.settings import RelaySettings
from refold.sdk.sources import FactsTable

Figures = dict[str, int]

KEPT = Path(__file__).with_name("step.json")
MOST = 1.02
"""The part of its kept figure that a figure may come to. Two runs of the same code do not differ at all."""

PARTITIONS = 4
"""Lanes of the planner: as many as a small platform has."""

CALLS = 5
"""Steps of a run."""

ROUNDS = {1: 3, 100: 1}
"""Runs that are in flight at once, and how often so many are started."""

IDLE_TURNS = 100
MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
POOL = "default"
TOPICS = [
    *(value for name, value in vars(topics).items() if name.isupper() and isinstance(value, str)),
    *(topics.tool_requested(POOL), topics.tool_completed(POOL), topics.tool_claimed(POOL)),
]


class Instructions:
    """Counts the bytecode instructions that are executed while it is entered."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        sys.settrace(self._enter)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            self.count += 1
        return self._step


class Process:
    """Services of one member. Effects are carried out at once, in order; `meters` counts the turns of each service."""

    def __init__(
        self, rig: Rig, services: Mapping[str, effects.Service], membership: Membership, ledger: MemoryLedger | None
    ) -> None:
        self._rig, self._services, self._ledger = rig, services, ledger
        self._log = MemoryEventLog(rig.broker, membership)
        self._answers: list[effects.Item] = []
        self.meters = {name: Instructions() for name in services}

    def turn(self, *, metered: bool) -> bool:
        """A turn of each service with what came; False if nothing came and nothing is to be done."""
        taken = self._log.take(500, 0)
        # The log answers an append before it can be read there: an entry that is read first is taken for a zombie's.
        answers, self._answers = self._answers, []
        inbox = [*answers, *taken.rebalances, *taken.records, *taken.reached, *taken.shrunk, *taken.deliveries]
        orders: list[effects.Effect] = []
        for name, service in self._services.items():
            if metered:
                with self.meters[name]:
                    orders += service.turn(inbox, self._rig.now)
            else:
                orders += service.turn(inbox, self._rig.now)
            service.news.clear()
        for effect in orders:
            self._answers += self._carry_out(effect)
        return bool(inbox or orders)

    def _carry_out(self, effect: effects.Effect) -> Sequence[effects.Item]:
        if isinstance(effect, effects.Append):
            return self._log.append(effect.records)
        if isinstance(effect, effects.Publish):
            self._log.publish(effect.records)
        elif isinstance(effect, effects.AskLedger):
            assert self._ledger is not None, "only the executor asks it"
            return [effects.Answers(effect.batch, self._ledger.run(effect.operations))]
        elif isinstance(effect, effects.AskEnd):
            return [End(effect.topic, effect.partition, self._log.end(effect.topic, effect.partition))]
        elif isinstance(effect, effects.AskCommitted):
            return [effects.CommittedAt(*effect, self._log.committed(effect.group, effect.topic))]
        elif isinstance(effect, effects.StartTool):
            arguments = orjson.loads(effect.request.args)
            return [effects.ToolEnded(effect.number, "completed", str(arguments["i"]))]
        elif isinstance(effect, effects.Commit):
            self._log.commit(effect.positions)
        elif isinstance(effect, effects.Read):
            self._log.read(*effect)
        elif isinstance(effect, effects.Flow):
            steer = self._log.pause if effect.action == "pause" else self._log.resume
            steer(effect.topic, effect.partition)
        else:
            raise NotImplementedError(f"nothing here orders {effect}")
        return []


class Rig:
    """A planner, and an executor with its relay, on a broker in memory."""

    def __init__(self, partitions: int = PARTITIONS) -> None:
        self._ms, self._runs, numbers = 0, count(1), count(1)
        self.broker = MemoryBroker(TOPICS, partitions, clock_ms=lambda: self.now.wall_ms)
        planner = PlannerSettings(partitions, "planner")
        gate = Gate(tools=FactsTable(app.tools), environment="", partitions=partitions, pool=POOL)
        executor = ExecutorSettings(pool=POOL, member="executor", gate=gate, tools=app.tools)
        relay = Relay(RelaySettings(POOL, "relay"), token=lambda: next(numbers))
        acting = Executor(executor, relay, token=lambda: next(numbers), fresh=lambda: f"{next(numbers):032x}")
        ledger = MemoryLedger(lambda: self.now.mono_ms)
        self._processes = [
            Process(
                self, {"planner": Planner(app, planner, lambda: next(numbers).to_bytes(16))}, planner.membership, None
            ),
            Process(self, {"executor": acting, "relay": relay}, executor.membership, ledger),
        ]
        self.rest()

    @property
    def now(self) -> effects.Now:
        """Virtual time: a turn takes a millisecond."""
        return effects.Now(1_800_000_000_000 + self._ms, 1 + self._ms)

    def counts(self) -> Counter[str]:
        """Instructions so far, by service."""
        return Counter({name: meter.count for each in self._processes for name, meter in each.meters.items()})

    def turns(self, number: int, *, metered: bool = False) -> None:
        """So many turns of every process."""
        for _ in range(number):
            self._ms += 1
            for process in self._processes:
                process.turn(metered=metered)

    def rest(self) -> None:
        """Goes on until what follows from the last input has long happened, and all that is due now and then."""
        self.turns(2_500)

    def drive(self, runs: int, *, metered: bool) -> None:
        """Starts runs at once, and goes on until all of them are over. **Raises** TimeoutError."""
        wanted = {f"run-{next(self._runs)}" for _ in range(runs)}
        for run in sorted(wanted):
            value = orjson.dumps({"run_id": run, "agent": "many", "input": {"calls": CALLS}})
            place = home(run, self.broker.partitions)
            self.broker.write(Outgoing(topics.RUN_REQUESTED, place, run.encode(), value, (), 0))
        for _ in range(1_000):
            self.turns(1, metered=metered)
            if wanted <= set(self._completed()):
                return
        raise TimeoutError(f"of {runs} runs some have not ended after 1,000 turns")

    def _completed(self) -> Iterator[str]:
        for number in range(self.broker.partitions):
            for record in self.broker.log(topics.RUN_COMPLETED, number).records:
                yield (record.key or b"").decode()


def measure() -> Figures:
    """Instructions a step with one run and with many in flight, and those of a turn in which nothing happens."""
    figures: Figures = {}
    for runs in ROUNDS:
        figures |= {f"{name}, {runs} in flight": number for name, number in of_step(runs).items()}
    few, many = idle(1), idle(PARTITIONS)
    figures |= {f"{name}, idle turn": number for name, number in few.items()}
    for name in few:
        figures[f"{name}, idle turn of each further lane"] = (many[name] - few[name]) // (PARTITIONS - 1)
    return figures


def of_step(runs: int, partitions: int = PARTITIONS) -> Figures:
    """Instructions a step with so many runs in flight, by service."""
    rig = Rig(partitions)
    rig.drive(runs, metered=False)  # fills caches
    rig.rest()
    for _ in range(ROUNDS[runs]):
        rig.drive(runs, metered=True)
    return {name: number // (ROUNDS[runs] * runs * CALLS) for name, number in rig.counts().items()}


def idle(partitions: int) -> Figures:
    """Instructions of a turn without work, by service."""
    rig = Rig(partitions)
    rig.turns(IDLE_TURNS, metered=True)
    return {name: number // IDLE_TURNS for name, number in rig.counts().items()}


def worse(figures: Figures, kept: Figures) -> Figures:
    """Figures that are more than 2 % above what is kept of them, or of which nothing is kept."""
    return {name: figure for name, figure in figures.items() if figure > kept.get(name, -1) * MOST}


def main() -> int:
    """Prints figures beside what is kept; the exit code is 1 if one is worse."""
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is that of hashes
        command = [sys.executable, "-m", "benchmarks.step", *sys.argv[1:]]
        return subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "0"}, check=False).returncode
    gc.disable()  # it would call what belongs to objects of other turns
    figures, kept = measure(), json.loads(KEPT.read_text())
    if "--keep" in sys.argv:
        kept[MINOR] = figures
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    if MINOR not in kept:
        print(f"bench-step: nothing is kept for Python {MINOR}: run it there with --keep")
        return 1
    bad = worse(figures, kept[MINOR])
    print(f"{f'instructions, Python {MINOR}':<46} {'kept':>8} {'now':>8}")
    for name, figure in figures.items():
        print(f"{name:<46} {kept[MINOR].get(name, 0):>8,} {figure:>8,}{'  WORSE' if name in bad else ''}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
