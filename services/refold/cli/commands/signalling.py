"""`refold run signal` and `refold callback`: what runs wait for from outside."""

from __future__ import annotations

from typing import Annotated

import typer

from refold.cli import output
from refold.cli.commands.run import LabelOption, Operator, SessionOption, labels_of
from refold.cli.errors import FAILED, fail
from refold.cli.platform import json_value
from refold.client.platform import login
from refold.client.rows import summary
from refold.client.sessions import Belonging, Sessions
from refold.client.signals import SignalAnswer, Signals, answering, signalling
from refold.core import ids
from refold.core.errors import UsageError
from refold.core.messages import RunSignal

TokenArgument = Annotated[str, typer.Argument(metavar="TOKEN", help="The callback's token, which begins with cb_.")]
KeyOption = Annotated[
    str, typer.Option("--key", metavar="KEY", help="Your own name for this answer: said again, it is the same answer.")
]


PayloadOption = Annotated[str, typer.Option("--payload", metavar="JSON|@FILE|-", help="The data to send.")]


def signal_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run; without it, filters.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it waits for: `ctx.wait_for(NAME)`.")] = "",
    *,
    payload: PayloadOption = "null",
    id_: Annotated[str, typer.Option("--id", help="Its id: twice is one signal.  \\[default: a fresh one]")] = "",
    session: SessionOption = "",
    label: LabelOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Tell all of them; without it they are shown.")] = False,
    operator: Operator,
) -> None:
    """Send a signal that a run waits for, now or later. A wait takes it once.

    Many runs are named by --session and --label, each with what it has started: without --yes they are shown. One that
    never waits for it keeps it until its end.

    Example: refold run signal closed --session shop-7 --yes
    """
    actor, data = operator.actor or login(), json_value(payload, "--payload")
    if bool(name) == bool(session or label):
        raise UsageError("it takes a run, or what many have in common", hint="RUN NAME, or NAME --session S")
    said = signalling(ids.run_id(run) if name else "", name or run, data, signal_id=id_, actor=actor)
    if not name:
        _tell_many(Belonging(session, labels_of(label)), said, operator, yes=yes)
        return
    answer = Signals(operator.platform.runs, operator.platform.publisher).signal(said, operator.timeout)
    words = f"taken by step {answer.step}" if answer.step else "kept until the run waits for it"
    again = " before" if answer.what == "known" else ""
    _tell(operator, answer, said.signal_id, f"the signal [bold]{output.escape(said.signal_id)}[/] was{again} {words};")


def _tell_many(which: Belonging, said: RunSignal, operator: Operator, *, yes: bool) -> None:
    sessions = Sessions(operator.runs, operator.platform.publisher, output.progress())
    found = sessions.live(which)
    rows = [summary(run) for run in found]
    if not yes:
        operator.tell_meant(rows, f"would be told {said.name}")
        return
    became = sessions.signal(found, said, operator.timeout)
    rows = [row | became[row["run_id"]]._asdict() for row in rows]
    bad = [row for row in rows if row["outcome"] not in ("accepted", "known")]
    for row in bad:
        output.warn(f"{row['run_id']}: {row['error'] or 'no answer so far'}")
    text = f"{output.counted(len(rows) - len(bad), 'run')} of {len(rows)} told: signal {output.escape(said.signal_id)}"
    operator.tell({"dry_run": False, "count": len(rows), "said": said.signal_id, "runs": rows}, text)
    if bad:
        output.note(f"once more, and none is told twice: --id {said.signal_id}")
        fail(FAILED)


def resolve_callback(
    token: TokenArgument,
    *,
    payload: PayloadOption = "null",
    key: KeyOption = "",
    operator: Operator,
) -> None:
    """Complete a callback with its result. The first answer counts; the same one again is harmless."""
    said = answering(token, json_value(payload, "--payload"), key=key, actor=operator.actor or login())
    _answer(operator, said, "has the result")


def fail_callback(
    token: TokenArgument,
    *,
    message: Annotated[str, typer.Option("--message", help="Why there will be no result; the agent sees it.")],
    key: KeyOption = "",
    operator: Operator,
) -> None:
    """Fail a callback: the agent sees a failure."""
    if not message:
        raise UsageError("a failure has a reason", hint="--message 'the card was declined'")
    _answer(operator, answering(token, failure=message, key=key, actor=operator.actor or login()), "has failed")


def _answer(operator: Operator, said: RunSignal, words: str) -> None:
    answer = Signals(operator.platform.runs, operator.platform.publisher).answer(said, operator.timeout)
    made = answer.run.timeline.steps[answer.step - 1]
    again = " already" if answer.what == "known" else ""
    _tell(operator, answer, said.key, f"the callback [bold]{output.escape(made.name)}[/] {words}{again};")


def _tell(operator: Operator, answer: SignalAnswer, said: str, words: str) -> None:
    run = output.escape(answer.run.state.run_id)
    operator.tell_answer(answer, f"{words} run [bold]{run}[/]", step=answer.step, said=said)
