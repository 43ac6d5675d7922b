"""What runs were told and what waited for it, as the log has it: read once more, and sharing no code with `core`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tests.simulator.reading.values import Datum

_MATCH = re.compile(r"data\.n == (\d+)\Z")


@dataclass(frozen=True, slots=True)
class LoggedWait:
    """A wait that is open. `match` is empty or `data.n == NUMBER`; `until_ms` 0: for ever."""

    name: str
    match: str
    until_ms: int

    def takes(self, name: str, data: str) -> bool:
        """Whether a signal is for it."""
        if name != self.name or not self.match:
            return name == self.name
        found, value = _MATCH.match(self.match), json.loads(data)
        assert found, "agents of the simulator write no other match"
        return isinstance(value, dict) and value.get("n") == int(found[1])


@dataclass(slots=True)
class LoggedMail:
    """What a run was told. `came` has name and data by id, `came_ms` when, `kept` those that nobody took, in order.

    `taken`: which step took which. `waits` and `callbacks` are open, by step; `said` the answers to callbacks, `closed`
    those without one. `gone` were given up, and after a retry may be open `again`. `asked_before` steps were there
    before the last entry, and waits from step `behind` on were not asked so far. `most` is how many characters were
    kept at once.
    """

    came: dict[str, tuple[str, str]] = field(default_factory=dict)
    came_ms: dict[str, int] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    taken: dict[int, str] = field(default_factory=dict)
    waits: dict[int, LoggedWait] = field(default_factory=dict)
    tokens: dict[int, str] = field(default_factory=dict)
    callbacks: dict[int, int] = field(default_factory=dict)
    said: dict[int, Datum] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    gone: dict[int, LoggedWait | int] = field(default_factory=dict)
    again: dict[int, LoggedWait | int] = field(default_factory=dict)
    asked_before: int = 0
    behind: int = 0
    most: int = 0

    def follow(self, name: str, event: Datum, at_ms: int) -> Iterator[str]:
        """Takes an event; gives what no history may hold."""
        if name == "SignalReceived":
            if event["signal_id"] in self.came:
                yield f"twice: signal {event['signal_id']} is received a second time"
            self.came[event["signal_id"]] = event["name"], event["data"]
            self.came_ms[event["signal_id"]] = event["sent_ms"] or at_ms
            self.kept.append(event["signal_id"])
        elif name == "SignalDropped":
            self.dropped.add(event["signal_id"])
        elif name == "WaitStarted":
            self.waits[event["step"]] = LoggedWait(event["name"], event["match"], event["until_ms"])
        elif name == "WaitsPostponed":
            self.behind = event["first"]
        elif name == "WaitEnded":
            yield from self._take(event["step"], event["signal_id"])
        elif name == "WaitExpired":
            yield from self._expire(event["step"], at_ms)
        elif name == "CallbackCreated":
            self.callbacks[event["step"]] = event["until_ms"]
            self.tokens[event["step"]] = event["digest"]
        elif name in ("CallbackCompleted", "CallbackFailed"):
            if self._until(event["step"], callback=True) is None:
                yield f"twice: callback {event['step']} is answered, and was not open"
            self.said[event["step"]] = event

    def give_up(self, step: int) -> bool:
        """Nobody waits for a step any more; whether somebody did."""
        self.closed.add(step)
        was: LoggedWait | int | None = self.waits.pop(step, None)
        was = self.callbacks.pop(step, None) if was is None else was
        was = self.again.pop(step, None) if was is None else was
        if was is not None:
            self.gone[step] = was
        return was is not None

    def go_on(self, from_step: int) -> None:
        """The run is retried: what steps took that are left behind is there again, and what was given up may be."""
        first = from_step or self.asked_before + 1
        for step in [step for step in self.taken if step >= first]:
            self.kept.append(self.taken.pop(step))
        for step in [step for step in (*self.waits, *self.callbacks) if step >= first]:
            self.give_up(step)
        for step in [step for step in self.said if step >= first]:
            del self.said[step]
            self.closed.add(step)
        self.again = {step: was for step, was in (self.again | self.gone).items() if step < first}

    def fork(self, later_ms: int) -> None:
        """The run goes on under another name so much later: what it waits for has the time that was left."""
        self.waits = {
            step: replace(wait, until_ms=wait.until_ms + later_ms) if wait.until_ms else wait
            for step, wait in self.waits.items()
        }
        self.callbacks = {step: until and until + later_ms for step, until in self.callbacks.items()}

    def left(self, at_ms: int) -> Iterator[str]:
        """After an entry: the signals that lie beside an open wait that they are for."""
        self.most = max(self.most, sum(len(self.came[name][1]) for name in self.kept))
        for step, wait in self.waits.items():
            over = 0 < wait.until_ms <= at_ms or 0 < self.behind <= step
            for name in () if over else self.kept:
                if wait.takes(*self.came[name]):
                    yield f"left: signal {name} is kept, and step {step} waits for it"

    def _take(self, step: int, name: str) -> Iterator[str]:
        wait = self.waits.pop(step, None) or self.again.pop(step, None)
        if not isinstance(wait, LoggedWait):
            yield f"twice: step {step} takes signal {name}, and did not wait"
        elif name in self.came and not wait.takes(*self.came[name]):
            yield f"match: step {step} takes signal {name}, which is not for it"
        if name not in self.kept:
            yield f"twice: signal {name} is taken by step {step}, and was not there"
        else:
            self.kept.remove(name)
        self.taken[step] = name

    def _until(self, step: int, *, callback: bool = False) -> int | None:
        """Closes an open step; how long it may be waited for, None if it was not open."""
        was: LoggedWait | int | None = None if callback else self.waits.pop(step, None)
        was = self.callbacks.pop(step, None) if was is None else was
        was = self.again.pop(step, None) if was is None else was
        return was.until_ms if isinstance(was, LoggedWait) else was

    def _expire(self, step: int, at_ms: int) -> Iterator[str]:
        wait = self.waits.get(step) or self.again.get(step)
        until_ms = self._until(step)
        self.closed.add(step)
        for name in self.kept:
            if isinstance(wait, LoggedWait) and self.came_ms[name] < wait.until_ms and wait.takes(*self.came[name]):
                yield f"left: signal {name} came in time, and step {step} expires"
        if not until_ms:
            yield f"terminal: step {step} expires, and was not open"
        elif at_ms < until_ms:
            yield f"early: step {step} expires at {at_ms}, due at {until_ms}"


OF_WAITS = frozenset(
    (
        *("SignalReceived", "SignalDropped", "WaitStarted", "MatchFailed", "WaitEnded", "WaitExpired"),
        "WaitsPostponed",
        *("CallbackCreated", "CallbackCompleted", "CallbackFailed"),
    )
)
"""The events that a mailbox follows."""
