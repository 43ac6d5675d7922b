"""Filter of lists of runs, for the command line, the HTTP API and pages: over the log by `matches`, over a view in
SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from refold.client.reading.history import Run
from refold.client.reading.run import row_of
from refold.core.errors import MalformedError
from refold.core.events import Failure
from refold.core.ids import parent_of, root_of
from refold.core.run.state import ENDED, RunState, Status
from refold.engine.ports.tables import MOST_PAGE

STATES = ("doubt", "waiting_for_people", "on_hold", "paused", "waiting")
"""Conditions of a run beside its status; where several are met, the first names it."""
STALLED = "stalled"
STATUSES = (*get_args(Status), STALLED)
SORTS = ("requested_ms", "at_ms", "ended_ms")


@dataclass(frozen=True)
class RunQuery:
    """Filter and order of a list of runs; empty fields match any. `alone`: by `one_state`. **Raises**
    MalformedError."""

    agent: str = ""
    state: str = ""
    alone: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    session: str = ""
    root: str = ""
    top: bool = False
    text: str = ""
    tool: str = ""
    code: str = ""
    since_ms: int = 0
    until_ms: int = 0
    sort: str = "-requested_ms"
    limit: int = MOST_PAGE

    def __post_init__(self) -> None:
        if self.state and self.state not in (*STATES, *STATUSES):
            hint = f"use one of {', '.join((*STATUSES, *STATES))}"
            raise MalformedError(f"state={self.state[:40]!r} is no state of runs", hint=hint)
        if self.sort.removeprefix("-") not in SORTS:
            raise MalformedError(
                f"sort={self.sort[:40]!r} is no order of runs", hint=f"use one of {', '.join(SORTS)}, or -one"
            )

    @property
    def by_request(self) -> bool:
        """True if the first entry of a run decides: `fits` is enough."""
        return not (self.state or self.text or self.tool or self.code or self.since_ms or self.until_ms)

    def fits(self, run: Run) -> bool:
        """True if the id and the request of a run match."""
        name, request = run.state.run_id, run.state.request
        # A forged history may begin without a request: it has no agent, label or session.
        labels, agent = (request.labels, request.agent) if request else ({}, "")
        sessions = (*request.sessions, request.session) if request else ()
        return (
            self.agent in ("", agent)
            and self.root in ("", root_of(name))
            and not (self.top and parent_of(name)[0])
            and (not self.session or self.session in sessions)
            and all(labels.get(label) == value for label, value in self.labels)
        )

    def matches(self, run: Run) -> bool:
        """True if a run is selected as it is now. A run whose code is held is `stalled`, and has no other status."""
        return (
            self.fits(run)
            and (not self.state or self._in_state(run))
            and self._in_time(run.state)
            and self._has_failed(run)
            and self.text.lower() in f"{run.state.run_id}\n{'' if run.state.over else run.state.says}".lower()
        )

    def _in_state(self, run: Run) -> bool:
        row = row_of(run)
        conditions = map(bool, (row.in_doubt, row.approvals, row.held, row.pauses, row.waiting))
        states = {"status": row.status, **dict(zip(STATES, conditions, strict=True))}
        if self.alone:
            return one_state(states, stalled=row.status == STALLED) == self.state
        return row.status == self.state or bool(states.get(self.state))

    def _in_time(self, state: RunState) -> bool:
        ended_ms = state.at_ms if state.over else 0
        times = {"requested_ms": state.asked_ms, "at_ms": state.at_ms, "ended_ms": ended_ms}
        at_ms = times[self.sort.removeprefix("-")]
        return self.since_ms <= at_ms and (not self.until_ms or at_ms < self.until_ms)

    def _has_failed(self, run: Run) -> bool:
        """True if the run has failed with `code`; with a `tool`, if a call of it was made, or has failed so."""
        if self.tool:
            failures = [step.failure for step in run.timeline.steps if step.name == self.tool]
        else:
            failures = [getattr(run.state.end, "failure", None)]
        return any(self.code in ("", _code(failure)) for failure in failures)


def _code(failure: Failure | None) -> str:
    return failure.code if failure else ""


def one_state(row: Mapping[str, object], *, stalled: bool) -> str:
    """Return the state under which people look for a run."""
    status = str(row["status"])
    if status in ENDED or stalled:
        return "doubt" if row["doubt"] else status if status in ENDED else STALLED
    state = next((name for name in STATES if row[name]), status)
    return status if state == "waiting" and status != "suspended" else state
