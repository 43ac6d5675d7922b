"""Printed policies, judgements and their reasons."""

import json
from collections import Counter
from collections.abc import Sequence

from refold.cli.output import Data, escape, plain, print_table, say
from refold.core.approval.catalog import Catalog
from refold.core.approval.policy import Explanation, Judgement, Policy
from refold.lab.back_test import RecordedCall, requirement_words, what_changes

_COLOURS = {"allow": "green", "deny": "red", "require": "yellow"}
# Characters of arguments in a table; a model may have written whole files into them.
ARGS_SHOWN = 60


def in_force(catalog: Catalog) -> Data:
    policy = catalog.policy
    return {
        "current": catalog.current,
        "policy": policy.content if policy else None,
        "policies": sorted(catalog.policies),
        "roles": {role: sorted(people) for role, people in sorted(catalog.roles.by_role.items())},
        "revoked": sorted(catalog.roles.revoked),
        "keys": [catalog.keys[kid].content() for kid in sorted(catalog.keys)],
    }


def print_in_force(state: Data) -> None:
    if not state["current"]:
        say("no policy is in force: calls are allowed, and of tools that ask denied; `refold policy publish FILES`")
    elif state["policy"] is None:
        say(f"[red]policy {escape(state['current'])} should be in force, and the catalog does not have it[/]")
    else:
        recheck = ", judges calls of other policies again" if state["policy"].get("recheck") else ""
        say(f"policy [bold]{escape(state['current'])}[/] is in force for new runs{recheck}")
        policy = Policy.parse(state["policy"])
        rows = []
        for rule in policy.rules:
            detail = plain(rule.requirement) if rule.requirement else rule.message
            rows.append((escape(rule.name), escape(rule.when.source), _outcome(rule.outcome, detail)))
        unruled = _outcome("require", plain(policy.fallback)) if policy.fallback else _outcome("deny", "nobody decides")
        rows.append(("[dim]no rule holds, or one that allows fails[/]", "", unruled))
        rows.append(("[dim]nobody knows what came of a call[/]", "", _settled_by(policy)))
        print_table(("rule", "when", "then"), rows)
    for old in state["policies"]:
        if old != state["current"]:
            say(f"older: {escape(old)} [dim]judges the runs that were begun under it; refold policy publish --drop[/]")
    for role, people in state["roles"].items():
        say(f"role {escape(role)}: {escape(', '.join(people))}")
    if state["revoked"]:
        say(f"revoked: {escape(', '.join(state['revoked']))}")
    for key in state["keys"]:
        say(f"key {escape(key['kid'])} ({escape(key['use'])}){' [red]revoked[/]' if key.get('revoked') else ''}")


def print_differences(rows: Sequence[Data]) -> None:
    if not rows:
        return
    columns = ("call", "tool", "args", "was", "would be")
    cells = [
        (
            escape(row["call_id"]),
            escape(row["tool"]),
            escape(json.dumps(row["args"], ensure_ascii=False), ARGS_SHOWN),
            _judgement_text(row["recorded"]),
            _judgement_text(row["now"]),
        )
        for row in rows
    ]
    print_table(columns, cells)
    if any(len(json.dumps(row["args"], ensure_ascii=False)) > ARGS_SHOWN for row in rows):
        say("[dim]args that end in … are cut: --json has all of them[/]")
    for (kind, changes), count in Counter((row["kind"], what_changes(row)) for row in rows).most_common():
        say(f"{count:>6}  {kind}{f': {escape(changes)}' if changes else ''}")


def print_explanation(call: RecordedCall, now: Judgement, rules: Sequence[Explanation], *, asks_itself: bool) -> None:
    """Print the rules behind a judgement. `asks_itself`: the tool requires an approval that the rule does not."""
    then = call.judgement
    say(f"[bold]{escape(call.call_id)}[/]  {escape(call.call.tool)} [dim]{escape(call.call.args)}[/]")
    say(f"  was judged: {_judgement_text(plain(then))}")
    if asks_itself:
        say('  [yellow]the rule allows it; the tool says itself that it needs people: approval="required"[/]')
    elif (now.outcome, now.rule, now.policy) != (then.outcome, then.rule, then.policy):
        say(f"  would be:   {_judgement_text(plain(now))}")
    if call.edited:
        say(f"  [dim]edited since by people whom the policy asks about that too: {escape(call.edited.args)}[/]")
    say(f"  [dim]policy {escape(now.policy)}[/]")
    for explanation in rules:
        mark = "[bold]→[/]" if explanation.fired else " "
        value = "[green]true[/]" if explanation.value is True else "[dim]false[/]"
        if isinstance(explanation.value, str):
            value = f"[red]it failed: {escape(explanation.value)}[/]"
        say(f"  {mark} {escape(explanation.rule)}: {escape(explanation.when)}  {value}")
        for name, shown in explanation.values.items():
            say(f"      [dim]{escape(name)} = {escape(json.dumps(shown, ensure_ascii=False))}[/]")


def _outcome(outcome: str, detail: Data | str) -> str:
    text = detail if isinstance(detail, str) else requirement_words(detail)
    return f"[{_COLOURS[outcome]}]{outcome}[/] {escape(text)}"


def _settled_by(policy: Policy) -> str:
    if policy.doubt is None:
        return "an operator says so, and a call with effect once is not sent again"
    return _outcome("require", plain(policy.doubt))


def _judgement_text(judgement: Data) -> str:
    outcome, rule, needed = judgement["outcome"], judgement["rule"], judgement["requirement"]
    by = f" by {escape(rule)}" if rule else ""
    text = f"[{_COLOURS[outcome]}]{outcome}[/]{by}{f': {escape(requirement_words(needed))}' if needed else ''}"
    return text + (f" [dim]({escape(judgement['message'])})[/]" if judgement["message"] else "")
