"""`refold approval`: what waits for people, and what they say of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import output
from refold.cli.platform import DataOption, JsonOption, KafkaOption, Platform, connect, data_dir, login, source
from refold.core.errors import UsageError

if TYPE_CHECKING:
    from refold.client.approvals import Answer, Approval, Approvals
    from refold.core.approval.ballot import Remember
    from refold.core.approval.signature import SigningKey

app = typer.Typer(
    help="Decide on calls that wait for people. Exit codes of a vote: 0 it counts or is recorded, 2 it is void or"
    " wrong, 4 the approval is decided or closed already, 6 nobody has answered in time.",
    no_args_is_help=True,
)

STATES = ("open", "decided", "closed", "all")
ApprovalArgument = Annotated[
    str,
    typer.Argument(metavar="APPROVAL", help="RUN/SEQ, as `refold approval list` prints it, not the call's."),
]
KeyOption = Annotated[
    str,
    typer.Option("--key", metavar="FILE", help="The key that signs the vote; without it, the only one in --data."),
]
ActorOption = Annotated[
    str | None, typer.Option("--actor", help="Who says so; without it, your login.", show_default=False)
]
MessageOption = Annotated[str, typer.Option("--message", "-m", help="Why; it stays in the history.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", help="Seconds to wait for the approval service.", min=0.1)]
JsonArgument = Annotated[str, typer.Argument(metavar="JSON|@FILE|-", help="The JSON, a file of it, or stdin.")]
PeopleArgument = Annotated[list[str], typer.Argument(metavar="NAME...", help="People, or role:NAME.")]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which approvals are meant; an empty field means any."""

    state: str
    agent: str
    tool: str
    run: str
    approver: str

    def __call__(self, found: Approval) -> bool:
        request = found.request
        wanted = ((self.agent, request.agent), (self.tool, request.tool), (self.run, request.run_id))
        return (
            self.state in ("all", found.state)
            and all(not value or value == there for value, there in wanted)
            and (not self.approver or self.approver in found.count.approvers or found.may_decide(self.approver))
        )


@app.command("list")
def list_(
    state: Annotated[str, typer.Option("--state", help=f"One of {', '.join(STATES)}.")] = "open",
    *,
    agent: Annotated[str, typer.Option("--agent", help="Only calls of this agent.")] = "",
    tool: Annotated[str, typer.Option("--tool", help="Only calls of this tool.")] = "",
    run: Annotated[str, typer.Option("--run", help="Only calls of this run.")] = "",
    approver: Annotated[str, typer.Option("--approver", help="Only what this person or role:NAME may decide.")] = "",
    mine: Annotated[bool, typer.Option("--mine", help="Only what your login may decide.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on, and print every change.")] = False,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """List approvals, the oldest first. What was closed long ago is in `refold run show`."""
    from refold.cli.views import approvals as approval_views

    if state not in STATES:
        raise UsageError(f"{state!r} is not a state", hint=f"use one of {', '.join(STATES)}")
    wanted = Filter(state, agent, tool, run, approver or (login() if mine else ""))
    approvals = _approvals(connect(kafka=kafka, data=data))
    if watch:
        for row in changes(approvals, wanted):
            output.emit(row) if json_ else approval_views.print_change(row)
        return
    known = approvals.read().all()
    rows = [approval_views.row(found) for found in known if wanted(found)]
    if json_:
        output.emit(rows)
    else:
        approval_views.print_list(rows, others=len(known) if wanted != Filter("open", "", "", "", "") else 0)


def changes(approvals: Approvals, wanted: Callable[[Approval], bool]) -> Iterator[dict[str, Any]]:
    """Every approval as it is now, and again whenever it has changed; what is wanted no longer is told once more."""
    from refold.cli.views import approvals as approval_views

    told: dict[str, dict[str, Any]] = {}
    for register in approvals.watch():
        for found in register.all():
            row = approval_views.row(found)
            known = told.get(row["approval"])
            if known != row and (known or wanted(found)):
                told[row["approval"]] = row
                yield row


@app.command()
def show(
    approval: ApprovalArgument, *, kafka: KafkaOption = "", data: DataOption = "", json_: JsonOption = False
) -> None:
    """Show what is asked: the call as the log has it, who may decide, and what was said."""
    from refold.cli.views import approvals as approval_views

    platform = connect(kafka=kafka, data=data)
    approvals = _approvals(platform)
    found = approvals.get(approval)
    given = found.decision.grant if found.decision else None
    grants = approvals.read().grants() if given else []
    grant = next((each for each in grants if given and each.grant.id == given.id), None)
    ended = "" if found.state == "open" else approval_views.ended(platform.runs.find(found.request.run_id), found)
    if json_:
        more = {"grant_given": approval_views.grant_row(grant) if grant else None, "ended": ended}
        output.emit({**approval_views.data(found), **more})
    else:
        approval_views.print_approval(found, grant=grant, ended=ended)


@app.command()
def grants(*, kafka: KafkaOption = "", data: DataOption = "", json_: JsonOption = False) -> None:
    """List what was remembered: calls that pass again without asking, and those that did."""
    from refold.cli.views import approvals as approval_views

    rows = [approval_views.grant_row(found) for found in _approvals(connect(kafka=kafka, data=data)).read().grants()]
    output.emit(rows) if json_ else approval_views.print_grants(rows)


@app.command()
def approve(
    approval: ApprovalArgument,
    *,
    remember: Annotated[
        str, typer.Option("--remember", metavar="run|session", help="Let the same call pass again without asking.")
    ] = "",
    for_: Annotated[
        str | None, typer.Option("--for", help="How long it is remembered, as 30m or 1h.", show_default="1h")
    ] = None,
    uses: Annotated[
        int | None, typer.Option("--uses", help="How often it is used in each run.", min=1, show_default="1")
    ] = None,
    message: MessageOption = "",
    actor: ActorOption = None,
    key: KeyOption = "",
    timeout: TimeoutOption = 30.0,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Say that the call may go out as it is."""
    given = _remember(remember, for_, uses)
    _vote(_Hand(actor, key, timeout, kafka, data, json_), approval, "approve", message=message, remember=given)


@app.command()
def reject(
    approval: ApprovalArgument,
    *,
    message: MessageOption = "",
    actor: ActorOption = None,
    key: KeyOption = "",
    timeout: TimeoutOption = 30.0,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Say that the call must not go out; the agent sees the message."""
    _vote(_Hand(actor, key, timeout, kafka, data, json_), approval, "reject", message=message)


@app.command()
def edit(
    approval: ApprovalArgument,
    args: Annotated[
        str, typer.Argument(metavar="[JSON|@FILE|-]", help="All arguments, as one object.", show_default=False)
    ] = "",
    *,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change this argument alone: JSON, text, or @FILE. A number in the place of a text is text.",
        ),
    ] = None,
    message: MessageOption = "",
    actor: ActorOption = None,
    key: KeyOption = "",
    timeout: TimeoutOption = 30.0,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Approve the call with other arguments: all of them as one object, or with --set some of them changed."""
    from refold.client.approvals import canonical_json, changed

    if args and set_:
        raise UsageError("the arguments are given twice", hint="the whole object, or --set NAME=VALUE")
    if not args and not set_:
        raise UsageError("say what the arguments shall be", hint="the whole object, or --set NAME=VALUE")
    if args:
        text = canonical_json(source(args))
    else:
        asked = _approvals(connect(kafka=kafka, data=data)).get(approval).request
        text = changed(asked.args, dict(map(_setting, set_ or [])))
    _vote(_Hand(actor, key, timeout, kafka, data, json_), approval, "edit", message=message, args=text)


@app.command()
def answer(
    approval: ApprovalArgument,
    result: JsonArgument,
    *,
    message: MessageOption = "",
    actor: ActorOption = None,
    key: KeyOption = "",
    timeout: TimeoutOption = 30.0,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Give the result in the tool's place: the call never goes out."""
    from refold.client.approvals import canonical_json

    text = canonical_json(source(result))
    _vote(_Hand(actor, key, timeout, kafka, data, json_), approval, "answer", message=message, result=text)


@app.command()
def delegate(
    approval: ApprovalArgument,
    to: Annotated[str, typer.Argument(metavar="NAME", help="Who decides in your place.")],
    *,
    message: MessageOption = "",
    actor: ActorOption = None,
    key: KeyOption = "",
    timeout: TimeoutOption = 30.0,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Let somebody decide in your place, until you vote yourself or withdraw."""
    _vote(_Hand(actor, key, timeout, kafka, data, json_), approval, "delegate", message=message, to=(to,))


@app.command()
def reassign(
    approval: ApprovalArgument,
    to: PeopleArgument,
    *,
    message: MessageOption = "",
    actor: ActorOption = None,
    key: KeyOption = "",
    timeout: TimeoutOption = 30.0,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Replace the list of those who may decide."""
    _vote(_Hand(actor, key, timeout, kafka, data, json_), approval, "reassign", message=message, to=tuple(to))


@app.command()
def comment(
    approval: ApprovalArgument,
    message: Annotated[str, typer.Argument(metavar="TEXT", help="What is to be said.")],
    *,
    actor: ActorOption = None,
    key: KeyOption = "",
    timeout: TimeoutOption = 30.0,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Say something that decides nothing."""
    _vote(_Hand(actor, key, timeout, kafka, data, json_), approval, "comment", message=message)


@app.command()
def remind(
    approval: ApprovalArgument,
    *,
    message: MessageOption = "",
    actor: ActorOption = None,
    key: KeyOption = "",
    timeout: TimeoutOption = 30.0,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Remind those who may decide; it stays in the history."""
    _vote(_Hand(actor, key, timeout, kafka, data, json_), approval, "remind", message=message)


@app.command()
def withdraw(
    approval: ApprovalArgument,
    *,
    message: MessageOption = "",
    actor: ActorOption = None,
    key: KeyOption = "",
    timeout: TimeoutOption = 30.0,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Take your own vote back, as long as nothing is decided."""
    _vote(_Hand(actor, key, timeout, kafka, data, json_), approval, "withdraw", message=message)


@app.command("revoke-grant")
def revoke_grant(
    approval: Annotated[str, typer.Argument(metavar="GRANT", help="The approval that was remembered.")],
    *,
    message: MessageOption = "",
    actor: ActorOption = None,
    key: KeyOption = "",
    timeout: TimeoutOption = 30.0,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """End what was remembered: from now on the same call is asked again."""
    _vote(_Hand(actor, key, timeout, kafka, data, json_), approval, "revoke-grant", message=message)


@dataclass(frozen=True, slots=True)
class _Hand:
    """Who votes, with what, and how they want to be told."""

    actor: str | None
    key: str
    timeout_s: float
    kafka: str
    data: str
    as_json: bool


def _vote(hand: _Hand, approval: str, action: str, **more: Any) -> None:
    key = _vote_key(hand.key, hand.data)
    platform = connect(kafka=hand.kafka, data=hand.data)
    approvals = _approvals(platform)
    vote = approvals.vote(approval, action, actor=login() if hand.actor is None else hand.actor, **more)
    if action == "reassign":
        _warn_of_logins(approvals.get(approval), vote.to)
    position = approvals.send(vote, key, platform.publisher)
    found = approvals.answered(vote, position, hand.timeout_s)
    if hand.as_json:
        output.emit({**output.plain(found), "vote": vote.vote})
    else:
        output.say(_told(found, action))
        output.say(f"[dim]{position.topic}/{position.partition}/{position.offset}[/]")


def _warn_of_logins(found: Approval, to: tuple[str, ...]) -> None:
    from refold.client.approvals import reach

    if elsewhere := reach(to, found.roles)[1]:
        text = f"{output.escape(', '.join(elsewhere))}: nobody has it by the catalog, only logins can say who does"
        output.console(stderr=True).print(f"[yellow]{text}[/]")


def _told(found: Answer, action: str) -> str:
    from refold.client.approvals import said

    name = f"[bold]{output.escape(found.approval)}[/]"
    if found.what == "decided" and found.decision:
        return f"{name} is decided: {output.escape(said(found.decision))}"
    if found.what == "decided_otherwise" and found.decision:
        return f"{name} was decided without this vote: {output.escape(said(found.decision))}"
    if found.what == "counted":
        return f"the vote counts; {name} is open, {found.leading} of {found.quorum} want the same"
    decides = found.decision and action != "revoke-grant"
    by = f", which is decided: {output.escape(said(found.decision))}" if found.decision and decides else ""
    return f"it is recorded with {name}{by}"


def _approvals(platform: Platform) -> Approvals:
    from refold.client.approvals import Approvals

    return Approvals(platform.runs.reader, partitions=platform.runs.partitions)


def _vote_key(path: str, data: str) -> SigningKey:
    from refold.runtime import keys

    folder = data_dir(data) / "keys"
    hint = "`refold keys new NAME --use vote` makes one; --key names its file"
    if path:
        found = [keys.load(Path(path))]
    else:
        found = [key for key in map(keys.load, sorted(folder.glob("*.json"))) if key.use == "vote"]
    if len(found) != 1:
        names = f" ({', '.join(key.kid for key in found)})" if found else ""
        raise UsageError(f"there are {len(found)} keys for votes in {folder}{names}", hint=hint)
    if found[0].use != "vote":
        raise UsageError(f"the key {found[0].kid} signs {found[0].use}s", hint=hint)
    return found[0]


def _setting(text: str) -> tuple[str, str]:
    """A name and its new value as text; a file's text becomes a JSON string."""
    from refold.core.wire import canonical

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{text!r} sets nothing", hint="write --set NAME=VALUE")
    return name, canonical.dumps(source(value)) if value.startswith("@") else value


def _remember(scope: str, for_: str | None, uses: int | None) -> Remember | None:
    from refold.core.approval.ballot import SCOPES, Remember
    from refold.core.approval.requirement import duration_ms

    if not scope and (for_ is not None or uses is not None):
        raise UsageError("--for and --uses are about what is remembered", hint="add --remember run")
    if not scope:
        return None
    for_ = "1h" if for_ is None else for_
    if scope not in SCOPES:
        raise UsageError(f"{scope!r} cannot remember", hint="--remember run, or --remember session")
    found = duration_ms("--for", int(for_) if re.fullmatch("[0-9]{1,15}", for_) else for_)
    if not found:
        raise UsageError("what is remembered for no time is forgotten", hint="--for 1h")
    return Remember(scope, found, uses or 1)
