"""Printed approvals. Texts may come from a model: `escape` spells out hidden characters, so that people approve exactly
the text that they see."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from refold.cli.output import duration, escape, in_utc, json_text, print_table, say, tool_name, warn
from refold.core.approval.decision import shown_as_edit
from refold.core.approval.question import args_digest
from refold.core.approval.requester import is_verified, quorum_of
from refold.core.events import DOUBT, Requirement
from refold.core.messages import ApprovalRequest
from refold.core.wire import canonical
from refold.runtime.clock import clock_ms
from refold.views.approval import Approval, Question, StandingGrant, readable, said, word_for
from refold.views.history import Run
from refold.views.steps import resolve_commands

_EDIT = ("before", "after")
_WHOLE = 200
"""Longest text, in lines, whose diff includes all unchanged lines: hidden ones could contain anything."""

_EMPTY_LINES = 5
"""Consecutive empty lines printed; more would scroll earlier text away."""

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
    if any(each.about == DOUBT for each in rows):
        say("[dim]of what is in doubt nobody knows what came of it: find out, then `refold run resolve`[/]")
    if any(len(canonical.dumps(_own(each.args))) > _ARGUMENTS for each in rows):
        say("[dim]arguments that end in … are cut: `refold approval show CALL` has all of them[/]")


def print_change(each: Question) -> None:
    say("  ".join(_cells(each)))


def print_grants(rows: Sequence[StandingGrant]) -> None:
    if not rows:
        say("[green]no call passes without asking because people said so[/]")
        return
    columns = ("grant", "state", "tool", "scope", "given by", "until", "used")
    print_table(columns, map(_grant_cells, rows))
    say("[dim]until is by Kafka's clock, which decides; the state by the clock of this machine[/]")


def _grant_cells(each: StandingGrant) -> list[str]:
    used = f"{len(each.used)}, at most {each.uses} in each run"
    told = (each.grant, each.state, each.tool, f"run {each.run_id}", ", ".join(each.given_by), _until(each.until_ms))
    return [escape(text) for text in (*told, used)]


def warn_of(unsound: Mapping[str, str], approvals: Iterable[Approval]) -> None:
    """Warn of questions that no correct planner writes: malformed, or several about one call."""
    for name, problem in unsound.items():
        warn(f"tell an operator: {name} is no question that a service takes: {problem}")
    for found in approvals:
        if found.others:
            warn(f"tell an operator: {found.request.approval_id} is one of several questions about its call")


def print_approval(
    found: Approval, *, grant: StandingGrant | None = None, ended: str = "", otherwise: str = "", full: bool = False
) -> None:
    """Print the facts for a decision; `ended` is the outcome in the run, `otherwise` a conflict with the log."""
    request, doubt = found.request, found.request.about == DOUBT
    by = f" ({escape(said(found.decision))})" if found.decision else ""
    say(f"[bold]{escape(request.call_id)}[/] is {'held' if found.held else found.state}{by}")
    if doubt:
        say(f"[bold magenta]nobody knows what came of attempt {request.attempt - 1}: find out what has happened[/]")
    granted = " ".join(_grant_cells(grant)[1:]) if grant else ""
    for name, value in _facts(found, ended=ended, grant=granted).items():
        if value:
            say(f"  {name:<13} {escape(value)}")
    _print_past(request)
    problems = [*filter(None, [otherwise]), *(f"people are asked {other} about it as well" for other in found.others)]
    for problem in problems:
        say(f"[bold red]DO NOT VOTE, tell an operator: {escape(problem)}[/]")
    say("\n[bold]arguments[/]")
    _print_args(request, full=full or found.state == "open")
    if request.proposed_args:
        say("\n[bold]edited before[/], from what the agent proposed:")
        _print_diff(diff(request.proposed_args, request.args))
    _print_said(found)
    if found.state == "open" and not problems:
        # After the arguments, so that a reader can check that all were shown.
        say(f"\n[dim]arguments: {canonical.utf8_bytes(request.args)} bytes, SHA-256 {args_digest(request.args)}[/]")
        name = request.approval_id
        ways = [f"refold approval approve {name}", f"refold approval reject {name} --message '...'"]
        say("\n".join(map(escape, resolve_commands(name) if doubt else ways)))


def _facts(found: Approval, *, ended: str, grant: str) -> dict[str, str]:
    request, doubt = found.request, found.request.about == DOUBT
    return {
        "held": found.held,
        "in the run": ended,
        "run": request.run_id,
        "approval": request.approval_id,
        "agent": request.agent,
        "session": request.session,
        "asked for by": _requester(found),
        "tool": f"{_tool(request)}  version {request.version or '?'}, effect {request.effect}",
        "environment": request.environment,
        "attempt": "" if doubt else _attempt(request),
        "rule": f"{request.rule or '-'} of policy {request.policy[:12] or '-'}"
        + ("" if doubt else f"; `refold policy explain {request.call_id}` tells more"),
        "why": request.requirement.message or "-",
        "who decides": _deciders(found),
        "these are": _people(found),
        "until": _until(request.expires_ms) + (f", then {_expiry(request)}" if request.expires_ms else ""),
        "escalation": _escalation(request) if request.level or found.state == "open" else "",
        "may remember": _memory(request.requirement),
        "grant": grant,
        "question": f"{request.question}, recomputed from the whole call",
    }


def _deciders(found: Approval) -> str:
    needed, quorum = found.request.requirement, quorum_of(found.request, found.roles.askers)
    votes = f"{', '.join(found.count.approvers)}; {found.count.leading} of {quorum} votes"
    left_out = "requester, nor who wrote arguments" if found.request.writers else "requester"
    requester = f", not the {left_out}" if needed.not_requester else ""
    return votes + requester + (", one more as nobody can tell who asked" if quorum > needed.quorum else "")


def _people(found: Approval) -> str:
    if "*" in found.count.approvers:
        return "anybody with a vote key"
    return "; ".join(filter(None, (", ".join(found.people()), found.lacks_people()))) or "-"


def _requester(found: Approval) -> str:
    name, writers = found.request.requester, ", ".join(found.request.writers)
    if writers:
        return f"{name or 'unknown'}; {writers} wrote the arguments"
    if is_verified(found.request, found.roles.askers):
        return f"{name} (verified)"
    return f"{name} (not verified)" if name else "unknown"


def _attempt(request: ApprovalRequest) -> str:
    more = f"; an approval covers attempts up to {request.covers}" if request.covers > request.attempt else ""
    return f"{request.attempt}{more}"


def _print_past(request: ApprovalRequest) -> None:
    for each in request.history:
        told = _PAST.get(each.what, each.what)
        by = f" by the word of {each.by}" if each.by else ""
        words = f": {each.words}" if each.words else ""
        say(f"  [yellow]{escape(f'attempt {each.attempt} {told}{by}, {in_utc(each.at_ms)}{words}')}[/]")


_PAST = {
    "failed": "failed",
    "unknown": "MAY HAVE HAPPENED",
    "doubt": "MAY HAVE HAPPENED, it was in doubt",
    "happened": "happened",
    "did_not_happen": "did not happen",
    "give_up": "was given up",
}


def ended(run: Run | None, found: Approval) -> str:
    """Outcome in the run, if it differs from the decision."""
    asks = [ask for line in run.timeline.steps for ask in line.approvals] if run else []
    ask = next((ask for ask in asks if ask.approval_id == found.request.approval_id), None)
    if run is None or ask is None:
        return ""
    if ask.verdict == "expire":
        return f"it ended without a decision: {ask.said or 'nobody decided in time'}"
    if not ask.verdict and found.over:
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


def _print_diff(lines: Iterable[str]) -> None:
    for line in _gathered(lines):
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        say(f"  [{colour}]{escape(line)}[/]" if colour else f"  {escape(line)}")


def _own(args: Any) -> Any:
    return {name: each for name, each in args.items() if name[:1] != "$"} if isinstance(args, dict) else args


def _tool(request: ApprovalRequest) -> str:
    short = tool_name(request.tool)
    return request.tool if short == request.tool else f"{short} ({request.tool})"


def _print_args(request: ApprovalRequest, *, full: bool) -> None:
    value = json_text(request.args)
    own = _own(value)
    _print_own(request, own)
    added = {name: each for name, each in value.items() if name not in own} if isinstance(value, dict) else {}
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
    _print_lines(readable(canonical.dumps({name: each for name, each in value.items() if name not in _EDIT})))
    before, after = (value[name].split("\n") for name in _EDIT)
    found = list(difflib.unified_diff(before, after, *_EDIT, lineterm="", n=_WHOLE if len(before) <= _WHOLE else 3))
    _print_diff(found)
    hidden = len(before) - sum(line[:1] in ("-", " ") and line[:3] != "---" for line in found)
    if hidden > 0:
        say(f"  [yellow]{hidden} lines stay as they are and are not shown; --json has all[/]")


def diff(before: str, after: str) -> list[str]:
    return list(difflib.unified_diff(readable(before), readable(after), "proposed", "edited", lineterm=""))


def _print_lines(lines: Sequence[str]) -> None:
    for line in _gathered(lines):
        say(f"  {escape(line)}")


def _gathered(lines: Iterable[str]) -> Iterator[str]:
    """Replace each long series of empty lines by its count."""
    for line, run in groupby(lines):
        count = sum(1 for _ in run)
        empty = count > _EMPTY_LINES and not line.strip(" |+-")
        yield from [f"{line[:1].strip()}<{count} empty lines>"] if empty else [line] * count


def _print_said(found: Approval) -> None:
    if found.said or found.refused:
        say("\n[bold]said so far[/]")
    for vote in found.said:
        fate = found.fate(vote)
        void = f"  [red]{fate}[/]" if fate in ("withdrawn", "superseded") else ""
        if fate == "void":
            void = f"  [red]void, it does not count now: {escape(found.count.void[vote].reason)}[/]"
        action = word_for(vote.action, found.request.about)
        words = " ".join(filter(None, (action, ", ".join(vote.to), vote.message)))
        say(f"  {in_utc(vote.issued)}  {escape(vote.actor)}  {escape(words)}{void}")
        if vote.action == "edit":
            _print_diff(diff(found.request.args, vote.args))
        if vote.action == "answer":
            _print_lines(readable(vote.result))
    for name, reason in found.refused:
        say(f"  [red]vote {escape(name)} cannot be trusted: {escape(reason)}[/]")


def _cells(each: Question) -> list[str]:
    state = f"{each.state}: {word_for(each.verdict, each.about)}" if each.verdict else each.state
    if each.about == DOUBT and each.state == "open":
        state = "in doubt"
    return [
        escape(each.call_id),
        escape(f"held: {each.held}" if each.held else state),
        escape(tool_name(each.tool)),
        escape(canonical.dumps(_own(each.args)), _ARGUMENTS),
        escape(_asked_by(each)),
        duration(max(0, clock_ms() - each.asked_ms)),
        escape(f"grant {each.grant}" if each.grant else f"{each.leading} of {each.quorum}"),
        escape(", ".join(each.approvers)),
        _until(each.expires_ms),
    ]


def _asked_by(each: Question) -> str:
    if not each.requester:
        return "-"
    return f"{each.requester}{'' if each.requester_verified else ' (not verified)'}"


def _until(at_ms: int) -> str:
    return in_utc(at_ms) if at_ms else "never"
