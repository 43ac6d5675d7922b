"""`make bench`: the floor, the engine, crashes, the fold and years of work; JSON on stdout, a table on stderr.

Starts a broker and a Valkey of its own, loopback only. The absolute figures drift with the machine: quote the ratios.
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

from benchmarks.approvals import policy_rates, waiting
from benchmarks.crash import crash
from benchmarks.engine import FEW, Engine
from benchmarks.floor import floor
from benchmarks.fold import rate_from_broker
from benchmarks.peers import __main__ as peers
from rich.console import Console
from rich.table import Table

from benchmarks import gaps, loop, years
from refold.dev.kafka import EmbeddedKafka
from refold.dev.valkey import EmbeddedValkey
from refold.engine.runtime import logging

GOALS = {
    "steps/s, 100 in flight, of the floor": (">=", 0.65, 0.4),
    "ms per step, 1 in flight, of the floor": ("<=", 1.4, 2.0),
    "CPU ms per step, whole machine": ("<=", 1.0, 2.0),
    "all done after kill -9 of executor, s": ("<=", 2.0, 4.0),
    "all done after kill -9 of planner, s": ("<=", 2.0, 4.0),
    "all done after kill -9 of broker, s": ("<=", 6.0, 12.0),
    "effects twice": ("<=", 0, 0),
    "events/s folded from the broker": (">=", 130_000, 110_000),
    "events/s folded from the broker, by C": (">=", 250_000, 180_000),
    "memory of a service, MiB": ("<=", 70, 100),
    "steps/s with a policy that allows all": (">=", 0.95, 0.9),
    "steps/s with ten rules": (">=", 0.9, 0.8),
    "10,000 waiting runs, MiB in the planner": ("<=", 60, 100),
    "10,000 waiting runs, share of a core": ("<=", 0.01, 0.03),
    **gaps.GOALS,
    **loop.GOALS,
    **years.GOALS,
}
"""Figure, direction, goal, must."""


def main() -> int:
    """Runs what is asked for; exit code 1 when a figure misses its must."""
    if "--peers" in sys.argv:
        return peers.main()
    options = _options()
    logging.configure("bench")  # stdout is for the figures
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="refold-bench-") as name:
        folder = Path(name)
        with EmbeddedKafka(folder / "kafka") as kafka, EmbeddedValkey(folder / "valkey") as valkey:
            report = _measure(options, kafka, valkey, folder, console)
    print(json.dumps(report, indent=2))
    return _show(report, console)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="runs one after the other, for latency")
    parser.add_argument("--load", type=int, default=600, help="runs at 100 in flight, for the rate")
    parser.add_argument("--repeat", type=int, default=3, help="times the rate is taken; the median counts")
    parser.add_argument("--crashes", type=int, default=4, help="crashes per victim and effect class")
    parser.add_argument("--waiting", type=int, default=10_000, help="runs that wait for people")
    parser.add_argument("--partitions", type=int, default=FEW, help="of each topic, under the engine")
    parser.add_argument("--longest", type=int, default=10_000, help="steps of the run whose gaps are looked at")
    parser.add_argument("--no-crash", action="store_true", help="leave the crashes out")
    parser.add_argument("--no-years", action="store_true", help="leave out what years of work make of a platform")
    parser.add_argument("--peers", action="store_true", help="the peers instead, beside Refold; see --peers --help")
    years.arguments(parser)
    return parser.parse_args()


def _measure(
    options: argparse.Namespace, kafka: EmbeddedKafka, valkey: EmbeddedValkey, folder: Path, console: Console
) -> dict[str, Any]:
    report: dict[str, Any] = {"machine": {"cores": os.cpu_count(), "load": os.getloadavg()}, "settings": vars(options)}
    for sync in (True, False):
        flush = "on" if sync else "off"
        console.print(f"flush {flush}: the floor")
        sizes = {"runs": options.runs, "load": options.load, "repeat": options.repeat}
        bare = floor(kafka.bootstrap, valkey.port, sync=sync, **sizes)
        console.print(f"flush {flush}: the engine")
        engine = Engine(kafka.bootstrap, valkey.url, folder, sync=sync, partitions=options.partitions)
        found = engine.measure(options.runs, options.load, options.repeat)
        report[f"flush_{flush}"] = {"floor": bare, "engine": found}
        if sync:
            report["fold"] = rate_from_broker(engine.settings)
            report["crashes"] = [] if options.no_crash else _crashes(options, engine, kafka, console)
            console.print("no policy, one that allows all, and ten rules, in turns")
            report["policy"] = policy_rates(engine, options.load // 2)
        else:
            console.print("what lies between steps, early and late")
            report["gaps"] = gaps.measure(engine, long=(1_000, options.longest))
        engine.close()
    report["parked"] = loop.parked_each()
    console.print(f"{options.waiting:,} runs that wait for people")
    report["waiting"] = waiting(kafka.bootstrap, valkey, folder, options.waiting)
    if not options.no_years:
        console.print("years of work")
        report["years"] = years.measure(options, kafka, valkey, folder)
    return report


def _crashes(options: argparse.Namespace, engine: Engine, kafka: EmbeddedKafka, console: Console) -> list[Any]:
    def broker() -> None:
        kafka.kill()
        kafka.start()

    found = []
    for agent in ("ten_keyed", "ten_probed"):
        for victim in ("executor", "planner"):
            for number in range(options.crashes):
                console.print(f"crash {number + 1} of the {victim}, {agent}")
                found.append(crash(engine, victim, agent))
    for number in range(options.crashes):
        console.print(f"crash {number + 1} of the broker, ten_keyed")
        found.append(crash(engine, "broker", "ten_keyed", restart=broker))
    return found


def _figures(report: dict[str, Any]) -> dict[str, float]:
    on = report["flush_on"]
    bare, found = on["floor"], on["engine"]
    rate = statistics.median(found["steps_per_s"]) / statistics.median(bare["steps_per_s"])
    figures = {
        "steps/s, 100 in flight, of the floor": round(rate, 2),
        "ms per step, 1 in flight, of the floor": round(found["ms_per_step"]["p50"] / bare["ms_per_step"]["p50"], 2),
        "CPU ms per step, whole machine": found["cpu_ms_per_step"],
        "events/s folded from the broker": report["fold"]["events_per_s"],
        "memory of a service, MiB": max(found["memory_mib"].values()),
    }
    figures |= gaps.figures(report["gaps"])
    figures["a run that waits for a call, KiB of code"] = round(next(iter(report["parked"].values()))[0], 1)
    figures["steps/s with a policy that allows all"] = report["policy"]["shares"]["allows all"]
    figures["steps/s with ten rules"] = report["policy"]["shares"]["ten rules"]
    if report["waiting"]["runs"] == 10_000:
        figures["10,000 waiting runs, MiB in the planner"] = report["waiting"]["mib"]
        figures["10,000 waiting runs, share of a core"] = report["waiting"]["cpu_share"]
    if crashes := report["crashes"]:
        for victim in ("executor", "planner", "broker"):
            spans = [c["all_done_s"] for c in crashes if c["victim"] == victim and c["agent"] == "ten_keyed"]
            figures[f"all done after kill -9 of {victim}, s"] = statistics.median(spans)
        figures["effects twice"] = sum(c["effects_twice"] for c in crashes)
    return figures | years.figures(report.get("years", {}))


def _show(report: dict[str, Any], console: Console) -> int:
    table = Table(title=f"python -m benchmarks, {time.strftime('%Y-%m-%d')}")
    for column in ("figure", "measured", "goal", "must", ""):
        table.add_column(column, justify="left" if column == "figure" else "right")
    missed = 0
    for name, value in _figures(report).items():
        direction, goal, must = GOALS[name]
        better = (lambda a, b: a >= b) if direction == ">=" else (lambda a, b: a <= b)
        verdict = "goal" if better(value, goal) else "ok" if better(value, must) else "MISSED"
        missed += verdict == "MISSED"
        table.add_row(name, f"{value:,}", f"{direction} {goal:,}", f"{direction} {must:,}", verdict)
    console.print(table)
    console.print("  ".join(f"{name} {value:,}" for name, value in report["gaps"].items()))
    for flush in ("on", "off"):
        for name in ("floor", "engine"):
            found = report[f"flush_{flush}"][name]
            rate, span = statistics.median(found["steps_per_s"]), found["ms_per_step"]
            cpu = found["cpu_ms_per_step"]
            console.print(
                f"flush {flush:3} {name:6} {rate:6,.0f} steps/s  {span['p50']:6.2f} ms/step  {cpu:.2f} CPU ms"
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
