"""`refold run`: start runs, look at them, and do what only a human may."""

from __future__ import annotations

import re
import secrets
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import output
from refold.cli.errors import FAILED, fail
from refold.cli.platform import DataOption, JsonOption, KafkaOption, Platform, connect, login, source
from refold.core.errors import UsageError

if TYPE_CHECKING:
    from refold.client.inputs import InputAnswer, Inputs
    from refold.client.runs import Run

app = typer.Typer(help="Start runs, look at them, settle what is in doubt.", no_args_is_help=True)

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", help="Seconds to wait for the planner.", min=0.1)]
ActorOption = Annotated[str, typer.Option("--actor", help="Who says so.  [default: your login]", show_default=False)]


@app.command()
def start(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent to run; every app has `plan`.")],
    *,
    input_: Annotated[str, typer.Option("--input", metavar="JSON|@FILE|-", help="The agent's input.")] = "null",
    id_: Annotated[str, typer.Option("--id", help="The run's id.  [default: a fresh one]", show_default=False)] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the run is over.")] = False,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Seconds to wait at most; implies --wait.", min=0.1)
    ] = None,
    label: Annotated[list[str] | None, typer.Option("--label", metavar="K=V", help="May be repeated.")] = None,
    requester: Annotated[
        str, typer.Option("--requester", help="Who asks for it.  [default: your login]", show_default=False)
    ] = "",
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Start a run. The same id with the same input again is harmless, with other input a conflict."""
    from refold.core import ids
    from refold.core.messages import RunRequest
    from refold.core.wire import canonical

    run = ids.run_id(id_ or f"{re.sub('[^A-Za-z0-9_-]', '-', agent)}-{secrets.token_hex(4)}")
    given = canonical.dumps(canonical.parse(source(input_)))
    request = RunRequest(run, agent, given, requester or login(), 0, _labels(label))
    platform = connect(kafka=kafka, data=data)
    inputs = _inputs(platform)
    position = inputs.start(request)
    if not wait and timeout is None:
        if json_:
            output.emit({"run_id": run, "request": position})
        else:
            output.say(f"requested [bold]{run}[/] (run-requested/{position.partition}/{position.offset})")
            output.say(f"[dim]follow it: refold run watch {run}[/]")
        return
    inputs.started(request, position, timeout)
    _tell_end(inputs.ended(run, timeout), as_json=json_)


@app.command()
def show(run: RunArgument, *, kafka: KafkaOption = "", data: DataOption = "", json_: JsonOption = False) -> None:
    """Show a run: its status, every step with its attempts, and what waits for a human."""
    from refold.cli.views import runs as run_views

    found = connect(kafka=kafka, data=data).runs.get(run)
    if json_:
        output.emit(run_views.run_data(found))
    else:
        output.console().print(run_views.run_view(found))


@app.command("list")
def list_(
    status: Annotated[str, typer.Option("--status", help="Only runs of this status; `doubt` for those in doubt.")] = "",
    *,
    agent: Annotated[str, typer.Option("--agent", help="Only runs of this agent.")] = "",
    limit: Annotated[int, typer.Option("--limit", help="The newest so many.", min=1)] = 50,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """List runs, the oldest first."""
    from refold.cli.views import runs as run_views

    known = ("pending", "running", "suspended", "completed", "failed", "cancelled", "doubt")
    if status and status not in known:
        raise UsageError(f"{status!r} is not a status", hint=f"use one of {', '.join(known)}")
    rows = [run_views.summary(run) for run in connect(kafka=kafka, data=data).runs.all()]
    rows = [row for row in rows if not agent or row["agent"] == agent]
    rows = [row for row in rows if not status or row["status"] == status or (status == "doubt" and row["in_doubt"])]
    if json_:
        output.emit(rows[-limit:])
    else:
        run_views.print_list(rows[-limit:], hidden=max(0, len(rows) - limit))


@app.command()
def events(
    run: RunArgument,
    *,
    raw: Annotated[bool, typer.Option("--raw", help="Records as they lie in the log, void ones too.")] = False,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Print the history of a run, event by event, with the place of each in Kafka."""
    from refold.cli.views import runs as run_views

    found = connect(kafka=kafka, data=data).runs.get(run)
    rows = run_views.raw_records(found) if raw else run_views.event_rows(found)
    if json_:
        output.emit(rows)
        return
    for row in rows:
        output.say(run_views.raw_line(row) if raw else run_views.event_line(row))


@app.command()
def watch(
    run: RunArgument,
    *,
    timeout: Annotated[float | None, typer.Option("--timeout", help="Seconds to wait at most.", min=0.1)] = None,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Follow a run live until it is over. With --json one event a line."""
    from refold.cli.views import watching

    runs = connect(kafka=kafka, data=data).runs
    follow = watching.lines if json_ or not sys.stdout.isatty() else watching.live
    found = follow(runs, run, timeout, **({"as_json": json_} if follow is watching.lines else {}))
    if found.state.status != "completed":
        fail(FAILED)


@app.command()
def cancel(
    run: RunArgument,
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why; it stays in the history.")] = "",
    actor: ActorOption = "",
    timeout: TimeoutOption = 30.0,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Cancel a run. Best effort for a call that an executor has claimed already."""
    from refold.core import ids
    from refold.core.messages import RunSignal
    from refold.core.wire import canonical

    who = actor or login()
    signal = RunSignal(
        ids.run_id(run), f"cancel-{secrets.token_hex(6)}", "cancel", canonical.dumps({"reason": reason}), who
    )
    answer = _inputs(connect(kafka=kafka, data=data)).cancel(signal, timeout)
    _tell_answer(answer, as_json=json_, text=f"run [bold]{output.escape(run)}[/]")


@app.command()
def resolve(
    call: Annotated[str, typer.Argument(metavar="CALL", help="RUN/SEQ, as `refold run show` prints it.")],
    *,
    happened: Annotated[
        str | None, typer.Option("--happened", metavar="JSON", help="The effect happened, with this result.")
    ] = None,
    did_not_happen: Annotated[bool, typer.Option("--did-not-happen", help="It did not happen: run it.")] = False,
    give_up: Annotated[bool, typer.Option("--give-up", help="Nobody can tell: the call fails.")] = False,
    comment: Annotated[str, typer.Option("--comment", help="How you know; it stays in the history.")] = "",
    actor: ActorOption = "",
    timeout: TimeoutOption = 30.0,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Settle a call in doubt: say what you found out about its effect."""
    from refold.client.inputs import resolution
    from refold.core.wire import canonical

    if (happened is not None) + did_not_happen + give_up != 1:
        raise UsageError("say one thing about the call", hint="--happened JSON, --did-not-happen or --give-up")
    verdict = "happened" if happened is not None else "did_not_happen" if did_not_happen else "give_up"
    result = canonical.parse(source(happened)) if happened is not None else None
    platform = connect(kafka=kafka, data=data)
    signal = resolution(platform.runs, call, verdict=verdict, result=result, actor=actor or login(), comment=comment)
    answer = _inputs(platform).resolve(signal, timeout)
    known = "was resolved before as" if answer.what == "known" else "is resolved as"
    text = f"call [bold]{output.escape(call)}[/] {known} {verdict}; the run"
    _tell_answer(answer, as_json=json_, text=text, call_id=call, verdict=verdict)


@app.command()
def verify(
    run: Annotated[str, typer.Argument(metavar="[RUN]", help="Report on this run only.", show_default=False)] = "",
    *,
    settle: Annotated[
        float, typer.Option("--settle", help="Seconds that other topics may take to agree with the log.", min=0)
    ] = 5.0,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Re-check the whole log from raw bytes: the chain, the folds, and that all topics agree with them."""
    from refold.cli.views import verification

    platform = connect(kafka=kafka, data=data)
    if not verification.report(platform.runs.reader, run, settle_s=settle, as_json=json_):
        fail(FAILED)


def _inputs(platform: Platform) -> Inputs:
    from refold.client.inputs import Inputs

    return Inputs(platform.runs, platform.publisher)


def _labels(pairs: list[str] | None) -> dict[str, str]:
    found = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"{pair!r} is not a label", hint="write --label team=payments")
        found[name] = value
    return found


def _tell_end(run: Run, *, as_json: bool) -> None:
    from refold.cli.views import runs as run_views

    if as_json:
        output.emit(run_views.ending(run))
    else:
        output.console().print(run_views.run_view(run))
    if run.state.status != "completed":
        fail(FAILED)


def _tell_answer(answer: InputAnswer, *, as_json: bool, text: str, **facts: Any) -> None:
    state = answer.run.state
    if as_json:
        output.emit({"run_id": state.run_id, "outcome": answer.what, "status": state.status, **facts})
    else:
        output.say(f"{text} is {output.styled(state.status)}")
