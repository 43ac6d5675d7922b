"""`refold run cancel`, `pause` and `resume`: what is said of a run, or at once of all that have something in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from refold.cli import output
from refold.cli.commands.run import AgentOption, LabelOption, Operator, SessionOption, SignOption, labels_of
from refold.cli.errors import FAILED, fail
from refold.client.addresses import own_key
from refold.client.inputs import Inputs, word_on
from refold.client.pausing import Pauses
from refold.client.platform import login
from refold.client.rows import summary
from refold.client.runs import Run
from refold.client.sessions import Belonging, Sessions, topmost
from refold.core.approval.requester import signed
from refold.core.approval.signature import REQUEST
from refold.core.errors import UsageError
from refold.core.messages import RunOperation, RunSignal
from refold.core.planning.pausing import PAUSE, RESUME
from refold.core.run.pausing import own
from refold.core.run.state import RunState
from refold.runtime.clock import clock_ms

OneOrMany = Annotated[str, typer.Argument(metavar="RUN", help="The run; without it, filters.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it stays in the history.")]


@dataclass(frozen=True)
class Speaker(Operator):
    """Who says something of a run, or of many, and what these have in common."""

    session: SessionOption = ""
    label: LabelOption = None
    agent: AgentOption = ""
    yes: Annotated[bool, typer.Option("--yes", help="Do it to all of them; without it they are shown.")] = False
    as_operator: Annotated[
        bool, typer.Option("--as-operator", help="Say it as an operator, though you asked for the run.")
    ] = False
    key: SignOption = ""

    def which(self, run: str) -> Belonging:
        """What many have in common, if no single one is named. **Raises** UsageError."""
        which = Belonging(self.session, labels_of(self.label), self.agent)
        if bool(run) == bool(which):
            hint = "RUN, or --session S, --label K=V, --agent NAME"
            raise UsageError("it takes a run, or what many have in common", hint=hint)
        return which


@dataclass(frozen=True)
class Word:
    """What is said of runs, and who says it."""

    kind: str
    operator: Speaker
    reason: str = ""

    def on(self, run: str) -> RunSignal | RunOperation:
        """The word on one run, signed where who asked for it has a key. **Raises** NotFoundError."""
        state, actor = self.operator.runs.get(run).state, self.operator.actor or login()
        said = word_on(state, self.kind, reason=self.reason, actor=actor, as_operator=self.operator.as_operator)
        return self._signed(said) if isinstance(said, RunSignal) else said

    def on_many(self, which: Belonging) -> None:
        """Says it of all that have something in common, or shows which that are."""
        operator, kind = self.operator, self.kind
        sessions = Sessions(operator.runs, operator.platform.publisher, output.progress())
        found = self._meant(sessions, which)
        rows = [summary(run) for run in found]
        if not operator.yes:
            operator.tell_meant(rows, f"would be {_PAST[kind]}")
            return
        states = sessions.say(
            kind,
            found,
            actor=operator.actor or login(),
            reason=self.reason,
            timeout_s=operator.timeout,
            as_operator=operator.as_operator,
            sign=self._signed,
        )
        rows = [row | {"status": _status(states[row["run_id"]])} for row in rows]
        done = sum(_is_what(state, kind) for state in states.values())
        text = f"{output.counted(done, 'run')} of {len(rows)} {_PAST[kind]}"
        operator.tell({"dry_run": False, "count": len(rows), "runs": rows}, text)
        if done < len(rows):
            fail(FAILED)

    def _meant(self, sessions: Sessions, which: Belonging) -> Sequence[Run]:
        if self.kind == RESUME:
            return sessions.paused(which)
        return [run for run in topmost(sessions.live(which)) if self.kind != PAUSE or own(run.state) is None]

    def _signed(self, said: RunSignal) -> RunSignal:
        signing = own_key(REQUEST, self.operator.key, self.operator.data)
        return signed(said, signing, clock_ms(), self.operator.platform.settings.platform) if signing else said


_PAST = {"cancel": "cancelled", PAUSE: "paused", RESUME: "resumed"}


def cancel_run(
    run: OneOrMany = "",
    *,
    reason: ReasonOption = "",
    operator: Speaker,
) -> None:
    """Cancel a run and the runs it has started. Best effort for a call that an executor has claimed already.

    A run that somebody else asked for is cancelled as an operator, which takes the right to write `run-operated`.
    Many runs are named by --session, --label and --agent: without --yes they are shown.
    """
    word = Word("cancel", operator, reason)
    if which := operator.which(run):
        word.on_many(which)
        return
    inputs = Inputs(operator.runs, operator.platform.publisher)
    answer = inputs.cancel(word.on(run), operator.timeout)
    operator.tell_answer(answer, f"run [bold]{output.escape(run)}[/]")


def pause_run(
    run: OneOrMany = "",
    *,
    reason: ReasonOption = "",
    operator: Speaker,
) -> None:
    """Pause a run and the runs it has started. Nothing new goes out of it until `refold run resume`.

    What executors have already they finish, and the run has it when it goes on. Signals, answers and decisions are
    kept, and what falls due meanwhile is due then. Many runs are named by --session, --label and --agent: without
    --yes they are shown.
    """
    _say(Word(PAUSE, operator, reason), run)


def resume_run(
    run: OneOrMany = "",
    *,
    operator: Speaker,
) -> None:
    """Resume a paused run. The runs it has started resume too, unless they were paused themselves.

    What an operator has paused only operators resume. Many runs are named by --session, --label and --agent: of these
    all that are paused by themselves; without --yes they are shown.
    """
    _say(Word(RESUME, operator), run)


def _say(word: Word, run: str) -> None:
    if which := word.operator.which(run):
        word.on_many(which)
        return
    operator, said = word.operator, word.on(run)
    pauses = Pauses(operator.runs, operator.platform.publisher)
    answer = (pauses.pause if word.kind == PAUSE else pauses.resume)(said, operator.timeout)
    state = answer.run.state
    row = {"run_id": state.run_id, "outcome": answer.what, "status": state.status}
    row["paused"] = output.plain(state.paused)
    operator.tell(row, f"run [bold]{output.escape(run)}[/] is {output.styled(_status(state))}")


def _status(state: RunState) -> str:
    return "paused" if state.paused and not state.over else state.status


def _is_what(state: RunState, kind: str) -> bool:
    """Whether a run is what it was to become."""
    if kind == "cancel":
        return state.status == "cancelled"
    return not state.over and (own(state) is not None) == (kind == PAUSE)
