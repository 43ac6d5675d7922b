"""The program `refold`: the only place where an error becomes an exit code."""

import atexit
import gc
import sys
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer._completion_classes import completion_init

import refold
from refold.cli.commands import COMMANDS, RENAMED
from refold.cli.errors import expected, report
from refold.cli.groups import PlainGroup
from refold.core.errors import UsageError
from refold.engine.runtime.memory import COLLECT_AFTER
from refold.engine.runtime.text import ESCAPED


class Root(PlainGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": COMMANDS.build()})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # The longest name first: `keys api new` before `keys api`.
        old = next((" ".join(args[:count]) for count in (3, 2, 1) if " ".join(args[:count]) in RENAMED), "")
        if old and not ctx.resilient_parsing:  # completion resolves commands too
            new = RENAMED[old]
            hint = "`refold --help` lists all commands" if new.startswith("refold") else "in a clone of the repository"
            raise UsageError(f"refold {old} is now {new}", hint=hint)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        gc.set_threshold(COLLECT_AFTER)
        for stream in (sys.stdout, sys.stderr):  # for services too: a print never decides about a run
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors=ESCAPED)
        try:
            return super().invoke(ctx)
        except expected() as error:
            if (code := report(error)) is None:
                raise
            raise typer.Exit(code) from None


app = typer.Typer(
    cls=Root,
    name="refold",
    help=COMMANDS.summary,
    no_args_is_help=True,
    add_completion=False,  # `refold completion SHELL` prints the script, in place of two options of Typer's
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
atexit.register(gc.freeze)  # Python's last look for cycles is a fifth of a command, and finds none that matter
completion_init()  # this program answers scripts of `refold completion`


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(refold.__version__)
        raise typer.Exit


@app.callback()
def _refold(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of `refold` itself."""
