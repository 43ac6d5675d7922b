"""Runs that belong together, by the sessions and labels that they were asked for with: found, and cancelled at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from refold.client.inputs import Sender, cancel_of
from refold.client.runs import Run, Runs
from refold.core.ids import RunId, parents_of
from refold.core.messages import RunOperation, RunSignal

AGAIN_S = 0.5
"""How often the log is read while runs are waited for."""


@dataclass(frozen=True, slots=True)
class Belonging:
    """What runs have in common: a session, and all of these labels; what is empty means any."""

    session: str = ""
    labels: tuple[tuple[str, str], ...] = ()

    def takes(self, run: Run) -> bool:
        """Whether a run is meant."""
        asked = run.state.request
        if asked is None:
            return not (self.session or self.labels)
        in_session = not self.session or self.session in (*asked.sessions, asked.session)
        return in_session and all(asked.labels.get(name) == value for name, value in self.labels)


class Sessions:
    """What is said of all runs of a session. `show` is told how far it has come."""

    def __init__(self, runs: Runs, sender: Sender, show: Callable[[str, int, int], None]) -> None:
        self._runs, self._sender, self._show = runs, sender, show

    def live(self, which: Belonging) -> list[Run]:
        """The runs that are not over, and not below another of them: what reaches that reaches them."""
        found = {run.state.run_id: run for run in self._runs.all() if which.takes(run) and not run.state.over}
        return [run for name, run in found.items() if not any(above in found for above in parents_of(name))]

    def cancel(
        self,
        runs: Sequence[Run],
        *,
        actor: str,
        reason: str,
        timeout_s: float,
        sign: Callable[[RunSignal], RunSignal] = lambda signal: signal,
    ) -> dict[RunId, str]:
        """Cancels them, as an operator those of others; what each is by then: `cancelled`, or whatever it is still."""
        for run in runs:
            said: RunSignal | RunOperation = cancel_of(run.state, reason=reason, actor=actor)
            self._sender.send(sign(said) if isinstance(said, RunSignal) else said)
        states = {run.state.run_id: run.state.status for run in runs}
        deadline = time.monotonic() + timeout_s
        while True:
            states |= {run.state.run_id: run.state.status for run in self._runs.all() if run.state.run_id in states}
            left = sum(status in ("pending", "running", "suspended") for status in states.values())
            self._show("cancel runs", len(states) - left, len(states))
            if not left or time.monotonic() > deadline:
                return {name: str(status) for name, status in states.items()}
            time.sleep(AGAIN_S)
