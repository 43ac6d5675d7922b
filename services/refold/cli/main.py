"""`refold`: every command, and the one place where an error becomes an exit code."""

from __future__ import annotations

from importlib.metadata import version as installed
from typing import Annotated, Any, ClassVar

import typer

from refold.cli.errors import expected, tell
from refold.cli.lazy import Lazy


class Root(Lazy):
    """The group of all commands."""

    later: ClassVar = {
        "init": (
            "init:init_group",
            "Begin a project: an agent, tools, a policy, and a test that passes.",
        ),
        "dev": ("dev:dev_group", "Run a broker, Valkey and every service here, each restarted when it dies."),
        "dev status": ("processes:status_group", "Show what a running `refold dev` consists of."),
        "dev kill": ("processes:kill_group", "Kill processes of a running `refold dev`, as `kill -9` does."),
        "setup": ("provision:setup_group", "Do for a platform elsewhere what `refold dev` does for its own."),
        "doctor": ("doctor:doctor_group", "Look at everything that Refold needs, and say what is wrong."),
        "serve": ("serve:serve_group", "Run one service in this process: planner, executor, approval or archivist."),
        "run": ("run:run_group", "Start runs, look at them, settle what is in doubt."),
        "run retry": (
            "redriving:retry_group",
            "Have a failed run go on where it failed, or try the code of a stalled one again.",
        ),
        "run cancel": ("saying:cancel_group", "Cancel a run, and what it has started."),
        "run pause": ("saying:pause_group", "Pause a run, and what it has started."),
        "run resume": ("saying:resume_group", "Let a run go on that was paused."),
        "run resolve": ("resolving:resolve_group", "Settle a call in doubt: say what you found out about its effect."),
        "run erase": ("erasing:erase_group", "Erase a run that is over from every topic, at once."),
        "run signal": ("signalling:signal_group", "Tell a run something that it waits for, or will."),
        "callback": ("signalling:callback_group", "Answer what a run has given somebody a token for."),
        "run replay": ("replaying:run_replay_group", "Make a run's decisions again from what was recorded."),
        "replay check": ("replaying:replay_group", "Try code on recorded runs before it is deployed."),
        "versions": ("versions:versions_group", "See which versions of agents are needed, and hand runs to another."),
        "limits": ("limits:limits_group", "List what was spent of the limits per day and month."),
        "approval": ("approval:approval_group", "Decide on calls that wait for people."),
        "topics": ("topics:topics_group", "Create the topics, say who may use them, and compare both."),
        "schemas": ("schemas:schemas_group", "Export the Avro schemas, and check that they fit."),
        "keys": ("keys:keys_group", "Make, publish, retire and revoke the keys that sign."),
        "halt": ("halting:halt_group", "Stop a tool, an agent, a pool, a requester or everything, within a second."),
        "unhalt": ("halting:unhalt_group", "Let go on what was halted."),
        "policy": ("policy:policy_group", "Write, try and publish the rules that judge every call."),
        "deadletter": ("deadletter:letter_group", "Look at inputs that nobody could use, and send them again."),
        "archive": ("archive:archive_group", "List, verify and restore runs that were archived."),
        "demo": ("checkout:demo_group", "Deploy in five steps while processes are killed; in a checkout."),
        "bench": ("checkout:bench_group", "Measure the figures on this machine; in a checkout."),
        "sim": ("checkout:sim_group", "Simulate the platform with faults, from one seed."),
    }

    def invoke(self, ctx: Any) -> Any:
        """Runs a command; an expected error becomes words and an exit code."""
        try:
            return super().invoke(ctx)
        except expected() as error:
            if (code := tell(error)) is None:
                raise
            raise typer.Exit(code) from None


app = typer.Typer(
    cls=Root,
    name="refold",
    help="Durable AI agents as event-sourced services on Kafka: a crash is a non-event.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(installed("refold"))


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def _refold(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """The options of `refold` itself."""
