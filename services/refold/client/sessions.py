"""Runs that belong together, by agent, session and labels: found, told, cancelled, paused and let go on at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from refold.client.inputs import Sender, refusals, word_on
from refold.client.pausing import is_done
from refold.client.runs import Runs
from refold.client.signals import Signals
from refold.core.errors import ConflictError, RefoldError
from refold.core.events import Cause
from refold.core.ids import RunId, parents_of
from refold.core.messages import RunSignal
from refold.core.planning.pausing import RESUME
from refold.core.run.state import RunState
from refold.core.topics import DEAD_LETTER
from refold.views.history import Run

AGAIN_S = 0.5
"""How often the log is read while runs are waited for."""


@dataclass(frozen=True, slots=True)
class Belonging:
    """What runs have in common: a session, all of these labels, and an agent; what is empty means any."""

    session: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    agent: str = ""

    def __bool__(self) -> bool:
        return bool(self.session or self.labels or self.agent)

    def takes(self, run: Run) -> bool:
        """Whether a run is meant."""
        asked = run.state.request
        if asked is None:
            return not self
        in_session = not self.session or self.session in (*asked.sessions, asked.session)
        labelled = all(asked.labels.get(name) == value for name, value in self.labels)
        return in_session and labelled and self.agent in ("", asked.agent)


class Became(NamedTuple):
    """What became of a signal to a run: it was `accepted` or `known`, and `step` has it (0: kept), or `refused`, or it
    is `unanswered` so far."""

    outcome: str
    step: int = 0
    error: str = ""


def topmost(runs: Sequence[Run]) -> list[Run]:
    """Those that are not below another of them: what is said of that reaches them, a signal does not."""
    names = {run.state.run_id for run in runs}
    return [run for run in runs if names.isdisjoint(parents_of(run.state.run_id))]


class Sessions:
    """What is said of all runs of a session. `show` is told how far it has come."""

    def __init__(self, runs: Runs, sender: Sender, show: Callable[[str, int, int], None]) -> None:
        self._runs, self._sender, self._show = runs, sender, show

    def live(self, which: Belonging) -> list[Run]:
        """The runs that are not over."""
        return [run for run in self._runs.all() if which.takes(run) and not run.state.over]

    def paused(self, which: Belonging) -> list[Run]:
        """The runs that somebody has paused, each by itself."""
        return [run for run in self._runs.all() if which.takes(run) and not is_done(run.state, RESUME)]

    def signal(self, runs: Sequence[Run], said: RunSignal, timeout_s: float) -> dict[RunId, Became]:
        """Tells each of them something that it waits for, or will; what became of that in each."""
        signals, letters = Signals(self._runs, self._sender), self._runs.reader.tail(DEAD_LETTER)
        each = [replace(said, run_id=run.state.run_id) for run in runs]
        sent = {signal.run_id: (signal, signals.send(signal)) for signal in each}
        became, refused = dict[RunId, Became](), dict[Cause, RefoldError]()

        def look() -> int:
            refused.update(refusals(letters))
            for run in self._runs.all():
                if (name := run.state.run_id) in sent and name not in became and (told := hear(run, *sent[name])):
                    became[name] = told
            return len(became)

        def hear(run: Run, said: RunSignal, position: Cause) -> Became | None:
            try:
                answer = signals.told(run, said, position, whole=True)
            except ConflictError as error:
                return Became("refused", 0, error.message)
            if answer is not None:
                return Became(answer.what, answer.step)
            return Became("refused", 0, refused[position].message) if position in refused else None

        wait_for_all(look, partial(self._show, "tell runs"), len(sent), timeout_s)
        return {name: became.get(name, Became("unanswered")) for name in sent}

    def say(
        self,
        kind: str,
        runs: Sequence[Run],
        *,
        actor: str,
        reason: str,
        timeout_s: float,
        as_operator: bool = False,
        sign: Callable[[RunSignal], RunSignal] = lambda signal: signal,
    ) -> dict[RunId, RunState]:
        """Cancels, pauses or resumes them, as an operator those of others; what each is by then."""
        for run in runs:
            said = word_on(run.state, kind, reason=reason, actor=actor, as_operator=as_operator)
            self._sender.send(sign(said) if isinstance(said, RunSignal) else said)
        states = {run.state.run_id: run.state for run in runs}

        def look() -> int:
            states.update({run.state.run_id: run.state for run in self._runs.all() if run.state.run_id in states})
            return sum(is_done(state, kind) for state in states.values())

        wait_for_all(look, partial(self._show, f"{kind} runs"), len(states), timeout_s)
        return states


def wait_for_all(look: Callable[[], int], show: Callable[[int, int], None], total: int, timeout_s: float) -> None:
    """Looks into the log until it finds all done, or it is too late, and shows how many. **Units**: seconds."""
    deadline = time.monotonic() + timeout_s
    while True:
        done = look()
        show(done, total)
        if done == total or time.monotonic() > deadline:
            return
        time.sleep(AGAIN_S)
