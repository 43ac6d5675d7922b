"""Commands of a checkout, which an installed package cannot run: the demo, the figures and the simulator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import typer

from refold.cli.errors import fail
from refold.cli.lazy import Commands
from refold.core.errors import UsageError

ROOT = Path(__file__).resolve().parents[4]
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

demo_group, bench_group, sim_group = Commands(), Commands(), Commands()


@demo_group.command(context_settings=PASS_ON)
def demo(ctx: typer.Context) -> None:
    """Deploy in five steps while processes are killed; in a checkout."""
    need("examples/demo/__main__.py")
    run_module("examples.demo", ctx.args)


@bench_group.command(context_settings=PASS_ON)
def bench(ctx: typer.Context) -> None:
    """Measure the figures on this machine; in a checkout."""
    need("benchmarks/__main__.py")
    run_module("benchmarks", ctx.args)


@sim_group.command(context_settings=PASS_ON)
def sim(ctx: typer.Context) -> None:
    """Simulate the platform with faults, from one seed; in a checkout."""
    need("tests/simulator/__main__.py")
    run_module("tests.simulator", ctx.args)


def need(path: str) -> Path:
    """A file or folder of the checkout. **Raises** UsageError in an installed package."""
    place = ROOT / path
    if not place.exists():
        hint = "clone the repository and run `make demo` there; with the package alone, `refold dev` runs a hello app"
        raise UsageError(f"{path} is not part of an installed package", hint=hint)
    return place


def run_module(module: str, args: list[str]) -> None:
    """Runs a module of the checkout in a process of its own, and ends as it did."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", module, *args]
    if code := subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, check=False).returncode:
        fail(code)
