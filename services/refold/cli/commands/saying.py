"""`refold run cancel`, `pause` and `resume`: what is said of a run, or at once of all that have something in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from refold.cli import output
from refold.cli.commands.run import AgentOption, LabelOption, Operator, SessionOption, SignOption, labels_of
from refold.cli.errors import FAILED, fail
from refold.client.addresses import own_key
from refold.client.platform import login
from refold.core.approval.signature import REQUEST
from refold.core.errors import UsageError
from refold.core.ids import RunId
from refold.core.planning.pausing import PAUSE, RESUME
from refold.core.run.pausing import own
from refold.core.run.state import RunState
from refold.operations.run import By, signing, word
from refold.operations.selection import Selector, selected
from refold.views.outcome import PauseSaid
from refold.views.run import row_of

OneOrMany = Annotated[str, "RUN", "The run; without it, filters."]
ReasonOption = Annotated[str, "Why; it stays in the history."]


@dataclass(frozen=True)
class Speaker(Operator):
    """Who says something of a run, or of many, and what these have in common."""

    session: SessionOption = ""
    label: LabelOption = None
    agent: AgentOption = ""
    yes: Annotated[bool, "Do it to all of them; without it they are shown."] = False
    as_operator: Annotated[bool, "Say it as an operator, though you asked for the run."] = False
    key: SignOption = ""

    def which(self, run: str) -> Selector:
        """What many have in common, if no single one is named. **Raises** UsageError."""
        which = Selector(self.session, labels_of(self.label), self.agent)
        if bool(run) == bool(which):
            hint = "RUN, or --session S, --label K=V, --agent NAME"
            raise UsageError("it takes a run, or what many have in common", hint=hint)
        return which

    def by(self, reason: str) -> By:
        """In whose name it is, signed where who asked for a run has a key."""
        sign = signing(own_key(REQUEST, self.key, self.data), self.platform.settings.platform)
        return By(self.actor or login(), reason, self.as_operator, sign)

    def say(self, kind: str, run: str, reason: str = "") -> None:
        """Cancels, pauses or resumes a run, or all that are meant, or shows which these are."""
        if which := self.which(run):
            self._say_many(kind, which, reason)
            return
        answer = self.perform(word(self.runs.get(run).state, kind, self.by(reason)))
        name = f"run [bold]{output.escape(run)}[/]"
        if kind == "cancel":
            self.tell_answer(answer, name)
            return
        state = answer.run.state
        row = PauseSaid(run_id=run, outcome=answer.what, status=state.status, paused=list(state.paused))
        self.tell(row, f"{name} is {output.styled(_status(state))}")

    def _say_many(self, kind: str, which: Selector, reason: str) -> None:
        found = selected(self.runs.all(), which, kind)
        rows, done = [row_of(run) for run in found], _PAST[kind]
        if not self.yes:
            self.tell_meant(rows, f"would be {done}")
            return
        outcomes = self.perform_all([word(run.state, kind, self.by(reason)) for run in found], f"{kind} runs")
        states = {row.run_id: outcomes[RunId(row.run_id)].state for row in rows}
        rows = [row.model_copy(update={"status": _status(states[row.run_id])}) for row in rows]
        so = sum(_is_what(state, kind) for state in states.values())
        text = f"{output.counted(so, 'run')} of {len(rows)} {done}"
        self.tell({"dry_run": False, "count": len(rows), "runs": rows}, text)
        if so < len(rows):
            fail(FAILED)


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
    operator.say("cancel", run, reason)


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
    operator.say(PAUSE, run, reason)


def resume_run(
    run: OneOrMany = "",
    *,
    operator: Speaker,
) -> None:
    """Resume a paused run. The runs it has started resume too, unless they were paused themselves.

    What an operator has paused only operators resume. Many runs are named by --session, --label and --agent: of these
    all that are paused by themselves; without --yes they are shown.
    """
    operator.say(RESUME, run)


def _status(state: RunState) -> str:
    return "paused" if state.paused and not state.over else state.status


def _is_what(state: RunState, kind: str) -> bool:
    """Whether a run is what it was to become."""
    if kind == "cancel":
        return state.status == "cancelled"
    return not state.over and (own(state) is not None) == (kind == PAUSE)
