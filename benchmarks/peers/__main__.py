"""`python -m benchmarks --peers`: Refold and its peers on the same work, one after the other, in one sitting.

Every system runs on this machine as its own documentation recommends, with what it keeps synced to disk. A peer lives
in a Python of its own, `--python`; what is not installed there, or has no server, is left out, and said. JSON on
stdout, a table on stderr. The absolute figures drift with the machine: quote the ratios, and the losses.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.engine import Engine
from benchmarks.peers.load import STAMPS, measure
from rich.console import Console
from rich.table import Table

from refold.core.errors import RefoldError
from refold.dev.kafka import EmbeddedKafka
from refold.dev.ports import free_port
from refold.dev.postgres import EmbeddedPostgres
from refold.dev.valkey import EmbeddedValkey
from refold.engine.runtime import logging

ROOT = Path(__file__).parents[2]
CLASSES = ("keyed", "pure", "probed", "once")
PEERS = {"restate": "restate-sdk hypercorn aiohttp", "dbos": "dbos 'psycopg[binary]'"}
PEERS |= {"langgraph": "langgraph langgraph-checkpoint-postgres 'psycopg[binary,pool]'", "temporal": "temporalio"}
"""What is to be installed for each."""

_TOLD = {
    "run_of_3_ms_p50": "3 steps, ms p50",
    "run_of_3_ms_p95": "p95",
    "batch_of_200_s": "200 at once, s",
    "steps_per_s": "steps/s, 100 in flight",
    "cpu_ms_per_step": "CPU ms a step",
    "steps_per_core_s": "steps/s a core",
    "ttfs_ms": "TTFS ms",
    "stso_ms": "STSO ms",
    "wo_ms_of_20_steps": "WO of 20, ms",
}


def main(arguments: list[str] | None = None) -> int:
    """Measures what is there; exit code 1 if no peer is."""
    options = _options(arguments)
    logging.configure("bench")
    console = Console(stderr=True)
    report: dict[str, Any] = {"machine": {"cores": os.cpu_count(), "load": os.getloadavg()}, "systems": {}}
    systems = report["systems"]
    with tempfile.TemporaryDirectory(prefix="rp-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        for peer in PEERS:
            if why := _missing(peer, options):
                console.print(f"{peer} is left out: {why}")
                continue
            console.print(f"{peer} …")
            systems[peer] = _measured(peer, options, folder)
        console.print("refold …")
        systems |= _refold(options, folder)
    print(json.dumps(report, indent=2))
    _show(systems, options, console)
    return 0 if systems.keys() & PEERS.keys() else 1


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks --peers", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="the Python in which the peers are installed")
    parser.add_argument("--restate-server", default="restate-server", help="its program")
    parser.add_argument("--temporal", default="", help="HOST:PORT of a server that runs already")
    parser.add_argument("--runs", type=int, default=100, help="runs one after the other, for latency")
    parser.add_argument("--load", type=int, default=300, help="runs of ten steps at 100 in flight, for the rate")
    parser.add_argument("--long", type=int, nargs="*", default=[1_000, 10_000], help="steps of the long runs")
    parser.add_argument("--peers", nargs="*", metavar="NAME", help=f"only these of {', '.join(PEERS)}")
    return parser.parse_args(arguments)


def _missing(peer: str, options: argparse.Namespace) -> str:
    """Why a peer cannot be measured here, or nothing."""
    if options.peers and peer not in options.peers:
        return "it was not asked for"
    module = peer.replace("temporal", "temporalio")
    if subprocess.run([options.python, "-c", f"import {module}"], capture_output=True, check=False).returncode:
        return f"{options.python} -m pip install {PEERS[peer]}"
    if peer == "restate" and not _answers(options.restate_server):
        return f"{options.restate_server} does not run; npm install @restatedev/restate-server, --restate-server PATH"
    if peer == "temporal" and not options.temporal:
        return "--temporal HOST:PORT of a server"
    return ""


def _answers(program: str) -> bool:
    try:
        return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _measured(peer: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The figures of a peer, or why there are none."""
    own = folder / peer
    own.mkdir(mode=0o711)
    stamps = own / "stamps"
    wanted = {**vars(options), "ports": [free_port() for _ in range(4)]}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), STAMPS: str(stamps)}
    database = EmbeddedPostgres(own / "pg") if peer in ("dbos", "langgraph") else None
    if database is not None:
        database.start()
        wanted["postgres"] = database.url
    try:
        command = [options.python, "-m", f"benchmarks.peers.on_{peer}", json.dumps(wanted)]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    finally:
        if database is not None:
            database.stop()
    if ended.returncode:
        raise RefoldError(f"{peer} failed: {ended.stderr.strip()[-500:]}")
    return dict(json.loads(ended.stdout.strip().splitlines()[-1]))


def measured(engine: Engine, effect: str, *, runs: int, load: int, long: tuple[int, ...]) -> dict[str, Any]:
    """The figures of Refold with calls of an effect class."""

    def drive(runs: int, steps: int, in_flight: int) -> list[float]:
        return engine.client.drive("stepped", runs, in_flight=in_flight, given={"effect": effect, "steps": steps})

    return measure(drive, engine.effects, runs=runs, load=load, long=long)


def _refold(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Refold by effect class, each on services that have run nothing before; the long runs of the first alone."""
    found = {}
    with EmbeddedKafka(folder / "kafka") as kafka, EmbeddedValkey(folder / "valkey") as valkey:
        for effect in CLASSES:
            engine = Engine(kafka.bootstrap, valkey.url, folder, sync=True)
            long = tuple(options.long) if effect == CLASSES[0] else ()
            try:
                found[f"refold, {effect}"] = measured(engine, effect, runs=options.runs, load=options.load, long=long)
            finally:
                engine.close()
    return found


def _show(systems: dict[str, Any], options: argparse.Namespace, console: Console) -> None:
    told = dict(_TOLD)
    for steps in options.long:
        told |= {f"stso_ms_at_{steps}": f"STSO at {steps:,}, ms", f"ratio_at_{steps}": "of the tenth's"}
    console.width = max(console.width, 30 + 16 * len(systems))
    table = Table(title=f"python -m benchmarks --peers, {time.strftime('%Y-%m-%d')}")
    for column in ("figure", *systems):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for key, name in told.items():
        table.add_row(name, *(str(each.get(key, "")) for each in systems.values()))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
