"""Has failed runs go on, one or all that a filter names, and learns from the log what became of that."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from refold.client.inputs import Sender
from refold.client.runs import Runs
from refold.client.sessions import wait_for_all
from refold.core.errors import ConflictError, MalformedError
from refold.core.events import CallFailed, CallProposed, RunFailed
from refold.core.ids import RunId
from refold.core.messages import RunOperation
from refold.core.run.redrive import kept
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.views.history import Run

RETRIED_AT_ONCE = 500
"""Retries that are under way at once: planners collect as many histories in one reading of the log."""


class Changes(NamedTuple):
    """What is to be otherwise this time. `edit` is the JSON text of all arguments of the first step that is done again.

    `deadline_ms`: -1 takes it away.
    """

    from_step: int = 0
    edit: str = ""
    steps: int = 0
    history_bytes: int = 0
    deadline_ms: int = 0
    children: int = 0
    reason: str = ""
    tokens: int = 0
    nano_usd: int = 0
    calls: int = 0


class Filter(NamedTuple):
    """Which failed runs are meant: those of this agent, with this code, that have failed since; empty: any."""

    agent: str = ""
    code: str = ""
    since_ms: int = 0

    def takes(self, state: RunState) -> bool:
        """Whether a run is meant."""
        return (
            isinstance(state.end, RunFailed)
            and self.code in ("", state.end.failure.code)
            and (not self.agent or (state.request is not None and state.request.agent == self.agent))
            and state.at_ms >= self.since_ms
        )


def retrying(state: RunState, actor: str, changes: Changes) -> RunOperation:
    """What an operator says of a failed run. **Raises** ConflictError when it has not failed, MalformedError."""
    if state.status != "failed":
        hint = "a failed run goes on where it failed, and a stalled one with code that agrees with its history"
        raise ConflictError(f"run {state.run_id} is {state.status}: there is nothing to retry", hint=hint)
    data: dict[str, Any] = {"seq": state.head.seq, "from": changes.from_step, "reason": changes.reason}
    data |= {"steps": changes.steps, "bytes": changes.history_bytes, "deadline_ms": changes.deadline_ms}
    data |= {"children": changes.children, "tokens": changes.tokens, "nano_usd": changes.nano_usd}
    data["calls"] = changes.calls
    if changes.edit:
        if not changes.from_step:
            raise MalformedError("an edit is for a call", hint="name its step: --from STEP")
        data["edit"] = canonical.parse(changes.edit)
    return RunOperation(state.run_id, f"retry-{secrets.token_hex(6)}", "retry", canonical.dumps(data), actor)


class Done(NamedTuple):
    """A call that was made and is left behind by a retry from a step before it: it may be made once more."""

    step: int
    tool: str
    effect: str


def left_behind(state: RunState, from_step: int) -> list[Done]:
    """The calls with an effect that a retry from a step leaves behind, and that may have had it."""
    found = []
    for step, call in enumerate(state.steps[from_step - 1 :], from_step):
        if not isinstance(call, CallProposed) or call.effect == "pure" or not state.retried.counts(step):
            continue
        outcome = state.outcomes.get(step, (0, None))[1]
        if not isinstance(outcome, CallFailed) or outcome.failure.code == "given_up":
            found.append(Done(step, call.tool, call.effect))
    return found


def stays(state: RunState) -> int:
    """How many steps a retry keeps that names none."""
    return state.retried.step_before(min(len(state.steps), kept(state).first - 1))


class Redrive:
    """Retries of many runs. `show` is told how far it has come."""

    def __init__(self, runs: Runs, sender: Sender, show: Callable[[str, int, int], None]) -> None:
        self._runs, self._sender, self._show = runs, sender, show

    def found(self, which: Filter) -> list[Run]:
        """The failed runs that are meant, in order of their requests."""
        return [run for run in self._runs.all() if which.takes(run.state)]

    def retry(self, runs: Sequence[Run], actor: str, changes: Changes, timeout_s: float) -> dict[RunId, str]:
        """Has them go on, so many at a time; what became of each: `accepted`, or `unanswered` within the time."""
        answers: dict[RunId, str] = {}
        for start in range(0, len(runs), RETRIED_AT_ONCE):
            batch = {run.state.run_id: run.state.head.seq for run in runs[start : start + RETRIED_AT_ONCE]}
            for run in runs[start : start + RETRIED_AT_ONCE]:
                self._sender.send(retrying(run.state, actor, changes))
            answers |= self._follow(batch, timeout_s, done=start, total=len(runs))
        return answers

    def _follow(self, batch: dict[RunId, int], timeout_s: float, *, done: int, total: int) -> dict[RunId, str]:
        left = dict(batch)

        def look() -> int:
            for run in _gone_on(self._runs.all(), left):
                del left[run]
            return len(batch) - len(left)

        def show(gone_on: int, _: int) -> None:
            self._show("retry failed runs", done + gone_on, total)

        wait_for_all(look, show, len(batch), timeout_s)
        return {run: "unanswered" if run in left else "accepted" for run in batch}


def _gone_on(runs: Iterable[Run], since: dict[RunId, int]) -> list[RunId]:
    return [run.state.run_id for run in runs if run.state.retried.at > since.get(run.state.run_id, run.state.head.seq)]
