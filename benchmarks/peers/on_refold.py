"""Refold on the work of its peers: services, broker and Valkey as processes, each append of the log synced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.engine import ROOT, SERVICES, TOGETHER, alone
from benchmarks.peers import load

import refold
from refold.core.errors import NotFoundError, RefoldError


def check(wanted: dict[str, Any]) -> None:
    """**Raises** RefoldError if this is not the Refold of the `checkout` that is to be measured, and NotFoundError if
    it is to serve `together` and has no `refold serve all`."""
    found = Path(refold.__file__)
    if not found.is_relative_to(Path(wanted.get("checkout", ROOT)) / "services"):
        raise RefoldError(f"this Python has the Refold of {found.parent}, not of {wanted['checkout']}")
    command = [sys.executable, "-m", "refold", "serve", *TOGETHER, "--help"]
    if wanted.get("together") and subprocess.run(command, capture_output=True, check=False).returncode:
        raise NotFoundError("this version of Refold has no `refold serve all`")


def main(wanted: dict[str, Any]) -> None:
    """Start, measure, stop."""
    check(wanted)
    services = TOGETHER if wanted.get("together") else SERVICES
    with alone("bench", sync=True, services=services) as engine:
        os.environ[load.STEPS_FILE] = str(engine.steps_file)
        given, result = {"effect": wanted.get("effect", "keyed")}, str(load.RESULT)

        def drive(runs: int, in_flight: int) -> list[float]:
            return engine.client.drive("counted", runs, in_flight=in_flight, given=given, result=result)

        children = Path("/proc/self/task").glob("*/children")
        load.report(drive, {int(pid) for file in children for pid in file.read_text().split()})


def turn(body: Callable[[dict[str, Any]], None]) -> None:
    """Run a turn as its command line has it; what is missing ends it with the code for that."""
    try:
        body(json.loads(sys.argv[1]))
    except NotFoundError as error:
        print(error, file=sys.stderr)
        sys.exit(load.MISSING)


if __name__ == "__main__":
    turn(main)
