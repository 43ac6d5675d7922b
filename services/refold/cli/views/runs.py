"""Printed runs, with steps, signals, budgets and families."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from refold.cli.output import counted, escape, json_text, print_table, say, styled
from refold.client.catalog import CatalogReader
from refold.client.reading.approval import word_for
from refold.client.reading.budget import Spending
from refold.client.reading.diff import RunDiff, RunThen
from refold.client.reading.history import Run
from refold.client.reading.messages import ModelMessages
from refold.client.reading.model import split_args
from refold.client.reading.run import RunInfo, RunRow, RunShown
from refold.client.reading.steps import Ask, CallAttempt, RunStep, Successor
from refold.client.reading.words import clock, duration, in_utc, moment, tool_name
from refold.client.verify import Verified
from refold.core.approval.catalog import Halts
from refold.core.events import DOUBT
from refold.core.ids import AGENT_TOOL, asked_about, depth_of, parent_of
from refold.core.run.account import in_usd
from refold.core.run.intents import STATUS
from refold.core.run.pausing import PARENT
from refold.core.wire import canonical
from refold.engine.runtime.clock import clock_ms

MOST_KEPT = 5
MOST_DRAWN = 40
"""Most descendants printed; of a larger family only unfinished ones are."""
SHOWN_WAIT_MS = 1_000
"""Shortest printed wait for a planner; a shorter one is no outage."""
_VALUE = 60


def halted(run: Run, below: Sequence[Run], catalog: CatalogReader) -> list[str]:
    """Halts that hold back open calls of a run or its descendants."""
    reasons = [(member, why) for member in (run, *below) for why in _halted(member, catalog.whole.halts)]
    return [why if member is run else f"{member.state.run_id}: {why}" for member, why in reasons]


def _halted(run: Run, halts: Halts) -> list[str]:
    state, request = run.state, run.state.request
    if state.over or request is None:
        return []
    why = partial(halts.why, agent=request.agent, requester=request.requester, above=request.above)
    reasons = (why(tool=call.tool, pool=call.pool) for call in map(state.call, state.open_calls()))
    return list(dict.fromkeys(filter(None, reasons)))


def print_runs(rows: Sequence[RunRow], *, hidden: int, now_ms: int, of: int = 0) -> None:
    """Print runs as a table, with ages at `now_ms`. `of` counts all runs before the filter."""
    if not rows:
        start = "no runs; start one: refold run start AGENT --input '{...}'"
        say(f"no run matches ({counted(of, 'run')} in all)" if of else start)
        return
    lines = []
    for row in rows:
        settle = [*row.in_doubt, *row.held]
        doubt = "[bold magenta]" + ", ".join(settle) + "[/]" if settle else ""
        waiting = ", ".join(dict.fromkeys([*(f"{pause.actor} (paused)" for pause in row.pauses), *row.waiting]))
        when = clock(row.requested_ms, now_ms)
        until_ms = row.at_ms if row.over else now_ms
        elapsed = duration(max(0, until_ms - row.requested_ms)) if row.requested_ms else "-"
        steps = f"{row.steps - row.open}/{row.steps}"
        run, agent, summary = map(escape, (row.run_id, row.agent, row.says))
        lines.append((run, agent, styled(row.status), steps, when, elapsed, escape(waiting, 40), doubt, summary))
    columns = ("run", "agent", "status", "steps", "began", "took", "waits for", "to settle", "says")
    # An empty column keeps its width, which others need on a terminal of 80 columns.
    used = [number for number in range(len(columns)) if any(line[number] for line in lines)]
    print_table([columns[number] for number in used], [[line[number] for number in used] for line in lines])
    if hidden:
        say(f"[dim]{hidden} older ones are not shown: --limit[/]")


def print_runs_then(rows: Sequence[RunThen], *, hidden: int, of: int, at_ms: int) -> None:
    if not of:
        say("no run was there then")
        return
    print_runs(rows, hidden=hidden, of=of, now_ms=at_ms)
    for row in rows:
        for step in row.open_steps:
            name, args = escape(step.label or step.name), escape(step.given)
            say(f"{escape(row.run_id)}  step {step.step} {name} {styled(step.status)}  {args}")


def print_meant(rows: Sequence[RunRow], would: str) -> None:
    """Print the runs that a command would change with --yes; `would` is the effect, such as `would be paused`."""
    if not rows:
        say("no run that goes on is meant by that")
        return
    print_runs(rows, hidden=0, now_ms=clock_ms())
    say(f"{counted(len(rows), 'run')} {would}: say it once more with --yes")


def run_view(run: RunInfo) -> RenderableType:
    return Group(*(Text.from_markup(line, emoji=False) for line in run_lines(run)))


def run_lines(run: RunInfo, *, where: bool = True) -> list[str]:
    """Markup lines of a run; `where` adds the position of its last entry."""
    head, began_ms = run.head, run.requested_ms
    lines = [f"[bold]{escape(run.run_id)}[/]  {escape(run.agent or '?')}  {styled(run.status)}"]
    if where:
        place = f"partition {head.partition}, offset {head.offset}" if run.entries else "nowhere yet"
        place = place if head.offset >= 0 else "a fork, in no topic"
        void = f", {run.void_records} void" if run.void_records else ""
        lines[0] += f"  [dim]seq {head.seq}, {place}{void}[/]"
    if began_ms:
        elapsed = f", took {duration(run.at_ms - began_ms)}" if run.over else ""
        waited = f", waited {duration(run.waited_ms)} for a planner" if run.waited_ms >= SHOWN_WAIT_MS else ""
        lines.append(f"  [dim]requested {in_utc(began_ms)}{waited}{elapsed}; times below count from then[/]")
    lines += _now_lines(run)
    successors = {successor.step: successor for successor in run.successors}
    for step in run.timeline:
        lines += _successor_lines(successors.pop(step.step, None), began_ms)
        lines += _step_lines(step, began_ms, over=run.over)
    for left in successors.values():
        lines += _successor_lines(left, began_ms)
    for task in run.unheard:
        failure = f"{escape(task.failure.code)}: {escape(task.failure.message, 200)}"
        lines.append(f"  [yellow]nobody awaited {escape(task.task, 60)}, which failed:[/] {failure}")
    for turn in run.models:
        sure = "" if turn.verified else " [yellow](not verified)[/]"
        messages = counted(turn.messages, "message")
        lines.append(f"  step {turn.step} asks [bold]{escape(turn.model)}[/]{sure}: {messages}")
        lines.append(f"    [dim]the last: {escape(turn.last, _VALUE)}[/]")
    lines += signal_lines(run)
    return lines + _hold_lines(run) + _end_lines(run)


def _now_lines(run: RunInfo) -> list[str]:
    lines: list[str] = []
    if forked := run.forked:
        why = f": {escape(forked.reason, 200)}" if forked.reason else ""
        lines.append(f"  forked from {escape(forked.run_id)} at event {forked.seq} by {escape(forked.actor)}{why}")
    lines += [f"  says [italic]{escape(run.says)}[/]"] if run.says else []
    shown = {name: value for name, value in run.values.items() if name != STATUS}
    lines += [f"  {line}" for line in value_lines(shown, _VALUE)]
    lines += budget_lines(run)
    if run.paused:
        lines += pause_lines(run)
    elif run.suspended:
        reason, blocked_by = map(escape, (run.suspended["reason"], run.suspended["blocked_by"]))
        lines.append(f"  [yellow]waits[/]: {reason} [dim]{blocked_by}[/]")
    return lines


def value_lines(values: Mapping[str, Any], limit: int = 0) -> list[str]:
    """Markup lines of exposed values as JSON, cut at `limit` characters."""
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
    return [f"{escape(name)} [dim]=[/] {escape(text, limit)}" for name, text in texts.items()]


def _since(began_ms: int, at_ms: int) -> str:
    return f"+{duration(at_ms - began_ms)}" if began_ms <= at_ms else in_utc(at_ms)


def _successor_lines(successor: Successor | None, began_ms: int) -> list[str]:
    if successor is None:
        return []
    return [f"  [dim]{_since(began_ms, successor.at_ms)} {escape(successor.actor)} goes on from seq {successor.seq}[/]"]


_MARKS = {
    "completed": "✔",
    "noted": "·",
    "failed": "✘",
    "approval": "✋",
    "doubt": "?",
    "held": "?",
    "running": "▶",
    "sleeping": "z",
    "waiting": "⌛",
    "expired": "✘",
    "backoff": "↻",
    "given_up": "∅",
    "left": "⤺",
}


_NAMES_RUN = {"signal": "to", "submit": "as"}
_HOW = {"stored": " [yellow](from the ledger)[/]", "probed": " [yellow](probed)[/]", "late": " [yellow](late)[/]"}


def _step_line(step: RunStep, began_ms: int) -> str:
    mark = styled(step.status).replace(step.status, _MARKS.get(step.status, "…"))
    elapsed = f" took {duration(step.ended_ms - step.started_ms)}" if step.ended_ms and step.status != "noted" else ""
    effect = f" [dim]({escape(step.effect)})  {escape(step.call_id)}[/]" if step.call_id else ""
    to = f" {_NAMES_RUN[step.kind]} {escape(step.runs[0])}" if step.kind in _NAMES_RUN else ""
    args = f"  {escape(args, _VALUE)}" if (args := _arguments(step)) else ""
    result = f" -> {escape(step.result, _VALUE)}" if step.result else ""
    name = f"answer to {step.name}" if step.kind == "answer" else tool_name(step.name)
    headline = f"  {mark} {step.step:>2} {escape(name)}{to}{effect}"
    status = f"{styled(step.status)}{_HOW.get(step.how, '')}"
    return f"{headline}  {status} [dim]{_since(began_ms, step.started_ms)}{elapsed}[/]{args}{result}"


def _step_lines(step: RunStep, began_ms: int, *, over: bool) -> list[str]:
    below = [
        # A separate line: it is the agent's text, and beside the name of the run it could pass for that.
        f"called [italic]{escape(step.label)}[/]" * bool(step.label),
        "[dim]all of the run, in memory: its own calls are not in the log[/]" * step.name.startswith(AGENT_TOOL),
        *wait_lines(step, over=over),
        *(line for ask in step.approvals for line in _approval_lines(step, ask, over=over)),
        f"[bold yellow]{escape(step.waits)}[/]" * bool(step.waits),
        *_tried_lines(step, began_ms),
        *_settled_lines(step),
        *_way_out_lines(step, over=over),
    ]
    return [_step_line(step, began_ms), *(f"       {line}" for line in below if line)]


def _tried_lines(step: RunStep, began_ms: int) -> Iterator[str]:
    usual = all(row.dispatches == 1 and row.status in ("running", "completed") for row in step.attempts)
    shown = step.attempts if len(step.attempts) > 1 or not usual else []
    failures = [None, *(attempt.failure for attempt in shown)]
    for attempt, before in zip(shown, failures, strict=False):
        yield _attempt_line(attempt, began_ms, again=attempt.failure == before)
    rejected = any(ask.verdict == "reject" for ask in step.approvals)  # then the words of people are there already
    if step.failure and step.status == "failed" and not rejected and step.failure != failures[-1]:
        yield f"[red]{escape(step.failure.code)}: {escape(step.failure.message, 200)}[/]{_at(step.failure.detail)}"


def _settled_lines(step: RunStep) -> Iterator[str]:
    if step.status == "given_up" and step.attempts:
        yield "[magenta]given up: what was sent may have happened all the same[/]"
    voted = any(ask.about == DOUBT and ask.actors for ask in step.approvals)  # then the votes are there already
    if step.resolved and not voted:
        why = f": {escape(step.resolved.comment)}" if step.resolved.comment else ""
        yield f"[magenta]{escape(step.resolved.actor)} said {escape(step.resolved.verdict)}{why}[/]"
    for late in step.late:
        contradicts = " contradicts" if late.contradicts else ""
        yield f"[magenta]late result{contradicts}: {escape(late.result or late.status, 60)}[/]"


def _way_out_lines(step: RunStep, *, over: bool) -> list[str]:
    if step.status not in _STUCK or (step.status == "held" and over):
        return []
    return [f"[bold magenta]{_STUCK[step.status]}[/]", *(f"  {escape(command)}" for command in step.ways_out)]


_STUCK = {
    "doubt": "nobody can know whether it happened; find out, then one of:",
    "held": "its attempts are used up, and it waits for an operator; one of:",
}


def _approval_lines(step: RunStep, ask: Ask, *, over: bool) -> list[str]:
    """Lines on the approval of a step: its verdict, or its approvers and commands; `over`: the run has ended."""
    who = escape(", ".join(ask.approvers))
    if ask.verdict:
        return _verdict_lines(ask, who)
    if over:
        return [f"[magenta]{who} had not decided when the run ended[/]"]
    many = f"{ask.quorum} of " if ask.quorum > 1 else ""
    until = f" until {in_utc(ask.expires_ms)}" if ask.expires_ms else ""
    lines = [f"[bold yellow]waits for {many}{who}{until}[/]", f"  refold approval show {escape(step.call_id)}"]
    why = f"  refold policy show {escape(step.call_id)} [dim](why: rule {escape(ask.rule)})[/]"
    return [*lines, why] if ask.rule and ask.about != DOUBT else lines


def _verdict_lines(ask: Ask, who: str) -> list[str]:
    if ask.verdict == "expire" and ask.said:
        return [f"[magenta]closed without a decision: {escape(ask.said, 200)}[/]"]
    by = f"by {escape(', '.join(ask.actors))}" if ask.actors else f"nobody of {who} in time"
    grant = f" [dim](use {ask.use} of the grant {escape(ask.grant)})[/]" if ask.use else ""
    why = f": {escape(ask.said, 200)}" if ask.said else ""
    verdict = _VERDICTS.get(ask.verdict, escape(ask.verdict))
    verdict = f"settled as {escape(word_for(ask.verdict, ask.about))}" if ask.about == DOUBT else verdict
    lines = [f"[magenta]{verdict} {by}{why}[/]{grant}"]
    if ask.grant and not ask.use:
        lines.append(f"  [magenta]and granted for the same call again: {escape(ask.grant)}[/]")
    if ask.args:
        lines.append(f"  with other arguments: {escape(ask.args, 200)}")
    return lines


_VERDICTS = {
    "approve": "approved",
    "edit": "approved with an edit",
    "amend": "edited, so that its policy asks anew,",
    "reject": "rejected",
    "answer": "answered in the tool's place",
    "expire": "expired,",
}


def _arguments(step: RunStep) -> str:
    if step.kind not in ("call", "run"):
        return ""
    own, _ = split_args(json_text(step.args))
    if not isinstance(own, dict):
        return step.args
    return canonical.dumps(own) if own else ""


def _attempt_line(attempt: CallAttempt, began_ms: int, *, again: bool) -> str:
    text = f"attempt {attempt.number} {styled(attempt.status)} [dim]{_since(began_ms, attempt.started_ms)}[/]"
    if attempt.dispatches > 1:
        text += f" [yellow]handed out {attempt.dispatches} times[/]"
    if attempt.failure and again:
        text += f" {escape(attempt.failure.code)}, as before"
    elif attempt.failure:
        text += f" {escape(attempt.failure.code)}: {escape(attempt.failure.message, 120)}{_at(attempt.failure.detail)}"
    text += " [dim]before the retry[/]" if attempt.before else ""
    return text + (f" [dim]next at {in_utc(attempt.retry_ms)}[/]" if attempt.retry_ms else "")


def _at(detail: str) -> str:
    line = detail.partition("\n")[0]
    return f" [dim]{escape(line, 120)}[/]" if line and not line.startswith("{") else ""


def _hold_lines(run: RunInfo) -> list[str]:
    hold = run.hold
    if hold is None or run.over:
        return []
    needs = f"  began with version {escape(hold.needs)}" if hold.needs else ""
    alone = "it goes on by itself with code that agrees with its history; else:"
    again = f"  tried again at {in_utc(hold.retry_ms)}" if hold.retry_ms else ""
    return [
        f"  [bold red]{escape(hold.kind)}[/] [dim]{in_utc(hold.at_ms)} by {escape(hold.member)}{needs}{again}[/]",
        f"    [red]{escape(hold.reason)}: {escape(hold.message, 400)}[/]",
        *(f"    [dim]{escape(line, 160)}[/]" for line in hold.detail.splitlines()[-6:]),
        f"    {alone if hold.kind == 'stalled' else 'its code is run again when somebody says so:'}",
        f"      refold run retry {run.run_id}",
        f"      refold run cancel {run.run_id} --as-failed",
    ]


def _end_lines(run: RunInfo) -> list[str]:
    if run.status == "completed":
        return [f"  [green]result[/] {escape(run.result_text, 400)}"]
    if failure := run.failure:
        name = escape(run.run_id)
        return [
            f"  [red]{escape(failure.code)}: {escape(failure.message, 400)}[/]{_at(failure.detail)}",
            f"  [dim]it goes on from there: refold run retry {name}; a step again: --from STEP[/]",
        ]
    return [f"  [red]cancelled[/] {escape(run.reason)}"] if run.status == "cancelled" else []


def wait_lines(step: RunStep, *, over: bool) -> list[str]:
    if step.kind not in ("wait", "callback"):
        return []
    if step.status in ("completed", "failed"):
        key = f", {escape(step.key)}" if step.key else ""
        return [f"[dim]by {escape(step.actor) or 'somebody'}{key}[/]"]
    if step.status != "waiting" or over:
        return []
    until = f" until {moment(step.until_ms)}" if step.until_ms else ""
    awaited = "whoever has its token" if step.kind == "callback" else f"a signal {escape(step.name)}"
    where = f" where {escape(step.args, 200)}" if step.kind == "wait" and step.args else ""
    lines = [f"[bold yellow]waits for {awaited}{where}{until}[/]"]
    if step.failure:
        lines.append(f"[yellow]its match had no value for a signal: {escape(step.failure.message, 200)}[/]")
    return lines


def pause_lines(run: RunInfo) -> list[str]:
    lines: list[str] = []
    for pause in run.pauses:
        name = run.run_id if pause.role != PARENT else parent_of(run.run_id)[0]
        state = "paused" if pause.role != PARENT else f"paused with {name}"
        why = f": {escape(pause.reason, 200)}" if pause.reason else ""
        who = f" by {escape(pause.actor)}" if pause.role != PARENT else ""
        lines.append(f"  [bold yellow]{state}[/]{who} [dim]({pause.role}, {moment(pause.since_ms)})[/]{why}")
        lines.append(f"    refold run resume {name}")
    return lines


def signal_lines(run: RunInfo) -> list[str]:
    waiting, dropped = run.signals, run.signals_dropped
    lines = [f"  [dim]kept signal[/] {escape(row.name)} [dim]{escape(row.signal_id)}[/]" for row in waiting[:MOST_KEPT]]
    if len(waiting) > MOST_KEPT:
        lines.append(f"  [dim]and {len(waiting) - MOST_KEPT} more[/]")
    for lost in dropped[-MOST_KEPT:]:
        text = f"signal {escape(lost.name)} of {lost.bytes:,} bytes"
        lines.append(f"  [yellow]dropped for want of room: {text}[/] {escape(lost.signal_id)}")
    return lines


def budget_lines(run: RunInfo) -> list[str]:
    if (budget := run.budget) is None:
        return []
    limited = taken_of(budget.used, budget.limits).items()
    parts = [text + ("" if kind == "usd" else f" {kind}") for kind, text in limited if text != _NONE[kind]]
    paid = budget.maybe_paid
    if paid.nano_usd or paid.tokens:
        lost = in_usd(paid.nano_usd) if paid.nano_usd else f"{paid.tokens:,} tokens"
        over = "may be paid: nobody has said what came of it" if run.over else "is under way, or may be paid"
        parts.append(f"[magenta]{lost} of it {over}[/]")
    reached = [f"[yellow]soft threshold of {escape(name)} reached[/]" for name in budget.reached]
    return ["  took " + ", ".join([*parts, *reached])] if parts else []


def taken_of(used: Spending, limits: Spending) -> dict[str, str]:
    """Spending as text by `usd`, `tokens` and `calls`, followed by the limit if there is one: `3 of 10`."""
    return {
        "usd": in_usd(used.nano_usd) + (f" of {in_usd(limits.nano_usd)}" if limits.nano_usd else ""),
        "tokens": f"{used.tokens:,}" + (f" of {limits.tokens:,}" if limits.tokens else ""),
        "calls": f"{used.calls:,}" + (f" of {limits.calls:,}" if limits.calls else ""),
    }


_NONE = {"usd": in_usd(0), "tokens": "0", "calls": "0"}


def print_messages(request: ModelMessages) -> None:
    say(f"[bold]{escape(request.call_id)}[/]  {escape(request.model or request.tool)}")
    for number, message in enumerate(request.messages, start=1):
        role = message.get("kind") or message.get("role") or ""
        parts = message.get("parts")
        for part in parts if isinstance(parts, list) and parts else [message]:
            kind = part.get("part_kind", role) if isinstance(part, dict) else role
            content = part.get("content", part.get("args", part)) if isinstance(part, dict) else part
            text = content if isinstance(content, str) else canonical.dumps(content)
            say(f"  {number:>3} [dim]{escape(str(kind))}[/]  {escape(text)}")
    sound = f"[green]verified[/]: digest {request.digest}"
    say(f"  {sound if request.verified else f'[red]not verified[/]: {escape(request.why)}'}")


def print_family(run: RunShown) -> None:
    below = run.family
    if not below:
        return
    counts = Counter(row.status for row in below)
    totals = ", ".join(f"{count} {styled(status)}" for status, count in counts.most_common())
    say(f"  {counted(len(below), 'run')} below it: {totals}")
    drawn = below if len(below) <= MOST_DRAWN else [row for row in below if not row.over][:MOST_DRAWN]
    for row in drawn:
        say(_family_line(row, depth_of(row.run_id) - depth_of(run.run_id)))
    if len(drawn) < len(below):
        say(f"  [dim]{len(below) - len(drawn)} more: refold run list --json[/]")


def _family_line(run: RunRow, depth: int) -> str:
    waits = [f"refold approval show {asked_about(name)}" for name in run.approvals]
    why = f"  [bold yellow]{escape(waits[0])}[/]" if waits and not run.over else ""
    return f"  {'  ' * depth}[bold]{escape(run.run_id)}[/]  {escape(run.agent or '?')}  {styled(run.status)}{why}"


def print_verified(verified: Verified) -> None:
    void = ", ".join(f"{count} {reason}" for reason, count in sorted(verified.void.items())) or "none"
    statuses = ", ".join(f"{count} {styled(status)}" for status, count in sorted(verified.runs.items())) or "none"
    say(f"records   {verified.records} read, {verified.accepted} accepted with {verified.events} events, void: {void}")
    say(f"runs      {statuses}")
    suspects = {"in doubt": verified.in_doubt, "overdue": verified.overdue}
    for name, runs in (suspects | {"frozen": [*verified.frozen], "copied": [*verified.copied]}).items():
        if runs:
            say(f"{name:<9} {escape(', '.join(runs[:10]))}" + (" ..." if len(runs) > 10 else ""))
    if len(verified.digests) <= 10:
        for run, digest in verified.digests.items():
            say(f"fold      {escape(run)} [dim]{digest}[/]")
    for violation in verified.violations:
        say(f"[red]{violation.kind}[/] {escape(violation.run_id)}: {escape(violation.what)}")
    verdict = f"[red]{len(verified.violations)} violations[/]" if verified.violations else "[green]everything agrees[/]"
    say(f"verdict   {verdict}")


def print_diff(diff: RunDiff) -> None:
    for side, mark in ((diff.left, "-"), (diff.right, "+")):
        fork = f", a fork from event {side.forked} on" if side.forked else ""
        say(f"{mark} {escape(side.run_id)} seq {side.seq}{fork}, {moment(side.at_ms)}, {styled(side.status)}")
    for change in diff.fields:
        say(f"  {change.name}: {escape(str(change.left), _VALUE)} -> {escape(str(change.right), _VALUE)}")
    for step in diff.steps:
        number = f"{step.left or '-'}:{step.right or '-'}"
        mark = {"added": "[green]+[/]", "removed": "[red]-[/]", "changed": "[yellow]~[/]"}[step.change]
        say(f"{mark} step {number} {escape(tool_name(step.name))}")
        for change in step.fields:
            say(f"    {change.name}: {escape(str(change.left), _VALUE)} -> {escape(str(change.right), _VALUE)}")
    say(f"[dim]{diff.same} steps are equal[/]")
