"""Filter of lists of runs, for the command line, the HTTP API and pages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from refold.client.reading.history import Run
from refold.client.reading.run import first_request, row_of
from refold.core.errors import MalformedError
from refold.core.run.state import ENDED, Status
from refold.engine.ports.tables import MOST_PAGE

STATES = ("doubt", "waiting_for_people", "on_hold", "paused", "waiting")
"""Conditions of a run beside its status; where several are met, the first names it."""
STALLED = "stalled"
STATUSES = (*get_args(Status), STALLED)
SORTS = ("requested_ms", "at_ms", "ended_ms")


@dataclass(frozen=True)
class RunQuery:
    """Filter and order of a list of runs; empty fields match any. `alone`: by `one_state`. **Raises** MalformedError.

    The log is asked by agent, state, labels, session, code and the time of the last entry; the rest needs a view.
    """

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

    def fits(self, run: Run) -> bool:
        """True if the request of a run matches; the other fields are about its state."""
        request = first_request(run)
        return (
            self.agent in ("", request.agent)
            and self.session in ("", *request.sessions, request.session)
            and all(request.labels.get(label) == value for label, value in self.labels)
        )

    def matches(self, run: Run) -> bool:
        """True if a run of the log fits, and is in this state, has failed with this code, and has an entry since then.
        A run whose code is held is `stalled`, and has no other status."""
        failure = getattr(run.state.end, "failure", None)
        has_failed = not self.code or (failure is not None and failure.code == self.code)
        return self.fits(run) and has_failed and run.state.at_ms >= self.since_ms and self._in_state(run)

    def _in_state(self, run: Run) -> bool:
        if self.state not in STATES:
            return self.state in ("", run.status)
        row = row_of(run)
        conditions = (row.in_doubt, row.approvals, row.held, row.pauses, row.waiting)
        return bool(dict(zip(STATES, conditions, strict=True))[self.state])


def one_state(row: Mapping[str, object], *, stalled: bool) -> str:
    """Return the state under which people look for a run."""
    status = str(row["status"])
    if status in ENDED or stalled:
        return "doubt" if row["doubt"] else status if status in ENDED else STALLED
    state = next((name for name in STATES if row[name]), status)
    return status if state == "waiting" and status != "suspended" else state
