"""`refold run signal` and `refold callback`: what runs wait for from outside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from refold.cli import output
from refold.cli.commands.run import LabelOption, Operator, SessionOption, labels_of
from refold.cli.errors import FAILED, fail
from refold.cli.lazy import Commands
from refold.cli.platform import source
from refold.client.platform import login
from refold.core import ids
from refold.core.errors import UsageError
from refold.core.messages import RunSignal
from refold.core.wire import canonical
from refold.operations import run as operations
from refold.operations.operation import Outcome, Performed
from refold.operations.run import answered, signal, signal_message, step_of
from refold.operations.selection import Selector, selected
from refold.views.outcome import SignalSaid
from refold.views.run import row_of

signal_group = Commands()
callback_group = Commands("Answer what a run has given somebody a token for.")

TokenArgument = Annotated[str, typer.Argument(metavar="TOKEN", help="The callback's token, which begins with cb_.")]
KeyOption = Annotated[
    str, typer.Option("--key", metavar="KEY", help="Your own name for this answer: said again, it is the same answer.")
]


GivenOption = Annotated[str, typer.Option("--data", metavar="JSON|@FILE|-", help="What to say.")]


@dataclass(frozen=True)
class Messenger(Operator):
    """The options of who says something: their --data is what they say, and not the folder of a `refold dev`."""

    data: Annotated[
        str,
        typer.Option(
            "--folder", envvar="REFOLD_DATA", help="Folder of a `refold dev`  \\[default: .refold]", show_default=False
        ),
    ] = ""


@signal_group.command()
def signal_run(
    run: Annotated[str, typer.Argument(metavar="[RUN]", help="The run; without it, filters.", show_default=False)],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What it waits for: `ctx.wait_for(NAME)`.", show_default=False)
    ] = "",
    *,
    given: GivenOption = "null",
    id_: Annotated[
        str, typer.Option("--id", help="Its id: twice is one signal.  \\[default: a fresh one]", show_default=False)
    ] = "",
    session: SessionOption = "",
    label: LabelOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Tell all of them; without it they are shown.")] = False,
    operator: Messenger,
) -> None:
    """Tell a run something that it waits for, or will. A wait takes it once.

    Many runs are named by --session and --label, each with what it has started: without --yes they are shown. One that
    never waits for it keeps it until its end.

    Example: refold run signal order-7 shipped --data '{"parcel": "p-1"}' --id parcel-p-1

    Example: refold run signal closed --session shop-7 --yes
    """
    actor, data = operator.actor or login(), canonical.parse(source(given))
    if bool(name) == bool(session or label):
        raise UsageError("it takes a run, or what many have in common", hint="RUN NAME, or NAME --session S")
    said = signal_message(ids.run_id(run) if name else "", name or run, data, signal_id=id_, actor=actor)
    if not name:
        _tell_many(Selector(session, labels_of(label)), said, operator, yes=yes)
        return
    answer = operator.perform(signal(operator.runs.get(run).state, said))
    step = step_of(answer.run.state, said)
    words = f"taken by step {step}" if step else "kept until the run waits for it"
    again = " before" if answer.what == "known" else ""
    _tell(
        operator, answer, step, said.signal_id, f"signal [bold]{output.escape(said.signal_id)}[/] was{again} {words};"
    )


def _tell_many(which: Selector, said: RunSignal, operator: Operator, *, yes: bool) -> None:
    found = selected(operator.runs.all(), which, "signal")
    rows = [row_of(run) for run in found]
    if not yes:
        operator.tell_meant(rows, f"would be told {said.name}")
        return
    each = [replace(said, run_id=run.state.run_id) for run in found]
    outcomes = operator.perform_all(
        [signal(run.state, mine) for run, mine in zip(found, each, strict=True)], "tell runs"
    )
    bad = {run: outcome for run, outcome in outcomes.items() if outcome.what not in ("accepted", "known")}
    for run, outcome in bad.items():
        output.warn(f"{run}: {outcome.error or 'no answer so far'}")
    told = [row.dump() | _became(outcomes[mine.run_id], mine) for row, mine in zip(rows, each, strict=True)]
    text = f"{output.counted(len(rows) - len(bad), 'run')} of {len(rows)} told: signal {output.escape(said.signal_id)}"
    operator.tell({"dry_run": False, "count": len(rows), "said": said.signal_id, "runs": told}, text)
    if bad:
        output.note(f"once more, and none is told twice: --id {said.signal_id}")
        fail(FAILED)


def _became(outcome: Outcome, said: RunSignal) -> output.Data:
    has_it = outcome.what in ("accepted", "known")
    return {"outcome": outcome.what, "step": step_of(outcome.state, said) if has_it else 0, "error": outcome.error}


@callback_group.command("resolve")
def resolve_callback(
    token: TokenArgument,
    *,
    given: GivenOption = "null",
    key: KeyOption = "",
    operator: Messenger,
) -> None:
    """Give the result of a callback. The first answer counts; the same one again is harmless.

    Example: refold callback resolve cb_7Qx... --data '{"paid": true}' --key payment-17
    """
    said = answered(token, canonical.parse(source(given)), key=key, actor=operator.actor or login())
    _answer(operator, said, "has the result")


@callback_group.command("fail")
def fail_callback(
    token: TokenArgument,
    *,
    message: Annotated[str, typer.Option("--message", help="Why there will be no result; the agent sees it.")],
    key: KeyOption = "",
    operator: Messenger,
) -> None:
    """Say that a callback will have no result: the agent sees a failure.

    Example: refold callback fail cb_7Qx... --message 'the card was declined'
    """
    if not message:
        raise UsageError("a failure has a reason", hint="--message 'the card was declined'")
    _answer(operator, answered(token, failure=message, key=key, actor=operator.actor or login()), "has failed")


def _answer(operator: Operator, said: RunSignal, words: str) -> None:
    answer = operator.perform(operations.answer_callback(operator.runs.get(said.run_id).state, said))
    step = step_of(answer.run.state, said)
    made, again = answer.run.timeline.steps[step - 1], " already" if answer.what == "known" else ""
    _tell(operator, answer, step, said.key, f"callback [bold]{output.escape(made.name)}[/] {words}{again};")


def _tell(operator: Operator, answer: Performed, step: int, said: str, words: str) -> None:
    run = output.escape(answer.run.state.run_id)
    operator.tell_answer(answer, f"the {words} run [bold]{run}[/]", SignalSaid, step=step, said=said)
