"""Approvals for people: what is asked, by whom, who may decide, and what was said.

Everything here may come from a model. What a terminal would not show as it is (changes of direction, invisible and
control characters) is spelt out, so that nobody agrees to something else than they see.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from refold.cli.output import escape, json_text, plain, say, table
from refold.core import canonical

if TYPE_CHECKING:
    from refold.client.approvals import Approval
    from refold.core.ballot import Vote

Data = dict[str, Any]
EDIT = ("before", "after")
WHOLE = 200
"""Lines of a text that are shown with all that stays: what is not shown could be anything."""

COLUMNS = ("approval", "state", "tool", "votes", "who decides", "until")


def row(found: Approval) -> Data:
    """An approval in a line."""
    request, decided = found.request, found.decision
    return {
        "approval": request.approval_id,
        "state": found.state,
        "verdict": decided.verdict if decided else "",
        "run_id": request.run_id,
        "tool": request.tool,
        "agent": request.agent,
        "requester": request.requester,
        "args": json_text(request.args),
        "leading": found.count.leading,
        "quorum": request.requirement.quorum,
        "approvers": list(found.count.approvers),
        "asked_ms": request.asked_ms,
        "expires_ms": request.expires_ms,
        "level": request.level,
    }


def data(found: Approval) -> Data:
    """Everything about an approval."""
    return {
        **row(found),
        "request": plain(found.request),
        "question_holds": found.sound,
        "said": [_said(found, vote) for vote in found.said],
        "refused": [{"vote": vote, "reason": reason} for vote, reason in found.refused],
        "decision": plain(found.decision),
    }


def print_list(rows: Sequence[Data]) -> None:
    """Approvals as a table."""
    if not rows:
        say("[green]nothing waits for people[/]")
        return
    table(COLUMNS, [[_cell(name, each) for name in COLUMNS] for each in rows])


def print_approval(found: Approval) -> None:
    """What a person has to know to decide."""
    request = found.request
    by = f" ({shown(found.decision.verdict)})" if found.decision else ""
    say(f"[bold]{shown(request.approval_id)}[/] is {found.state}{by}")
    facts = {
        "run": request.run_id,
        "agent": request.agent,
        "asked for by": request.requester or "-",
        "tool": f"{request.tool}  version {request.version or '?'}, effect {request.effect}",
        "environment": request.environment,
        "attempt": f"{request.attempt}, good up to {request.covers}",
        "rule": f"{request.rule or '-'} of policy {request.policy[:12] or '-'}",
        "why": request.requirement.message or "-",
        "who decides": f"{', '.join(found.count.approvers)}; {found.count.leading} of {request.requirement.quorum}"
        + (", not the requester" if request.requirement.not_requester else ""),
        "until": _until(request.expires_ms),
        "question": f"{request.question}  {'recomputed, it holds' if found.sound else 'IT DOES NOT HOLD: do not vote'}",
    }
    for name, value in facts.items():
        say(f"  {name:<13} {shown(value)}")
    say("\n[bold]arguments[/]")
    _print_args(request.args)
    if request.proposed_args:
        say("\n[bold]edited before[/], from what the agent proposed:")
        print_diff(request.proposed_args, request.args)
    _print_said(found)
    if found.state == "open":
        name = shown(request.approval_id)
        say(f"\nrefold approval approve {name}\nrefold approval reject {name} --message '...'")


def print_diff(before: str, after: str) -> None:
    """What differs between two texts of arguments."""
    for line in diff(before, after):
        _print_change(line)


def _print_change(line: str) -> None:
    colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
    say(f"  [{colour}]{shown(line)}[/]" if colour else f"  {shown(line)}")


def _print_args(args: str) -> None:
    """The arguments; texts named `before` and `after` as what differs between them."""
    value = json_text(args)
    if not (isinstance(value, dict) and all(isinstance(value.get(name), str) for name in EDIT)):
        _print_lines(readable(args))
        return
    _print_lines(readable(canonical.dumps({name: each for name, each in value.items() if name not in EDIT})))
    before, after = (value[name].split("\n") for name in EDIT)
    found = list(difflib.unified_diff(before, after, *EDIT, lineterm="", n=WHOLE if len(before) <= WHOLE else 3))
    for line in found:
        _print_change(line)
    hidden = len(before) - sum(line[:1] in ("-", " ") and line[:3] != "---" for line in found)
    if hidden > 0:
        say(f"  [yellow]{hidden} lines stay as they are and are not shown; --json has all[/]")


def diff(before: str, after: str) -> list[str]:
    """A unified diff of two arguments, multi-line texts line by line."""
    found = difflib.unified_diff(readable(before), readable(after), "proposed", "edited", lineterm="")
    return list(found)


def readable(args: str) -> list[str]:
    """The lines of a JSON object: a field each, and a text of many lines as it is."""
    value = json_text(args)
    if not isinstance(value, dict):
        return [canonical.dumps(value)]
    lines: list[str] = []
    for name, content in value.items():
        if isinstance(content, str) and "\n" in content:
            lines += [f"{name}:", *(f"  | {line}" for line in content.split("\n"))]
        else:
            lines.append(f"{name}: {canonical.dumps(content)}")
    return lines


def visible(text: str) -> str:
    """The text with everything spelt out that is not to be seen, or that makes the rest look otherwise."""
    return "".join(char if _plain(char) else f"<U+{ord(char):04X}>" for char in text)


def shown(text: str) -> str:
    """Text of anybody, for a terminal."""
    return escape(visible(text))


def _plain(char: str) -> bool:
    return char == " " or (char.isascii() and char.isprintable()) or unicodedata.category(char)[0] in "LNPSM"


def _print_lines(lines: Sequence[str]) -> None:
    for line in lines:
        say(f"  {shown(line)}")


def _print_said(found: Approval) -> None:
    if found.said or found.refused:
        say("\n[bold]said so far[/]")
    for vote in found.said:
        told = _said(found, vote)
        void = f"  [red]void: {shown(told['void'])}[/]" if told["void"] else ""
        words = " ".join(filter(None, (vote.action, ", ".join(vote.to), vote.message)))
        say(f"  {_moment(vote.issued)}  {shown(vote.actor)}  {shown(words)}{void}")
        if vote.action == "edit":
            print_diff(found.request.args, vote.args)
        if vote.action == "answer":
            _print_lines(readable(vote.result))
    for name, reason in found.refused:
        say(f"  [red]vote {shown(name)} cannot be trusted: {shown(reason)}[/]")


def _said(found: Approval, vote: Vote) -> Data:
    void = found.count.void.get(vote)
    return {
        **plain(vote),
        "counts": any(vote == cast for cast, _ in found.count.cast),
        "void": void.reason if void else "",
    }


def _cell(name: str, each: Data) -> str:
    if name == "votes":
        return f"{each['leading']} of {each['quorum']}"
    if name == "until":
        return _until(each["expires_ms"])
    if name == "who decides":
        return shown(", ".join(each["approvers"]))
    if name == "state" and each["verdict"]:
        return shown(f"{each['state']}: {each['verdict']}")
    return shown(str(each[name]))


def _until(at_ms: int) -> str:
    return _moment(at_ms) if at_ms else "never"


def _moment(at_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
