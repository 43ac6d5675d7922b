"""`refold policy`: write rules, try them on what has happened, put them in force."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import output
from refold.cli.errors import FAILED, fail
from refold.cli.platform import DataOption, JsonOption, KafkaOption, Platform, connect, login
from refold.core.errors import ConflictError, MalformedError, NotFoundError, UsageError

if TYPE_CHECKING:
    from refold.client.hindsight import Hindsight, Recorded
    from refold.client.policies import Problem
    from refold.client.runs import Run
    from refold.core.approval.policy import Explanation, Policy
    from refold.core.messages import CatalogEntry

app = typer.Typer(help="Write, try and publish the rules that judge every call.", no_args_is_help=True)

FilesArgument = Annotated[
    list[str], typer.Argument(metavar="FILES", help="Policy files, or folders of them; together they are one policy.")
]
AppOption = Annotated[
    str, typer.Option("--app", help="MODULE:APP or path/file.py[:APP], for the versions and tags of its tools.")
]


@app.command()
def check(files: FilesArgument, *, json_: JsonOption = False) -> None:
    """Say what is wrong with policy files, rules that no call can reach too; exit code 1 if there is anything."""
    from refold.client import policies

    content: dict[str, Any] = {}
    try:
        content = policies.load(files)
        found = policies.problems(content)
    except MalformedError as error:
        found = [policies.Problem("", "", f"{error.message} ({error.hint})")]
    policy = None if any(problem.fatal for problem in found) else _merged(content)
    if json_:
        digest, rules = (policy.digest, len(policy.rules)) if policy else ("", 0)
        output.emit({"ok": not found, "digest": digest, "rules": rules, "files": sorted(content), "problems": found})
    else:
        for problem in found:
            colour = "red" if problem.fatal else "yellow"
            output.say(f"[{colour}]{output.escape(_problem_text(problem))}[/]")
        if policy:
            many = output.counted(len(policy.rules), "rule"), output.counted(len(content), "file")
            output.say(f"policy [bold]{policy.digest}[/]: {many[0]} in {many[1]}")
    if found:
        fail(FAILED)


@app.command()
def publish(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILES]", help="Policy files, or folders; together one policy.")
    ] = None,
    *,
    roles: Annotated[str, typer.Option("--roles", metavar="FILE", help="Who has which role, and who none.")] = "",
    actor: Annotated[str, typer.Option("--actor", help="Who says so.  [default: your login]", show_default=False)] = "",
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Put a policy in force for new runs, and roles for everybody, at once. Published again, it changes nothing.

    Rules that no call can reach and roles that nobody has are published all the same, with a warning.
    """
    from refold.client import catalog, policies

    if not files and not roles:
        raise UsageError("there is nothing to publish", hint="name policy files, or --roles FILE")
    entries: list[CatalogEntry] = _roles(roles, actor or login()) if roles else []
    policy = None
    warnings: list[str] = []
    if files:
        content = policies.load(files)
        policy = _merged(content)
        warnings = [_problem_text(problem) for problem in policies.problems(content)]
        # The policy before the word that it is in force, and roles that it may name before both.
        entries += _entries(policy, actor or login())
    platform = connect(kafka=kafka, data=data)
    partitions = platform.runs.partitions
    for entry in entries:
        catalog.publish(platform.publisher, partitions, entry)
    there = catalog.read_catalog(platform.runs.reader)
    if nobody := policies.nobody_has(there.policy, there.roles):
        warnings.append(f"nobody has {', '.join(nobody)} by the catalog: only logins may say so")
    for warning in warnings:
        output.console(stderr=True).print(f"[yellow]warning: {output.escape(warning)}[/]")
    if json_:
        names = [entry.name for entry in entries]
        row = {"digest": policy.digest if policy else "", "entries": names, "partitions": partitions}
        output.emit({**row, "warnings": warnings})
        return
    if roles:
        output.say("the roles are in force")
    if policy:
        rules = output.counted(len(policy.rules), "rule")
        output.say(f"policy [bold]{policy.digest}[/] is in force for new runs: {rules}")


@app.command()
def drop(
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help="As `refold policy show` prints it.")],
    *,
    force: Annotated[bool, typer.Option("--force", help="Though approvals wait or runs go on under it.")] = False,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Take an old policy out of the catalog: nobody can be asked by its rules any more.

    Runs that were begun under it are judged by the policy in force from now on. Approvals that wait under it are held:
    until its files are published again they can only be rejected. If there are any of the two, it takes --force.
    """
    from refold.client import catalog, hindsight

    platform = connect(kafka=kafka, data=data)
    reader = platform.runs.reader
    known = catalog.read_all(reader)
    if any(each.current == digest for each in known):
        raise ConflictError(f"policy {digest[:12]} is in force", hint="publish another one first")
    if not any(digest in each.policies for each in known):
        raise NotFoundError(f"the catalog has no policy {digest[:64]}", hint="it is named by its whole digest")
    runs, waiting = hindsight.under(platform.runs.all(), digest)
    held = f"{output.counted(len(runs), 'live run')} and {output.counted(len(waiting), 'open approval')} under it"
    if (runs or waiting) and not force:
        names = ", ".join([*waiting, *runs][:5])
        hint = f"wait until they are over ({names}), or --force: then these approvals can only be rejected"
        raise ConflictError(f"policy {digest[:12]} is in use: {held}", hint=hint)
    catalog.remove(platform.publisher, len(known), f"policy/{digest}")
    if json_:
        output.emit({"digest": digest, "partitions": len(known), "runs": runs, "approvals": waiting})
    else:
        output.say(f"policy [bold]{digest}[/] is out of the catalog; {held}")


@app.command()
def show(kafka: KafkaOption = "", data: DataOption = "", json_: JsonOption = False) -> None:
    """Show what is in force: the policy of new runs, roles, keys."""
    from refold.cli.views import policies as policy_views
    from refold.client import catalog

    reader = connect(kafka=kafka, data=data).runs.reader
    found = [policy_views.in_force(each) for each in catalog.read_all(reader)]
    behind = [number for number, each in enumerate(found) if each != found[0]]
    if json_:
        output.emit({**found[0], "differing_partitions": behind})
        return
    policy_views.print_in_force(found[0])
    if behind:
        output.say(
            f"[red]partitions {', '.join(map(str, behind))} of the catalog have something else: publish again[/]"
        )


@app.command("test")
def try_out(
    files: FilesArgument,
    *,
    runs: Annotated[
        list[str] | None, typer.Option("--runs", metavar="all|RUN", help="Which runs; may be repeated.")
    ] = None,
    agent: Annotated[str, typer.Option("--agent", help="Only runs of this agent.")] = "",
    since: Annotated[
        str,
        typer.Option("--since", metavar="2h|TIME", help="Only calls judged since then: 7d, 2030-01-31T12:00Z."),
    ] = "",
    app_: AppOption = "",
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Say what a draft would have decided on the calls in the log; exit code 1 if anything else than was."""
    from refold.cli.views import policies as policy_views
    from refold.client import hindsight, policies

    after_ms = _since_ms(since)
    platform = connect(kafka=kafka, data=data)
    asked = _hindsight(_merged(policies.load(files)), app_, platform)
    chosen = [run for run in _runs(platform, runs or ["all"]) if not agent or _agent(run) == agent]
    calls = [call for run in chosen for call in hindsight.recorded(run) if call.at_ms >= after_ms]
    found = list(asked.differences(calls))
    rows = [policy_views.difference_row(each) for each in found]
    kinds = dict(sorted(Counter(difference.kind for difference in found).items()))
    if json_:
        summary = {"policy": asked.policy.digest, "runs": len(chosen), "calls": len(calls), "unknown": asked.unknown}
        output.emit({**summary, "counts": kinds, "differences": rows})
    else:
        policy_views.print_differences(rows, kinds)
        many = output.counted(len(calls), "call"), output.counted(len(chosen), "run")
        output.say(f"{many[0]} of {many[1]}, {len(found)} judged otherwise")
        _tell_unknown(asked)
        if kinds.get("require -> allow") and not app_:
            output.say('[yellow]which tools say approval="required" is in no log either: --app tells it[/]')
    if found:
        fail(FAILED)


@app.command()
def explain(
    call: Annotated[str, typer.Argument(metavar="CALL", help="RUN/SEQ of the call, or of an approval of it.")],
    *,
    draft: Annotated[
        list[str] | None, typer.Option("--draft", metavar="FILE", help="Ask these files instead; may be repeated.")
    ] = None,
    app_: AppOption = "",
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Show which rule judged a call, and with which values."""
    from refold.client import hindsight, policies
    from refold.core.ids import parse_call_id

    run, _ = parse_call_id(call)
    content = policies.load(draft) if draft else None
    platform = connect(kafka=kafka, data=data)
    found = hindsight.find(platform.runs.get(run), call)
    policy = _merged(content) if content is not None else _policy_of(platform, found)
    asked = _hindsight(policy, app_, platform)
    now, rules = asked.judge(found.state, found.call), asked.explain(found.state, found.call)
    row = {"call_id": found.call_id, "tool": found.call.tool, "recorded": found.judgement, "now": now, "rules": rules}
    if json_:
        row["args"] = output.json_text(found.call.args)
        row["edited_args"] = output.json_text(found.edited.args) if found.edited else None
        output.emit(row)
        return
    from refold.cli.views import policies as policy_views

    policy_views.print_explanation(found, now, rules, asks_itself=not draft and _asks_itself(policy, found, rules))
    _tell_unknown(asked)


def _merged(content: dict[str, Any]) -> Policy:
    from refold.core.approval.policy import Policy, merge

    return Policy.parse(merge(content))


def _problem_text(problem: Problem) -> str:
    rule = f"rule {problem.rule!r}: " if problem.rule else ""
    return f"{f'{problem.file}: ' if problem.file else ''}{rule}{problem.reason}"


def _asks_itself(policy: Policy, found: Recorded, rules: Sequence[Explanation]) -> bool:
    """Whether people were asked about a call that the rule allows: then the tool wants them."""
    allows = {rule.name for rule in policy.rules if rule.outcome == "allow"}
    fired = next((each for each in rules if each.fired), None)
    asked = found.judgement.outcome == "require" and found.judgement.rule in allows
    return asked and fired is not None and fired.rule == found.judgement.rule and fired.value is True


def _entries(policy: Policy, actor: str) -> list[CatalogEntry]:
    from refold.core.approval.catalog import CURRENT
    from refold.core.messages import CatalogEntry
    from refold.core.wire import canonical

    now = _now_ms()
    content = canonical.dumps(policy.content)
    return [
        CatalogEntry(f"policy/{policy.digest}", "policy", content, actor, now),
        CatalogEntry(CURRENT, "current", canonical.dumps(policy.digest), actor, now),
    ]


def _roles(file: str, actor: str) -> list[CatalogEntry]:
    from refold.client.policies import load_file
    from refold.core.approval.catalog import ROLES, Roles
    from refold.core.messages import CatalogEntry
    from refold.core.wire import canonical

    content = load_file(Path(file))
    Roles.parse(content)
    return [CatalogEntry(ROLES, "roles", canonical.dumps(content), actor, _now_ms())]


def _hindsight(policy: Policy, app_: str, platform: Platform) -> Hindsight:
    from refold.client.hindsight import Hindsight

    tools = None
    if app_:
        from refold.sdk.app import App

        tools = {name: tool.facts for name, tool in App.load(app_).tools.items()}
    return Hindsight(policy, platform.settings.environment, tools)


def _tell_unknown(asked: Hindsight) -> None:
    if asked.unknown:
        names = " and ".join(sorted(asked.unknown))
        output.say(f"[yellow]{names} stand in no log: rules about them fail here; --app tells them[/]")


def _policy_of(platform: Platform, found: Recorded) -> Policy:
    """The policy that judged a call. **Raises** NotFoundError."""
    from refold.client import catalog
    from refold.core.ids import home

    digest = found.judgement.policy
    if not digest:
        raise NotFoundError(f"no policy judged {found.call_id}", hint="--draft FILE asks one that you have here")
    partition = home(found.state.run_id, platform.runs.partitions)
    policy = catalog.read_catalog(platform.runs.reader, partition).policies.get(digest)
    if policy is None:
        raise NotFoundError(f"the policy {digest} is not in the catalog", hint="--draft FILE asks one that you have")
    return policy


def _runs(platform: Platform, names: list[str]) -> list[Run]:
    if "all" in names:
        return platform.runs.all()
    return [platform.runs.get(name) for name in dict.fromkeys(names)]


def _agent(run: Run) -> str:
    return run.state.request.agent if run.state.request else ""


def _since_ms(text: str) -> int:
    """A moment, or how long ago it is. **Raises** UsageError."""
    from datetime import datetime

    from refold.core.approval.requirement import duration_ms

    if not text:
        return 0
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return _now_ms() - duration_ms("--since", text)
    if found.tzinfo is None:
        raise UsageError(f"--since: {text!r} has no zone", hint="write 2030-01-31T12:00Z, or 7d for seven days ago")
    return int(found.timestamp() * 1000)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
