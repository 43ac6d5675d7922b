"""`refold run`, `callback` and `versions`: what people say to runs, or at once to all that have something in common."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import typer

from refold.cli import output
from refold.cli.commands.run import (
    AgentOption,
    LabelOption,
    RunArgument,
    SessionOption,
    SignOption,
    labels_of,
)
from refold.cli.errors import FAILED, fail
from refold.cli.groups import Natural, Seconds
from refold.cli.platform import ActorOption, Shell, json_value, since_ms, until_ms
from refold.cli.views import runs as run_views
from refold.client.addresses import own_key
from refold.client.platform import login
from refold.core import ids
from refold.core.approval.signature import REQUEST
from refold.core.errors import ConflictError, NotFoundError, UsageError
from refold.core.ids import RunId
from refold.core.messages import RunSignal
from refold.core.planning.pausing import PAUSE, RESUME
from refold.core.run.metering import dollars, nano_usd
from refold.core.run.pausing import own
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.operations import run as operations
from refold.operations.operation import OperationRow, Outcome, Performed, many, one
from refold.operations.run import (
    By,
    Changes,
    Done,
    answered,
    left_behind,
    migrate,
    redrive,
    retry_code,
    signal,
    signal_message,
    signing,
    stays,
    step_of,
    word,
)
from refold.operations.runs import Runs, Selector, selected
from refold.sdk.source import spoken
from refold.views.history import Run
from refold.views.outcome import PauseSaid, Redriven, Said, SignalSaid
from refold.views.run import RunRow, ending_of, row_of, versions_in_use


@dataclass(frozen=True)
class Operator(Shell):
    """Who says something about a run, and how long they wait: the options of what only a human may do."""

    actor: ActorOption = ""
    timeout: Annotated[Seconds, "How long to wait for the planner."] = 30.0

    def perform(self, operation: OperationRow) -> Performed:
        """Performs an operation and waits for its outcome."""
        return one(self.runs, self.platform.publisher, operation, self.timeout)

    def perform_all(self, operations: Sequence[OperationRow], doing: str) -> dict[RunId, Outcome]:
        """Performs operations and waits for the outcome of each, `doing` what the progress says."""
        show = partial(output.progress(), doing)
        return many(self.runs, self.platform.publisher, operations, self.timeout, show)

    def tell_answer(self, answer: Performed, text: str, shape: type[Said] = Said, **facts: Any) -> None:
        """Tells the outcome of an operation, with more facts."""
        status = answer.run.state.status
        row = shape(run_id=answer.run.state.run_id, outcome=answer.what, status=status, **facts)
        self.tell(row, f"{text} is {output.styled(status)}")

    def tell_meant(self, rows: Sequence[RunRow], would: str) -> None:
        """Tells which runs are meant by what they have in common, before it is done."""
        told = {"dry_run": True, "count": len(rows), "runs": rows}
        self.tell(told, lambda: run_views.print_meant(rows, would))


OneOrMany = Annotated[str, "RUN", "The run; without it, filters."]
ReasonOption = Annotated[str, "Why; it stays in the history."]


@dataclass(frozen=True)
class Speaker(Operator):
    """Who says something of a run, or of many, and what these have in common."""

    session: SessionOption = ""
    label: LabelOption = None
    agent: AgentOption = ""
    yes: Annotated[bool, "Do it to all of them; without it they are shown."] = False
    as_operator: Annotated[bool, "Say it as an operator, though you asked for the run."] = False
    key: SignOption = ""

    def which(self, run: str) -> Selector:
        """What many have in common, if no single one is named. **Raises** UsageError."""
        which = Selector(self.session, labels_of(self.label), self.agent)
        if bool(run) == bool(which):
            hint = "RUN, or --session S, --label K=V, --agent NAME"
            raise UsageError("it takes a run, or what many have in common", hint=hint)
        return which

    def by(self, reason: str) -> By:
        """In whose name it is, signed where who asked for a run has a key."""
        sign = signing(own_key(REQUEST, self.key, self.data), self.platform.settings.platform)
        return By(self.actor or login(), reason, self.as_operator, sign)

    def say(self, kind: str, run: str, reason: str = "") -> None:
        """Cancels, pauses or resumes a run, or all that are meant, or shows which these are."""
        if which := self.which(run):
            self._say_many(kind, which, reason)
            return
        answer = self.perform(word(self.runs.get(run).state, kind, self.by(reason)))
        name = f"run [bold]{output.escape(run)}[/]"
        if kind == "cancel":
            self.tell_answer(answer, name)
            return
        state = answer.run.state
        row = PauseSaid(run_id=run, outcome=answer.what, status=state.status, paused=list(state.paused))
        self.tell(row, f"{name} is {output.styled(_status(state))}")

    def _say_many(self, kind: str, which: Selector, reason: str) -> None:
        found = selected(self.runs.all(), which, kind)
        rows, done = [row_of(run) for run in found], _PAST[kind]
        if not self.yes:
            self.tell_meant(rows, f"would be {done}")
            return
        outcomes = self.perform_all([word(run.state, kind, self.by(reason)) for run in found], f"{kind} runs")
        states = {row.run_id: outcomes[RunId(row.run_id)].state for row in rows}
        rows = [row.model_copy(update={"status": _status(states[row.run_id])}) for row in rows]
        so = sum(_is_what(state, kind) for state in states.values())
        text = f"{output.counted(so, 'run')} of {len(rows)} {done}"
        self.tell({"dry_run": False, "count": len(rows), "runs": rows}, text)
        if so < len(rows):
            fail(FAILED)


_PAST = {"cancel": "cancelled", PAUSE: "paused", RESUME: "resumed"}


def cancel_run(
    run: OneOrMany = "",
    *,
    reason: ReasonOption = "",
    operator: Speaker,
) -> None:
    """Cancel a run and the runs it has started. Best effort for a call that an executor has claimed already.

    A run that somebody else asked for is cancelled as an operator, which takes the right to write `run-operated`.
    Many runs are named by --session, --label and --agent: without --yes they are shown.
    """
    operator.say("cancel", run, reason)


def pause_run(
    run: OneOrMany = "",
    *,
    reason: ReasonOption = "",
    operator: Speaker,
) -> None:
    """Pause a run and the runs it has started. Nothing new goes out of it until `refold run resume`.

    What executors have already they finish, and the run has it when it goes on. Signals, answers and decisions are
    kept, and what falls due meanwhile is due then. Many runs are named by --session, --label and --agent: without
    --yes they are shown.
    """
    operator.say(PAUSE, run, reason)


def resume_run(
    run: OneOrMany = "",
    *,
    operator: Speaker,
) -> None:
    """Resume a paused run. The runs it has started resume too, unless they were paused themselves.

    What an operator has paused only operators resume. Many runs are named by --session, --label and --agent: of these
    all that are paused by themselves; without --yes they are shown.
    """
    operator.say(RESUME, run)


def _status(state: RunState) -> str:
    return "paused" if state.paused and not state.over else state.status


def _is_what(state: RunState, kind: str) -> bool:
    """Whether a run is what it was to become."""
    if kind == "cancel":
        return state.status == "cancelled"
    return not state.over and (own(state) is not None) == (kind == PAUSE)


TokenArgument = Annotated[str, "TOKEN", "The callback's token, which begins with cb_."]
KeyOption = Annotated[str, "KEY", "Your own name for this answer: said again, it is the same answer."]


PayloadOption = Annotated[str, "JSON|@FILE|-", "The data to send."]


def signal_run(
    run: Annotated[str, "The run; without it, filters."],
    name: Annotated[str, "What it waits for: `ctx.wait_for(NAME)`."] = "",
    *,
    payload: PayloadOption = "null",
    id_: Annotated[str, "Its id: twice is one signal.  \\[default: a fresh one]"] = "",
    session: SessionOption = "",
    label: LabelOption = None,
    yes: Annotated[bool, "Tell all of them; without it they are shown."] = False,
    operator: Operator,
) -> None:
    """Send a signal that a run waits for, now or later. A wait takes it once.

    Many runs are named by --session and --label, each with what it has started: without --yes they are shown. One that
    never waits for it keeps it until its end.

    Example: refold run signal closed --session shop-7 --yes
    """
    actor, data = operator.actor or login(), json_value(payload, "--payload")
    if bool(name) == bool(session or label):
        raise UsageError("it takes a run, or what many have in common", hint="RUN NAME, or NAME --session S")
    said = signal_message(ids.run_id(run) if name else "", name or run, data, signal_id=id_, actor=actor)
    if not name:
        _tell_many(Selector(session, labels_of(label)), said, operator, yes=yes)
        return
    answer = operator.perform(signal(operator.runs.get(run).state, said))
    step = step_of(answer.run.state, said)
    words = f"taken by step {step}" if step else "kept until the run waits for it"
    again = " before" if answer.what == "known" else ""
    _tell(
        operator, answer, step, said.signal_id, f"signal [bold]{output.escape(said.signal_id)}[/] was{again} {words};"
    )


def _tell_many(which: Selector, said: RunSignal, operator: Operator, *, yes: bool) -> None:
    found = selected(operator.runs.all(), which, "signal")
    rows = [row_of(run) for run in found]
    if not yes:
        operator.tell_meant(rows, f"would be told {said.name}")
        return
    each = [replace(said, run_id=run.state.run_id) for run in found]
    outcomes = operator.perform_all(
        [signal(run.state, mine) for run, mine in zip(found, each, strict=True)], "tell runs"
    )
    bad = {run: outcome for run, outcome in outcomes.items() if outcome.what not in ("accepted", "known")}
    for run, outcome in bad.items():
        output.warn(f"{run}: {outcome.error or 'no answer so far'}")
    told = [row.dump() | _became(outcomes[mine.run_id], mine) for row, mine in zip(rows, each, strict=True)]
    text = f"{output.counted(len(rows) - len(bad), 'run')} of {len(rows)} told: signal {output.escape(said.signal_id)}"
    operator.tell({"dry_run": False, "count": len(rows), "said": said.signal_id, "runs": told}, text)
    if bad:
        output.note(f"once more, and none is told twice: --id {said.signal_id}")
        fail(FAILED)


def _became(outcome: Outcome, said: RunSignal) -> output.Data:
    has_it = outcome.what in ("accepted", "known")
    return {"outcome": outcome.what, "step": step_of(outcome.state, said) if has_it else 0, "error": outcome.error}


def resolve_callback(
    token: TokenArgument,
    *,
    payload: PayloadOption = "null",
    key: KeyOption = "",
    operator: Operator,
) -> None:
    """Complete a callback with its result. The first answer counts; the same one again is harmless."""
    said = answered(token, json_value(payload, "--payload"), key=key, actor=operator.actor or login())
    _answer(operator, said, "has the result")


def fail_callback(
    token: TokenArgument,
    *,
    message: Annotated[str, "Why there will be no result; the agent sees it."],
    key: KeyOption = "",
    operator: Operator,
) -> None:
    """Fail a callback: the agent sees a failure."""
    if not message:
        raise UsageError("a failure has a reason", hint="--message 'the card was declined'")
    _answer(operator, answered(token, failure=message, key=key, actor=operator.actor or login()), "has failed")


def _answer(operator: Operator, said: RunSignal, words: str) -> None:
    answer = operator.perform(operations.answer_callback(operator.runs.get(said.run_id).state, said))
    step = step_of(answer.run.state, said)
    made, again = answer.run.timeline.steps[step - 1], " already" if answer.what == "known" else ""
    _tell(operator, answer, step, said.key, f"callback [bold]{output.escape(made.name)}[/] {words}{again};")


def _tell(operator: Operator, answer: Performed, step: int, said: str, words: str) -> None:
    run = output.escape(answer.run.state.run_id)
    operator.tell_answer(answer, f"the {words} run [bold]{run}[/]", SignalSaid, step=step, said=said)


def retry_run(
    run: Annotated[str, "The run; without it, filters."] = "",
    *,
    step: Annotated[Natural, "--from STEP", "Repeat this step and all after it."] = 0,
    edit: Annotated[str, "JSON|@FILE|-", "That call's arguments instead."] = "",
    steps: Annotated[Natural, "Raise the limit of steps to N."] = 0,
    history_bytes: Annotated[Natural, "--bytes", "Raise the limit of the history to N bytes."] = 0,
    children: Annotated[Natural, "Raise the limit of started runs to N."] = 0,
    tokens: Annotated[Natural, "Raise the budget to N tokens."] = 0,
    usd: Annotated[str, "2.50", "Raise the budget to so many dollars."] = "0",
    calls: Annotated[Natural, "Raise the budget to N calls."] = 0,
    deadline: Annotated[str, "2h|TIME|none", "When it fails if it is not over."] = "",
    reason: Annotated[str, "Why; it stays in the history."] = "",
    agent: Annotated[str, "All failed runs of this agent."] = "",
    code: Annotated[str, "All that failed with this code."] = "",
    since: Annotated[str, "2h|TIME", "All that failed since then."] = "",
    yes: Annotated[bool, "Do it, and do not ask."] = False,
    operator: Operator,
) -> None:
    """Retry a failed run where it failed, or a stalled one.

    What a failed run has done stays done. With --from the steps before STEP stay, and that one and all after it are
    done again, as new steps. Many runs at once are named by --agent, --code and --since: without --yes they are shown.

    Example: refold run retry --agent order --code timeout --since 2h --yes
    """
    text = canonical.dumps(json_value(edit, "--edit")) if edit else ""
    nano = nano_usd(dollars(usd, "--usd"))
    changes = Changes(step, text, steps, history_bytes, _deadline(deadline), children, reason, tokens, nano, calls)
    if run and (agent or code or since):
        raise UsageError("a run and filters name different things", hint="give one of them")
    if run:
        _retry_one(run, changes, operator, yes=yes)
    elif agent or code or since:
        if step:
            raise UsageError("--from is about the steps of one run", hint="name the run")
        _retry_many(Selector(agent=agent, code=code, since_ms=since_ms(since)), changes, operator, yes=yes)
    else:
        raise UsageError("no run is named", hint="refold run retry RUN, or --agent, --code, --since for many")


def _retry_one(run: str, changes: Changes, operator: Operator, *, yes: bool) -> None:
    found, actor = operator.runs.get(run), operator.actor or login()
    words = f"run [bold]{output.escape(run)}[/] goes on, it"
    if found.status == "stalled":
        if changes != Changes():
            raise UsageError(f"run {run} is stalled, not failed", hint="only its code is run again; leave options out")
        operator.tell_answer(operator.perform(retry_code(found, actor)), words)
        return
    operation = redrive(found.state, actor, changes)
    again = left_behind(found.state, changes.from_step) if changes.from_step else []
    if again and not yes and not typer.confirm(_warning(again)):
        output.say("nothing was retried")
        fail(FAILED)
    kept = changes.from_step - 1 if changes.from_step else stays(found.state)
    operator.tell_answer(operator.perform(operation), words, Redriven, kept=kept)


def _retry_many(which: Selector, changes: Changes, operator: Operator, *, yes: bool) -> None:
    found = selected(operator.runs.all(), which, "retry")
    if not yes:
        rows = [_row(run, "would be retried") for run in found]
        operator.tell({"dry_run": True, "count": len(rows), "runs": rows}, lambda: _show(rows))
        return
    actor = operator.actor or login()
    outcomes = operator.perform_all([redrive(run.state, actor, changes) for run in found], "retry failed runs")
    rows = [_row(run, outcomes[run.state.run_id].what) for run in found]
    late = sum(row["outcome"] != "accepted" for row in rows)
    text = f"{output.counted(len(rows) - late, 'run')} of {len(rows)} go on"
    hint = "; of the others nothing was heard: `refold deadletter list` may tell" if late else ""
    operator.tell({"dry_run": False, "count": len(rows), "runs": rows}, text + hint)
    if late:
        fail(FAILED)


def _row(run: Run, outcome: str) -> output.Data:
    row, failure = row_of(run), ending_of(run).failed
    return {
        "run_id": row.run_id,
        "agent": row.agent,
        "code": failure.code if failure else "",
        "message": failure.message if failure else "",
        "failed_ms": row.at_ms,
        "kept": stays(run.state),
        "outcome": outcome,
    }


def _show(rows: list[output.Data]) -> None:
    if not rows:
        output.say("no failed run is meant by that")
        return
    columns = ("run", "agent", "code", "failed (UTC)", "steps kept", "message")
    cells = [
        (
            *map(output.escape, (row["run_id"], row["agent"], row["code"])),
            output.moment(row["failed_ms"]),
            str(row["kept"]),
            output.escape(row["message"], 80),
        )
        for row in rows
    ]
    output.print_table(columns, cells)
    output.say(f"{output.counted(len(rows), 'run')} would go on: say it once more with --yes")


def _warning(again: list[Done]) -> str:
    many = ", ".join(f"step {done.step} {done.tool} ({done.effect})" for done in again[:10])
    more = f" and {len(again) - 10} more" if len(again) > 10 else ""
    return (
        f"These may have had their effect, and would be made once more if the code asks for them: {many}{more}. Go on?"
    )


def _deadline(text: str) -> int:
    return -1 if text == "none" else until_ms(text, "--deadline")


def list_versions(*, agent: Annotated[str, "Only of this agent."] = "", shell: Shell) -> None:
    """List the versions that live runs need, and stalled runs."""
    rows = [row for row in versions_in_use(_all(shell.runs)) if agent in ("", row.agent)]
    cells = [
        {
            "agent": row.agent,
            "version": row.version,
            "live": row.live,
            "stalled": len(row.stalled),
            "because": sorted(set(row.stalled.values())),
        }
        for row in rows
    ]
    columns = ("agent", "version", "live", "stalled", "because")
    shell.tell(rows, lambda: output.print_rows(cells, columns, "no run lives"))


def migrate_runs(
    run: Annotated[str, "This run."] = "",
    *,
    to: Annotated[str, "VERSION", "What the runs are to go on with."],
    agent: Annotated[str, "All runs of this agent that live, with --from."] = "",
    since: Annotated[str, "--from VERSION", "Only runs that are of this version."] = "",
    dry_run: Annotated[bool, "Say which runs it would be; write nothing."] = False,
    operator: Operator,
) -> None:
    """Migrate runs to another version of their agent. Each run migrates only if its history fits that version."""
    if bool(run) == bool(agent and since):
        raise UsageError("say which runs", hint="RUN, or --agent and --from")
    chosen = _chosen(operator.runs, run, agent, since)
    if not chosen:
        raise NotFoundError(f"no run of {agent} of version {since} lives", hint="`refold versions list` shows all")
    rows, told = list[dict[str, str]](), output.progress()
    for number, each in enumerate(chosen):
        told("migrate", number, len(chosen))
        rows.append(_migrated(each, to, "would" if dry_run else _migrate(each, to, operator)))
    refused = [row for row in rows if row["outcome"] not in ("accepted", "known", "would")]
    lines = [f"[bold]{output.escape(row['run_id'])}[/]: {output.escape(row['outcome'])}" for row in refused]
    verb = "would be" if dry_run else "are"
    done = f"{output.counted(len(rows) - len(refused), 'run')} {verb} of version {output.escape(to)}"
    operator.tell(rows, "\n".join([*lines, done]))
    if refused:
        fail(FAILED)


def _chosen(runs: Runs, run: str, agent: str, since: str) -> list[Run]:
    if run:
        found = runs.get(run)
        if since and since not in _names(found):
            raise ConflictError(f"run {run} is of version {found.state.version}", hint="leave --from out")
        return [found]
    live = [each for each in _all(runs) if not each.state.over and each.state.request and each.state.started_ms]
    return [each for each in live if each.state.request.agent == agent and since in _names(each)]  # type: ignore[union-attr]


def _names(run: Run) -> tuple[str, str]:
    """What the version of a run is called: with what it stands on, and without."""
    return run.state.version, spoken(run.state.version)[0]


def _migrate(run: Run, to: str, operator: Operator) -> str:
    try:
        return operator.perform(migrate(run.state, to, operator.actor or login())).what
    except (ConflictError, UsageError) as error:
        return error.message


def _migrated(run: Run, to: str, outcome: str) -> dict[str, str]:
    return {"run_id": run.state.run_id, "from": run.state.version, "to": to, "outcome": outcome}


def _all(runs: Runs) -> list[Run]:
    told, found = output.progress(), list[Run]()
    for number in range(runs.partitions):
        told("read the run log", number, runs.partitions)
        found += runs.all(number)
    return found


def fail_run(
    run: RunArgument,
    *,
    reason: Annotated[str, "Why; it stays in the history."] = "",
    operator: Operator,
) -> None:
    """End a stalled run whose code will never agree with its history."""
    by = By(operator.actor or login(), reason)
    operator.tell_answer(
        operator.perform(operations.fail_stalled(operator.runs.get(run), by)), f"run [bold]{output.escape(run)}[/]"
    )


def repair_run(
    run: RunArgument,
    *,
    head: Annotated[str, "ID", "The last entry of the history that counts."] = "",
    operator: Operator,
) -> None:
    """Rewrite a run's records in order where a tool has mixed them. Adds and changes no event.

    With --head that history counts, and what is not part of it is buried for good: `refold run events RUN --raw` shows
    all records, void ones too.
    """
    if head and not re.fullmatch(r"[0-9a-f]{32}", head):
        raise UsageError(f"{head!r} is not the id of an entry", hint="`refold run events RUN --raw` shows ids")
    repair = operations.repair(operator.runs.get(run), head, operator.actor or login())
    operator.tell_answer(operator.perform(repair), f"run [bold]{output.escape(run)}[/] stands in order again; it")
