"""What a platform is like that has run for years: coming back, making room for another planner, and what piles up.

`python -m benchmarks.years --events 1152000` measures it alone, on a broker and a Valkey of its own, and prints JSON.
Planners are real processes; a user asks every partition 40 times a second for a run that ends at once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson
from benchmarks.engine import Engine
from benchmarks.measure import ends
from benchmarks.planners import GIVE_UP_S, Planners, User
from benchmarks.prefill import EVENTS, fill
from confluent_kafka import Producer
from redis import Redis

from benchmarks import growth
from refold.core.ids import home
from refold.core.topics import RUN_LOG, RUN_REQUESTED, tool_requested
from refold.dev.kafka import EmbeddedKafka
from refold.dev.valkey import EmbeddedValkey
from refold.engine.runtime import logging
from refold.engine.runtime.settings import KafkaSettings

ONE, OTHER = "planner-1", "planner-2"

SETTLE_S = 15.0
"""How long planners may tidy up behind what was just written to their log, before they are disturbed."""

STILL_S = 2.0
"""How long nothing comes to a log in which nothing is going on."""

A_LOOK_S = 10.0
"""How often a planner is looked at while nothing goes on."""

AN_HOUR_MS = 3_600_000
PARTS = ("growth", "finished", "asleep", "requests", "forgotten")

GOALS = {
    "planner back after kill -9, long log, s": ("<=", 1.5, 3.0),
    "partitions that stay, planner added, s": ("<=", 0.05, 0.2),
    "partitions that move, planner added, s": ("<=", 1.0, 2.0),
    "longest gap at SIGTERM of a planner, s": ("<=", 1.0, 2.0),
    "take-over with sleeping runs, s": ("<=", 5.0, 10.0),
    "take-over with sleeping runs, MiB": ("<=", 300, 600),
    "bytes in the planner per finished run": ("<=", 100, 200),
    "take-over with 1,000,000 finished runs, CPU s": ("<=", 1.5, 3.0),
    "take-over with 1,000,000 finished runs, MiB": ("<=", 60, 120),
    "step 10,000 of step 100, CPU": ("<=", 1.1, 1.2),
    "gather of 4,000, planner CPU s": ("<=", 1.0, 2.0),
    "a child of 10,000, of one of 100, planner CPU": ("<=", 1.2, 1.5),
    "log records per request, executors away": ("<=", 1.0, 1.0),
    "MiB more in the time that executors are away": ("<=", 2.0, 5.0),
    "bytes in Redis an hour later, per call": ("<=", 0, 0),
}
"""Figure, direction, goal, must."""


def long_log(kafka: str, folder: Path, events: int, *, rounds: int = 3) -> dict[str, Any]:
    """Planners on a log of so many events of finished runs: killed, joined, asked to go."""
    planners = Planners(kafka, folder)
    begun = time.monotonic()
    fill(planners.settings, "finished", events // EVENTS)
    filled_s = time.monotonic() - begun
    user = User(planners.settings)
    try:
        first_s = user.back_after(planners.start(ONE))
        time.sleep(SETTLE_S)  # the first start reads all of it, whatever comes after
        backs = [_killed(planners, user) for _ in range(rounds)]
        time.sleep(SETTLE_S)
        changes = [_joined(planners, user) for _ in range(rounds)]
        found = {name: [change[name] for change in changes] for name in changes[0]}
        return {
            "events": events // EVENTS * EVENTS,
            "filled_s": round(filled_s, 1),
            "first_s": round(first_s, 2),
            "back_s": [back for back, _ in backs],
            "back_cpu_s": [spent for _, spent in backs],
            **found,
            "mib": planners.memory(ONE),
        }
    finally:
        user.stop()
        planners.close()


def sleeping(kafka: str, folder: Path, runs: int, *, rounds: int = 3) -> dict[str, Any]:
    """A planner takes over so many runs that sleep: how long it takes, and what it needs more than one without them."""
    empty = _without_runs(kafka, folder)
    planners = Planners(kafka, folder)
    fill(planners.settings, "asleep", runs)
    user = User(planners.settings)
    try:
        first_s = user.back_after(planners.start(ONE))
        time.sleep(SETTLE_S)
        backs = [_killed(planners, user) for _ in range(rounds)]
        return {
            "runs": runs,
            "first_s": round(first_s, 2),
            "back_s": [back for back, _ in backs],
            "back_cpu_s": [spent for _, spent in backs],
            "mib": round(planners.memory(ONE) - empty, 1),
        }
    finally:
        user.stop()
        planners.close()


def _without_runs(kafka: str, folder: Path) -> float:
    """What a planner needs that has nothing but its user. **Units**: MiB."""
    planners = Planners(kafka, folder)
    user = User(planners.settings)
    try:
        user.back_after(planners.start(ONE))
        time.sleep(1)  # what is measured is a planner at work
        return planners.memory(ONE)
    finally:
        user.stop()
        planners.close()


def _killed(planners: Planners, user: User) -> tuple[float, float]:
    """Seconds from a `kill -9` until every partition has answered again, and of them on a processor.

    Somebody restarts the planner at once.
    """
    moment = planners.kill(ONE)
    planners.start(ONE)
    return round(user.back_after(moment), 2), planners.spent(ONE)


def _joined(planners: Planners, user: User) -> dict[str, float]:
    """A second planner comes and goes: how long partitions are away that stay where they are, and the others."""
    before = planners.start(OTHER)
    planners.await_members(ONE, OTHER)
    moved = planners.partitions(OTHER)
    user.back_after(time.monotonic())
    stay_s, move_s = user.longest(before, planners.partitions(ONE)), user.longest(before, moved)
    before = planners.leave(OTHER)
    planners.await_members(ONE)
    user.back_after(time.monotonic())
    gap_s = user.longest(before, set(range(planners.settings.partitions)))
    planners.kill(OTHER)
    return {"stay_s": round(stay_s, 2), "move_s": round(move_s, 2), "leave_s": round(gap_s, 2)}


def requests_at_once(kafka: str, folder: Path, requests: int, away_s: float) -> dict[str, Any]:
    """So many requests at once, and nobody who answers their calls: what the log and the planner become meanwhile.

    Calls are missed after a second and asked for again after another, so a minute here is an hour of ordinary calls.
    """
    planners = Planners(kafka, folder, REFOLD_PLANNER__REDISPATCH_MS="1000")
    settings = planners.settings
    user = User(settings)
    user.back_after(planners.start(ONE))
    user.stop()
    try:
        empty, before = planners.memory(ONE), _written(settings, RUN_LOG)
        ordered = _written(settings, tool_requested("default"))
        _ask(settings, "impatient", requests)
        _until_still(settings)
        samples, until = [planners.memory(ONE)], time.monotonic() + away_s
        while time.monotonic() < until:
            time.sleep(min(away_s, A_LOOK_S))  # what is measured is a stretch of time
            samples.append(planners.memory(ONE))
        half = len(samples) // 2
        return {
            "requests": requests,
            "away_s": away_s,
            "entries_per_request": round((_written(settings, RUN_LOG) - before) / requests, 2),
            "orders_per_request": round((_written(settings, tool_requested("default")) - ordered) / requests, 2),
            "mib": round(max(samples) - empty, 1),
            "mib_later": round(statistics.median(samples[half:]) - statistics.median(samples[:half] or samples), 1),
        }
    finally:
        planners.close()


def forgotten(kafka: EmbeddedKafka, valkey: EmbeddedValkey, folder: Path, calls: int) -> dict[str, Any]:
    """What Redis still holds of finished calls in an hour from now: what has no end by then."""
    engine = Engine(kafka.bootstrap, valkey.url, folder, sync=False)
    try:
        engine.client.drive("ten", calls // 10, in_flight=50)
        time.sleep(5)  # tombstones follow the outcome; nothing says that the last of them has been taken
        with Redis.from_url(valkey.url) as link:
            names = list(link.scan_iter(match=f"{engine.settings.prefix.rstrip('.')}*", count=1000))
            left = [name for name in names if not 0 <= link.pttl(name) <= AN_HOUR_MS]
            held = sum(int(link.memory_usage(name) or 0) for name in left)
        return {"calls": calls, "keys": len(names), "keys_left": len(left), "bytes_per_call": round(held / calls)}
    finally:
        engine.close()


def _ask(settings: KafkaSettings, agent: str, runs: int) -> None:
    producer = Producer({"bootstrap.servers": settings.bootstrap, "linger.ms": 20, "log_level": 0})
    tag = os.urandom(3).hex()
    for number in range(runs):
        run = f"{tag}-{number}"
        value = orjson.dumps({"run_id": run, "agent": agent})
        producer.produce(settings.prefix + RUN_REQUESTED, value, run, home(run, settings.partitions))
        if number % 10_000 == 0:
            producer.flush()
    producer.flush()


def _until_still(settings: KafkaSettings) -> None:
    """Waits until a planner has taken all that it takes without executors: nothing comes to its log for a while."""
    before, deadline = -1, time.monotonic() + GIVE_UP_S
    while (now := _written(settings, RUN_LOG)) != before and time.monotonic() < deadline:
        before = now
        time.sleep(STILL_S)


def _written(settings: KafkaSettings, topic: str) -> int:
    """How many records were ever written to a topic."""
    return sum(place.offset for place in ends(settings, topic))


def arguments(parser: argparse.ArgumentParser) -> None:
    """How large everything is."""
    parser.add_argument("--events", type=int, default=1_152_000, help="events of finished runs in the log")
    parser.add_argument("--sleeping", type=int, default=100_000, help="runs that sleep at a take-over")
    parser.add_argument("--requests", type=int, default=100_000, help="requests at once while executors are away")
    parser.add_argument("--away", type=float, default=60.0, help="seconds that executors are away")
    parser.add_argument("--steps", type=int, default=10_000, help="steps of the longest run")
    parser.add_argument("--wide", type=int, default=4_000, help="calls of the widest gather")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this; may be repeated")


def measure(options: argparse.Namespace, kafka: EmbeddedKafka, valkey: EmbeddedValkey, folder: Path) -> dict[str, Any]:
    """What was asked for, in the order of `PARTS`."""
    bootstrap = kafka.bootstrap
    work = {
        "growth": lambda: growth.measure(calls=options.steps, at_once=options.wide),
        "finished": lambda: long_log(bootstrap, folder, options.events),
        "asleep": lambda: sleeping(bootstrap, folder, options.sleeping),
        "requests": lambda: requests_at_once(bootstrap, folder, options.requests, options.away),
        "forgotten": lambda: forgotten(kafka, valkey, folder, 5_000),
    }
    return {name: work[name]() for name in options.part or PARTS}


def figures(report: dict[str, Any]) -> dict[str, float]:
    """What of a report has a goal; medians over rounds."""
    found: dict[str, float] = {}
    if grown := report.get("growth"):
        found["bytes in the planner per finished run"] = grown["finished_run_bytes"]
        found["take-over with 1,000,000 finished runs, CPU s"] = grown["taken_over"]["cpu_s"]
        found["take-over with 1,000,000 finished runs, MiB"] = grown["taken_over"]["mib"]
        found["step 10,000 of step 100, CPU"] = grown["step"]["ratio"]
        found["gather of 4,000, planner CPU s"] = grown["gather"]["cpu_s"]
        found["a child of 10,000, of one of 100, planner CPU"] = grown["fan_out"]["ratio"]
    if long := report.get("finished"):
        found["planner back after kill -9, long log, s"] = statistics.median(long["back_s"])
        found["partitions that stay, planner added, s"] = statistics.median(long["stay_s"])
        found["partitions that move, planner added, s"] = statistics.median(long["move_s"])
        found["longest gap at SIGTERM of a planner, s"] = statistics.median(long["leave_s"])
    if asleep := report.get("asleep"):
        found["take-over with sleeping runs, s"] = statistics.median(asleep["back_s"])
        found["take-over with sleeping runs, MiB"] = asleep["mib"]
    if flood := report.get("requests"):
        found["log records per request, executors away"] = flood["entries_per_request"]
        found["MiB more in the time that executors are away"] = flood["mib_later"]
    if left := report.get("forgotten"):
        found["bytes in Redis an hour later, per call"] = left["bytes_per_call"]
    return found


def main() -> None:
    """Measures it alone."""
    parser = argparse.ArgumentParser(prog="benchmarks.years", description=__doc__)
    arguments(parser)
    options = parser.parse_args()
    logging.configure("bench")
    with tempfile.TemporaryDirectory(prefix="refold-years-") as name:
        folder = Path(name)
        with EmbeddedKafka(folder / "kafka") as kafka, EmbeddedValkey(folder / "valkey") as valkey:
            report = {"load": os.getloadavg(), **measure(options, kafka, valkey, folder)}
    json.dump({**report, "figures": figures(report)}, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
