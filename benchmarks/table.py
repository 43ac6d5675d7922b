"""The goals of speed, at one checkout or at several in turns.

    python -m benchmarks.table [--at CHECKOUT ...] [--markdown]

The measures are those of this checkout; Python and Refold are those of each (`make setup` in it first). Each round
measures A, B and, where they meet Restate, Restate between them; the next round B, A. A sitting that is ended goes on
where it was. JSON on stdout, or a table with --markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from benchmarks.approvals import waiting
from benchmarks.crash import crash
from benchmarks.engine import ROOT, SERVICES, TOGETHER, Engine, alone
from benchmarks.measure import memory_mib
from benchmarks.peers.environments import environment
from benchmarks.peers.load import STEPS
from benchmarks.peers.on_refold import check, turn
from benchmarks.rounds import Result, Sitting, Turn, commit, described, others, spread, table
from tests.cli.terminal import served

from benchmarks import requests
from refold.core.errors import NotFoundError, RefoldError, UsageError
from refold.dev.kafka import EmbeddedKafka
from refold.dev.ports import free_port
from refold.dev.valkey import EmbeddedValkey
from refold.engine.adapters.kafka.clients import STATISTICS
from refold.engine.runtime import logging

Figures = dict[str, float]
Value = Callable[[Mapping[str, float]], float]

CRASHES, STARTS = 2, 2
MEMORY_STEPS, WAITING = 30_000, 10_000
STREAMED = 20
MANY = '{"person": 60000}'
"""Reads of the gateway in a minute: whoever looks a hundred times a second may read so often."""


def requests_a_step(wanted: dict[str, Any]) -> Figures:
    """Requests to the broker a step, in processes apart and in one."""
    os.environ["REFOLD_KAFKA__OPTIONS"] = json.dumps({STATISTICS: str(round(requests.TOLD_S * 1000))})
    figures = Figures()
    for form, services in (("apart", SERVICES), ("together", TOGETHER)):
        with suppress(NotFoundError):
            check({**wanted, "together": services == TOGETHER})
            ports = {name: free_port() for name in services}
            more = {name: {"REFOLD_METRICS__ADDRESS": str(port)} for name, port in ports.items()}
            with alone("requests", services=services, more=more) as engine:
                engine.client.drive("ten", 100, in_flight=50)
                for number in (1, 10, 100):
                    figures[f"{form} requests {number}"] = requests.measure(engine, ports, number)["requests"]
    return figures


def partitions(_: dict[str, Any]) -> Figures:
    """CPU of 4 and of 60 partitions. **Units**: microseconds a step."""
    figures = Figures()
    for count in (4, 60):
        with alone("partitions", partitions=count) as engine:
            engine.client.drive("ten", 100, in_flight=50)
            for number in (1, 100):
                used = requests.measure(engine, {}, number)["cpu_us"]
                figures[f"{count}p cpu {number}"] = sum(used.values()) - used["client"]
    return figures


def recovery(_: dict[str, Any]) -> Figures:
    """Seconds from `kill -9` until 50 runs in flight are done. **Raises** RefoldError if an effect is missing or
    happened twice."""
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="refold-bench-") as name:
        folder = Path(name)
        with EmbeddedKafka(folder / "kafka") as kafka, EmbeddedValkey(folder / "valkey") as valkey:
            engine = Engine(kafka.bootstrap, valkey.url, folder, sync=True)

            def broker() -> None:
                kafka.kill()
                kafka.start()

            try:
                for victim in (*SERVICES, "broker"):
                    restart = broker if victim == "broker" else None
                    found = [crash(engine, victim, "ten_keyed", restart=restart) for _ in range(CRASHES)]
                    for each in found:
                        if each["effects"] != each["effects_expected"] or each["effects_twice"]:
                            raise RefoldError(f"effects after the kill of the {victim}: {each}")
                    figures[f"{victim} killed"] = statistics.median(each["all_done_s"] for each in found)
            finally:
                engine.close()
    return figures


def start(_: dict[str, Any]) -> Figures:
    """Seconds from `refold dev` in a folder that it knows to the end of its first run, as the gateway shows it."""
    spans = list[float]()
    with tempfile.TemporaryDirectory(prefix="refold-bench-") as name:
        folder = Path(name)
        (folder / "effects").touch()
        for number in range(1 + STARTS):
            (folder / "dev.json").unlink(missing_ok=True)
            begun = time.perf_counter()
            with served(ROOT / "tests" / "cli" / "app.py", folder, EFFECTS=name, REFOLD_GATEWAY__READS=MANY) as dev:
                _first_run(dev.state["gateway"], f"first-{number}")
                spans.append(time.perf_counter() - begun)
    return {"start": statistics.median(spans[1:])}


def _first_run(gateway: str, run: str) -> None:
    deadline = time.monotonic() + 60
    with httpx.Client(base_url=gateway, timeout=30) as http:
        body, asked = {"agent": "marks", "input": {"count": 3}, "id": run}, False
        while time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                asked = asked or http.post("/api/runs", json=body, params={"wait": 0}).is_success
                if asked and http.get(f"/api/runs/{run}").json().get("status") == "completed":
                    return
            time.sleep(0.01)  # the server is asked again
    raise TimeoutError(f"{run} is not done after a minute")


def memory(_: dict[str, Any]) -> Figures:
    """MiB of a planner after 30,000 steps, with its process in reserve."""
    with alone("memory") as engine:
        engine.client.drive("ten", MEMORY_STEPS // STEPS, in_flight=100)
        return {"memory": memory_mib({engine.pid("planner"), *_children("serve planner")})}


def _children(words: str) -> set[int]:
    """The processes that this one started with such words in their command."""
    lists = [file.read_text().split() for file in Path("/proc/self/task").glob("*/children")]
    pids = [int(pid) for each in lists for pid in each]
    return {pid for pid in pids if words in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")}


def parked(_: dict[str, Any]) -> Figures:
    """MiB and share of a core that 10,000 runs that wait for people add to a planner."""
    with tempfile.TemporaryDirectory(prefix="refold-bench-") as name:
        folder = Path(name)
        with EmbeddedKafka(folder / "kafka") as kafka, EmbeddedValkey(folder / "valkey") as valkey:
            found = waiting(kafka.bootstrap, valkey, folder, WAITING)
    return {"waiting mib": found["mib"], "waiting core": found["cpu_share"]}


def streams(_: dict[str, Any]) -> Figures:
    """Milliseconds from the request for a run to what its stream shows, p50."""
    command = [sys.executable, "-m", "benchmarks.streams", "--alone", str(STREAMED), "--seconds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotFoundError(f"benchmarks.streams: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout)["ms"]
    return {f"stream {name}": found[name]["p50"] for name in ("first_event", "first_part", "end")}


MEASURES: dict[str, Callable[[dict[str, Any]], Figures]] = {
    "requests": requests_a_step,
    "partitions": partitions,
    "streams": streams,
    "recovery": recovery,
    "start": start,
    "memory": memory,
    "waiting": parked,
}
SPEED, APART, TOGETHER_, RESTATE = "speed", "apart", "together", "restate"
LONG = ("memory", "waiting")
"""Measures whose size is a part of the goal, so that a quick table leaves them out."""


@dataclass(frozen=True)
class Row:
    """A goal: its figure from those of a round at one checkout, and where it should and must be."""

    name: str
    value: Value
    goal: float
    must: float
    more_is_better: bool = False

    def verdict(self, value: float) -> str:
        """One word for a value."""
        sign = -1 if self.more_is_better else 1
        return "goal" if sign * value <= sign * self.goal else "ok" if sign * value <= sign * self.must else "MISSED"


def _ratio(above: str, below: str) -> Value:
    return lambda values: values[above] / values[below]


def _plain(name: str) -> Value:
    return lambda values: values[name]


def _of_restate(figure: str, form: str = APART) -> Value:
    return _ratio(f"{form} {figure}", f"{RESTATE} {figure}")


ROWS = (
    Row("steps/s, 10 in flight, of Restate's", _of_restate("steps_per_s 10"), 1.0, 0.8, more_is_better=True),
    Row("steps/s, 100 in flight, of Restate's", _of_restate("steps_per_s 100"), 1.2, 0.95, more_is_better=True),
    Row("steps/s, 1,000 in flight, of Restate's", _of_restate("steps_per_s 1000"), 2.0, 1.5, more_is_better=True),
    Row("one process: ms a step alone, of Restate's", _of_restate("ms 1", TOGETHER_), 1.1, 1.5),
    Row("CPU of a step, 100 in flight, of Restate's", _of_restate("cpu_us 100"), 0.6, 0.8),
    Row("CPU of a step, 1,000 in flight, of Restate's", _of_restate("cpu_us 1000"), 0.6, 0.8),
    Row("one process: requests a step, alone", _plain("together requests 1"), 3, 4),
    Row("one process: requests a step, 10 in flight", _plain("together requests 10"), 0.6, 0.9),
    Row("one process: requests a step, 100 in flight", _plain("together requests 100"), 0.2, 0.23),
    Row("60 partitions, CPU of 4, alone", _ratio("60p cpu 1", "4p cpu 1"), 1.3, 1.6),
    Row("60 partitions, CPU of 4, 100 in flight", _ratio("60p cpu 100", "4p cpu 100"), 1.5, 2.5),
    Row("stream: first event, ms", _plain("stream first_event"), 20, 35),
    Row("stream: first token, ms", _plain("stream first_part"), 30, 45),
    Row("stream: end of a run of 3 steps, ms", _plain("stream end"), 50, 80),
    Row("all done after kill -9 of the planner, s", _plain("planner killed"), 0.4, 0.6),
    Row("all done after kill -9 of the executor, s", _plain("executor killed"), 0.4, 0.6),
    Row("all done after kill -9 of the broker, s", _plain("broker killed"), 3.0, 3.5),
    Row("first run done after `refold dev`, warm, s", _plain("start"), 2.5, 3.0),
    Row("planner after 30,000 steps, MiB", _plain("memory"), 60, 75),
    Row("10,000 waiting runs, MiB", _plain("waiting mib"), 60, 100),
    Row("10,000 waiting runs, share of a core", _plain("waiting core"), 0.01, 0.03),
)


def main() -> int:
    """Measure; exit code 1 if a measure failed."""
    options = _options()
    chosen = [name for name in (SPEED, *MEASURES) if name in options.only and not (options.quick and name in LONG)]
    checkouts = {chr(ord("A") + number): path.resolve() for number, path in enumerate(options.at)}
    commits = {letter: commit(path) for letter, path in checkouts.items()}
    scale = 0.25 if options.quick else 1.0
    settings = {"measures": chosen, "rounds": options.rounds, "scale": scale, "at": commits, "tool": commit(ROOT)}
    sitting = Sitting("table", settings, minutes=options.minutes, new=options.new)
    results = sitting.measure(_groups(checkouts, chosen, options.rounds, scale))
    report = _report(results, list(checkouts)) | {"settings": sitting.settings, "dates": sitting.dates}
    print(markdown(report) if options.markdown else json.dumps(report, indent=2))
    return 1 if report["failed"] else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.table", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--at", type=Path, nargs="+", default=[ROOT], metavar="CHECKOUT", help="default: this one")
    parser.add_argument("--rounds", type=int, default=2, help="every second one in the reverse order")
    parser.add_argument("--quick", action="store_true", help=f"a quarter of the runs, without {' and '.join(LONG)}")
    parser.add_argument("--only", nargs="+", choices=[SPEED, *MEASURES], default=[SPEED, *MEASURES])
    parser.add_argument("--minutes", type=float, default=22, help="after this time no group of turns begins")
    parser.add_argument("--new", action="store_true", help="do not go on with the last sitting of these settings")
    parser.add_argument("--markdown", action="store_true", help="a table instead of JSON")
    options = parser.parse_args()
    for path in options.at:
        if not _python(path).exists():
            raise UsageError(f"{path} has no .venv", hint=f"make -C {path} setup")
    return options


def _python(checkout: Path) -> Path:
    return checkout / ".venv" / "bin" / "python"


def _groups(checkouts: dict[str, Path], chosen: list[str], rounds: int, scale: float) -> dict[str, list[Turn]]:
    """The turns of each measure and round."""
    groups = dict[str, list[Turn]]()
    for number in range(rounds):
        for measure in chosen:
            turns = list[Turn]()
            for letter, path in checkouts.items():
                turns += _turns(measure, letter, path.resolve(), scale)
                if measure == SPEED and len(turns) == 2:
                    turns += _restate(scale)
            groups[f"{measure} {number}"] = turns[:: -1 if number % 2 else 1]
    return groups


def _turns(measure: str, letter: str, checkout: Path, scale: float) -> list[Turn]:
    python, own = str(_python(checkout)), {"checkout": str(checkout)}
    if measure != SPEED:
        return [Turn(f"{letter} {measure}", __spec__.name, {**own, "measure": measure}, python)]
    sizes = {**own, "in_flight": [1, 10, 100, 1_000], "scale": scale}
    turns = [
        Turn(f"{letter} {form}", "benchmarks.peers.on_refold", {**sizes, "together": form == TOGETHER_}, python)
        for form in (TOGETHER_, APART)
    ]
    return turns[:: 1 if letter == "A" else -1]  # processes apart stand next to Restate


def _restate(scale: float) -> list[Turn]:
    try:
        environment(RESTATE)
    except RefoldError as error:
        print(f"not available: {RESTATE}: {error}", file=sys.stderr)
        return []
    wanted = {"peer": RESTATE, "partitions": 4, "in_flight": [1, 10, 100, 1_000], "scale": scale}
    return [Turn(f"- {RESTATE}", "benchmarks.peers.turn", wanted)]


def _report(results: dict[str, dict[str, Result]], letters: list[str]) -> dict[str, Any]:
    """Figures by row and checkout, those of each round in a list, and ratios of B to A in the same round."""
    values = {letter: {row.name: list[float]() for row in ROWS} for letter in letters}
    ratios = {row.name: list[float]() for row in ROWS}
    figures: dict[str, list[float]] = {}
    trouble: dict[str, dict[str, str]] = {"failed": {}, "missing": {}}
    for group in results.values():
        for name, result in group.items():
            for word in trouble.keys() & result.keys():
                trouble[word][name] = result[word]
        flat = {letter: _flat(group, letter) for letter in letters}
        for letter, each in flat.items():
            for name, value in each.items():
                figures.setdefault(f"{letter} {name}", []).append(round(value, 4))
        for row in ROWS:
            found = {letter: row.value(each) for letter, each in flat.items() if _has(row, each)}
            for letter, value in found.items():
                values[letter][row.name].append(round(value, 4))
            if len(letters) == 2 and len(found) == 2 and found["A"]:
                ratios[row.name].append(round(found["B"] / found["A"], 4))
    return {"rows": values, "B of A": ratios, "figures": figures, "others": others(results), **trouble}


def _has(row: Row, figures: Figures) -> bool:
    with suppress(KeyError, ZeroDivisionError):
        row.value(figures)
        return True
    return False


def _flat(group: dict[str, Result], letter: str) -> Figures:
    """The figures of a group that concern a checkout: its own, and those of Restate beside it."""
    flat = Figures()
    for name, result in group.items():
        whose, form = name.split(" ", 1)
        figures = result.get("figures", {}) if whose in (letter, "-") else {}
        if isinstance(figures, dict):
            flat |= figures
        else:
            flat |= {f"{form} {key} {each['in_flight']}": each[key] for each in figures for key in each}
    return flat


def markdown(report: dict[str, Any]) -> str:
    """A table of the goals."""
    settings, letters = report["settings"], list(report["rows"])
    both = len(letters) == 2
    rows = dict[str, list[str]]()
    for row in ROWS:
        found = [report["rows"][letter][row.name] for letter in letters]
        if not any(found):
            continue
        form = "{:,.3f}" if row.must < 0.1 else "{:,.2f}"
        last = row.verdict(statistics.median(found[-1])) if found[-1] else ""
        cells = [spread(each, form) for each in found] + [spread(report["B of A"][row.name])] * both
        rows[row.name] = [*cells, f"{row.goal:g}", f"{row.must:g}", last]
    commits = ", ".join(f"{letter}: {name}" for letter, name in settings["at"].items())
    said = [report["dates"], commits, described(settings["machine"]), report["others"]]
    lines = [f"`python -m benchmarks.table`, {', '.join(said)}.", ""]
    lines += table([*letters, *["B of A"] * both, "goal", "must", ""], rows)
    for word, each in (("failed", report["failed"]), ("not available", report["missing"])):
        lines += [f"\n{name}, {word}: {reason}" for name, reason in each.items()]
    return "\n".join(lines)


def _turn(wanted: dict[str, Any]) -> None:
    check(wanted)
    logging.configure("bench")
    print(json.dumps(MEASURES[wanted["measure"]](wanted)), flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        turn(_turn)
    else:
        sys.exit(main())
