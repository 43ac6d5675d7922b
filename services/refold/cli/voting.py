"""What all commands share by which people decide: the key that signs, the question that was seen, what became of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from refold.cli import output
from refold.cli.groups import Seconds
from refold.cli.platform import Shell
from refold.cli.views import approvals as approval_views
from refold.client.addresses import vote_key
from refold.client.platform import login
from refold.core.approval.ballot import DECIDING, Vote
from refold.core.errors import UsageError
from refold.operations.approvals import Answered, Approvals, changed, names_the_question
from refold.views.approval import against, others, reach, said, word_for

ApprovalArgument = Annotated[
    str,
    "ID",
    "RUN/SEQ~DIGEST, as `refold approval show` prints it; RUN/SEQ for the open one of a call, RUN for that of"
    " a run and what it has started.",
]
ASIDES = ("withdraw", "comment", "remind", "revoke-grant")
"""What lets nothing out, so that nobody has to have seen the question that it is said about."""


@dataclass(frozen=True)
class Voter(Shell):
    """Who votes, with what, and how long they wait for what becomes of it: the options of every vote."""

    actor: Annotated[str | None, "Name to record as the actor.  \\[default: your login]"] = None
    key: Annotated[str, "FILE", "The key that signs the vote; without it, the only one in --data."] = ""
    timeout: Annotated[Seconds, "How long to wait for Kafka and the approval service."] = 30.0

    def vote(self, name: str, action: str, *, settings: Mapping[str, str] | None = None, **more: Any) -> None:
        """Votes, and tells what became of it. `settings` are the arguments that an edit changes."""
        vote, answer = self.cast(name, action, settings=settings, **more)
        self.tell(answer.voted(vote.vote), told(answer, action))

    def cast(
        self, name: str, action: str, *, settings: Mapping[str, str] | None = None, about: str = "", **more: Any
    ) -> tuple[Vote, Answered]:
        """Votes; returns the vote, and what became of it."""
        key = vote_key(self.key, self.data)
        self.platform.wait(self.timeout, output.warn)
        approvals = self.platform.approvals
        approval = approvals.named(name)
        question = self._seen(approvals, name, approval, action, about=about)
        if settings:
            more["args"] = changed(approvals.get(approval).request.args, settings)
        actor = login() if self.actor is None else self.actor
        vote = approvals.vote(approval, action, question=question, actor=actor, about=about, **more)
        if action == "reassign" and (elsewhere := reach(vote.to, approvals.get(approval).roles)[1]):
            output.warn(f"{', '.join(elsewhere)}: nobody has it by the catalog, only logins can say who does")
        if action == "edit" and (people := others(approvals.get(approval), vote.args)):
            output.warn(f"the policy asks {people} about these arguments: by your edit it will be their question")
        position = approvals.send(vote, key, self.platform.publisher)
        return vote, approvals.answered(vote, position, self.timeout)

    def _seen(self, approvals: Approvals, name: str, approval: str, action: str, *, about: str = "") -> str:
        """The digest of what is voted on: whoever does not name it is shown it first. **Raises** UsageError."""
        if action == "revoke-grant":
            return approvals.granted(approval).question
        found = approvals.get(approval)
        refused = action in DECIDING and found.request.about != about
        if action in ASIDES or names_the_question(name) or found.state != "open" or refused:
            return found.request.question
        say = word_for(action, about)
        if self.json_ or not sys.stdin.isatty():
            hint = f"look at `refold approval show {approval}`, then say {say} of {approval}"
            raise UsageError(f"{name} does not say which question you have seen", hint=hint)
        run = self.runs.find(found.request.run_id)
        approval_views.print_approval(found, otherwise=against(run.state if run else None, found))
        typer.confirm(f"\n{say} this?" if not about else f"\n{say}: is that so?", abort=True, err=True)
        return found.request.question


@dataclass(frozen=True)
class Messenger(Voter):
    """A voter who may say why."""

    message: Annotated[str, "--message, -m", "Why; it stays in the history."] = ""

    def vote(self, name: str, action: str, **more: Any) -> None:
        """Votes, with the message."""
        super().vote(name, action, message=self.message, **more)


def told(answer: Answered, action: str) -> str:
    """What became of a vote, in markup."""
    name = f"[bold]{output.escape(answer.approval)}[/]"
    if answer.what == "decided" and answer.decision and answer.decision.verdict == "amend":
        return f"{name} is edited, and its policy asks others about that: `refold approval list` has their question"
    if answer.what == "decided" and answer.decision:
        return f"{name} is decided: {output.escape(said(answer.decision))}"
    if answer.what == "decided_otherwise" and answer.decision:
        return f"{name} was decided without this vote: {output.escape(said(answer.decision))}"
    if answer.what == "counted":
        return f"the vote counts; {name} is open, {answer.leading} of {answer.quorum} want the same"
    decides = answer.decision if action != "revoke-grant" else None
    by = f", which is decided: {output.escape(said(decides))}" if decides else ""
    return f"it is recorded with {name}{by}"
