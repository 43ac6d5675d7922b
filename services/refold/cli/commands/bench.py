"""`refold bench`: the figures, measured on this machine; see `benchmarks/`."""

from __future__ import annotations

import typer

from refold.cli.commands import checkout
from refold.cli.errors import fail

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def bench(ctx: typer.Context) -> None:
    """Measure steps/s, latency, recovery and memory, beside the floor. Arguments go to `benchmarks`."""
    checkout.need("benchmarks/__main__.py")
    if code := checkout.run_module("benchmarks", ctx.args):
        fail(code)
