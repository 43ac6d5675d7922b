"""`refold sim`: the whole platform in one process, from one seed; see `refold.simulator`."""

from __future__ import annotations

import typer

from refold.cli.commands import checkout
from refold.cli.errors import fail
from refold.core.errors import UsageError

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def sim(ctx: typer.Context) -> None:
    """Simulate the platform with a fault at every boundary, then at random. Arguments go to the simulator."""
    from importlib.util import find_spec

    if find_spec("refold.simulator") is None or find_spec("refold.simulator.__main__") is None:
        raise UsageError("this installation has no simulator", hint="run this in a checkout of the repository")
    if code := checkout.run_module("refold.simulator", ctx.args):
        fail(code)
