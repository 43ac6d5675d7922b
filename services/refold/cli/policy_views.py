"""Policies for people: what is in force, what a draft would change, why a call was judged as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from refold.cli.output import escape, json_text, plain, say, table

if TYPE_CHECKING:
    from refold.client.hindsight import Difference, Recorded
    from refold.core.catalog import Catalog
    from refold.core.policy import Explanation, Judgement

Data = dict[str, Any]
_COLOURS = {"allow": "green", "deny": "red", "require": "yellow"}


def in_force(catalog: Catalog) -> Data:
    """What a partition of the catalog says."""
    policy = catalog.policy
    return {
        "current": catalog.current,
        "policy": policy.content if policy else None,
        "policies": sorted(catalog.policies),
        "roles": {role: sorted(people) for role, people in sorted(catalog.roles.by_role.items())},
        "revoked": sorted(catalog.roles.revoked),
        "keys": [catalog.keys[kid].content() for kid in sorted(catalog.keys)],
    }


def difference_row(found: Difference) -> Data:
    """A call of which a draft says something else."""
    call = found.call
    return {
        "call_id": call.call_id,
        "tool": call.call.tool,
        "args": json_text(call.call.args),
        "kind": found.kind,
        "recorded": plain(call.judgement),
        "now": plain(found.now),
    }


def print_in_force(found: Data) -> None:
    """What `refold policy show` says."""
    if not found["current"]:
        say("no policy is in force: calls are allowed; `refold policy publish FILES`")
    elif found["policy"] is None:
        say(f"[red]policy {escape(found['current'])} should be in force, and the catalog does not have it[/]")
    else:
        recheck = ", judges calls of other policies again" if found["policy"].get("recheck") else ""
        say(f"policy [bold]{found['current']}[/] is in force for new runs{recheck}")
        rows = [_rule_row(rule) for rule in found["policy"]["rules"]]
        rows.append(("[dim]no rule holds, or one fails[/]", "", _outcome("require", found["policy"].get("fallback"))))
        table(("rule", "when", "then"), rows)
    for old in found["policies"]:
        if old != found["current"]:
            say(f"older: {escape(old)} [dim]judges the runs that were begun under it; refold policy drop[/]")
    for role, people in found["roles"].items():
        say(f"role {escape(role)}: {escape(', '.join(people))}")
    if found["revoked"]:
        say(f"revoked: {escape(', '.join(found['revoked']))}")
    for key in found["keys"]:
        say(f"key {escape(key['kid'])} ({escape(key['use'])}){' [red]revoked[/]' if key.get('revoked') else ''}")


def print_differences(rows: Sequence[Data], counts: Mapping[str, int]) -> None:
    """What `refold policy test` found."""
    if not rows:
        return
    columns = ("call", "tool", "args", "was", "would be")
    cells = [
        (
            escape(row["call_id"]),
            escape(row["tool"]),
            escape(json.dumps(row["args"], ensure_ascii=False), 60),
            _said(row["recorded"]),
            _said(row["now"]),
        )
        for row in rows
    ]
    table(columns, cells)
    for kind, count in counts.items():
        say(f"{count:>6}  {kind}")


def print_explanation(found: Recorded, now: Judgement, rules: Sequence[Explanation]) -> None:
    """What `refold policy explain` says."""
    then = found.judgement
    say(f"[bold]{escape(found.call_id)}[/]  {escape(found.call.tool)} [dim]{escape(found.call.args, 200)}[/]")
    say(f"  was judged: {_words(then.outcome, then.rule, then.message)}")
    if (now.outcome, now.rule, now.policy) != (then.outcome, then.rule, then.policy):
        say(f"  would be:   {_words(now.outcome, now.rule, now.message)}")
    say(f"  [dim]policy {now.policy}[/]")
    for each in rules:
        mark = "[bold]→[/]" if each.fired else " "
        value = "[green]true[/]" if each.value is True else "[dim]false[/]"
        if isinstance(each.value, str):
            value = f"[red]{escape(each.value, 200)}[/]"
        say(f"  {mark} {escape(each.rule)}: {escape(each.when, 200)}  {value}")
        for name, shown in each.values.items():
            say(f"      [dim]{name} = {escape(json.dumps(shown, ensure_ascii=False), 200)}[/]")


def _rule_row(rule: Data) -> tuple[str, str, str]:
    outcome = next(name for name in _COLOURS if name in rule)
    return escape(rule["name"]), escape(rule["when"], 200), _outcome(outcome, rule[outcome])


def _outcome(outcome: str, detail: Any) -> str:
    text = "" if detail in (True, None) else detail if isinstance(detail, str) else json.dumps(detail)
    return f"[{_COLOURS[outcome]}]{outcome}[/] {escape(text, 200)}"


def _said(judgement: Data) -> str:
    return _words(judgement["outcome"], judgement["rule"], judgement["message"])


def _words(outcome: str, rule: str, message: str) -> str:
    by = f" by {escape(rule, 60)}" if rule else ""
    return f"[{_COLOURS[outcome]}]{outcome}[/]{by}{f' [dim]({escape(message, 120)})[/]' if message else ''}"
