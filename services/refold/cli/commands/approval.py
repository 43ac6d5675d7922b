"""`refold approval`: what waits for people, and what they say of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

from refold.cli import output
from refold.cli.groups import AtLeast
from refold.cli.platform import Shell, json_value, pair, source
from refold.cli.views import approvals as approval_views
from refold.cli.voting import ApprovalArgument, Messenger, Voter
from refold.client.platform import login
from refold.core.approval.ballot import Remember
from refold.core.approval.requirement import duration_ms
from refold.core.errors import UsageError
from refold.core.ids import is_below
from refold.core.wire import canonical
from refold.operations.approvals import Approvals
from refold.views.approval import Approval, Question, against, question_row, shown_of

APPROVAL_STATES = ("open", "decided", "closed", "all")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which approvals are meant; an empty field means any."""

    state: str = "open"
    agent: str = ""
    tool: str = ""
    run: str = ""
    approver: str = ""

    def __call__(self, approval: Approval) -> bool:
        request = approval.request
        wanted = (
            (self.agent, request.agent),
            (self.tool and output.tool_name(self.tool), output.tool_name(request.tool)),
        )
        return (
            self.state in ("all", approval.state)
            and all(not value or value == there for value, there in wanted)
            and (not self.run or is_below(request.run_id, self.run))
            and (not self.approver or self.approver in approval.count.approvers or approval.may_decide(self.approver))
        )


def list_approvals(
    *,
    state: Annotated[str, f"One of {', '.join(APPROVAL_STATES)}."] = "open",
    agent: Annotated[str, "Only calls of this agent."] = "",
    tool: Annotated[str, "Only calls of this tool."] = "",
    run: Annotated[str, "Only calls of this run, and of what it has started."] = "",
    approver: Annotated[str, "Only what this person or role:NAME may decide."] = "",
    mine: Annotated[bool, "Only what your login may decide."] = False,
    watch: Annotated[bool, "Go on, and print every change."] = False,
    shell: Shell,
) -> None:
    """List approvals, the oldest first. What was closed long ago is in `refold run show`."""
    if state not in APPROVAL_STATES:
        raise UsageError(f"{state!r} is not a state", hint=f"use one of {', '.join(APPROVAL_STATES)}")
    wanted = Filter(state, agent, tool, run, approver or (login() if mine else ""))
    approvals = shell.platform.approvals
    if watch:
        for row in approval_changes(approvals, wanted):
            output.emit(row) if shell.json_ else approval_views.print_change(row)
        return
    register = approvals.read()
    known = register.all()
    approval_views.warn_of(register.unsound, known)
    rows = [question_row(approval) for approval in known if wanted(approval)]
    others = len(known) if wanted != Filter() else 0
    shell.tell(rows, lambda: approval_views.print_approvals(rows, others=others))


def approval_changes(approvals: Approvals, wanted: Callable[[Approval], bool]) -> Iterator[Question]:
    """Every approval as it is now, and again whenever it has changed; what is wanted no longer is told once more."""
    told: dict[str, Question] = {}
    for register in approvals.watch():
        for approval in register.all():
            row = question_row(approval)
            known = told.get(row.id)
            if known != row and (known or wanted(approval)):
                told[row.id] = row
                yield row


def show_approval(
    approval: ApprovalArgument,
    *,
    full: Annotated[bool, "Also show what a framework adds to the arguments: names with $."] = False,
    shell: Shell,
) -> None:
    """Show an approval: the call, its people, their votes."""
    approvals = shell.platform.approvals
    shown = approvals.get(approvals.named(approval))
    given = shown.decision and shown.decision.grant
    grant = next((each for each in approvals.read().grants() if each.grant == given.id), None) if given else None
    run = shell.runs.find(shown.request.run_id)
    ended = "" if shown.state == "open" else approval_views.ended(run, shown)
    otherwise = against(run.state if run else None, shown)
    row = shown_of(shown, grant=grant, ended=ended, log=otherwise)
    shell.tell(
        row, lambda: approval_views.print_approval(shown, grant=grant, ended=ended, otherwise=otherwise, full=full)
    )


def list_grants(*, shell: Shell) -> None:
    """List grants: calls that pass again without being asked about."""
    rows = shell.platform.approvals.read().grants()
    shell.tell(rows, lambda: approval_views.print_grants(rows))


def approve(
    approval: ApprovalArgument,
    *,
    remember: Annotated[str, "run", "Let the same call pass again without asking."] = "",
    for_: Annotated[str | None, "TIME", "How long the grant lasts, such as 30m.  \\[default: 1h]"] = None,
    uses: Annotated[int | None, "Uses of the grant.  \\[default: 1]", AtLeast(1)] = None,
    voter: Messenger,
) -> None:
    """Approve the call as it is."""
    voter.vote(approval, "approve", remember=_remember(remember, for_, uses))


def edit(
    approval: ApprovalArgument,
    args: Annotated[str, "JSON|@FILE|-", "All arguments, as one object."] = "",
    *,
    set_: Annotated[
        list[str] | None,
        "NAME=VALUE",
        "Change this argument alone: JSON, text, or @FILE. A number in the place of a text is text.",
    ] = None,
    voter: Messenger,
) -> None:
    """Approve the call with other arguments. Give all of them as one object, or change some with --set."""
    if bool(args) == bool(set_):
        problem = "the arguments are given twice" if args else "say what the arguments shall be"
        raise UsageError(problem, hint="the whole object, or --set NAME=VALUE")
    if args:
        voter.vote(approval, "edit", args=canonical.dumps(json_value(args, "the arguments")))
    else:
        voter.vote(approval, "edit", settings=dict(map(_setting, set_ or [])))


def answer(
    approval: ApprovalArgument,
    result: Annotated[str, "JSON|@FILE|-", "The JSON, a file of it, or stdin."],
    *,
    voter: Messenger,
) -> None:
    """Give the result in the tool's place: the call never goes out."""
    voter.vote(approval, "answer", result=canonical.dumps(json_value(result, "the result")))


def delegate(
    approval: ApprovalArgument,
    to: Annotated[str, "NAME", "Who decides in your place."],
    *,
    voter: Messenger,
) -> None:
    """Let another person decide in your place. It ends when you vote yourself or withdraw."""
    voter.vote(approval, "delegate", to=(to,))


def reassign(
    approval: ApprovalArgument,
    to: Annotated[list[str], "NAME...", "People, or role:NAME."],
    *,
    voter: Messenger,
) -> None:
    """Replace the list of people who may decide."""
    voter.vote(approval, "reassign", to=tuple(to))


def comment(
    approval: ApprovalArgument,
    message: Annotated[str, "TEXT", "What is to be said."],
    *,
    voter: Voter,
) -> None:
    """Add a comment, which decides nothing."""
    voter.vote(approval, "comment", message=message)


def reject(approval: ApprovalArgument, *, voter: Messenger) -> None:
    """Reject the call: the agent sees your message."""
    voter.vote(approval, "reject")


def remind(approval: ApprovalArgument, *, voter: Messenger) -> None:
    """Remind the people who may decide. The reminder stays in the history."""
    voter.vote(approval, "remind")


def withdraw(approval: ApprovalArgument, *, voter: Messenger) -> None:
    """Withdraw your own vote while nothing is decided."""
    voter.vote(approval, "withdraw")


def revoke_grant(approval: ApprovalArgument, *, voter: Messenger) -> None:
    """End a grant: the same call is asked about again."""
    voter.vote(approval, "revoke-grant")


def _setting(text: str) -> tuple[str, str]:
    """A name and its new value as text; a file's text becomes a JSON string."""
    name, value = pair(text, "sets nothing", hint="write --set NAME=VALUE")
    return name, canonical.dumps(source(value)) if value.startswith("@") else value


def _remember(scope: str, for_: str | None, uses: int | None) -> Remember | None:
    if not scope:
        if for_ is not None or uses is not None:
            raise UsageError("--for and --uses are about what is remembered", hint="add --remember run")
        return None
    for_ = "1h" if for_ is None else for_
    if scope != "run":
        raise UsageError(f"{scope!r} cannot remember", hint="--remember run; a policy allows what is wider")
    kept_ms = duration_ms("--for", int(for_) if re.fullmatch("[0-9]{1,15}", for_) else for_)
    if not kept_ms:
        raise UsageError("what is remembered for no time is forgotten", hint="--for 1h")
    return Remember(kept_ms, uses or 1)
