"""`python -m benchmarks --peers`: Refold and its peers on the same work, in turns.

Every system runs on this machine as its own documentation recommends, with each step durable before the next begins.
Each turn of a peer stands beside a turn of Refold (A B, B A), and only the two are compared. A peer gets an environment
of its own in the cache folder on first use (`uv`, `npm`); one that cannot be had is named with the reason. A sitting
that is ended goes on where it was. JSON on stdout, or tables for docs/performance.md with --markdown.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from typing import Any

from benchmarks.engine import ROOT
from benchmarks.peers import load
from benchmarks.peers.environments import PACKAGES, environment
from benchmarks.rounds import Result, Sitting, Turn, commit, described, others, spread, table

from refold.core.errors import RefoldError

OWN = "Refold"
SYSTEMS: dict[str, dict[str, Any]] = {
    "Refold, `once`": {"effect": "once"},
    "Refold, one process": {"together": True},
    "Restate, 1 partition": {"peer": "restate", "partitions": 1},
    "Restate, 4 partitions": {"peer": "restate", "partitions": 4},
    "DBOS": {"peer": "dbos"},
    "LangGraph": {"peer": "langgraph"},
    "Temporal": {"peer": "temporal"},
}
"""Each stands beside `OWN`: `keyed` calls, planner and executor as processes of their own, one partition."""

COLUMNS = {
    ("ms", 1): "ms a step, alone",
    ("steps_per_s", 10): "steps/s, 10 in flight",
    ("steps_per_s", 100): "steps/s, 100",
    ("steps_per_s", 1_000): "steps/s, 1,000",
    ("cpu_us", 100): "CPU µs a step, 100",
    ("cpu_us", 1_000): "CPU µs a step, 1,000",
}
"""Figure and runs in flight, with the heading."""


def main(arguments: list[str] | None = None) -> int:
    """Measure what can be had; exit code 1 if a system failed or no peer could be measured."""
    options = _options(arguments)
    chosen = {name: wanted for name, wanted in SYSTEMS.items() if options.only.lower() in name.lower()}
    missing = _missing({str(wanted["peer"]) for wanted in chosen.values() if "peer" in wanted})
    in_flight = [int(number) for number in options.in_flight.split(",")]
    sizes = {"in_flight": in_flight, "scale": 0.25 if options.quick else 1.0}
    there = [turn_of(name, sizes) for name, wanted in chosen.items() if wanted.get("peer") not in missing]
    settings = {"systems": [turn.name for turn in there], "rounds": options.rounds, **sizes, "commit": commit(ROOT)}
    sitting = Sitting("peers", settings, minutes=options.minutes, new=options.new)
    results = sitting.measure(_groups(there, turn_of(OWN, sizes), options.rounds))
    names = {name: missing[str(wanted["peer"])] for name, wanted in chosen.items() if wanted.get("peer") in missing}
    report = _report(results, names) | {"settings": sitting.settings, "dates": sitting.dates}
    print(markdown(report) if options.markdown else json.dumps(report, indent=2))
    return 1 if report["failed"] or not report["ratios"] else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks --peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="turns of each peer after Refold, and as many before it")
    parser.add_argument("--quick", action="store_true", help="a quarter of the runs")
    numbers = ",".join(map(str, load.RUNS))
    parser.add_argument("--in-flight", default=numbers, metavar="N,...", help=f"runs at a time, of {numbers}")
    parser.add_argument("--minutes", type=float, default=22, help="after this time no group of turns begins")
    parser.add_argument("--only", default="", metavar="WORD", help="only systems with this in their name")
    parser.add_argument("--new", action="store_true", help="do not go on with the last sitting of these settings")
    parser.add_argument("--markdown", action="store_true", help="tables instead of JSON")
    return parser.parse_args([each for each in arguments or sys.argv[1:] if each != "--peers"])


def turn_of(name: str, sizes: dict[str, Any]) -> Turn:
    """A turn of a system."""
    wanted = SYSTEMS.get(name, {})
    module = "benchmarks.peers.turn" if "peer" in wanted else "benchmarks.peers.on_refold"
    return Turn(name, module, {**wanted, **sizes}, shared=name == OWN)


def _missing(peers: set[str]) -> dict[str, str]:
    found = {}
    for peer in sorted(peers & PACKAGES.keys()):
        try:
            environment(peer)
        except RefoldError as error:
            found[peer] = str(error)
    return found


def _groups(systems: list[Turn], own: Turn, rounds: int) -> dict[str, list[Turn]]:
    """Each round forwards and backwards: own A, B own, own C, and then C own, own B, A own."""
    groups = dict[str, list[Turn]]()
    for number in range(rounds):
        pairs = [[own, turn] if place % 2 == 0 else [turn, own] for place, turn in enumerate(systems)]
        back = [pair[::-1] for pair in pairs[::-1]]
        for way, those in (("there", pairs), ("back", back)):
            for pair in those:
                (other,) = (turn for turn in pair if turn is not own)
                groups[f"{number} {way} {other.name}"] = pair
    return groups


def _report(results: dict[str, dict[str, Result]], missing: dict[str, str]) -> dict[str, Any]:
    """Ratios of Refold's figures to those of the other in the same group, and all figures, by system and column."""
    ratios: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    turns, failed = dict[tuple[str, float], Result](), dict[str, str]()
    for group in results.values():
        values = {name: _columns(result) for name, result in group.items() if "figures" in result}
        for name, own, other in ((name, values.get(OWN, {}), values[name]) for name in values.keys() - {OWN}):
            for column in other.keys() & own.keys():
                ratios[name][column].append(round(own[column] / other[column], 3))
        for name, result in group.items():
            turns[name, result["at"]] = result  # a turn of Refold may stand in two groups
            missing |= {name: result["missing"]} if "missing" in result else {}
            failed |= {name: result["failed"]} if "failed" in result else {}
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (name, _), result in turns.items():
        for column, value in _columns(result).items():
            figures[name][column].append(value)
    return {
        "ratios": {name: dict(ratios[name]) for name in SYSTEMS if name in ratios},
        "figures": {name: dict(figures[name]) for name in (OWN, *SYSTEMS) if name in figures},
        "not_available": missing,
        "failed": failed,
        "others": others(results),
    }


def _columns(result: Result) -> dict[str, float]:
    """Figures of a turn by column."""
    by_number = {each["in_flight"]: each for each in result.get("figures", ())}
    return {
        column: by_number[number][key] for (key, number), column in COLUMNS.items() if key in by_number.get(number, {})
    }


def markdown(report: dict[str, Any]) -> str:
    """The tables of docs/performance.md."""
    settings, measured = report["settings"], report["figures"].values()
    columns = [column for column in COLUMNS.values() if any(column in each for each in measured)]
    forms = {column: "{:,.2f}" if column.startswith("ms") else "{:,.0f}" for column in columns}
    ratios = {name: [spread(each.get(column, [])) for column in columns] for name, each in report["ratios"].items()}
    figures = {
        name: [spread(each.get(column, []), forms[column]) for column in columns]
        for name, each in report["figures"].items()
    }
    said = [report["dates"], f"commit {settings['commit']}", described(settings["machine"]), report["others"]]
    lines = [f"`python -m benchmarks --peers`, {', '.join(said)}.", ""]
    lines += ["Refold's figure divided by the other's of the same round:", "", *table(columns, ratios), ""]
    lines += ["The figures:", "", *table(columns, figures)]
    for word in ("failed", "not_available"):
        lines += [f"\n{name}, {word.replace('_', ' ')}: {reason}" for name, reason in report[word].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
