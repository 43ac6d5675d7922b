"""A run as data and as a picture: summary, steps with their attempts, events, raw records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from refold.cli.output import (
    Data,
    clock,
    counted,
    duration,
    escape,
    in_utc,
    json_text,
    plain,
    print_table,
    say,
    styled,
    tool_name,
)
from refold.cli.views.budgets import budget_data, budget_lines
from refold.cli.views.waits import pause_lines, paused_by, signal_lines, wait_lines
from refold.client.catalog import Shelves
from refold.client.register import word_for
from refold.client.rows import ending, resolve_commands, summary
from refold.client.runs import Run
from refold.client.timeline import Ask, AttemptLine, StepLine, Successor
from refold.core.approval.catalog import Halts
from refold.core.events import DOUBT, RunMigrated, RunStarted
from refold.core.ids import AGENT_TOOL
from refold.core.run.suspension import blocked
from refold.core.wire import canonical
from refold.runtime.clock import clock_ms

_VALUE = 60
"""Characters of arguments and results that a step shows; `run events --full` has all of them."""
OVER = ("completed", "failed", "cancelled")


def run_data(run: Run) -> Data:
    """Everything about a run."""
    state, last = run.state, run.records[-1]
    request = state.request
    return {
        **summary(run),
        **ending(run),
        "input": json_text(request.input) if request else None,
        "requester": request.requester if request else "",
        "request": plain(state.position),
        "version": state.version,
        "app": state.app,
        "manifest": manifest(run),
        "hold": plain(run.hold),
        "budget": budget_data(state),
        "head": {"id": state.head.id.hex(), "seq": state.head.seq, "partition": last.record.partition}
        | {"offset": last.record.offset, "digest": state.digest()},
        "entries": len(run.records),
        "void_records": len(run.void),
        "timeline": [
            plain(line) | {"args": _args(line), "result": json_text(line.result)} for line in run.timeline.steps
        ],
        "successors": plain(run.timeline.successors),
        "unheard": plain(run.timeline.unheard),
        "signals": [{**plain(signal), "data": json_text(signal.data)} for signal in run.timeline.kept.values()],
        "signals_dropped": [plain(signal) for signal in run.timeline.dropped],
        "resolve": [command for line in (*run.timeline.in_doubt, *run.timeline.held) for command in _ways_out(line)],
    }


def _args(line: StepLine) -> Any:
    """The arguments of a call, the match of a wait, or the schema of a callback."""
    return line.args if line.kind == "wait" else json_text(line.args)


def manifest(run: Run) -> dict[str, str]:
    """What the run is made of by now, names and values: what it began with, or was handed to last, and its policy."""
    said: dict[str, str] = {}
    for judged in run.records:
        for event in judged.entry.events if judged.entry else ():
            if isinstance(event, RunStarted | RunMigrated):
                said = event.manifest
    policy = run.state.request.policy if run.state.request else ""
    return {**said, **({"policy": policy} if policy else {})}


def halted(run: Run, below: Sequence[Run], catalog: Shelves) -> list[str]:
    """Why calls of a run, and of those below it, do not go out, though nothing else is in their way."""
    halts = catalog.whole.halts
    found = [(each, why) for each in (run, *below) for why in _halted(each, halts)]
    return [why if each is run else f"{each.state.run_id}: {why}" for each, why in found]


def _halted(run: Run, halts: Halts) -> list[str]:
    state = run.state
    asked = state.request
    if state.over or asked is None:
        return []
    open_calls = map(state.call, state.open_calls())
    found = (
        halts.why(tool=call.tool, pool=call.pool, agent=asked.agent, requester=asked.requester, above=asked.above)
        for call in open_calls
    )
    return list(dict.fromkeys(filter(None, found)))


def _ways_out(line: StepLine) -> list[str]:
    """What may be said of a call that is in doubt or held, as commands to run."""
    if line.status == "held":
        return [f"refold run resolve {line.call_id} {word}" for word in ("--retry", "--answer '{...}'", "--fail")]
    return resolve_commands(line.asked.approval_id if line.asked else line.call_id)


def print_runs(rows: list[Data], *, hidden: int, of: int = 0) -> None:
    """Runs as a table. `of`: how many there are, those that were not asked for among them."""
    if not rows:
        start = "no runs; start one: refold run start AGENT --input '{...}'"
        say(f"no run matches ({counted(of, 'run')} in all)" if of else start)
        return
    lines, now_ms = [], clock_ms()
    for row in rows:
        settle = [*row["in_doubt"], *row["held"]]
        doubt = "[bold magenta]" + ", ".join(settle) + "[/]" if settle else ""
        waiting = ", ".join(dict.fromkeys([*paused_by(row), *row["waiting"]]))
        when = clock(row["requested_ms"], now_ms)
        until_ms = row["at_ms"] if row["status"] in OVER else now_ms
        took = duration(max(0, until_ms - row["requested_ms"])) if row["requested_ms"] else "-"
        steps = f"{row['steps'] - row['open']}/{row['steps']}"
        run, agent, says = (escape(row[name]) for name in ("run_id", "agent", "says"))
        lines.append((run, agent, styled(row["status"]), steps, when, took, escape(waiting, 40), doubt, says))
    columns = ("run", "agent", "status", "steps", "began", "took", "waits for", "to settle", "says")
    # An empty column keeps its width, which others need on a terminal of 80 columns.
    used = [number for number in range(len(columns)) if any(line[number] for line in lines)]
    print_table([columns[number] for number in used], [[line[number] for number in used] for line in lines])
    if hidden:
        say(f"[dim]{hidden} older ones are not shown: --limit[/]")


def print_meant(rows: list[Data], would: str) -> None:
    """Runs that many are meant by, before it is done."""
    if not rows:
        say("no run that goes on is meant by that")
        return
    print_runs(rows, hidden=0)
    say(f"{counted(len(rows), 'run')} {would}: say it once more with --yes")


def run_view(run: Run) -> RenderableType:
    """A run as `refold run show` and `refold run watch` draw it."""
    return Group(*(Text.from_markup(line, emoji=False) for line in run_lines(run)))


def run_lines(run: Run, *, where: bool = True) -> list[str]:
    """A run as lines of markup. `where`: with its last entry, which every record changes."""
    state = run.state
    agent = state.request.agent if state.request else "?"
    last = run.records[-1].record if run.records else None
    place = f"partition {last.partition}, offset {last.offset}" if last else "nowhere yet"
    began_ms = state.requested_ms
    lines = [f"[bold]{escape(state.run_id)}[/]  {escape(agent)}  {styled(run.status)}"]
    if where:
        void = f", {len(run.void)} void" if run.void else ""
        lines[0] += f"  [dim]seq {state.head.seq}, {place}{void}[/]"
    if began_ms:
        took = f", took {duration(state.at_ms - began_ms)}" if state.over else ""
        lines.append(f"  [dim]requested {in_utc(began_ms)}{took}; times below count from then[/]")
    lines += _now_lines(run)
    successors = {successor.step: successor for successor in run.timeline.successors}
    for step in run.timeline.steps:
        lines += _successor_lines(successors.pop(step.step, None), began_ms)
        lines += _step_lines(step, began_ms, over=state.over)
    for left in successors.values():
        lines += _successor_lines(left, began_ms)
    for task in run.timeline.unheard:
        words = f"{escape(task.failure.code)}: {escape(task.failure.message, 200)}"
        lines.append(f"  [yellow]nobody awaited {escape(task.task, 60)}, which failed:[/] {words}")
    lines += signal_lines(run)
    return lines + _hold_lines(run) + _end_lines(run)


def _now_lines(run: Run) -> list[str]:
    """What a run does by its own word, and what it waits for."""
    state = run.state
    lines = [f"  says [italic]{escape(state.says)}[/]"] if state.says and not state.over else []
    lines += budget_lines(state)
    if state.paused and not state.over:
        lines += pause_lines(run)
    elif state.status == "suspended":
        reason, name = blocked(state)
        lines.append(f"  [yellow]waits[/]: {escape(reason)} [dim]{escape(name)}[/]")
    return lines


def _since(began_ms: int, at_ms: int) -> str:
    """A time of a run, counted from its request."""
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


def _step_line(step: StepLine, began_ms: int) -> str:
    """A step in a line: what it is, how it stands, when it was, what it took and gave."""
    mark = styled(step.status).replace(step.status, _MARKS.get(step.status, "…"))
    took = f" took {duration(step.ended_ms - step.started_ms)}" if step.ended_ms and step.status != "noted" else ""
    effect = f" [dim]({escape(step.effect)})  {escape(step.call_id)}[/]" if step.call_id else ""
    to = f" to {escape(step.runs[0])}" if step.kind == "signal" else ""
    given = f"  {escape(given, _VALUE)}" if (given := _given(step)) else ""
    result = f" -> {escape(step.result, _VALUE)}" if step.result else ""
    what = f"  {mark} {step.step:>2} {escape(tool_name(step.name))}{to}{effect}"
    return f"{what}  {styled(step.status)} [dim]{_since(began_ms, step.started_ms)}{took}[/]{given}{result}"


def _step_lines(step: StepLine, began_ms: int, *, over: bool) -> list[str]:
    lines = [_step_line(step, began_ms)]
    if step.label:  # a line of its own: it is the agent's word, and beside the name of what runs it could pass for that
        lines.append(f"       called [italic]{escape(step.label)}[/]")
    if step.name.startswith(AGENT_TOOL):
        lines.append("       [dim]all of the run, in memory: its own calls are not in the log[/]")
    lines += [f"       {line}" for line in wait_lines(step, over=over)]
    for ask in step.approvals:
        lines += [f"       {line}" for line in _ask_lines(step, ask, over=over)]
    usual = all(each.dispatches == 1 and each.status in ("running", "completed") for each in step.attempts)
    shown = step.attempts if len(step.attempts) > 1 or not usual else []
    failures = [None, *(attempt.failure for attempt in shown)]
    for attempt, before in zip(shown, failures, strict=False):
        lines.append(f"       {_attempt_line(attempt, began_ms, again=attempt.failure == before)}")
    rejected = any(ask.verdict == "reject" for ask in step.approvals)  # then what people said is there already
    if step.failure and step.status == "failed" and not rejected and step.failure != failures[-1]:
        lines.append(
            f"       [red]{escape(step.failure.code)}: {escape(step.failure.message, 200)}[/]{_at(step.failure.detail)}"
        )
    if step.status == "given_up" and step.attempts:
        lines.append("       [magenta]given up: what was sent may have happened all the same[/]")
    voted = any(ask.about == DOUBT and ask.actors for ask in step.approvals)  # then it is there already who said what
    if step.resolved and not voted:
        why = f": {escape(step.resolved.comment)}" if step.resolved.comment else ""
        lines.append(f"       [magenta]{escape(step.resolved.actor)} said {escape(step.resolved.verdict)}{why}[/]")
    for late in step.late:
        contradicts = " contradicts" if late.contradicts else ""
        lines.append(f"       [magenta]late result{contradicts}: {escape(late.result or late.status, 60)}[/]")
    if step.status == "doubt":
        lines.append("       [bold magenta]nobody can know whether it happened; find out, then one of:[/]")
        lines += [f"         {escape(command)}" for command in _ways_out(step)]
    if step.status == "held" and not over:
        lines.append("       [bold magenta]its attempts are used up, and it waits for an operator; one of:[/]")
        lines += [f"         {escape(command)}" for command in _ways_out(step)]
    return lines


def _ask_lines(step: StepLine, ask: Ask, *, over: bool) -> list[str]:
    who = escape(", ".join(ask.approvers))
    if not ask.verdict and over:
        return [f"[magenta]{who} had not decided when the run ended[/]"]
    if not ask.verdict:
        many = f"{ask.quorum} of " if ask.quorum > 1 else ""
        until = f" until {in_utc(ask.expires_ms)}" if ask.expires_ms else ""
        lines = [f"[bold yellow]waits for {many}{who}{until}[/]", f"  refold approval show {escape(step.call_id)}"]
        if ask.about == DOUBT:
            return lines
        why = f"  refold policy explain {escape(step.call_id)} [dim](why: rule {escape(ask.rule)})[/]"
        return [*lines, why] if ask.rule else lines
    if ask.verdict == "expire" and ask.said:
        return [f"[magenta]closed without a decision: {escape(ask.said, 200)}[/]"]
    by = f"by {escape(', '.join(ask.actors))}" if ask.actors else f"nobody of {who} in time"
    grant = f" [dim](use {ask.use} of the grant {escape(ask.grant)})[/]" if ask.use else ""
    why = f": {escape(ask.said, 200)}" if ask.said else ""
    lines = [f"[magenta]{_verdict(ask)} {by}{why}[/]{grant}"]
    if ask.grant and not ask.use:
        lines.append(f"  [magenta]and granted for the same call again: {escape(ask.grant)}[/]")
    if ask.args:
        lines.append(f"  with other arguments: {escape(ask.args, 200)}")
    return lines


def _verdict(ask: Ask) -> str:
    if ask.about == DOUBT:
        return f"settled as {escape(word_for(ask.verdict, ask.about))}"
    return _VERDICTS.get(ask.verdict, escape(ask.verdict))


_VERDICTS = {
    "approve": "approved",
    "edit": "approved with an edit",
    "amend": "edited, so that its policy asks anew,",
    "reject": "rejected",
    "answer": "answered in the tool's place",
    "expire": "expired,",
}


def _given(step: StepLine) -> str:
    """The arguments of a call or the input of a child, without what a framework adds to them."""
    if step.kind not in ("call", "run"):
        return ""
    value = json_text(step.args)
    if not isinstance(value, dict):
        return step.args
    own = {name: each for name, each in value.items() if not name.startswith("$")}
    return canonical.dumps(own) if own else ""


def _attempt_line(attempt: AttemptLine, began_ms: int, *, again: bool) -> str:
    """An attempt; of a failure that the attempt before had, too, there is the code alone."""
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
    """The place in the user's code, or what its author has added for people; JSON is for programs."""
    return f" [dim]{escape(detail, 120)}[/]" if detail and not detail.startswith("{") else ""


def _hold_lines(run: Run) -> list[str]:
    hold = run.hold
    if hold is None or run.state.over:
        return []
    needs = f"  began with version {escape(hold.needs)}" if hold.needs else ""
    alone = "it goes on by itself with code that agrees with its history; else:"
    again = f"  tried again at {in_utc(hold.retry_ms)}" if hold.retry_ms else ""
    return [
        f"  [bold red]{escape(hold.kind)}[/] [dim]{in_utc(hold.at_ms)} by {escape(hold.member)}{needs}{again}[/]",
        f"    [red]{escape(hold.reason)}: {escape(hold.message, 400)}[/]",
        *(f"    [dim]{escape(line, 160)}[/]" for line in hold.detail.splitlines()[-6:]),
        f"    {alone if hold.kind == 'stalled' else 'its code is run again when somebody says so:'}",
        f"      refold run retry {run.state.run_id}",
        f"      refold run fail {run.state.run_id}",
    ]


def _end_lines(run: Run) -> list[str]:
    found = ending(run)
    if found["status"] == "completed":
        return [f"  [green]result[/] {escape(str(getattr(run.state.end, 'result', '')), 400)}"]
    if failure := found["failure"]:
        run_id = escape(run.state.run_id)
        return [
            f"  [red]{escape(failure['code'])}: {escape(failure['message'], 400)}[/]{_at(failure['detail'])}",
            f"  [dim]it goes on from there: refold run retry {run_id}; a step again: --from STEP[/]",
        ]
    return [f"  [red]cancelled[/] {escape(found['reason'])}"] if found["status"] == "cancelled" else []
