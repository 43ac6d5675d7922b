"""`refold policy`: check rules, try them on recorded calls, publish and explain them."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from refold.cli import options, output
from refold.cli.apps import load_app
from refold.cli.commands.provision import nobody_text, policy_entries, roles_entry
from refold.cli.output import escape, say
from refold.cli.platform import Shell, since_ms
from refold.cli.signing import SigningOptions, warn_of_void
from refold.client import policies
from refold.client.operations.runs import RunQuery
from refold.client.platform import Platform, login
from refold.client.policies import Problem
from refold.core.approval.catalog import Catalog, Roles
from refold.core.approval.policy import Explanation, Judgement, Policy
from refold.core.errors import ConflictError, MalformedError, NotFoundError, UsageError
from refold.core.events import DOUBT
from refold.core.ids import asked_about, parse_call_id
from refold.core.messages import CatalogEntry
from refold.core.wire import canonical
from refold.engine.runtime.clock import clock_ms
from refold.lab import back_test
from refold.lab.back_test import BackTest, RecordedCall
from refold.sdk.sources import FactsTable

FilesArgument = Annotated[list[str], "FILES", "Policy files or folders; together they form one policy."]
_COLOURS = {"allow": "green", "deny": "red", "require": "yellow"}
# Characters of arguments in a table; a model may have written whole files into them.
ARGS_SHOWN = 60
AppOption = Annotated[str, "APP", "App whose tools are checked: MODULE:APP or path/file.py[:APP]."]


@dataclass(frozen=True)
class CheckOptions(Shell):
    app_: AppOption = ""
    recorded: Annotated[bool, "Compare the decisions of these files with those in the log."] = False
    runs_: Annotated[list[str] | None, "all|RUN", "With --recorded: runs to test. May be repeated."] = None
    agent: Annotated[str, "With --recorded: only runs of this agent."] = ""
    since: Annotated[str, "2h|TIME", "With --recorded: only calls judged since TIME, or in the last 2h."] = ""


def check_policy(files: FilesArgument, *, trial: CheckOptions) -> None:
    """Report errors in policy files, and dead rules. Exit code 1 if there are any.

    With --app, also report tools with effect `once` under a policy without `doubt`: an operator settles their doubts.
    With --recorded, report the calls in the log that these files judge otherwise.
    """
    if trial.recorded:
        _try_on_recorded(files, trial)
        return
    if trial.runs_ or trial.agent or trial.since:
        raise UsageError("--runs, --agent and --since select recorded calls", hint="add --recorded")
    tools = load_app(trial.app_).tools.values() if trial.app_ else ()
    content: dict[str, Any] = {}
    try:
        content = policies.load_files(files)
        wrong = policies.problems_of(content)
    except MalformedError as error:
        wrong = [policies.Problem("", "", f"{error.message} ({error.hint})")]
    policy = None if any(problem.fatal for problem in wrong) else policies.merged_policy(content)
    wrong += policies.sent_once(policy, (tool.facts for tool in tools)) if policy else []
    digest, rules = (policy.digest, len(policy.rules)) if policy else ("", 0)
    row = {"ok": not wrong, "digest": digest, "rules": rules, "files": sorted(content), "problems": wrong}
    lines = [f"[{'red' if flaw.fatal else 'yellow'}]{escape(_problem_text(flaw))}[/]" for flaw in wrong]
    if policy:
        many = output.counted(rules, "rule"), output.counted(len(content), "file")
        lines.append(f"policy [bold]{digest}[/]: {many[0]} in {many[1]}")
    trial.print(row, "\n".join(lines), ok=not wrong)


@dataclass(frozen=True)
class DropOptions(SigningOptions):
    drop: Annotated[str, "DIGEST", "Remove this old policy from the catalog; `refold policy show` prints digests."] = ""
    force: Annotated[bool, "With --drop: even if approvals or runs still use it."] = False

    def remove(self, who: str) -> None:
        """Remove the policy. **Raises** ConflictError if it is in force, or in use without --force; NotFoundError."""
        platform, digest = self.platform, self.drop
        partitions = platform.catalog.partitions
        # In any partition: one that a publication has not reached has the earlier policy in force.
        if any(partition.current == digest for partition in partitions):
            raise ConflictError(f"policy {digest[:12]} is in force", hint="publish another one first")
        if not any(digest in partition.policies for partition in partitions):
            raise NotFoundError(f"the catalog has no policy {digest[:64]}", hint="it is named by its whole digest")
        runs, waiting = back_test.under(platform.runs.all(), digest)
        usage = f"{output.counted(len(runs), 'live run')} and {output.counted(len(waiting), 'open approval')} under it"
        if (runs or waiting) and not self.force:
            names = ", ".join([*waiting, *runs][:5])
            hint = f"wait until they end ({names}), or add --force: then these approvals can only be rejected"
            raise ConflictError(f"policy {digest[:12]} is in use: {usage}", hint=hint)
        self.publish([CatalogEntry(f"policy/{digest}", "policy", "null", who, clock_ms())])
        row = {"digest": digest, "partitions": len(partitions), "runs": runs, "approvals": waiting}
        self.print(row, f"policy [bold]{digest}[/] is out of the catalog; {usage}")


def publish_policy(
    files: Annotated[list[str] | None, "Policy files or folders; together they form one policy."] = None,
    *,
    roles: Annotated[str, "FILE", "File of people and their roles."] = "",
    actor: options.ActorOption = "",
    dropping: DropOptions,
) -> None:
    """Put a policy in force for new runs, and roles for all runs. Publishing it again changes nothing.

    Warns of rules that no call can reach and roles without people. Refuses a role that is neither in the roles nor on a
    key of the catalog: no vote could count for it.

    With --drop an old policy asks for no more approvals: open ones under it can only be rejected until its files are
    published again. The policy in force judges runs that began under it.
    """
    if dropping.drop:
        if files or roles:
            raise UsageError("one command drops or publishes", hint="give --drop DIGEST alone, or files and --roles")
        dropping.remove(actor or login())
    elif files or roles:
        dropping.refuse("force", "is for --drop")
        _publish(files, roles, actor or login(), dropping)
    else:
        raise UsageError("there is nothing to publish", hint="name policy files, or --roles FILE")


def _publish(files: list[str] | None, roles: str, who: str, signing: SigningOptions) -> None:
    people = [roles_entry(Path(roles), who)] if roles else []
    content = policies.load_files(files) if files else {}
    policy = policies.merged_policy(content) if files else None
    warnings = [_problem_text(problem) for problem in policies.problems_of(content)] if files else []
    # The policy before the word that it is in force, and roles that it may name before both.
    entries = [*people, *(policy_entries(policy, who) if policy else [])]
    if policy:
        _check_roles(policy, people, signing.platform.catalog.whole)
    signing.publish(entries)
    catalog = signing.platform.catalog
    warnings += filter(None, [nobody_text(catalog.whole)])
    for warning in warnings:
        output.warn(warning)
    lines = ["the roles are in force"] * bool(roles)
    if policy:
        rules = output.counted(len(policy.rules), "rule")
        lines.append(f"policy [bold]{policy.digest}[/] is in force for new runs: {rules}")
    row = {"digest": policy.digest if policy else "", "entries": [entry.name for entry in entries]}
    signing.print({**row, "partitions": len(catalog.partitions), "warnings": warnings}, "\n".join(lines))


def _check_roles(policy: Policy, people: list[CatalogEntry], before: Catalog) -> None:
    roles = Roles.parse(canonical.parse(people[0].content)) if people else before.roles
    if unknown := policies.unknown_roles(policy, roles, before.keys.values()):
        hint = "name them in --roles FILE, or let a key tell them: `refold keys new NAME --use vote --role ROLE`"
        raise UsageError(f"nobody can be {', '.join(unknown)}: no role and no key of the catalog", hint=hint)


def show_policy(
    call: Annotated[
        str, "RUN/SEQ of a call, or of an approval of it: show the rule that judged it, and its values."
    ] = "",
    *,
    draft: Annotated[list[str] | None, "FILE", "With a call: use these policy files. May be repeated."] = None,
    app_: AppOption = "",
    shell: Shell,
) -> None:
    """Show the policy, roles and keys in force, or the rule that judged a call."""
    if call:
        _explain(call, draft, app_, shell)
        return
    if draft or app_:
        raise UsageError("--draft and --app explain a call", hint="name the call: refold policy show RUN/SEQ")
    catalog = shell.platform.catalog
    state = in_force(catalog.whole)
    warn_of_void(catalog)
    row = {**state, "number": catalog.whole.counter, "differing_partitions": catalog.behind, "void": catalog.void}
    shell.print(row, lambda: print_in_force(state))


def _try_on_recorded(files: list[str], shell: CheckOptions) -> None:
    after_ms, named = since_ms(shell.since), shell.runs_ and "all" not in shell.runs_
    platform = shell.platform
    trial = _back_test(policies.merged_policy(policies.load_files(files)), shell.app_, platform)
    chosen = [platform.runs.get(name) for name in dict.fromkeys(shell.runs_ or ())] if named else platform.runs.all()
    chosen = list(filter(RunQuery(agent=shell.agent).fits, chosen))
    calls = [call for run in chosen for call in back_test.recorded(run) if call.at_ms >= after_ms]
    rows = trial.differences(calls)
    kinds = dict(sorted(Counter(row["kind"] for row in rows).items()))

    def in_words() -> None:
        print_differences(rows)
        many = output.counted(len(calls), "call"), output.counted(len(chosen), "run")
        say(f"{many[0]} of {many[1]}, {len(rows)} judged otherwise")
        _warn_of_unlogged_facts(trial)
        if kinds.get("require -> allow") and not shell.app_:
            say('[yellow]which tools say approval="required" is in no log either: --app tells it[/]')

    summary = {"policy": trial.policy.digest, "runs": len(chosen), "calls": len(calls), "unknown": trial.unknown}
    shell.print({**summary, "counts": kinds, "differences": rows}, in_words, ok=not rows)


def _explain(call: str, draft: list[str] | None, app_: str, shell: Shell) -> None:
    run, _ = parse_call_id(asked_about(call))
    content = policies.load_files(draft) if draft else None
    platform = shell.platform
    recorded = back_test.find(platform.runs.get(run), call)
    if recorded.call_id != call:
        output.note(f"approval {call}: call {recorded.call_id}")
    policy = policies.merged_policy(content) if content is not None else _policy_of(platform, recorded)
    trial = _back_test(policy, app_, platform)
    now, rules = trial.judge(recorded.state, recorded.call), trial.explain(recorded.state, recorded.call)
    args, edited = recorded.call.args, recorded.edited
    row = {"call_id": recorded.call_id, "tool": recorded.call.tool, "recorded": recorded.judgement, "now": now}
    row |= {"rules": rules, "args": output.json_text(args)}

    def in_words() -> None:
        print_explanation(recorded, now, rules, asks_itself=not draft and _asks_itself(policy, recorded, rules))
        _warn_of_unlogged_facts(trial)

    shell.print(row | {"edited_args": output.json_text(edited.args) if edited else None}, in_words)


def _problem_text(problem: Problem) -> str:
    rule = f"{DOUBT}: " if problem.rule == DOUBT else f"rule {problem.rule!r}: " if problem.rule else ""
    return f"{f'{problem.file}: ' if problem.file else ''}{rule}{problem.reason}"


def _asks_itself(policy: Policy, recorded: RecordedCall, rules: Sequence[Explanation]) -> bool:
    """True if people were asked although the rule allows the call, so the tool requires it."""
    allows = {rule.name for rule in policy.rules if rule.outcome == "allow"}
    fired = next((explanation for explanation in rules if explanation.fired), None)
    required = recorded.judgement.outcome == "require" and recorded.judgement.rule in allows
    return required and fired is not None and fired.rule == recorded.judgement.rule and fired.value is True


def _back_test(policy: Policy, app_: str, platform: Platform) -> BackTest:
    return BackTest(policy, platform.settings.environment, FactsTable(load_app(app_).tools) if app_ else None)


def _warn_of_unlogged_facts(trial: BackTest) -> None:
    if trial.unknown:
        names = " and ".join(sorted(trial.unknown))
        say(f"[yellow]{names} stand in no log: rules about them fail here; --app tells them[/]")


def _policy_of(platform: Platform, recorded: RecordedCall) -> Policy:
    digest = recorded.judgement.policy
    if not digest:
        raise NotFoundError(f"no policy judged {recorded.call_id}", hint="--draft FILE asks one that you have here")
    policy = platform.catalog.whole.policies.get(digest)
    if policy is None:
        raise NotFoundError(f"the policy {digest} is not in the catalog", hint="--draft FILE asks one that you have")
    return policy


def in_force(catalog: Catalog) -> output.Data:
    policy = catalog.policy
    return {
        "current": catalog.current,
        "policy": policy.content if policy else None,
        "policies": sorted(catalog.policies),
        "roles": {role: sorted(people) for role, people in sorted(catalog.roles.by_role.items())},
        "revoked": sorted(catalog.roles.revoked),
        "keys": [catalog.keys[kid].content() for kid in sorted(catalog.keys)],
    }


def print_in_force(state: output.Data) -> None:
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
            detail = output.plain(rule.requirement) if rule.requirement else rule.message
            rows.append((escape(rule.name), escape(rule.when.source), _outcome(rule.outcome, detail)))
        unruled = ("require", output.plain(policy.fallback)) if policy.fallback else ("deny", "nobody decides")
        rows.append(("[dim]no rule holds, or one that allows fails[/]", "", _outcome(*unruled)))
        rows.append(("[dim]nobody knows what came of a call[/]", "", _doubt_text(policy)))
        output.print_table(("rule", "when", "then"), rows)
    for old in state["policies"]:
        if old != state["current"]:
            say(f"older: {escape(old)} [dim]judges the runs that were begun under it; refold policy publish --drop[/]")
    for role, people in state["roles"].items():
        say(f"role {escape(role)}: {escape(', '.join(people))}")
    if state["revoked"]:
        say(f"revoked: {escape(', '.join(state['revoked']))}")
    for key in state["keys"]:
        say(f"key {escape(key['kid'])} ({escape(key['use'])}){' [red]revoked[/]' if key.get('revoked') else ''}")


def print_differences(rows: Sequence[output.Data]) -> None:
    if not rows:
        return
    cells, cut = [], False
    for row in rows:
        args = json.dumps(row["args"], ensure_ascii=False)
        cut = cut or len(args) > ARGS_SHOWN
        was, now = _judgement_text(row["recorded"]), _judgement_text(row["now"])
        cells.append((escape(row["call_id"]), escape(row["tool"]), escape(args, ARGS_SHOWN), was, now))
    output.print_table(("call", "tool", "args", "was", "would be"), cells)
    if cut:
        say("[dim]args that end in … are cut: --json has all of them[/]")
    for (kind, changes), count in Counter((row["kind"], back_test.what_changes(row)) for row in rows).most_common():
        say(f"{count:>6}  {kind}{f': {escape(changes)}' if changes else ''}")


def print_explanation(call: RecordedCall, now: Judgement, rules: Sequence[Explanation], *, asks_itself: bool) -> None:
    """Print the rules behind a judgement. `asks_itself`: the tool requires an approval that the rule does not."""
    then = call.judgement
    say(f"[bold]{escape(call.call_id)}[/]  {escape(call.call.tool)} [dim]{escape(call.call.args)}[/]")
    say(f"  was judged: {_judgement_text(output.plain(then))}")
    if asks_itself:
        say('  [yellow]the rule allows it; the tool says itself that it needs people: approval="required"[/]')
    elif (now.outcome, now.rule, now.policy) != (then.outcome, then.rule, then.policy):
        say(f"  would be:   {_judgement_text(output.plain(now))}")
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


def _outcome(outcome: str, detail: output.Data | str) -> str:
    text = detail if isinstance(detail, str) else back_test.requirement_words(detail)
    return f"[{_COLOURS[outcome]}]{outcome}[/] {escape(text)}"


def _doubt_text(policy: Policy) -> str:
    if policy.doubt is None:
        return "an operator says so, and a call with effect once is not sent again"
    return _outcome("require", output.plain(policy.doubt))


def _judgement_text(judgement: output.Data) -> str:
    outcome, rule, needed = judgement["outcome"], judgement["rule"], judgement["requirement"]
    by = f" by {escape(rule)}" if rule else ""
    needs = f": {escape(back_test.requirement_words(needed))}" if needed else ""
    why = f" [dim]({escape(judgement['message'])})[/]" if judgement["message"] else ""
    return f"[{_COLOURS[outcome]}]{outcome}[/]{by}{needs}{why}"
