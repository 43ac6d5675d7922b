"""`refold`: every command, and the one place where an error becomes an exit code."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from refold.cli.commands import (
    approval,
    bench,
    deadletter,
    demo,
    dev,
    doctor,
    keys,
    policy,
    provision,
    run,
    schemas,
    sim,
    topics,
)
from refold.cli.errors import expected, tell

SERVE = "serve"


class Root(TyperGroup):
    """The group of all commands. `serve` loads every adapter and service, so it is looked up only when it is used."""

    def invoke(self, ctx: Any) -> Any:
        """Runs a command; an expected error becomes words and an exit code."""
        try:
            return super().invoke(ctx)
        except expected() as error:
            raise typer.Exit(tell(error)) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name."""
        if args[:1] == [SERVE]:
            from refold.cli.commands.serve import serve

            return SERVE, typer.main.get_command(serve), args[1:]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Root,
    name="refold",
    help="Durable AI agents as event-sourced services on Kafka: a crash is a non-event.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

app.add_typer(run.app, name="run")
app.add_typer(approval.app, name="approval")
app.command(name="dev")(dev.dev)
app.command(name="setup")(provision.setup)
app.command(name="demo")(demo.demo)
app.add_typer(topics.app, name="topics")
app.add_typer(schemas.app, name="schemas")
app.add_typer(keys.app, name="keys")
app.add_typer(policy.app, name="policy")
app.add_typer(deadletter.app, name="deadletter")
app.command(name="doctor")(doctor.doctor)
app.command(name="bench", context_settings=bench.PASS_ON)(bench.bench)
app.command(name="sim", context_settings=sim.PASS_ON)(sim.sim)


@app.command(name=SERVE, add_help_option=False)
def _serve() -> None:
    """Run one service in this process: planner, executor or approval."""


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(installed("refold"))
