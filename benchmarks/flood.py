"""A client that writes what nobody can use, as large as its topics take it: what it costs a planner and the others.

`python -m benchmarks.flood [--kinds names,runs] [--mebibytes 256] [--quota BYTES_A_SECOND]`; JSON on stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import orjson
from benchmarks.measure import ends
from benchmarks.planners import GIVE_UP_S, Asked, Planners, User
from confluent_kafka import Consumer, Producer

from refold.core.ids import home
from refold.core.messages import ToolRequest, ToolResult
from refold.core.topics import RUN_REQUESTED, RUN_SIGNALLED, tool_completed, tool_requested
from refold.core.wire import codec
from refold.dev.files import cache_dir
from refold.dev.jars import fetch_jars
from refold.dev.kafka import EmbeddedKafka, java_command
from refold.engine.runtime.settings import KafkaSettings

LARGE = 1_000_000
"""Bytes of a hostile record, just under the limit of an input."""

CALM_S = 4.0
"""How long the others are watched before the flood."""

SENDER = "flood"

_POOL = tool_requested("default")
_PART_BYTES = 16 << 20
"""So much is written before the writer waits for the broker."""

Made = Callable[[str], tuple[str, bytes, bytes]]


def _request(run: str, **fields: Any) -> tuple[str, bytes, bytes]:
    return RUN_REQUESTED, run.encode(), orjson.dumps({"run_id": run, "agent": "at_once", **fields})


def _signal(run: str, **fields: Any) -> tuple[str, bytes, bytes]:
    signal = {"run_id": run, "signal_id": "s", "kind": "cancel", **fields}
    return RUN_SIGNALLED, f"{run}/s".encode(), orjson.dumps(signal)


def _numbers(run: str) -> tuple[str, bytes, bytes]:
    input_ = b"[" + b",".join([b"1e-5"] * (LARGE // 5)) + b"]"
    return RUN_REQUESTED, run.encode(), b'{"run_id":"%s","agent":"at_once","input":%s}' % (run.encode(), input_)


KINDS: dict[str, Made] = {
    "signals": lambda run: _signal(run, data="x" * LARGE),
    "nonsense": lambda run: (RUN_SIGNALLED, run.encode(), b"\0" * LARGE),
    "names": lambda run: _request(run, agent="x" * LARGE),
    "unknown": lambda run: _request(run, agent="nobody", input="x" * LARGE),
    "later": lambda run: _request(run, not_before_ms=2**52, input="x" * LARGE),
    "runs": lambda run: _request(run, input="x" * LARGE),
    "naps": lambda run: _request(run, agent="naps", labels={"k": "x" * 1_000}),
    "numbers": _numbers,
}
"""By name, the records that one flood is made of, each for a run of its own."""


class Flood:
    """What a flood does to one planner that serves all partitions."""

    def __init__(self, bootstrap: str, folder: Path, **environment: str) -> None:
        self.planners = Planners(bootstrap, folder, **environment)
        self.settings = self.planners.settings
        self.planners.start("flooded")
        self._user = User(self.settings)
        self._user.back_after(time.monotonic())
        self._steps = Steps(self.settings)

    def measure(self, kinds: list[str], mebibytes: int, *, give_up_s: float = GIVE_UP_S) -> dict[str, Any]:
        """Memory in MiB, and what others saw in ms: steps of runs under way, and runs that they asked for meanwhile.

        Before, and from the first record to the end.
        """
        calm_since = time.monotonic()
        time.sleep(CALM_S)
        while not (self._steps.between(calm_since, time.monotonic()) and self._asked(calm_since, time.monotonic())):
            # A busy machine: there is nothing yet to compare with.
            if time.monotonic() - calm_since > give_up_s:
                raise TimeoutError(f"no run took a step in {give_up_s:g} s, before anything was written")
            time.sleep(CALM_S)
        before, begun = self.planners.rss("flooded"), time.monotonic()
        peak = max(self._write(kinds, mebibytes << 20), before)
        written = last = time.monotonic()
        places = [place for topic in (RUN_REQUESTED, RUN_SIGNALLED) for place in ends(self.settings, topic)]
        while last - written < CALM_S or not self.planners.passed(places):
            peak, last = max(peak, self.planners.rss("flooded")), time.monotonic()
            if last - written > give_up_s:
                raise TimeoutError(f"{kinds} are not answered after {give_up_s:g} s, at {peak} MiB")
            time.sleep(0.05)
        self._user.back_after(time.monotonic())
        return {
            "kinds": kinds,
            "mebibytes": mebibytes,
            "memory_mib": {"before": before, "most": peak, "after": self.planners.rss("flooded")},
            "ms_per_step": {
                "calm": _shape(self._steps.between(calm_since, begun)),
                "flooded": _shape(self._steps.between(begun, last)),
            },
            "ms_per_run": {"calm": self._latency(calm_since, begun), "flooded": self._latency(begun, last)},
            "seconds": {"written": round(written - begun, 1), "passed": round(last - begun, 1)},
        }

    def close(self) -> None:
        """Ends the planner and its user."""
        self._user.stop()
        self._steps.stop()
        self.planners.close()

    def _latency(self, since: float, until: float) -> dict[str, float]:
        return _shape([(each.answered or until) - each.at for each in self._asked(since, until)])

    def _asked(self, since: float, until: float) -> list[Asked]:
        return [each for each in list(self._user.asked.values()) if since <= each.at < until]

    def _write(self, kinds: list[str], size: int) -> float:
        """Writes all of it as fast as the broker takes it; the most memory that the planner had meanwhile."""
        return write(self.settings, kinds, size, lambda: self.planners.rss("flooded"))


def _shape(seconds: list[float]) -> dict[str, float]:
    spans = sorted(seconds)
    found = {"p50": statistics.median(spans), "p95": spans[int(len(spans) * 0.95)], "most": spans[-1]}
    return {name: round(span * 1000, 1) for name, span in found.items()}


def write(settings: KafkaSettings, kinds: list[str], size: int, look: Callable[[], float]) -> float:
    """Writes so many bytes of these kinds in turn, to the homes of their runs; the most that `look` has seen."""
    producer = Producer(
        {
            "bootstrap.servers": settings.bootstrap,
            "client.id": SENDER,
            "message.max.bytes": 16 << 20,
            "queue.buffering.max.kbytes": 65_536,
            "log_level": 0,
        }
    )
    most, part = 0.0, 0
    for run in _runs():
        for kind in kinds:
            topic, key, value = KINDS[kind](run)
            producer.produce(settings.prefix + topic, value, key, home(run, settings.partitions))
            size, part = size - len(value), part + len(value)
        if part >= _PART_BYTES or size <= 0:
            producer.flush(60)
            most, part = max(most, look()), 0
        if size <= 0:
            return most
    raise AssertionError("names never end")


def _runs() -> Iterator[str]:
    tag = os.urandom(3).hex()
    return (f"flood-{tag}-{number}" for number in count())


class Steps:
    """Runs that were under way before, one in each partition: a thread that is their executor, with a watch."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings, self._stopped = settings, threading.Event()
        self.spans: list[tuple[float, float]] = []
        self._begin = ends(settings, _POOL)
        self._thread = threading.Thread(target=self._work, name="steps", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answers no more."""
        self._stopped.set()
        self._thread.join()

    def between(self, since: float, until: float) -> list[float]:
        """How long each step took that ended in between: from an answer to the next question. **Units**: seconds."""
        return [span for at, span in list(self.spans) if since <= at < until]

    def _work(self) -> None:
        options = {"bootstrap.servers": self._settings.bootstrap, "log_level": 0}
        producer = Producer({**options, "linger.ms": 0})
        consumer = Consumer({**options, "group.id": f"steps-{os.getpid()}", "enable.auto.commit": False})
        consumer.assign(self._begin)
        runs = _runs()
        for number in range(self._settings.partitions):
            run = next(name for name in runs if home(name, self._settings.partitions) == number)
            value = orjson.dumps({"run_id": run, "agent": "many", "input": {"calls": 90_000}})
            producer.produce(self._settings.prefix + RUN_REQUESTED, value, run, number)
        answered: dict[str, float] = {}
        while not self._stopped.is_set():
            for message in consumer.consume(100, 0.005):
                if message.error() is None and message.value():
                    self._answer(producer, codec.decode(ToolRequest, message.value()), answered)
            producer.poll(0)
        consumer.close()

    def _answer(self, producer: Producer, asked: ToolRequest, answered: dict[str, float]) -> None:
        now = time.monotonic()
        if (before := answered.get(asked.run_id)) is not None:
            self.spans.append((now, now - before))
        result = ToolResult(asked.call_id, asked.run_id, asked.step, asked.attempt, "completed", "1")
        number = home(asked.run_id, self._settings.partitions)
        answered[asked.run_id] = time.monotonic()
        producer.produce(self._settings.prefix + tool_completed("default"), codec.encode(result), asked.call_id, number)
        producer.poll(0)


def main() -> None:
    """One flood against a broker and a planner of its own; with a quota the broker holds its sender to that."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kinds", default="names,unknown,later,runs", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--quota", type=int, help="bytes a second")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="refold-flood-") as name, EmbeddedKafka(Path(name) / "kafka") as kafka:
        if options.quota:
            _limit(kafka.bootstrap, options.quota)
        with closing(Flood(kafka.bootstrap, Path(name))) as flood:
            print(json.dumps(flood.measure(options.kinds.split(","), options.mebibytes), indent=2))


def _limit(bootstrap: str, rate: int) -> None:
    """Sets a quota, as Kafka's own tool does; no user is told from another here, but clients are by their names."""
    change = ["--alter", "--add-config", f"producer_byte_rate={rate}", "--entity-type", "clients"]
    words = ["--bootstrap-server", bootstrap, *change, "--entity-name", SENDER]
    command = java_command(fetch_jars(cache_dir()), "kafka.admin.ConfigCommand", words)
    subprocess.run(command, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()
