"""Commands of a checkout of the repository, the version, and shell completion."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version as installed
from pathlib import Path
from typing import Annotated

import typer
from typer._completion_shared import get_completion_script

from refold.cli.errors import fail
from refold.core.errors import UsageError

ROOT = Path(__file__).resolve().parents[4]
SHELLS = ("bash", "zsh", "fish")


def demo(ctx: typer.Context) -> None:
    """Deploy while processes are killed (checkout only)."""
    need("examples/demo/__main__.py")
    run_module("examples.demo", ctx.args)


def bench(ctx: typer.Context) -> None:
    """Measure the figures on this machine (checkout only)."""
    need("benchmarks/__main__.py")
    run_module("benchmarks", ctx.args)


def sim(ctx: typer.Context) -> None:
    """Simulate the platform with faults (checkout only)."""
    need("tests/simulator/__main__.py")
    run_module("tests.simulator", ctx.args)


def version() -> None:
    """Print the version."""
    typer.echo(installed("refold"))


def print_completion(shell: Annotated[str, "SHELL", f"One of {', '.join(SHELLS)}."]) -> None:
    """Print the completion script of a shell. Load it with `eval "$(refold completion bash)"` in ~/.bashrc.

    For zsh, add `eval "$(refold completion zsh)"` to ~/.zshrc, after compinit. For fish, write the script to
    ~/.config/fish/completions/refold.fish.
    """
    if shell not in SHELLS:
        raise UsageError(f"there is no completion for {shell}", hint=f"refold completion {' | '.join(SHELLS)}")
    typer.echo(get_completion_script(prog_name="refold", complete_var="_REFOLD_COMPLETE", shell=shell))


def need(path: str) -> Path:
    """Path in the checkout. **Raises** UsageError in an installed package."""
    place = ROOT / path
    if not place.exists():
        hint = "clone the repository and run `make demo` there; with the package alone, `refold dev` runs a hello app"
        raise UsageError(f"{path} is not part of an installed package", hint=hint)
    return place


def run_module(module: str, args: list[str]) -> None:
    """Run a module of the checkout in a subprocess and exit with its code."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", module, *args]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}) as started:
        while started.poll() is None:
            with suppress(KeyboardInterrupt):  # the terminal sends Ctrl-C to both, and the module has things to stop
                started.wait()
    if started.returncode:
        fail(started.returncode)
