"""Printed approvals. Texts may come from a model: `escape` spells out hidden characters, so that people approve exactly
the text that they see."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from refold.cli.output import duration, escape, in_utc, json_text, print_table, say, tool_name, warn
from refold.client.reading.approval import Approval, Question, StandingGrant, readable, said, word_for
from refold.client.reading.history import Run
from refold.client.reading.model import split_args
from refold.client.reading.steps import resolve_commands
from refold.core.approval.decision import shown_as_edit
from refold.core.approval.requester import is_verified, quorum_of
from refold.core.events import DOUBT, Requirement
from refold.core.messages import ApprovalRequest
from refold.core.wire import canonical
from refold.core.wire.canonical import hex_digest
from refold.engine.runtime.clock import clock_ms

_EDIT = ("before", "after")
_DIFF = {"+": "green", "-": "red", "@": "cyan"}
# Longest text, in lines, whose diff includes all unchanged lines: hidden ones could contain anything.
_WHOLE = 200
# Consecutive empty lines printed; more would scroll earlier text away.
_EMPTY_LINES = 5
_ARGUMENTS = 80


def print_approvals(rows: Sequence[Question], *, others: int = 0) -> None:
    """Print a table; `others` counts approvals that the filter left out."""
    if not rows:
        text = f"nothing here; `refold approval list --state all` has {others}"
        say(text if others else "[green]nothing waits for people[/]")
        return
    columns = ("call", "state", "tool", "arguments", "asked for by", "age", "votes", "who decides", "until")
    print_table(columns, map(_cells, rows))
    say("[dim]until is by Kafka's clock, which decides; age by the clock of this machine[/]")
    if any(row.about == DOUBT for row in rows):
        say("[dim]of what is in doubt nobody knows what came of it: find out, then `refold run resolve`[/]")
    if any(len(canonical.dumps(split_args(row.args)[0])) > _ARGUMENTS for row in rows):
        say("[dim]arguments that end in … are cut: `refold approval show CALL` has all of them[/]")


def print_change(question: Question) -> None:
    say("  ".join(_cells(question)))


def print_grants(rows: Sequence[StandingGrant]) -> None:
    if not rows:
        say("[green]no call passes without asking because people said so[/]")
        return
    print_table(("grant", "state", "tool", "scope", "given by", "until", "used"), map(_grant_cells, rows))
    say("[dim]until is by Kafka's clock, which decides; the state by the clock of this machine[/]")


def _grant_cells(grant: StandingGrant) -> list[str]:
    used = f"{len(grant.used)}, at most {grant.uses} in each run"
    by, until = ", ".join(grant.given_by), _until(grant.until_ms)
    return [*map(escape, (grant.grant, grant.state, grant.tool, f"run {grant.run_id}", by, until, used))]


def warn_of(unsound: Mapping[str, str], approvals: Iterable[Approval]) -> None:
    """Warn of questions that no correct planner writes: malformed, or several about one call."""
    for name, problem in unsound.items():
        warn(f"tell an operator: {name} is no question that a service takes: {problem}")
    for approval in approvals:
        if approval.others:
            warn(f"tell an operator: {approval.request.approval_id} is one of several questions about its call")


def print_approval(
    approval: Approval, *, grant: StandingGrant | None = None, ended: str = "", otherwise: str = "", full: bool = False
) -> None:
    """Print the facts for a decision; `ended` is the outcome in the run, `otherwise` a conflict with the log."""
    request, doubt = approval.request, approval.request.about == DOUBT
    by = f" ({escape(said(approval.decision))})" if approval.decision else ""
    say(f"[bold]{escape(request.call_id)}[/] is {'held' if approval.held else approval.state}{by}")
    if doubt:
        say(f"[bold magenta]nobody knows what came of attempt {request.attempt - 1}: find out what has happened[/]")
    granted = " ".join(_grant_cells(grant)[1:]) if grant else ""
    for name, value in _facts(approval, ended=ended, grant=granted).items():
        if value:
            say(f"  {name:<13} {escape(value)}")
    _print_earlier_attempts(request)
    problems = [otherwise] * bool(otherwise)
    problems += [f"people are asked {other} about it as well" for other in approval.others]
    for problem in problems:
        say(f"[bold red]DO NOT VOTE, tell an operator: {escape(problem)}[/]")
    say("\n[bold]arguments[/]")
    _print_args(request, full=full or approval.state == "open")
    if request.proposed_args:
        say("\n[bold]edited before[/], from what the agent proposed:")
        _print_lines(diff(request.proposed_args, request.args), _DIFF)
    _print_votes(approval)
    if approval.state == "open" and not problems:
        # After the arguments, so that a reader can check that all were shown.
        say(f"\n[dim]arguments: {canonical.utf8_bytes(request.args)} bytes, SHA-256 {hex_digest(request.args)}[/]")
        name = request.approval_id
        ways = [f"refold approval approve {name}", f"refold approval reject {name} --message '...'"]
        say("\n".join(map(escape, resolve_commands(name) if doubt else ways)))


def _facts(approval: Approval, *, ended: str, grant: str) -> dict[str, str]:
    request, doubt = approval.request, approval.request.about == DOUBT
    return {
        "held": approval.held,
        "in the run": ended,
        "run": request.run_id,
        "approval": request.approval_id,
        "agent": request.agent,
        "session": request.session,
        "asked for by": _requester(approval),
        "tool": f"{_tool(request)}  version {request.version or '?'}, effect {request.effect}",
        "environment": request.environment,
        "attempt": "" if doubt else _attempt(request),
        "rule": f"{request.rule or '-'} of policy {request.policy[:12] or '-'}"
        + ("" if doubt else f"; `refold policy show {request.call_id}` tells more"),
        "why": request.requirement.message or "-",
        "who decides": _deciders(approval),
        "these are": _people(approval),
        "until": _until(request.expires_ms) + (f", then {_expiry(request)}" if request.expires_ms else ""),
        "escalation": _escalation(request) if request.level or approval.state == "open" else "",
        "may remember": _memory(request.requirement),
        "grant": grant,
        "question": f"{request.question}, recomputed from the whole call",
    }


def _deciders(approval: Approval) -> str:
    needed, quorum = approval.request.requirement, quorum_of(approval.request, approval.roles.askers)
    votes = f"{', '.join(approval.count.approvers)}; {approval.count.leading} of {quorum} votes"
    left_out = "requester, nor who wrote arguments" if approval.request.writers else "requester"
    requester = f", not the {left_out}" if needed.not_requester else ""
    return votes + requester + (", one more as nobody can tell who asked" if quorum > needed.quorum else "")


def _people(approval: Approval) -> str:
    if "*" in approval.count.approvers:
        return "anybody with a vote key"
    return "; ".join(filter(None, (", ".join(approval.people()), approval.lacks_people()))) or "-"


def _requester(approval: Approval) -> str:
    name, writers = approval.request.requester, ", ".join(approval.request.writers)
    if writers:
        return f"{name or 'unknown'}; {writers} wrote the arguments"
    if is_verified(approval.request, approval.roles.askers):
        return f"{name} (verified)"
    return f"{name} (not verified)" if name else "unknown"


def _attempt(request: ApprovalRequest) -> str:
    more = f"; an approval covers attempts up to {request.covers}" if request.covers > request.attempt else ""
    return f"{request.attempt}{more}"


def _print_earlier_attempts(request: ApprovalRequest) -> None:
    for past in request.history:
        verb = _PAST.get(past.what, past.what)
        by = f" by the word of {past.by}" if past.by else ""
        text = f": {past.words}" if past.words else ""
        say(f"  [yellow]{escape(f'attempt {past.attempt} {verb}{by}, {in_utc(past.at_ms)}{text}')}[/]")


_PAST = {
    "failed": "failed",
    "unknown": "MAY HAVE HAPPENED",
    "doubt": "MAY HAVE HAPPENED, it was in doubt",
    "happened": "happened",
    "did_not_happen": "did not happen",
    "give_up": "was given up",
}


def ended(run: Run | None, approval: Approval) -> str:
    """Outcome of an approval in its run, if it differs from the decision: expired, or no longer awaited; else empty."""
    questions = [ask for line in run.timeline.steps for ask in line.approvals] if run else []
    ask = next((ask for ask in questions if ask.approval_id == approval.request.approval_id), None)
    if run is None or ask is None:
        return ""
    if ask.verdict == "expire":
        return f"it ended without a decision: {ask.said or 'nobody decided in time'}"
    if not ask.verdict and approval.over:
        return f"the run is {run.state.status}, and does not wait for it any more"
    return ""


def _memory(needed: Requirement) -> str:
    long = f"{needed.remember_ms // 1_000} s, {needed.remember_uses} uses"
    return f"an approval of this call in this run for {long}, at most" if needed.remember_uses else ""


def _expiry(request: ApprovalRequest) -> str:
    needed = request.requirement
    if needed.on_expiry == "escalate" and not request.level:
        return f"it escalates to {', '.join(needed.escalate_to)}"
    return "the run fails" if needed.on_expiry == "fail" else "it is rejected"


def _escalation(request: ApprovalRequest) -> str:
    needed = request.requirement
    to = ", ".join(needed.escalate_to)
    if request.level:
        return f"it was escalated to {to}"
    return f"at {in_utc(request.asked_ms + needed.escalate_ms)} to {to}" if to and needed.escalate_ms else ""


def _print_lines(lines: Iterable[str], colours: Mapping[str, str] | None = None) -> None:
    for line in _with_counted_gaps(lines):
        colour = (colours or {}).get(line[:1], "")
        say(f"  [{colour}]{escape(line)}[/]" if colour else f"  {escape(line)}")


def _tool(request: ApprovalRequest) -> str:
    short = tool_name(request.tool)
    return request.tool if short == request.tool else f"{short} ({request.tool})"


def _print_args(request: ApprovalRequest, *, full: bool) -> None:
    """Print the arguments of a call; of those that a framework added, only the names and size, unless `full`."""
    own, added = split_args(json_text(request.args))
    _print_own(request, own)
    if not added:
        return
    if full:
        _print_lines(readable(canonical.dumps(added)))
    else:
        size = canonical.utf8_bytes(canonical.dumps(added))
        say(f"  [dim]and {escape(', '.join(added))} of the framework, {size} bytes: --full[/]")


def _print_own(request: ApprovalRequest, value: Any) -> None:
    texts = isinstance(value, dict) and all(isinstance(value.get(name), str) for name in _EDIT)
    if not (texts and shown_as_edit(request)):
        _print_lines(readable(canonical.dumps(value)))
        return
    _print_lines(readable(canonical.dumps({name: argument for name, argument in value.items() if name not in _EDIT})))
    before, after = (value[name].split("\n") for name in _EDIT)
    lines = list(difflib.unified_diff(before, after, *_EDIT, lineterm="", n=_WHOLE if len(before) <= _WHOLE else 3))
    _print_lines(lines, _DIFF)
    hidden = len(before) - sum(line[:1] in ("-", " ") and line[:3] != "---" for line in lines)
    if hidden > 0:
        say(f"  [yellow]{hidden} lines stay as they are and are not shown; --json has all[/]")


def diff(before: str, after: str) -> list[str]:
    return list(difflib.unified_diff(readable(before), readable(after), "proposed", "edited", lineterm=""))


def _with_counted_gaps(lines: Iterable[str]) -> Iterator[str]:
    """Replace each long series of empty lines by its count."""
    for line, run in groupby(lines):
        count = sum(1 for _ in run)
        empty = count > _EMPTY_LINES and not line.strip(" |+-")
        yield from [f"{line[:1].strip()}<{count} empty lines>"] if empty else [line] * count


def _print_votes(approval: Approval) -> None:
    if approval.said or approval.refused:
        say("\n[bold]said so far[/]")
    for vote in approval.said:
        fate = approval.fate(vote)
        void = f"  [red]{fate}[/]" if fate in ("withdrawn", "superseded") else ""
        if fate == "void":
            void = f"  [red]void, it does not count now: {escape(approval.count.void[vote].reason)}[/]"
        text = " ".join(filter(None, (word_for(vote.action, approval.request.about), ", ".join(vote.to), vote.message)))
        say(f"  {in_utc(vote.issued)}  {escape(vote.actor)}  {escape(text)}{void}")
        if vote.action == "edit":
            _print_lines(diff(approval.request.args, vote.args), _DIFF)
        if vote.action == "answer":
            _print_lines(readable(vote.result))
    for name, reason in approval.refused:
        say(f"  [red]vote {escape(name)} cannot be trusted: {escape(reason)}[/]")


def _cells(question: Question) -> list[str]:
    state = f"{question.state}: {word_for(question.verdict, question.about)}" if question.verdict else question.state
    if question.about == DOUBT and question.state == "open":
        state = "in doubt"
    unsure = "" if question.requester_verified else " (not verified)"
    return [
        escape(question.call_id),
        escape(f"held: {question.held}" if question.held else state),
        escape(tool_name(question.tool)),
        escape(canonical.dumps(split_args(question.args)[0]), _ARGUMENTS),
        escape(f"{question.requester}{unsure}" if question.requester else "-"),
        duration(max(0, clock_ms() - question.asked_ms)),
        escape(f"grant {question.grant}" if question.grant else f"{question.leading} of {question.quorum}"),
        escape(", ".join(question.approvers)),
        _until(question.expires_ms),
    ]


def _until(at_ms: int) -> str:
    return in_utc(at_ms) if at_ms else "never"
