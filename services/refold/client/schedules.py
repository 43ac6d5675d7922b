"""Schedules of a platform: runs of the agent `refold.schedule`, and what makes them as an app declares them."""

from collections.abc import Iterable
from typing import NamedTuple

from refold.client.operations.operation import OperationRow
from refold.client.operations.run import signal_message, update
from refold.client.operations.runs import RunQuery, Runs
from refold.client.reading.history import Run
from refold.client.reading.model import Data, ReadModel
from refold.client.reading.run import first_request
from refold.core.errors import NotFoundError
from refold.core.ids import RunId, generation_of, root_of
from refold.core.messages import RunRequest
from refold.core.run.intents import SCHEDULE_AGENT, SCHEDULE_VALUE
from refold.core.run.state import ENDED, RunState
from refold.core.wire import canonical

LABEL = "schedule"
"""Label with the name of a schedule, on its run and on the runs of its ticks."""

MOST_SCHEDULES = 10_000
"""Most runs of schedules that a list looks at, the newest ones."""


class ScheduleRow(ReadModel):
    """A schedule, as its latest run has it.

    `status` is active, paused, stalled, or how the run ended. `next`: its next ten ticks; `outcomes` of its last ten
    runs, each with its tick; both in local time of `zone`. `skipped` ticks started no run.
    """

    schedule: str
    run_id: str
    status: str
    agent: str
    when: str
    zone: str
    next: list[str]
    started: int
    skipped: int
    failed: int
    outcomes: list[Data]


class ScheduleRun(NamedTuple):
    """A run of a schedule; `value` is what it exposes, as JSON."""

    run_id: RunId
    label: str
    status: str
    paused: bool
    value: str

    @property
    def name(self) -> str:
        return self.label or self.run_id

    @property
    def age(self) -> tuple[int, str, int]:
        root = root_of(self.run_id)
        return len(root), root, generation_of(self.run_id)

    @property
    def shown(self) -> Data:
        return dict(canonical.parse(self.value or "{}"))

    @property
    def row(self) -> ScheduleRow:
        shown: Data = {"next": [], "started": 0, "skipped": 0, "failed": 0, "outcomes": [], "spec": {}} | self.shown
        spec: Data = shown.pop("spec")
        status = "active" if self.status in ("pending", "running", "suspended") else self.status
        status = "paused" if self.paused and self.status not in ENDED else status
        when = spec.get("cron") or f"every {spec.get('every', '')}"
        facts = {"schedule": self.name, "run_id": self.run_id, "status": status, "agent": spec.get("agent", "")}
        return ScheduleRow(**shown, **facts, when=when, zone=spec.get("zone", ""))


def schedule_rows(runs: Iterable[ScheduleRun]) -> list[ScheduleRow]:
    """Rows by name, each of the latest run."""
    latest = {run.name: run for run in sorted(runs, key=lambda run: run.age)}
    return [latest[name].row for name in sorted(latest)]


def schedule_runs(runs: Runs, name: str = "") -> list[Run]:
    """All runs of schedules, or of one, the latest last."""
    query = RunQuery(agent=SCHEDULE_AGENT, labels=((LABEL, name),) if name else (), limit=MOST_SCHEDULES)
    return sorted(runs.newest(query).runs, key=lambda run: schedule_run(run).age)


def schedule_run(run: Run) -> ScheduleRun:
    state, label = run.state, first_request(run).labels.get(LABEL, "")
    return ScheduleRun(state.run_id, label, run.status, bool(state.paused), state.values.get(SCHEDULE_VALUE, ""))


def live_schedule(runs: Runs, name: str) -> RunState:
    """State of the run of a schedule that goes on. **Raises** NotFoundError."""
    found = schedule_runs(runs, name)
    if not found or found[-1].state.over:
        why = f"is {found[-1].status}" if found else "was never applied"
        raise NotFoundError(f"schedule {name} {why}", hint="`refold schedule apply --app APP` begins it")
    return found[-1].state


class Applied(NamedTuple):
    """Operation that makes a schedule as declared; None if it is so. `outcome`: started, changed or unchanged."""

    outcome: str
    request: RunRequest | None = None
    operation: OperationRow | None = None


def applied(known: list[Run], name: str, spec: Data, actor: str) -> Applied:
    """Compare a declaration with the runs of its schedule. **Raises** as `update`."""
    declared = {"spec": spec}
    if known and not (state := known[-1].state).over:
        if schedule_run(known[-1]).shown.get("spec") == spec:
            return Applied("unchanged")
        message = signal_message(state.run_id, "set", declared, actor=actor)
        return Applied("changed", operation=update(state, message))
    lives = len({root_of(run.state.run_id) for run in known})
    run = RunId(f"{name}:{lives + 1}" if lives else name)
    labels, sessions = {LABEL: name}, [f"{LABEL}:{name}"]
    request = RunRequest(run, SCHEDULE_AGENT, canonical.dumps(declared), actor, labels=labels, sessions=sessions)
    return Applied("started", request)
