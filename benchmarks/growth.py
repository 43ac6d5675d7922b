"""What grows with one run and with all that ever ran: a planner on logs in memory, in this process, in CPU time.

`python -m benchmarks.growth` prints JSON. What the outside world of this file costs is not counted.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import statistics
import threading
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import orjson
from benchmarks.prefill import finished
from benchmarks.step import PARTITIONS, of_step
from benchmarks.workload import app

from refold.core import topics
from refold.core.ids import EntryId, RunId
from refold.core.messages import EndedRuns, Marks, ToolRequest, ToolResult
from refold.core.run.chain import Head
from refold.core.run.finished import ROW_BYTES, Finished
from refold.core.run.snapshot import ENDED_BYTES, MARKS_KEY, over_key, weight
from refold.core.run.state import RunState
from refold.core.wire import codec
from refold.engine.adapters.kafka.topics import expected_topics
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.adapters.memory.log import MemoryEventLog, MemoryLogReader
from refold.engine.planner.service import Planner
from refold.engine.planner.settings import PlannerSettings
from refold.engine.ports.log import Outgoing
from refold.engine.runtime.host import Host
from refold.engine.runtime.memory import COLLECT_AFTER

WINDOW = 50
"""Steps on both sides of the one that is looked at: the median of them is not a pass of the collector."""

QUIET = 50
"""Turns in which nothing happens, before memory is looked at: what was sent is acknowledged by then."""


@dataclass(eq=False)
class Outside(threading.Event):
    """The world outside of a planner: answers every call (if it `answers`), and stops the host when `done` says so.

    The host asks before each turn whether it is to stop; that is when the world moves. `spent` is the CPU of all turns,
    `steps` what each answer cost up to the next request.
    """

    broker: MemoryBroker
    done: Callable[[Outside], bool]
    answers: bool = True
    spent: float = 0.0
    ended: set[bytes] = field(default_factory=set)
    steps: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        reader = MemoryLogReader(self.broker)
        self._requests = reader.tail(topics.tool_requested("default"))
        self._outcomes = reader.tail(topics.RUN_COMPLETED)
        self._since = time.process_time()
        self._before = 0.0

    def is_set(self) -> bool:
        """One move of the world."""
        self.spent += time.process_time() - self._since
        while (outcome := next(self._outcomes)) is not None:
            self.ended.add(outcome.key or b"")
        while self.answers and (record := next(self._requests)) is not None:
            if record.value is not None:
                self._answer(codec.decode(ToolRequest, record.value), record.partition)
        over = self.done(self)
        self._since = time.process_time()
        return over

    def _answer(self, request: ToolRequest, partition: int) -> None:
        self.steps.append(self.spent - self._before)
        self._before = self.spent
        names = request.call_id, request.run_id, request.step, request.attempt
        result = ToolResult(*names, "completed", "1", executor="outside")
        put(self.broker, topics.tool_completed("default"), request.call_id, codec.encode(result), partition)


def put(broker: MemoryBroker, topic: str, key: str, value: bytes, partition: int = 0) -> None:
    """Writes a record as somebody outside does."""
    broker.write(Outgoing(topic, partition, key.encode(), value, (), 0))


def cluster() -> MemoryBroker:
    """All topics of the product, with one partition, without a limit that a record of ours could meet."""
    return MemoryBroker([topic.name for topic in expected_topics()], max_bytes=1 << 30)


def drive(
    broker: MemoryBroker, done: Callable[[Outside], bool], *, answers: bool = True, snapshot_ms: int = 5_000
) -> Outside:
    """A planner works on a broker until the world has seen enough; what the world saw."""
    settings = PlannerSettings(partitions=1, snapshot_ms=snapshot_ms)
    planner = Planner(app, settings, nonce=lambda: os.urandom(16))
    world = Outside(broker, done, answers)
    Host([planner], MemoryEventLog(broker, settings.membership)).run(world.is_set, grace_s=0.0)
    return world


def steps(calls: int) -> list[float]:
    """The CPU seconds of each step of a run of so many calls, one after the other."""
    broker = cluster()
    value = orjson.dumps({"run_id": "long", "agent": "many", "input": {"calls": calls}})
    put(broker, topics.RUN_REQUESTED, "long", value)
    return drive(broker, lambda world: bool(world.ended)).steps


def step_ratio(calls: int, *, early: int = 100, rounds: int = 3) -> dict[str, float]:
    """What the last step costs of what an early one does. **Units**: milliseconds of CPU."""
    last, first = [], []
    for _ in range(rounds):
        found = steps(calls)
        first.append(statistics.median(found[early - WINDOW : early + WINDOW]))
        last.append(statistics.median(found[-2 * WINDOW :]))
    first_ms, last_ms = min(first) * 1000, min(last) * 1000
    return {"early_ms": round(first_ms, 3), "late_ms": round(last_ms, 3), "ratio": round(last_ms / first_ms, 2)}


def gather(calls: int) -> float:
    """The CPU seconds of a planner for a run that asks for so many calls at once, up to its end."""
    broker = cluster()
    value = orjson.dumps({"run_id": "wide", "agent": "wide", "input": {"calls": calls}})
    put(broker, topics.RUN_REQUESTED, "wide", value)
    return round(drive(broker, lambda world: bool(world.ended)).spent, 2)


def fan_out(children: int) -> float:
    """The microseconds of CPU of a planner for each run that a parent starts and waits for, all at once."""
    broker = cluster()
    value = orjson.dumps({"run_id": "parent", "agent": "fans_out", "input": {"children": children}})
    put(broker, topics.RUN_REQUESTED, "parent", value)
    return drive(broker, lambda world: b"parent" in world.ended).spent / children * 1e6


def fan_out_ratio(many: int, *, few: int = 100, rounds: int = 3) -> dict[str, float]:
    """What a run of many that one parent starts costs of what one of few does. **Units**: microseconds of CPU."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)  # as in a service: with Python's own, more objects are looked through more often
    few_us = min(fan_out(few) for _ in range(5 * rounds))
    many_us = min(fan_out(many) for _ in range(rounds))
    gc.set_threshold(*before)
    gc.unfreeze()
    return {"few_us": round(few_us, 1), "many_us": round(many_us, 1), "ratio": round(many_us / few_us, 2)}


def remembered(runs: int) -> float:
    """The bytes that a planner keeps of each finished run when it takes over, as Python counts its objects.

    It begins with the snapshot that another one has left: that of a long log, which it has read from its start.
    """
    held: list[int] = []
    for number in (0, runs):
        broker = cluster()
        for index in range(number):
            run = RunId(f"finished-{index:07}")
            for key, value in finished(run, 1_700_000_000_000):
                put(broker, topics.RUN_LOG, key.decode(), value)
        _at_rest(broker, "first", lambda: None)
        gc.collect()
        tracemalloc.start()
        _at_rest(broker, "second", partial(_weigh, broker, held))
        tracemalloc.stop()
    return round((held[1] - held[0]) / runs)


def taken_over(runs: int) -> dict[str, float]:
    """What a planner needs to know of a million runs that are over, beside what it needs to know of none.

    **Units**: seconds of CPU up to the end of its first run; MiB of resident memory.
    """
    found: list[tuple[float, float]] = []
    for number in (0, 0, runs):  # the first imports what the others find
        broker, check, rows = cluster(), 0, ENDED_BYTES // ROW_BYTES
        for part, first in enumerate(range(0, number, rows)):
            names = (RunId(f"finished-{index}") for index in range(first, min(number, first + rows)))
            ended = b"".join(Finished().add(RunState(run, Head(EntryId(bytes(16)), 12), "completed")) for run in names)
            key, value = over_key(1, part, ended), codec.encode(EndedRuns([""], ended))
            check ^= weight(key, value)
            put(broker, topics.RUN_SNAPSHOT, key.decode(), value)
        marks = codec.encode(Marks(1, 0, check.to_bytes(16), {}, "first"))
        put(broker, topics.RUN_SNAPSHOT, MARKS_KEY.decode(), marks)
        before, began = _resident(), time.process_time()
        held: list[float] = []
        _at_rest(broker, "second", lambda held=held: held.extend((time.process_time(), _resident())))  # type: ignore[misc]
        found.append((held[0] - began, held[1] - before))
    return {"runs": runs, "cpu_s": round(found[2][0] - found[1][0], 2), "mib": round(found[2][1] - found[1][1], 1)}


def _resident() -> float:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free is not needed, but may still be resident
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _at_rest(broker: MemoryBroker, run: str, look: Callable[[], None]) -> None:
    """A planner takes over, ends a run of its own, and is looked at when it has written its snapshot."""
    turns = count()

    def done(world: Outside) -> bool:
        if run.encode() not in world.ended or next(turns) < QUIET:
            return False
        world.ended.clear()
        look()
        return True

    put(broker, topics.RUN_REQUESTED, run, orjson.dumps({"run_id": run, "agent": "at_once"}))
    drive(broker, done, answers=False, snapshot_ms=0)


def _weigh(broker: MemoryBroker, held: list[int]) -> None:
    for topic in broker.topics:  # what lies on a broker is no memory of a planner
        broker.log(topic, 0).records.clear()
    gc.collect()
    held.append(tracemalloc.get_traced_memory()[0])


def partition_ratio(many: int = 60, few: int = PARTITIONS) -> dict[str, float]:
    """What a step alone costs on many partitions of what it costs on few, by service. **Units**: instructions."""
    on_many, on_few = of_step(1, many), of_step(1, few)
    return {"partitions": many, **{name: round(on_many[name] / on_few[name], 2) for name in on_few}}


def measure(
    *, calls: int = 10_000, at_once: int = 4_000, children: int = 10_000, runs: int = 12_000, ended: int = 1_000_000
) -> dict[str, Any]:
    """All of it."""
    return {
        "step": step_ratio(calls, early=min(100, calls // 2)),
        "step_by_partitions": partition_ratio(),
        "gather": {"calls": at_once, "cpu_s": gather(at_once)},
        "fan_out": {"children": children, **fan_out_ratio(children)},
        "finished_run_bytes": remembered(runs),
        "taken_over": taken_over(ended),
    }


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
