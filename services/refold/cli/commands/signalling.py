"""`refold run signal` and `refold callback`: what runs wait for from outside."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from refold.cli import output
from refold.cli.commands.run import LabelOption, Operator, SessionOption, labels_of
from refold.cli.errors import FAILED, fail
from refold.cli.platform import json_value
from refold.client.platform import login
from refold.core import ids
from refold.core.errors import UsageError
from refold.core.messages import RunSignal
from refold.operations import run as operations
from refold.operations.operation import Outcome, Performed
from refold.operations.run import answered, signal, signal_message, step_of
from refold.operations.selection import Selector, selected
from refold.views.outcome import SignalSaid
from refold.views.run import row_of

TokenArgument = Annotated[str, "TOKEN", "The callback's token, which begins with cb_."]
KeyOption = Annotated[str, "KEY", "Your own name for this answer: said again, it is the same answer."]


PayloadOption = Annotated[str, "JSON|@FILE|-", "The data to send."]


def signal_run(
    run: Annotated[str, "The run; without it, filters."],
    name: Annotated[str, "What it waits for: `ctx.wait_for(NAME)`."] = "",
    *,
    payload: PayloadOption = "null",
    id_: Annotated[str, "Its id: twice is one signal.  \\[default: a fresh one]"] = "",
    session: SessionOption = "",
    label: LabelOption = None,
    yes: Annotated[bool, "Tell all of them; without it they are shown."] = False,
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


def resolve_callback(
    token: TokenArgument,
    *,
    payload: PayloadOption = "null",
    key: KeyOption = "",
    operator: Operator,
) -> None:
    """Complete a callback with its result. The first answer counts; the same one again is harmless."""
    said = answered(token, json_value(payload, "--payload"), key=key, actor=operator.actor or login())
    _answer(operator, said, "has the result")


def fail_callback(
    token: TokenArgument,
    *,
    message: Annotated[str, "Why there will be no result; the agent sees it."],
    key: KeyOption = "",
    operator: Operator,
) -> None:
    """Fail a callback: the agent sees a failure."""
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
