"""`refold schedule`: runs of agents by the clock."""

import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from refold.cli import options, output
from refold.cli.apps import load_app
from refold.cli.operator import Operator
from refold.cli.platform import until_ms
from refold.client.operations import run as operations
from refold.client.operations.run import By, prepared, start_run
from refold.client.reading.model import utc_of
from refold.client.schedules import ScheduleRow, applied, live_schedule, schedule_rows, schedule_run, schedule_runs
from refold.core.approval.signature import REQUEST
from refold.core.errors import NotFoundError, UsageError
from refold.core.planning.pausing import PAUSE, RESUME
from refold.engine.runtime.addresses import own_key
from refold.engine.stores import blob_store
from refold.sdk.app import App

NameArgument = Annotated[str, "NAME", "The schedule's name."]


@dataclass(frozen=True)
class ScheduleOptions(Operator):
    """Options of commands about schedules: the key that signs the requests."""

    key: options.SignOption = ""

    def apply(self, app: App) -> list[dict[str, str]]:
        """Make the schedules of an app as declared. **Raises** TimedOutError if no planner answers."""
        rows, settings, runs = [], self.platform.settings, schedule_runs(self.runs)
        for name, spec in app.schedules.items():
            known = [run for run in runs if schedule_run(run).name == name]
            found = applied(known, name, spec.model_dump(mode="json"), self.who)
            operation = found.operation
            if found.request:
                key = own_key(REQUEST, self.key, self.data)
                operation = start_run(prepared(found.request, settings, partial(blob_store, settings), key))
            if operation:
                self.perform(operation)
            rows.append({"schedule": name, "outcome": found.outcome})
        live = [row.schedule for row in schedule_rows(map(schedule_run, runs)) if row.status in ("active", "paused")]
        return rows + [{"schedule": name, "outcome": "not in the app"} for name in live if name not in app.schedules]

    def steer(self, kind: str, name: str, reason: str = "") -> None:
        by = By(self.who, reason, False, self.signing(self.key))
        self.perform(operations.word(live_schedule(self.runs, name), kind, by))
        self.print_one(name)

    def print_one(self, name: str) -> None:
        if not (rows := rows_of(self, name)):
            raise NotFoundError(f"there is no schedule {name}", hint="`refold schedule list` shows all")
        self.print(rows[0], partial(print_schedule, rows[0]))

    def update(self, name: str, what: str, data: object) -> str:
        state = live_schedule(self.runs, name)
        message = operations.signal_message(state.run_id, what, data, actor=self.who)
        answer = operations.update_result(self.perform(operations.update(state, message)), message)
        answer.check()
        return str(answer.result)


def rows_of(shell: Operator, name: str = "") -> list[ScheduleRow]:
    return schedule_rows(map(schedule_run, schedule_runs(shell.runs, name)))


def list_schedules(*, shell: Operator) -> None:
    """List schedules: their next tick, and their last run."""
    rows = rows_of(shell)
    nothing = "no schedules: `app.every(...)` declares one, `refold schedule apply --app APP` begins it"
    shell.print_rows(rows, "schedule status agent when zone next last", nothing, cells=map(_cells, rows))


def show_schedule(name: NameArgument, *, shell: ScheduleOptions) -> None:
    """Show a schedule: its next ten ticks, and its last ten runs."""
    shell.print_one(name)


def apply_schedules(
    *,
    app: Annotated[str, "APP", "App that declares schedules: MODULE:APP or path/file.py[:APP]."],
    shell: ScheduleOptions,
) -> None:
    """Begin the schedules of an app. Those that it declares otherwise are changed.

    A schedule that the app has no more goes on: `refold schedule remove NAME` ends it.
    """
    rows = shell.apply(load_app(app))
    shell.print_rows(rows, "schedule outcome", "the app declares no schedule: `app.every(...)`")


def pause_schedule(name: NameArgument, *, reason: options.ReasonOption = "", shell: ScheduleOptions) -> None:
    """Pause a schedule. Its runs go on; on resume, its option `catch_up` decides about missed ticks."""
    shell.steer(PAUSE, name, reason)


def resume_schedule(name: NameArgument, *, shell: ScheduleOptions) -> None:
    """Resume a paused schedule."""
    shell.steer(RESUME, name)


def remove_schedule(name: NameArgument, *, reason: options.ReasonOption = "", shell: ScheduleOptions) -> None:
    """End a schedule. Its runs go on. `refold schedule apply` begins it again, with its next tick."""
    shell.steer("cancel", name, reason)


def trigger_schedule(name: NameArgument, *, shell: ScheduleOptions) -> None:
    """Start the agent of a schedule now, beside its ticks and any run that goes on."""
    at = shell.update(name, "trigger", {})
    shell.print({"schedule": name, "tick": at}, f"[bold]{output.escape(name)}[/] triggered at {at}")


def backfill_schedule(
    name: NameArgument,
    *,
    from_: Annotated[str, "--from", "2d|TIME", "After this time."],
    to: Annotated[str, "2d|TIME", "Until this time.  \\[default: now]"] = "",
    shell: ScheduleOptions,
) -> None:
    """Start the agent of a schedule for ticks of the past. One run after another, 1,000 at most."""
    start, end = until_ms(from_, "--from", ahead=-1), until_ms(to or "0s", "--to", ahead=-1)
    if start >= end:
        raise UsageError("--from is not before --to", hint="refold schedule backfill NAME --from 2d --to 1d")
    count = shell.update(name, "backfill", {"start": utc_of(start).isoformat(), "end": utc_of(end).isoformat()})
    shell.print({"schedule": name, "ticks": int(count)}, f"{output.counted(int(count), 'tick')} to start")


def print_schedule(row: ScheduleRow) -> None:
    about = output.escape(f"{row.agent}, {row.when} {row.zone}")
    output.say(f"[bold]{output.escape(row.schedule)}[/] is {row.status}: {about}")
    output.say(f"run {row.run_id}: {row.started} started, {row.skipped} skipped, {row.failed} failed")
    output.print_rows([{"next": tick} for tick in row.next], ["next"], "no next tick")
    output.print_rows(row.outcomes[::-1], ["tick", "status", "run"], "no run is over so far")


def _cells(row: ScheduleRow) -> dict[str, object]:
    following = row.next[0] if row.next and row.status == "active" else "-"
    last = f"{row.outcomes[-1]['status']} {row.outcomes[-1]['tick']}" if row.outcomes else "-"
    return {**row.dump(), "next": following, "last": last}


def apply_in_background(app: str, data: Path) -> None:
    """Apply the schedules of an app on a `refold dev`; the output goes to `logs/schedules.log`."""
    # A process of its own: it waits for a planner, and has the code as it is now.
    command = [sys.executable, "-m", "refold", "schedule", "apply", "--app", app, "--data", str(data)]
    with (data / "logs" / "schedules.log").open("ab") as log:
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
