"""The cost of a step, counted: requests to Kafka, turns, calls of Redis, and CPU, by process.

    python -m benchmarks.requests [--partitions 4,60] [--in-flight 1,10,100] [--json]

A `ten` of the workload is ten steps. Requests are those that librdkafka counts in each service, without those of the
client that asks for the runs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import time
from collections import Counter
from functools import partial
from typing import Any

from benchmarks.engine import FEW, SERVICES, Engine, alone
from benchmarks.measure import cpu_by_process
from benchmarks.peers.load import STEPS
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from refold.dev.ports import free_port
from refold.engine.adapters.kafka.clients import STATISTICS

RUNS = {1: 40, 10: 300}
"""Runs by how many are in flight; of more than these `MANY`."""
MANY = 1_000
TOLD_S = 0.2
"""Period of the statistics of librdkafka."""


def counted(port: int) -> Counter[str]:
    """Return the sums that a service shows: `requests`, those by kind, `turns` and `calls of Redis`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics")
    found = Counter[str]()
    for family in text_string_to_metric_families(connection.getresponse().read().decode()):
        for sample in family.samples:
            if sample.name == "refold_kafka_requests_total":
                found[sample.labels["request"]] += int(sample.value)
                found["requests"] += int(sample.value)
            elif sample.name == "refold_turn_seconds_count":
                found["turns"] += int(sample.value)
            elif sample.name == "refold_ledger_seconds_count":
                found["calls of Redis"] += int(sample.value)
    return found


def measure(engine: Engine, ports: dict[str, int], in_flight: int) -> dict[str, Any]:
    """Return what a step costs with so many runs in flight."""
    runs = RUNS.get(in_flight, MANY)
    engine.client.drive("ten", in_flight, in_flight=in_flight)
    time.sleep(2 * TOLD_S)
    before, cpu, begun = {name: counted(port) for name, port in ports.items()}, cpu_by_process(), time.perf_counter()
    engine.client.drive("ten", runs, in_flight=in_flight)
    took_s = time.perf_counter() - begun
    used = {name: spent - cpu.get(name, 0.0) for name, spent in cpu_by_process().items()}
    time.sleep(2 * TOLD_S)
    steps = runs * STEPS
    sums = {name: counted(port) - before[name] for name, port in ports.items()}
    return {
        "in_flight": in_flight,
        "steps_per_s": round(steps / took_s),
        "ms_per_step": round(took_s * 1000 * in_flight / steps, 2),
        "cpu_us": {name: round(value * 1e6 / steps) for name, value in sorted(used.items())},
        **{
            name: {what: round(count / steps, 2) for what, count in sorted(each.items())} for name, each in sums.items()
        },
        "requests": round(sum(each["requests"] for each in sums.values()) / steps, 2),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> int:
    """Print a line for each number of partitions and of runs in flight."""
    parser = argparse.ArgumentParser(prog="benchmarks.requests", description=__doc__)
    parser.add_argument("--partitions", default=f"{FEW},4,60", help="of each topic; several with a comma")
    parser.add_argument("--in-flight", default="1,10,100", help="runs at a time; several with a comma")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    wanted = parser.parse_args()
    os.environ["REFOLD_KAFKA__OPTIONS"] = json.dumps({STATISTICS: str(round(TOLD_S * 1000))})
    ports = {name: free_port() for name in SERVICES}
    table = Table("partitions", "in flight", "steps/s", "ms a step", "requests", "turns", "Redis", "CPU us a step")
    for partitions in map(int, wanted.partitions.split(",")):
        environment = {name: {"REFOLD_METRICS__ADDRESS": str(port)} for name, port in ports.items()}
        with alone("requests", partitions=partitions, more=environment) as engine:
            engine.client.drive("ten", 100, in_flight=50)
            for found in map(partial(measure, engine, ports), map(int, wanted.in_flight.split(","))):
                if wanted.json:
                    sys.stdout.write(json.dumps({"partitions": partitions, **found}) + "\n")
                    sys.stdout.flush()
                both = [found[name] for name in SERVICES]
                table.add_row(
                    *map(str, (partitions, found["in_flight"], found["steps_per_s"], found["ms_per_step"])),
                    str(found["requests"]),
                    " + ".join(str(each.get("turns", 0)) for each in both),
                    str(round(sum(each.get("calls of Redis", 0) for each in both), 2)),
                    f"{sum(found['cpu_us'].values())}: " + ", ".join(f"{k} {v}" for k, v in found["cpu_us"].items()),
                )
    if not wanted.json:
        Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
