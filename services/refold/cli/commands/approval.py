"""`refold approval` and `refold run resolve`: open questions to people, and their votes."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from refold.cli import options, output
from refold.cli.apps import load_app
from refold.cli.platform import Shell, json_value, pair, source
from refold.cli.views import approvals as approval_views
from refold.client.operations.approvals import Answered, Approvals, changed, names_the_question
from refold.client.operations.operation import one
from refold.client.operations.run import Settlement, doubted, settle_call
from refold.client.platform import login
from refold.client.reading import approval as reading
from refold.client.reading.approval import Approval, Question
from refold.client.reading.outcome import Resolved
from refold.core.approval.ballot import DECIDING, Remember
from refold.core.approval.policy import duration_ms
from refold.core.errors import UsageError
from refold.core.events import DOUBT
from refold.core.ids import asked_about, is_below
from refold.core.planning.asking import VERDICTS_ON_DOUBT
from refold.core.wire import canonical
from refold.engine.runtime.addresses import vote_key

ApprovalArgument = Annotated[
    str,
    "ID",
    "RUN/SEQ~DIGEST, as `refold approval list` prints it. RUN/SEQ: the open approval of a call. RUN: the only open one "
    "of a run and its children.",
]
ASIDES = ("withdraw", "comment", "remind", "revoke-grant")
"""Actions that let no call go out: the voter needs no look at the question first."""


@dataclass(frozen=True)
class Voter(Shell):
    """Options of commands that vote on an approval: the actor, the signing key, the time to wait."""

    actor: Annotated[str | None, "Name to record as the actor.  \\[default: your login]"] = None
    key: Annotated[str, "FILE", "Key that signs the vote.  \\[default: the only one in --data]"] = ""
    timeout: Annotated[options.Seconds, "Wait up to this long for Kafka and the approval service."] = 30.0

    @property
    def who(self) -> str:
        return login() if self.actor is None else self.actor

    def vote(self, name: str, action: str, *, settings: Mapping[str, str] | None = None, **more: Any) -> None:
        answer = self.cast(name, action, settings=settings, **more)
        self.print(answer.voted, answer_text(answer, action))

    def cast(
        self, name: str, action: str, *, settings: Mapping[str, str] | None = None, about: str = "", **more: Any
    ) -> Answered:
        """Sign and publish a vote, and wait for its effect; prints the question first if `name` lacks its digest."""
        key = vote_key(self.key, self.data)
        self.platform.wait(self.timeout, output.warn)
        approvals = self.platform.approvals
        approval = approvals.named(name)
        question = self._shown_question(approvals, name, approval, action, about=about)
        if settings:
            more["args"] = changed(approvals.get(approval).request.args, settings)
        vote = approvals.vote(approval, action, question=question, actor=self.who, about=about, **more)
        if action == "reassign" and (elsewhere := reading.reach(vote.to, approvals.get(approval).roles)[1]):
            output.warn(f"{', '.join(elsewhere)}: nobody has it by the catalog, only logins can say who does")
        if action == "edit" and (people := reading.others(approvals.get(approval), vote.args)):
            output.warn(f"the policy asks {people} about these arguments: by your edit it will be their question")
        return approvals.cast(vote, key, self.platform.publisher, self.timeout)

    def _shown_question(self, approvals: Approvals, name: str, approval: str, action: str, *, about: str = "") -> str:
        """Digest of the question, printed first if `name` lacks it. **Raises** UsageError if a prompt is impossible."""
        if action == "revoke-grant":
            return approvals.granted(approval).question
        current = approvals.get(approval)
        refused = action in DECIDING and current.request.about != about
        if action in ASIDES or names_the_question(name) or current.state != "open" or refused:
            return current.request.question
        say = reading.word_for(action, about)
        if self.json_ or not sys.stdin.isatty():
            hint = f"see `refold approval show {approval}`, then repeat the command with that id"
            raise UsageError(f"{name} does not name the question you have seen", hint=hint)
        run = self.runs.find(current.request.run_id)
        approval_views.print_approval(current, otherwise=reading.against(run.state if run else None, current))
        typer.confirm(f"\n{say} this?" if not about else f"\n{say}: is that so?", abort=True, err=True)
        return current.request.question


@dataclass(frozen=True)
class Messenger(Voter):
    message: Annotated[str, "--message, -m", "Reason, for the history."] = ""

    def vote(self, name: str, action: str, **more: Any) -> None:
        super().vote(name, action, message=self.message, **more)


def answer_text(answer: Answered, action: str) -> str:
    name, decision = f"[bold]{output.escape(answer.vote.approval)}[/]", answer.decision
    verdict = output.escape(reading.said(decision)) if decision else ""
    if answer.what == "decided" and decision and decision.verdict == "amend":
        return f"{name} is edited, and its policy asks others about that: `refold approval list` has their question"
    if answer.what == "decided":
        return f"{name} is decided: {verdict}"
    if answer.what == "decided_otherwise":
        return f"{name} was decided without this vote: {verdict}"
    if answer.what == "counted":
        return f"the vote counts; {name} is open, {answer.leading} of {answer.quorum} want the same"
    by = f", which is decided: {verdict}" if verdict and action != "revoke-grant" else ""
    return f"it is recorded with {name}{by}"


APPROVAL_STATES = ("open", "decided", "closed", "all")


@dataclass(frozen=True)
class Filter:
    """Filter of approvals; an empty field matches all."""

    state: Annotated[str, f"One of {', '.join(APPROVAL_STATES)}."] = "open"
    agent: Annotated[str, "Only calls of this agent."] = ""
    tool: Annotated[str, "Only calls of this tool."] = ""
    run: Annotated[str, "Only calls of this run and its children."] = ""
    approver: Annotated[str, "Only calls that this person or role:NAME may decide."] = ""

    def __call__(self, approval: Approval) -> bool:
        request, tool = approval.request, self.tool and output.tool_name(self.tool)
        return (
            self.state in ("all", approval.state)
            and self.agent in ("", request.agent)
            and tool in ("", output.tool_name(request.tool))
            and (not self.run or is_below(request.run_id, self.run))
            and (not self.approver or self.approver in approval.count.approvers or approval.may_decide(self.approver))
        )


def list_approvals(
    *,
    matches: Filter,
    mine: Annotated[bool, "Only calls that your login may decide."] = False,
    watch: Annotated[bool, "Keep running and print every change."] = False,
    grants: Annotated[bool, "List grants: calls that pass without asking again."] = False,
    shell: Shell,
) -> None:
    """List approvals, the oldest first. `refold run show` has approvals closed long ago."""
    if matches.state not in APPROVAL_STATES:
        raise UsageError(f"{matches.state!r} is not a state", hint=f"use one of {', '.join(APPROVAL_STATES)}")
    matches = replace(matches, approver=matches.approver or (login() if mine else ""))
    if grants:
        if matches != Filter() or watch:
            raise UsageError("--grants lists all grants", hint="leave filters and --watch out")
        standing = shell.platform.approvals.read().grants()
        shell.print(standing, lambda: approval_views.print_grants(standing))
        return
    approvals = shell.platform.approvals
    if watch:
        for row in approval_changes(approvals, matches):
            output.emit(row) if shell.json_ else approval_views.print_change(row)
        return
    index = approvals.read()
    unfiltered = index.all()
    approval_views.warn_of(index.unsound, unfiltered)
    rows = [reading.question_row(approval) for approval in unfiltered if matches(approval)]
    others = len(unfiltered) if matches != Filter() else 0
    shell.print(rows, lambda: approval_views.print_approvals(rows, others=others))


def approval_changes(approvals: Approvals, matches: Callable[[Approval], bool]) -> Iterator[Question]:
    """Yield each approval that matches, and all its later changes."""
    latest: dict[str, Question] = {}
    for index in approvals.watch():
        for approval in index.all():
            row = reading.question_row(approval)
            earlier = latest.get(row.id)
            if earlier != row and (earlier or matches(approval)):
                latest[row.id] = row
                yield row


def show_approval(
    approval: ApprovalArgument,
    *,
    full: Annotated[bool, "Also show what a framework has added to a closed call: names with $."] = False,
    shell: Shell,
) -> None:
    """Show an approval: the call, its people, their votes."""
    approvals = shell.platform.approvals
    shown = approvals.get(approvals.named(approval))
    created = shown.decision and shown.decision.grant
    grant = next((row for row in approvals.read().grants() if row.grant == created.id), None) if created else None
    run = shell.runs.find(shown.request.run_id)
    ended = "" if shown.state == "open" else approval_views.ended(run, shown)
    otherwise = reading.against(run.state if run else None, shown)
    row = reading.shown_of(shown, grant=grant, ended=ended, log=otherwise)
    facts = {"ended": ended, "otherwise": otherwise}
    shell.print(row, lambda: approval_views.print_approval(shown, grant=grant, full=full, **facts))


@dataclass(frozen=True)
class Approver(Messenger):
    args: Annotated[str, "JSON|@FILE|-", "Other arguments, all as one object."] = ""
    set_: Annotated[list[str] | None, "NAME=VALUE", "Change an argument: JSON, text, @FILE. May be repeated."] = None
    remember: Annotated[str, "run", "Grant: let the same call pass again without asking."] = ""
    for_: Annotated[str | None, "TIME", "Lifetime of the grant, such as 30m.  \\[default: 1h]"] = None
    uses: Annotated[int | None, "Number of calls the grant covers.  \\[default: 1]", {"min": 1}] = None


def approve(approval: ApprovalArgument, *, voter: Approver) -> None:
    """Approve the call, as it is or with other arguments: all of them by --args, or some by --set."""
    args, settings = voter.args, voter.set_
    if args and settings:
        raise UsageError("the arguments are given twice", hint="the whole object, or --set NAME=VALUE")
    grant = _remember(voter.remember, voter.for_, voter.uses)
    if grant and (args or settings):
        raise UsageError("a grant covers the arguments of the call alone", hint="leave --remember or the arguments out")
    if args:
        voter.vote(approval, "edit", args=canonical.dumps(json_value(args, "--args")))
    elif settings:
        voter.vote(approval, "edit", settings=dict(map(_setting, settings)))
    else:
        voter.vote(approval, "approve", remember=grant)


def answer(
    approval: ApprovalArgument,
    result: Annotated[str, "JSON|@FILE|-", "The result: JSON, a file, or - for stdin."],
    *,
    voter: Messenger,
) -> None:
    """Give the result in the tool's place; the tool is not called."""
    voter.vote(approval, "answer", result=canonical.dumps(json_value(result, "the result")))


def delegate(
    approval: ApprovalArgument,
    to: Annotated[list[str], "NAME...", "The person to decide in your place; with --replace, people or role:NAME."],
    *,
    replace_: Annotated[bool, "Replace the list of approvers by NAME..., for all of them."] = False,
    voter: Messenger,
) -> None:
    """Let another person decide in your place, or other people.

    A delegation ends when you vote yourself or withdraw.
    """
    if not replace_ and len(to) != 1:
        raise UsageError("you delegate to one person", hint="NAME, or NAME... --replace for all approvers")
    voter.vote(approval, "reassign" if replace_ else "delegate", to=tuple(to))


def comment(approval: ApprovalArgument, message: Annotated[str, "TEXT", "The comment."], *, voter: Voter) -> None:
    """Add a comment, without a vote."""
    voter.vote(approval, "comment", message=message)


def reject(approval: ApprovalArgument, *, voter: Messenger) -> None:
    """Reject the call: the agent sees your message."""
    voter.vote(approval, "reject")


def remind(approval: ApprovalArgument, *, voter: Messenger) -> None:
    """Remind the approvers. The reminder stays in the history."""
    voter.vote(approval, "remind")


def withdraw(
    approval: ApprovalArgument,
    *,
    grant: Annotated[bool, "End the grant that the approval gave: the next such call needs approval again."] = False,
    voter: Messenger,
) -> None:
    """Withdraw your own vote while nothing is decided, or a grant."""
    voter.vote(approval, "revoke-grant" if grant else "withdraw")


def _setting(text: str) -> tuple[str, str]:
    name, value = pair(text, "sets nothing", hint="write --set NAME=VALUE")
    return name, canonical.dumps(source(value)) if value.startswith("@") else value


def _remember(scope: str, for_: str | None, uses: int | None) -> Remember | None:
    if not scope:
        if for_ is not None or uses is not None:
            raise UsageError("--for and --uses need a grant", hint="add --remember run")
        return None
    for_ = "1h" if for_ is None else for_
    if scope != "run":
        raise UsageError(f"a grant cannot cover {scope!r}", hint="--remember run; a policy allows calls of all runs")
    lifetime_ms = duration_ms("--for", int(for_) if re.fullmatch("[0-9]{1,15}", for_) else for_)
    if not lifetime_ms:
        raise UsageError("--for 0 grants nothing", hint="write --for 1h")
    return Remember(lifetime_ms, uses or 1)


@dataclass(frozen=True)
class Settler(Voter):
    happened: Annotated[str | None, "--happened, --answer JSON|@FILE|-", "It happened, with this result."] = None
    did_not_happen: Annotated[bool, "--did-not-happen, --retry", "The effect did not happen: repeat the call."] = False
    give_up: Annotated[bool, "--give-up, --fail", "The outcome stays unknown: fail the call."] = False
    comment: Annotated[str, "Evidence, for the history."] = ""
    app_: Annotated[str, "APP", "App that checks the type of the result: MODULE:APP or path/file.py[:APP]."] = ""
    as_operator: Annotated[bool, "Re-ask under the current policy instead of voting."] = False

    @property
    def settlement(self) -> Settlement:
        if (self.happened is not None) + self.did_not_happen + self.give_up != 1:
            hint = "give --happened JSON, --did-not-happen or --give-up"
            raise UsageError("one outcome of the call is needed", hint=hint)
        if self.happened is not None:
            return Settlement("happened", json_value(self.happened, "--happened"), self.comment)
        return Settlement("did_not_happen" if self.did_not_happen else "give_up", None, self.comment)

    def operate(self, call: str, outcome: Settlement) -> bool:
        """Settle a call as an operator and print the outcome; False if the policy leaves that to a vote of people."""
        operation = settle_call(self.runs.get, call, outcome, self.who, though_asked=self.as_operator)
        answer = one(self.runs, self.platform.publisher, operation, self.timeout)
        if answer.what == "asked":
            return False
        state = answer.run.state
        about = {"run_id": state.run_id, "outcome": answer.what, "status": state.status}
        verb = "was resolved before as" if answer.what == "known" else "is resolved as"
        text = f"call [bold]{output.escape(call)}[/] {verb} {outcome.verdict}; the run is {output.styled(state.status)}"
        self.print(Resolved(**about, call_id=call, verdict=outcome.verdict), text)
        return True

    def check(self, call: str, result: str) -> None:
        """Check a result against the tool's declared type, if --app is given. **Raises** UsageError."""
        if not (self.app_ and result):
            return
        tool = load_app(self.app_).tools.get(name := doubted(self.runs.get, call)[0])
        if tool is None:
            raise UsageError(f"the app has no tool {name}", hint="--app names the app of the run")
        tool.result.load(result)


def resolve(
    call: Annotated[str, "RUN/SEQ~DIGEST or RUN/SEQ, as `refold run show` prints it."], *, voter: Settler
) -> None:
    """Settle a call in doubt: record its outcome.

    If the policy names people for doubts, this is a signed vote; otherwise it is an operator's command. An operator
    also settles a call that has used up its attempts: --retry, --answer or --fail.
    """
    settlement, name = voter.settlement, asked_about(call)
    result = canonical.dumps(settlement.result) if settlement.verdict == "happened" else ""
    voter.check(call, result)
    _, approval = doubted(voter.runs.get, call)
    if voter.as_operator or (call == name and not approval):
        if voter.operate(name, settlement):
            return
        _, approval = doubted(voter.runs.get, call)
        if voter.as_operator:
            voter.print({"call_id": name, "asked": approval}, _asked_text(approval))
            return
        output.note(f"the policy names people for that by now, so they are asked what came of {call}")
    if approval:
        voter.platform.approvals.asked(approval, voter.timeout)
    action = VERDICTS_ON_DOUBT[settlement.verdict]
    answer = voter.cast(call, action, about=DOUBT, result=result, message=voter.comment)
    voter.print({**answer.voted.dump(), "call_id": name, "verdict": settlement.verdict}, answer_text(answer, action))


def _asked_text(approval: str) -> str:
    if approval:
        return f"the people of the policy in force are asked instead: {output.escape(approval)}"
    return "the policy in force names nobody, so nobody is asked any more: say it once more"
