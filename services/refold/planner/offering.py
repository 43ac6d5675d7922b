"""The signals that a run keeps are offered to its waits: to those that begin, and after a hold to all that are open.

Who sends signals decides how many there are, and who wrote the agent how many waits: all of these are not asked about
all of those in one turn of a lane. What is left is an event, so that whoever takes the run over goes on with it.
"""

from __future__ import annotations

from collections import deque

from refold.core import events
from refold.core.errors import RefoldError
from refold.core.planning import waiting
from refold.core.run.state import RunState, Settled

ASKED_AT_ONCE = 2_000
"""How often matches are asked in one entry: 7 microseconds each, or 30 where the process has not room for them all."""

MOST_MATCHING = 1_000
"""Waits of one name that may be open when one with a match begins: a signal is offered to all of them at once."""


class Offers:
    """What is offered in one entry, on top of a state. `closed` are the steps that are over since."""

    def __init__(self, state: RunState, closed: set[int]) -> None:
        self._state, self._closed = state, closed
        first = 1 if state.unseen else state.mail.behind
        self._waits = deque([wait for wait in waiting.open_waits(state) if wait.step >= first] if first else ())
        self._open: dict[str, set[int]] = {}
        self._taken: set[str] = set()
        self._asked = 0

    def begin(self, wait: events.WaitStarted) -> None:
        """A wait begins. **Raises** RefoldError where it is one too many."""
        self._waits.append(wait)
        if not wait.match:
            return
        if wait.name not in self._open:
            self._open[wait.name] = {*self._state.mail.waits.get(wait.name, ())}
        beside = self._open[wait.name]
        beside.add(wait.step)
        if len(beside) > MOST_MATCHING:
            beside -= self._closed
        if len(beside) > MOST_MATCHING:
            message = f"more than {MOST_MATCHING:,} of its waits for {wait.name} are open, and this one has a match"
            raise RefoldError(message, code="too_many_waits", hint="give what they wait for names of their own")

    def take(self, now: int) -> tuple[list[events.Event], tuple[int, Settled] | None]:
        """Offers what is kept to one wait after the other: what is to be told, and the first that is over, and how.

        One at a time: what the code makes of it may be to give up another, which then has taken nothing.
        """
        told: list[events.Event] = []
        while self._waits and self._asked < ASKED_AT_ONCE:
            wait = self._waits.popleft()
            if wait.step in self._closed:
                continue
            if wait.match:
                self._asked += len(self._state.mail.names.get(wait.name, ()))
            signal, failed = waiting.find_kept(self._state, wait, self._taken)
            told += failed
            if signal is not None:
                self._taken.add(signal.signal_id)
                return [*told, events.WaitEnded(wait.step, signal.signal_id)], (wait.step, signal)
            if wait.step in self._state.open and 0 < wait.until_ms <= now:
                # It was not let go while something lay there for it, which another wait has by now.
                expired = events.WaitExpired(wait.step)
                return [*told, expired], (wait.step, expired)
        return told, None

    def left(self) -> list[events.Event]:
        """What is to be said, when the entry is complete, of waits that were not asked."""
        behind = self._waits[0].step if self._waits else 0
        return [events.WaitsPostponed(behind)] if behind != self._state.mail.behind else []
