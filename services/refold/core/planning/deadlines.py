"""Deadline of a run."""

from __future__ import annotations

from datetime import UTC, datetime

from refold.core.events import Failure, RunFailed
from refold.core.run.account import BUDGET_CODES
from refold.core.run.state import RunState


def missed(state: RunState, now: int) -> RunFailed | None:
    """Failure of a run whose deadline has passed."""
    if not 0 < state.deadline_ms <= now:
        return None
    by = datetime.fromtimestamp(state.deadline_ms / 1000, UTC).isoformat(timespec="seconds")
    why = f"it was to be over by {by}; `refold run retry --deadline` gives it more time"
    limit_ms = state.account.limits.ms if state.account else 0
    of_budget = limit_ms and state.deadline_ms == state.requested_ms + limit_ms
    return RunFailed(Failure(BUDGET_CODES["seconds"] if of_budget else "deadline", why))
