"""What the benchmarks measure with: processor time of the whole machine, memory of processes, percentiles."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.peers.load import STEPS
from confluent_kafka import Consumer, KafkaException, TopicPartition

from refold.engine.runtime.settings import KafkaSettings


def spent_s(pid: int) -> float:
    """Processor seconds that a process has spent so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


NAMES = {
    "serve planner": "planner",
    "serve executor": "executor",
    "serve all": "all",
    "java": "broker",
    "valkey": "Valkey",
}


def cpu_by_process() -> dict[str, float]:
    """Processor seconds of this process, `client`, and of those that it has started, by what they are."""
    found, parents = defaultdict[str, float](float), {os.getpid()}
    for pid in sorted(int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()):
        with suppress(OSError):
            parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
            if pid not in parents and parent not in parents:
                continue
            parents.add(pid)  # a child has a higher number than who started it, but after 4 million processes
            command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
            other = "client" if pid == os.getpid() else "other"
            found[next((name for word, name in NAMES.items() if word in command), other)] += spent_s(pid)
    return dict(found)


def memory_mib(pids: Iterable[int]) -> float:
    """Proportional set size of processes. **Units**: MiB."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().split("\n"):
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return round(total / 1024, 1)


def latency(run_seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds per step: median and 95th percentile over runs."""
    steps = sorted(seconds * 1000 / STEPS for seconds in run_seconds)
    return {"p50": round(statistics.median(steps), 3), "p95": round(steps[int(len(steps) * 0.95)], 3)}


def ends(settings: KafkaSettings, topic: str) -> list[TopicPartition]:
    """Where each partition of a topic ends now. Asks again for a while: topics that are new have no leader yet."""
    consumer = Consumer({"bootstrap.servers": settings.bootstrap, "group.id": "bench-ends", "log_level": 0})
    deadline = time.monotonic() + 30
    try:
        while True:
            places = [TopicPartition(settings.prefix + topic, number) for number in range(settings.partitions)]
            try:
                for place in places:
                    place.offset = consumer.get_watermark_offsets(place, timeout=10)[1]
                return places
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
    finally:
        consumer.close()
