"""`refold run`: start, read, compare and verify runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from refold.cli import options, output
from refold.cli.errors import fail
from refold.cli.platform import Listing, Shell, json_value, labels_of, since_ms, smaller_budget, until_ms
from refold.cli.recorded import BundleFile, FromLog, in_bundle, recorded_run, store_of, views_of
from refold.cli.views import runs as run_views
from refold.cli.views import watching
from refold.client.operations.operation import follow_up, publish_input
from refold.client.operations.run import prepared, start_run
from refold.client.operations.runs import RunQuery, Runs
from refold.client.platform import login
from refold.client.reading import run as reading
from refold.client.reading.budget import LimitInUse, limits_in_use
from refold.client.reading.diff import run_diff, run_then
from refold.client.reading.history import Run, at_seq, at_time
from refold.client.reading.messages import messages_of, turns_of
from refold.client.reading.run import HoldChange, RawRecord, RunEvent, RunShown
from refold.client.reading.why import audit_of
from refold.client.values import in_full, texts_of
from refold.core.approval.signature import REQUEST
from refold.core.errors import ConflictError, NotFoundError, UsageError
from refold.core.ids import RunId
from refold.core.messages import RunRequest
from refold.core.planning import family
from refold.core.planning.windows import value_digest
from refold.core.run.state import ENDED
from refold.core.topics import BUDGET_SPENT
from refold.core.wire import canonical
from refold.engine.runtime.addresses import own_key
from refold.engine.runtime.clock import clock_ms
from refold.engine.stores import blob_store

_STATES = ("pending", "running", "suspended", *sorted(ENDED), "doubt", "held", "stalled", "paused")
RUN_STATES = {name: name for name in _STATES} | {"held": "on_hold"}
"""Values of --status, with their names in RunQuery."""
_BEGUN_S = 1.0
"""Time `run start` waits for the outcome of its request."""

ArchiveUrl = Annotated[str, "URL", "Read the copy in this archive, not Kafka."]
AtOption = Annotated[str, "SEQ|TIME", "Show it as of event SEQ or TIME: 2030-01-31T12:00Z, 2h ago."]


@dataclass(frozen=True)
class StartOptions(Shell):
    input_: Annotated[str, "JSON|@FILE|-", "The agent's input."] = "null"
    id_: Annotated[str, "The run's id.  \\[default: a new one]"] = ""
    wait: Annotated[bool, "Wait until the run ends."] = False
    timeout: Annotated[float | None, "Wait up to this long; implies --wait.", {"min": 0.1}] = None
    label: Annotated[list[str] | None, "K=V", "Label of the run. May be repeated."] = None
    session: Annotated[list[str] | None, "ID", "Session the run belongs to. May be repeated."] = None
    requester: Annotated[str, "NAME", "Name to record as the requester.  \\[default: your login]"] = ""
    not_before: Annotated[str, "2h|TIME", "Start no earlier: in 10m, or at 2030-01-31T12:00Z."] = ""
    deadline: Annotated[str, "2h|TIME", "Fail the run if it has not ended by then."] = ""
    budget: Annotated[str, "usd=2.50,calls=9", "Budget of the run; at most the agent's."] = ""
    key: options.SignOption = ""

    def request(self, agent: str) -> RunRequest:
        request = RunRequest(
            RunId(self.id_),
            agent,
            canonical.dumps(json_value(self.input_, "--input")),
            self.requester or login(),
            until_ms(self.not_before, "--not-before"),
            dict(labels_of(self.label)),
            sessions=self.session or [],
            deadline_ms=until_ms(self.deadline, "--deadline"),
            budget=smaller_budget(self.budget),
        )
        settings = self.platform.settings
        return prepared(request, settings, partial(blob_store, settings), own_key(REQUEST, self.key, self.data))


def begin_run(agent: Annotated[str, "The agent to run."], *, shell: StartOptions) -> None:
    """Start a run. The same id with the same input again is harmless, with other input a conflict."""
    request, runs, timeout = shell.request(agent), shell.runs, shell.timeout
    run, waits = request.run_id, shell.wait or timeout is not None
    exists = bool(shell.id_) and not waits and _is_known(runs, request)
    position = publish_input(shell.platform.publisher, request)
    if waits:
        follow_up(runs, start_run(request), position, timeout)
        ended = runs.ended(run, timeout)
        view, ok = run_views.run_view(reading.info_of(ended)), ended.state.status == "completed"
        shell.print(reading.ending_of(ended), lambda: output.console().print(view), ok=ok)
        return
    text = "is known already, and asked for again:" if exists else "requested"
    place = f"run-requested/{position.partition}/{position.offset}"
    if stall := runs.stall(run, _BEGUN_S):
        output.warn(f"{run} is stalled: {stall.message}")
    watch = f"[dim]follow it: refold run watch {run}[/]"
    shell.print({"run_id": run, "request": position}, f"{text} [bold]{run}[/] ({place})\n{watch}")


@dataclass(frozen=True)
class ShowOptions(Shell):
    full: Annotated[bool, "With --json: print large values in full, from the blob store."] = False
    messages: Annotated[int | None, "STEP", "Show the messages that the model call of this step sent.", {"min": 1}] = (
        None
    )
    archive: ArchiveUrl = ""
    bundle: BundleFile = ""
    at: AtOption = ""
    from_log: FromLog = False


def show_run(run: options.RunArgument, *, showing: ShowOptions) -> None:
    """Show a run: its status, its steps, and its open questions to people."""
    bundle = showing.bundle
    shown, family, archive = recorded_run(run, showing.archive, showing, from_log=showing.from_log, bundle=bundle)
    shown = point(shown, showing.at)
    texts = texts_of(shown.state.run_id, lambda: store_of(archive, showing))
    if showing.messages:
        messages = messages_of(shown.state, showing.messages, texts)
        showing.print(messages, lambda: run_views.print_messages(messages), ok=messages.verified)
        return
    below = family() if shown.state.children and not showing.at else []
    live = not (archive or showing.at or bundle)
    shown.mark(showing.platform.idle_pools, now=live)
    trusted = live and showing.platform.where.trust
    halted = run_views.halted(shown, below, showing.platform.catalog) if trusted else []
    for why in halted:
        output.warn(f"{why}; `refold halt --lift` lets it go on")
    for pool in showing.platform.without_topics(shown.state) if trusted else ():
        output.warn(f"pool {pool} has no topics, so its calls wait: `refold topics apply --app APP` creates them")
    info = reading.info_of(shown, turns_of(shown.state, texts) if showing.at else ())
    view = RunShown(**dict(info), halted=halted, family=[reading.row_of(relative) for relative in below])

    def show() -> None:
        output.console().print(run_views.run_view(view))
        run_views.print_family(view)

    whole = showing.full and showing.json_
    showing.print(_with_stored_values(view.dump(), run, archive, showing) if whole else view, show)


@dataclass(frozen=True)
class RunListing(Listing):
    at: Annotated[str, "TIME", "Show runs as of TIME: 2030-01-31T12:00Z, 2h ago."] = ""


def list_runs(
    *,
    status: Annotated[str, "Only runs with this status; also `doubt`, `held`, `stalled`, `paused`."] = "",
    agent: options.AgentOption = "",
    session: options.SessionOption = "",
    label: options.LabelOption = None,
    from_log: FromLog = False,
    shell: RunListing,
) -> None:
    """List runs, the oldest first. With --at, also their open calls and the inputs of models and tools."""
    if status and status not in RUN_STATES:
        raise UsageError(f"{status!r} is not a status", hint=f"use one of {', '.join(RUN_STATES)}")
    state, labels = RUN_STATES.get(status, ""), labels_of(label)
    query = RunQuery(agent=agent, state=state, labels=labels, session=session, limit=shell.limit)
    at_ms = since_ms(shell.at, "--at") if shell.at else None
    if status == "stalled" and shell.at:
        raise UsageError("what stalled a run is known of now alone", hint="leave --at out")
    settings, runs = shell.platform.settings, shell.runs
    views = views_of(settings, from_log=from_log)
    page = (views and views.listed(settings, query, at_ms, runs)) or runs.newest(query, at_ms)
    hidden, total = page.meant - len(page.runs), page.total
    if at_ms is not None:
        then = [run_then(run) for run in page.runs]
        shell.print(then, lambda: run_views.print_runs_then(then, hidden=hidden, of=total, at_ms=at_ms))
    else:
        rows = [reading.row_of(run) for run in page.runs]
        shell.print(rows, lambda: run_views.print_runs(rows, hidden=hidden, of=total, now_ms=clock_ms()))


@dataclass(frozen=True)
class EventOptions(Shell):
    raw: Annotated[bool, "Print the records of the log, void ones too."] = False
    since: Annotated[str, "2h|TIME", "Only events since TIME, or in the last 10m."] = ""
    tail: Annotated[int | None, "N", "Only the last N events.", {"min": 1}] = None
    full: Annotated[bool, "Print long values in full."] = False
    follow: Annotated[bool, "--follow, -f", "Keep running and print new events."] = False
    audit: Annotated[bool, "Print the audit trail: JSON Lines of all events, each with actors, reason and input."] = (
        False
    )
    archive: ArchiveUrl = ""
    bundle: BundleFile = ""
    from_log: FromLog = False

    def rows(self, run: str) -> Sequence[RunEvent | RawRecord]:
        from_log = self.from_log or self.raw
        history, _, archive = recorded_run(run, self.archive, self, from_log=from_log, bundle=self.bundle)
        after_ms = since_ms(self.since)
        rows = reading.records_of(history) if self.raw else reading.events_of(history)
        newest = [row for row in rows if row.at_ms >= after_ms][-self.tail if self.tail else 0 :]
        return [self._row_in_full(row, run, archive) for row in newest] if self.full else newest

    def _row_in_full(self, row: RunEvent | RawRecord, run: str, archive: str) -> RunEvent | RawRecord:
        if isinstance(row, RawRecord):
            return row
        return row.model_copy(update={"event": _with_stored_values(row.event, run, archive, self)})

    def print_audit(self, run: str) -> None:
        self.refuse("raw since tail full follow", "does not go with --audit, which prints every event")
        history, *_ = recorded_run(run, self.archive, self, from_log=self.from_log, bundle=self.bundle)
        for line in audit_of(history):
            output.emit(line)

    def print_row(self, row: RunEvent | RawRecord | HoldChange) -> None:
        if self.json_:
            output.emit(row)
        elif isinstance(row, RawRecord):
            output.say(watching.raw_line(row))
        else:
            output.say(watching.event_line(row, limit=0 if self.full else watching.CUT))

    def follow_run(self, run: str) -> None:
        self.refuse("raw tail archive bundle", "does not go with --follow, which prints every event as it comes")
        after_ms = since_ms(self.since)

        def show(row: RunEvent | HoldChange) -> None:
            if isinstance(row, HoldChange) or row.at_ms >= after_ms:
                self.print_row(row)

        watching.follow_events(self.runs, run, None, show)


def print_events(run: options.RunArgument, *, events: EventOptions) -> None:
    """Print the history of a run, one event a line, with its Kafka offset and the input that caused it."""
    if events.audit:
        events.print_audit(run)
        return
    if events.follow:
        events.follow_run(run)
        return
    rows = events.rows(run)
    for row in rows:
        events.print_row(row)
    if any(watching.is_cut(row) for row in rows if isinstance(row, RunEvent)) and not (events.full or events.json_):
        output.note(f"values that end in … have more than {watching.CUT} characters: --full shows all of them")


@dataclass(frozen=True)
class ValueOptions(Shell):
    archive: ArchiveUrl = ""
    bundle: BundleFile = ""
    at: AtOption = ""
    from_log: FromLog = False


def print_values(
    run: options.RunArgument,
    name: Annotated[str, "NAME", "Only the value of this name."] = "",
    *,
    reads: ValueOptions,
) -> None:
    """Print the values that a run exposes, or the JSON of one of them. No planner is needed for them."""
    recorded, *_ = recorded_run(run, reads.archive, reads, from_log=reads.from_log, bundle=reads.bundle)
    values = reading.exposed_values(point(recorded, reads.at).state.values.items())
    if name and name not in values:
        raise NotFoundError(f"run {run} exposes no {name!r}", hint=f"it exposes {', '.join(values) or 'nothing'}")
    lines = run_views.value_lines({name: values[name]} if name else values)
    reads.print(values[name] if name else values, "\n".join(lines) or "it exposes nothing")


def watch_run(
    run: options.RunArgument,
    *,
    timeout: Annotated[float | None, "Stop after this long, with --tokens of silence.", {"min": 0.1}] = None,
    tokens: Annotated[bool, "Print the live output instead, such as the tokens of a model."] = False,
    shell: Shell,
) -> None:
    """Show a run live until it is over. With --json one event, or part of the output, a line."""
    if tokens:
        watching.print_stream(shell.runs, run, timeout, as_json=shell.json_)
        return
    if shell.json_:
        ended = watching.follow_events(shell.runs, run, timeout, output.emit)
    else:
        ended = watching.watch(shell.runs, run, timeout)
    if ended.state.status != "completed":
        fail()


def diff_run(
    run: options.RunArgument,
    left: Annotated[str, "SEQ|TIME|RUN", "A point of the run, or another run."] = "",
    right: Annotated[str, "SEQ|TIME", "A later point of the run; without it, the second argument is a run."] = "",
    *,
    bundle: Annotated[str, "FILE", "Compare with the copy in this bundle, such as a fork."] = "",
    from_log: FromLog = False,
    shell: Shell,
) -> None:
    """Compare two points of a run, or two runs, or a run with its fork: status, steps, outcomes, budget, signals."""
    if not (left or bundle):
        raise UsageError("there is nothing to compare with", hint="name two points, another run, or --bundle FILE")
    recorded, *_ = recorded_run(run, "", shell, from_log=from_log)
    if bundle:
        difference = run_diff(point(recorded, left, "LEFT"), point(in_bundle(bundle, run)[run], right, "RIGHT"))
    elif right:
        difference = run_diff(point(recorded, left, "LEFT"), point(recorded, right, "RIGHT"))
    else:
        other, *_ = recorded_run(left, "", shell, from_log=from_log)
        difference = run_diff(recorded, other)
    shell.print(difference, lambda: run_views.print_diff(difference))


def point(run: Run, at: str, option: str = "--at") -> Run:
    """A run as of an event or a time; unchanged without `at`. **Raises** UsageError, MalformedError."""
    if not at:
        return run
    return at_seq(run, int(at)) if at.isdecimal() else at_time(run, since_ms(at, option))


def _with_stored_values(data: Any, run: str, archive: str, shell: Shell) -> Any:
    """Data with its large values loaded from the blob store of the platform or archive; unchanged if there is none."""
    store = store_of(archive, shell)
    return in_full(data, RunId(run), store) if store else data


def _is_known(runs: Runs, request: RunRequest) -> bool:
    existing = runs.find(RunId(request.run_id))
    requested = existing.state.request if existing else None
    # Without --wait the planner's refusal would go unnoticed.
    if requested and not family.is_of(request, family.request_digest(request), requested.request_digest):
        hint = f"choose another --id; `refold run show {request.run_id}` shows the run that has it"
        raise ConflictError(family.conflict(request, requested), hint=hint)
    return existing is not None


def limits(
    *,
    agent: Annotated[str, "Only limits of this agent."] = "",
    value: Annotated[str, "Only limits for this value of a label, such as a tenant."] = "",
    shell: Shell,
) -> None:
    """List the spending under limits per day and month, the newest first, and a gateway's limits a minute."""
    rows = [
        limit
        for limit in limits_in_use(shell.runs.reader.scan(BUDGET_SPENT))
        if agent in ("", limit.agent) and (not value or limit.value in (value, value_digest(value)))
    ]
    shell.print_rows(rows, "window runs usd tokens calls reached", "nothing was spent", cells=map(_limit_row, rows))
    if not shell.json_:
        gateway = shell.platform.settings.gateway
        for kind, rates in (("WRITES", gateway.writes), ("READS", gateway.reads)):
            text = ", ".join(f"{name} {most:,}" for name, most in rates.items())
            rate = f"{kind.lower()} a minute at a gateway with these settings"
            output.say(f"[dim]{rate}: {text} (REFOLD_GATEWAY__{kind})[/]")


def _limit_row(limit: LimitInUse) -> dict[str, str]:
    scope = [f"agent {limit.agent}"] if limit.agent else []
    scope += [f"{limit.label} {limit.value}"] if limit.label else []
    cells = run_views.taken_of(limit.spent, limit.limits)
    return {"window": limit.window, "runs": ", ".join(scope) or "all", **cells, "reached": limit.reached}
