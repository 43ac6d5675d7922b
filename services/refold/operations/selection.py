"""Runs that many are meant by: of a session, with labels, of an agent, or failed with a code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from refold.core.events import RunFailed
from refold.core.ids import parents_of
from refold.core.planning.pausing import PAUSE, RESUME
from refold.core.run.pausing import own
from refold.core.run.state import RunState
from refold.views.history import Run


@dataclass(frozen=True, slots=True)
class Selector:
    """What runs have in common: a session, all of these labels, an agent, the code of their failure, and that they have
    failed since then; what is empty means any."""

    session: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    agent: str = ""
    code: str = ""
    since_ms: int = 0

    def __bool__(self) -> bool:
        return self != Selector()

    def takes(self, run: Run) -> bool:
        """True if a run is meant."""
        asked = run.state.request
        if asked is None:
            return not self
        in_session = not self.session or self.session in (*asked.sessions, asked.session)
        labelled = all(asked.labels.get(name) == value for name, value in self.labels)
        return in_session and labelled and self.agent in ("", asked.agent) and self._failed(run.state)

    def _failed(self, state: RunState) -> bool:
        code = state.end.failure.code if isinstance(state.end, RunFailed) else ""
        return self.code in ("", code) and state.at_ms >= self.since_ms


_ABLE: dict[str, Callable[[RunState], bool]] = {
    "cancel": lambda state: not state.over,
    PAUSE: lambda state: not state.over and own(state) is None,
    RESUME: lambda state: not state.over and own(state) is not None,
    "signal": lambda state: not state.over,
    "retry": lambda state: isinstance(state.end, RunFailed),
}
"""On which runs an operation may be performed, by kind."""


def selected(runs: Iterable[Run], which: Selector, kind: str) -> list[Run]:
    """The runs that are meant and on which an operation of this kind may be performed.

    What cancels or pauses a run reaches those below it, so that these are not named beside it.
    """
    meant = [run for run in runs if which.takes(run) and not (kind in ("cancel", PAUSE) and run.state.over)]
    if kind in ("cancel", PAUSE):
        names = {run.state.run_id for run in meant}
        meant = [run for run in meant if names.isdisjoint(parents_of(run.state.run_id))]
    return [run for run in meant if _ABLE[kind](run.state)]
