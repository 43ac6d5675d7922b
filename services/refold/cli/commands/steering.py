"""`refold run`: operations on runs."""

import json
import re
from dataclasses import dataclass, replace
from typing import Annotated

from refold.cli import options, output
from refold.cli.operator import Operator, repeat_warning
from refold.cli.platform import agree, json_value, labels_of, since_ms, until_ms
from refold.cli.views import runs as run_views
from refold.client.operations import run as operations
from refold.client.operations.operation import Outcome, Performed
from refold.client.operations.run import By, Changes
from refold.client.operations.runs import RunQuery, selected
from refold.client.reading.history import Run
from refold.client.reading.outcome import PauseResult, Redriven, SignalResult
from refold.client.reading.run import ending_of, row_of
from refold.core import ids
from refold.core.errors import ConflictError, NotFoundError, UsageError
from refold.core.ids import RunId
from refold.core.messages import RunSignal
from refold.core.planning.pausing import PAUSE, RESUME
from refold.core.run.account import dollars, nano_usd
from refold.core.run.pausing import own
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.sdk.source import spoken

AsOperator = Annotated[bool, "Act as an operator, even on a run you requested."]
OneOrMany = Annotated[str, "RUN", "The run's id. Omit it to select runs with filters."]


@dataclass(frozen=True)
class SteeringOptions(Operator):
    """Options of cancel, pause and resume: a filter of many runs, and the key that signs the requests."""

    session: options.SessionOption = ""
    label: options.LabelOption = None
    agent: options.AgentOption = ""
    yes: Annotated[bool, "Apply to all selected runs. Without it, list them."] = False
    as_operator: AsOperator = False
    key: options.SignOption = ""

    def query(self, run: str) -> RunQuery:
        """Filter of the runs, empty if RUN is given. **Raises** UsageError."""
        which = RunQuery(session=self.session, labels=labels_of(self.label), agent=self.agent)
        if bool(run) == (which != RunQuery()):
            hint = "give RUN, or filters: --session ID, --label K=V, --agent NAME"
            raise UsageError("a run and filters exclude each other" if run else "no run is named", hint=hint)
        return which

    def by(self, reason: str) -> By:
        return By(self.who, reason, self.as_operator, self.signing(self.key))

    def steer(self, kind: str, run: str, reason: str = "") -> None:
        which = self.query(run)
        if not run:
            self._steer_many(kind, which, reason)
            return
        answer = self.perform(operations.word(self.runs.get(run).state, kind, self.by(reason)))
        name = f"run [bold]{output.escape(run)}[/]"
        if kind == "cancel":
            self.print_answer(answer, name)
            return
        state = answer.run.state
        row = PauseResult(run_id=run, outcome=answer.what, status=state.status, paused=list(state.paused))
        self.print(row, f"{name} is {output.styled(_status(state))}")

    def _steer_many(self, kind: str, which: RunQuery, reason: str) -> None:
        runs = selected(self.runs.all(), which, kind)
        rows, done = [row_of(run) for run in runs], _PAST[kind]
        if not self.yes:
            self.print_selected(rows, lambda: run_views.print_meant(rows, f"would be {done}"))
            return
        outcomes = self.perform_all([operations.word(run.state, kind, self.by(reason)) for run in runs], f"{kind} runs")
        states = [outcomes[RunId(row.run_id)].state for row in rows]
        rows = [row.model_copy(update={"status": _status(state)}) for row, state in zip(rows, states, strict=True)]
        count = sum(_took_effect(state, kind) for state in states)
        self.print_many(rows, f"{output.counted(count, 'run')} of {len(rows)} {done}", ok=count == len(rows))


_PAST = {"cancel": "cancelled", PAUSE: "paused", RESUME: "resumed"}


def cancel_run(
    run: OneOrMany = "",
    *,
    reason: options.ReasonOption = "",
    as_failed: Annotated[bool, "Fail RUN, which is stalled and whose code will never match its history."] = False,
    operator: SteeringOptions,
) -> None:
    """Cancel a run and the runs it has started. Best effort for a call that an executor has claimed already.

    To cancel another person's run, you need the right to write `run-operated`. --session, --label and --agent select
    many runs; add --yes to cancel them.
    """
    if not as_failed:
        operator.steer("cancel", run, reason)
        return
    if not run:
        raise UsageError("--as-failed needs one run", hint="refold run cancel RUN --as-failed")
    operator.query(run)
    operator.refuse("yes as_operator key", "does not go with --as-failed")
    fail = operations.fail_stalled(operator.runs.get(run), By(operator.who, reason))
    operator.print_answer(operator.perform(fail), f"run [bold]{output.escape(run)}[/]")


def pause_run(run: OneOrMany = "", *, reason: options.ReasonOption = "", operator: SteeringOptions) -> None:
    """Pause a run and the runs it has started. It starts no new call until `refold run resume`.

    Calls that executors have begun finish. Their results, signals, answers and timers take effect on resume.
    --session, --label and --agent select many runs; add --yes to pause them.
    """
    operator.steer(PAUSE, run, reason)


def resume_run(run: OneOrMany = "", *, operator: SteeringOptions) -> None:
    """Resume a paused run. The runs it has started resume too, unless they were paused themselves.

    Only an operator resumes a run that an operator paused. --session, --label and --agent select many runs that were
    paused themselves; add --yes to resume them.
    """
    operator.steer(RESUME, run)


def annotate_run(
    run: options.RunArgument,
    note: Annotated[str, "TEXT", "The note."],
    *,
    id_: Annotated[str, "Id of the note; a resend with the same id is ignored.  \\[default: a new one]"] = "",
    as_operator: AsOperator = False,
    key: options.SignOption = "",
    operator: Operator,
) -> None:
    """Add a note to the history of a run that goes on. `refold run events --audit` prints it."""
    by = By(operator.who, "", as_operator, operator.signing(key))
    answer = operator.perform(operations.annotate(operator.runs.get(run).state, note, by, id_))
    prefix = "known" if answer.what == "known" else "noted"
    operator.print_answer(answer, f"{prefix}: run [bold]{output.escape(run)}[/]")


def _status(state: RunState) -> str:
    return "paused" if state.paused and not state.over else state.status


def _took_effect(state: RunState, kind: str) -> bool:
    if kind == "cancel":
        return state.status == "cancelled"
    return not state.over and (own(state) is not None) == (kind == PAUSE)


PayloadOption = Annotated[str, "JSON|@FILE|-", "The data to send."]


@dataclass(frozen=True)
class UpdateOptions(Operator):
    """Options of `refold run update`: the payload and the id of the signal."""

    payload: PayloadOption = "null"
    id_: Annotated[str, "Id of the signal; a resend with the same id is ignored.  \\[default: a new one]"] = ""

    def message(self, run: str, name: str) -> RunSignal:
        """Signal `name` for a run, with the payload of the options; with an empty `run` a draft for many."""
        data = json_value(self.payload, "--payload")
        return operations.signal_message(run and ids.run_id(run), name, data, signal_id=self.id_, actor=self.who)


@dataclass(frozen=True)
class SignalOptions(UpdateOptions):
    """Options of `refold run signal`: those of an update, and a filter of many runs."""

    session: options.SessionOption = ""
    label: options.LabelOption = None
    yes: Annotated[bool, "Signal all selected runs. Without it, list them."] = False

    def signal_all(self, name: str) -> None:
        which = RunQuery(session=self.session, labels=labels_of(self.label))
        message, runs = self.message("", name), selected(self.runs.all(), which, "signal")
        rows = [row_of(run) for run in runs]
        if not self.yes:
            self.print_selected(rows, lambda: run_views.print_meant(rows, f"would be told {message.name}"))
            return
        messages = {run.state.run_id: replace(message, run_id=run.state.run_id) for run in runs}
        signals = [operations.signal(run.state, messages[run.state.run_id]) for run in runs]
        outcomes = self.perform_all(signals, "tell runs")
        bad = {run: outcome for run, outcome in outcomes.items() if not _has_signal(outcome)}
        for run, outcome in bad.items():
            output.warn(f"{run}: {outcome.error or 'no answer so far'}")
        results = [row.dump() | _outcome_row(outcomes[RunId(row.run_id)], messages[RunId(row.run_id)]) for row in rows]
        text = f"{output.counted(len(rows) - len(bad), 'run')} of {len(rows)} told"
        if bad:
            output.note(f"once more, and none is told twice: --id {message.signal_id}")
        text += f": signal {output.escape(message.signal_id)}"
        self.print_many(results, text, said=message.signal_id, ok=not bad)


def signal_run(
    run: Annotated[str, "The run's id. Omit it to select runs with filters."],
    name: Annotated[str, "Name of the signal, as in `ctx.wait_for(NAME)`."] = "",
    *,
    caller: SignalOptions,
) -> None:
    """Send a signal that a run waits for, now or later. A wait takes it once.

    --session and --label select many runs and their children; add --yes to signal them. A run that never waits for
    the signal keeps it until the run ends.

    Example: refold run signal closed --session shop-7 --yes
    """
    if bool(name) == bool(caller.session or caller.label):
        raise UsageError("it takes a run, or what many have in common", hint="RUN NAME, or NAME --session S")
    if not name:
        caller.signal_all(run)
        return
    message = caller.message(run, name)
    answer = caller.perform(operations.signal(caller.runs.get(run).state, message))
    step = operations.step_of(answer.run.state, message)
    text = f"taken by step {step}" if step else "kept until the run waits for it"
    again = " before" if answer.what == "known" else ""
    text = f"signal [bold]{output.escape(message.signal_id)}[/] was{again} {text};"
    _print_result(caller, answer, step, message.signal_id, text)


def update_run(
    run: options.RunArgument,
    name: Annotated[str, "Name of the update, as in `@ctx.on(NAME)`."],
    *,
    caller: UpdateOptions,
) -> None:
    """Send an update to a run. The agent's answer is printed. The same --id gets the same answer.

    Exit codes: 1 the answer is a failure, 4 the run is over without an answer, 6 no answer within the timeout.
    """
    message = caller.message(run, name)
    done = caller.perform(operations.update(caller.runs.get(run).state, message))
    answer = operations.update_result(done, message)
    result = output.escape(json.dumps(answer.result, ensure_ascii=False))
    failed = answer.failure and f"[red]{output.escape(answer.failure.code)}: {output.escape(answer.failure.message)}[/]"
    caller.print(answer, failed or result, ok=not failed)


def _has_signal(outcome: Outcome) -> bool:
    return outcome.what in ("accepted", "known")


def _outcome_row(outcome: Outcome, message: RunSignal) -> output.Data:
    """Fields that a signal's outcome adds to the row of its run; step 0: no step has taken the signal."""
    step = operations.step_of(outcome.state, message) if _has_signal(outcome) else 0
    return {"outcome": outcome.what, "step": step, "error": outcome.error}


def answer_callback(
    token: Annotated[str, "TOKEN", "The callback's token, which begins with cb_."],
    *,
    payload: PayloadOption = "null",
    fail_: Annotated[str | None, "REASON", "Fail the callback: the agent sees this reason."] = None,
    key: Annotated[str, "KEY", "Idempotency key; a resend with the same key is ignored."] = "",
    operator: Operator,
) -> None:
    """Complete or fail a callback by its token. The first answer counts; sending it again is harmless."""
    if fail_ == "":
        raise UsageError("a failure needs a reason", hint="add --fail 'the card was declined'")
    if fail_:
        if payload != "null":
            raise UsageError("--payload is for a result, and --fail for a failure", hint="leave one of them out")
        message, text = operations.answered(token, failure=fail_, key=key, actor=operator.who), "has failed"
    else:
        result, text = json_value(payload, "--payload"), "has the result"
        message = operations.answered(token, result, key=key, actor=operator.who)
    answer = operator.perform(operations.answer_callback(operator.runs.get(message.run_id).state, message))
    step = operations.step_of(answer.run.state, message)
    name, again = answer.run.timeline.steps[step - 1].name, " already" if answer.what == "known" else ""
    _print_result(operator, answer, step, message.key, f"callback [bold]{output.escape(name)}[/] {text}{again};")


def _print_result(operator: Operator, answer: Performed, step: int, signal_id: str, text: str) -> None:
    run = output.escape(answer.run.state.run_id)
    operator.print_answer(answer, f"the {text} run [bold]{run}[/]", SignalResult, step=step, said=signal_id)


@dataclass(frozen=True)
class Retry(Operator):
    """Options of `refold run retry`: the step to repeat from, raised limits and budgets, filters of failed runs."""

    step: Annotated[options.Natural, "--from STEP", "Repeat this step and all later ones."] = 0
    edit: Annotated[str, "JSON|@FILE|-", "New arguments for the call of STEP."] = ""
    steps: Annotated[options.Natural, "Raise the step limit to N.  \\[default: unchanged]"] = 0
    history_bytes: Annotated[options.Natural, "--bytes", "Raise the history limit to N.  \\[default: unchanged]"] = 0
    children: Annotated[options.Natural, "Raise the limit of child runs to N.  \\[default: unchanged]"] = 0
    tokens: Annotated[options.Natural, "Raise the token budget to N.  \\[default: unchanged]"] = 0
    usd: Annotated[str, "DOLLARS", "Raise the money budget, such as 2.50.  \\[default: unchanged]"] = "0"
    calls: Annotated[options.Natural, "Raise the call budget to N.  \\[default: unchanged]"] = 0
    deadline: Annotated[str, "2h|TIME|none", "Set a new deadline.  \\[default: unchanged]"] = ""
    reason: options.ReasonOption = ""
    agent: Annotated[str, "NAME", "Only failed runs of this agent."] = ""
    code: Annotated[str, "CODE", "Only runs that failed with this code."] = ""
    since: Annotated[str, "2h|TIME", "Only runs that failed since TIME, or in the last 2h."] = ""
    yes: Annotated[bool, "Apply to all selected runs. Without it, list them."] = False

    @property
    def changes(self) -> Changes:
        edit = canonical.dumps(json_value(self.edit, "--edit")) if self.edit else ""
        nano = nano_usd(dollars(self.usd, "--usd"))
        deadline_ms = -1 if self.deadline == "none" else until_ms(self.deadline, "--deadline")
        limits = (self.steps, self.history_bytes, deadline_ms, self.children)
        return Changes(self.step, edit, *limits, self.reason, self.tokens, nano, self.calls)

    def one(self, run: str, changes: Changes) -> None:
        current, text = self.runs.get(run), f"run [bold]{output.escape(run)}[/] goes on, it"
        if current.status == "stalled":
            if changes != Changes():
                hint = f"refold run retry {run}, without limits, budgets and --from"
                raise UsageError(f"run {run} is stalled, not failed", hint=hint)
            self.print_answer(self.perform(operations.retry_code(current, self.who)), text)
            return
        operation, steps = operations.redrive(current.state, self.who, changes), operations.stays(current.state)
        if changes.from_step:
            steps = changes.from_step - 1
            again = operations.left_behind(current.state, changes.from_step)
            agree(repeat_warning(again), "nothing was retried", yes=self.yes or not again)
        self.print_answer(self.perform(operation), text, Redriven, kept=steps)

    def many(self, changes: Changes) -> None:
        which = RunQuery(agent=self.agent, code=self.code, since_ms=since_ms(self.since))
        runs = selected(self.runs.all(), which, "retry")
        if not self.yes:
            rows = [_retry_row(run, "would be retried") for run in runs]
            self.print_selected(rows, lambda: _print_retry_rows(rows))
            return
        retries = [operations.redrive(run.state, self.who, changes) for run in runs]
        outcomes = self.perform_all(retries, "retry failed runs")
        rows = [_retry_row(run, outcomes[run.state.run_id].what) for run in runs]
        late = sum(row["outcome"] != "accepted" for row in rows)
        hint = "; the others did not answer: see `refold deadletter list`" if late else ""
        self.print_many(rows, f"{output.counted(len(rows) - late, 'run')} of {len(rows)} go on{hint}", ok=not late)


def retry_run(run: Annotated[str, "The run's id. Omit it to select runs with filters."] = "", *, retry: Retry) -> None:
    """Retry a failed run where it failed, or a stalled one.

    Completed steps are kept. With --from, STEP and all later steps are repeated as new ones. --agent, --code and
    --since select many failed runs; add --yes to retry them.

    Example: refold run retry --agent order --code timeout --since 2h --yes
    """
    changes, filtered = retry.changes, bool(retry.agent or retry.code or retry.since)
    if run and filtered:
        raise UsageError("a run and filters exclude each other", hint="give RUN, or --agent, --code and --since")
    if run:
        retry.one(run, changes)
    elif not filtered:
        raise UsageError("no run is named", hint="refold run retry RUN, or --agent, --code, --since for many")
    elif retry.step:
        raise UsageError("--from needs one run", hint="refold run retry RUN --from STEP")
    else:
        retry.many(changes)


def _retry_row(run: Run, outcome: str) -> output.Data:
    row, failure = row_of(run), ending_of(run).failed
    return {
        "run_id": row.run_id,
        "agent": row.agent,
        "code": failure.code if failure else "",
        "message": failure.message if failure else "",
        "failed_ms": row.at_ms,
        "kept": operations.stays(run.state),
        "outcome": outcome,
    }


def _print_retry_rows(rows: list[output.Data]) -> None:
    if not rows:
        output.say("no failed run is meant by that")
        return
    cells = [
        (
            *map(output.escape, (row["run_id"], row["agent"], row["code"])),
            output.moment(row["failed_ms"]),
            str(row["kept"]),
            output.escape(row["message"], 80),
        )
        for row in rows
    ]
    output.print_table(("run", "agent", "code", "failed (UTC)", "steps kept", "message"), cells)
    output.say(f"{output.counted(len(rows), 'run')} would go on: say it once more with --yes")


def migrate_runs(
    run: Annotated[str, "The run's id."] = "",
    *,
    to: Annotated[str, "VERSION", "Version to migrate to."],
    agent: Annotated[str, "All live runs of this agent, with --from."] = "",
    since: Annotated[str, "--from VERSION", "Only runs of this version."] = "",
    dry_run: Annotated[bool, "List the runs; write nothing."] = False,
    operator: Operator,
) -> None:
    """Migrate runs to another version of their agent. Each run migrates only if its history fits that version."""
    if bool(run) == bool(agent and since):
        problem = "a run and filters exclude each other" if run else "no run is named"
        raise UsageError(problem, hint="give RUN, or --agent and --from")
    chosen = _runs_to_migrate(operator, run, agent, since)
    if not chosen:
        hint = "`refold worker list --versions` lists the versions in use"
        raise NotFoundError(f"no live run of {agent} has version {since}", hint=hint)
    rows, progress = list[dict[str, str]](), output.progress()
    for number, candidate in enumerate(chosen):
        progress("migrate", number, len(chosen))
        outcome = "would" if dry_run else _migrate(candidate, to, operator)
        rows.append({"run_id": candidate.state.run_id, "from": candidate.state.version, "to": to, "outcome": outcome})
    refused = [row for row in rows if row["outcome"] not in ("accepted", "known", "would")]
    lines = [f"[bold]{output.escape(row['run_id'])}[/]: {output.escape(row['outcome'])}" for row in refused]
    verb = "would be" if dry_run else "are"
    done = f"{output.counted(len(rows) - len(refused), 'run')} {verb} of version {output.escape(to)}"
    operator.print(rows, "\n".join([*lines, done]), ok=not refused)


def _runs_to_migrate(operator: Operator, run: str, agent: str, since: str) -> list[Run]:
    if run:
        named = operator.runs.get(run)
        if since and since not in _versions(named):
            hint = f"refold run migrate {run} --to VERSION, without --from"
            raise ConflictError(f"run {run} has version {named.state.version}, not {since}", hint=hint)
        return [named]
    live = [candidate for candidate in operator.all_runs() if candidate.state.started_ms and not candidate.state.over]
    return [candidate for candidate in live if RunQuery(agent=agent).fits(candidate) and since in _versions(candidate)]


def _versions(run: Run) -> tuple[str, str]:
    """The run's version in full, and without its foundation."""
    return run.state.version, spoken(run.state.version)[0]


def _migrate(run: Run, to: str, operator: Operator) -> str:
    try:
        return operator.perform(operations.migrate(run.state, to, operator.who)).what
    except (ConflictError, UsageError) as error:
        return error.message


def repair_run(
    run: options.RunArgument,
    *,
    head: Annotated[str, "ID", "Last entry of the history to keep."] = "",
    operator: Operator,
) -> None:
    """Rewrite a run's records in order where a tool has mixed them. Adds and changes no event.

    With --head, records outside that history become void for good. `refold run events RUN --raw` prints all records.
    """
    if head and not re.fullmatch(r"[0-9a-f]{32}", head):
        raise UsageError(f"{head!r} is not the id of an entry", hint="`refold run events RUN --raw` shows ids")
    repair = operations.repair(operator.runs.get(run), head, operator.who)
    operator.print_answer(operator.perform(repair), f"run [bold]{output.escape(run)}[/] stands in order again; it")
