"""A second reading of what runs have started, as `reading.history` reads all else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OF_CHILDREN = frozenset({"ChildStarted", "ChildCompleted", "EventPublished", "RunSubmitted"})
"""The events that this reads."""


@dataclass(slots=True)
class LoggedChild:
    """A run that another has started, as the log of that one has it. `told` is how it ended, as its parent heard it.

    `heard`: somebody waits for it; `left_ms` is since when nobody does any longer.
    """

    request: tuple[str, str]
    outlives: bool
    heard: bool = True
    left_ms: int = 0
    told: tuple[str, str] | None = None


@dataclass(slots=True)
class LoggedChildren:
    """The runs that one has started, by the rest of their ids; `submitted` are runs of their own, by id."""

    known: dict[str, LoggedChild] = field(default_factory=dict)
    submitted: dict[str, tuple[str, str]] = field(default_factory=dict)

    def follow(self, name: str, event: dict[str, Any]) -> list[str]:
        """Takes the next event of the run; what is wrong with it."""
        step = str(event["step"])
        if name == "ChildStarted":
            self.known[step] = LoggedChild((event["agent"], event["input"]), event["outlives"])
        elif name == "RunSubmitted":
            self.submitted.setdefault(event["run_id"], (event["agent"], event["input"]))
        elif name == "EventPublished":
            for number, agent in enumerate(event["agents"], start=1):
                self.known[f"{step}_{number}"] = LoggedChild((agent, event["data"]), True, heard=False)
        else:
            child = self.known.get(step)
            if child is None or child.told or child.left_ms:
                return [f"late: step {step} hears of the end of a run that it does not wait for"]
            child.told = event["status"], event["result"]
        return []

    def go_on(self, first: int, at_ms: int) -> None:
        """The run is retried, and nobody waits for what steps from one on have started."""
        for name in [name for name in self.known if name.isdecimal() and int(name) >= first]:
            self.give_up(int(name), at_ms)

    def fork(self) -> None:
        """The run goes on under another name: others than those that it waits for are not its own."""
        waits = {name: child for name, child in self.known.items() if child.heard and not child.told}
        self.known = {name: child for name, child in waits.items() if not child.left_ms}

    def give_up(self, step: int, at_ms: int) -> bool:
        """Nobody waits for a step any more; whether it is one of a run that somebody has waited for."""
        child = self.known.get(str(step))
        if child is None or child.told or child.left_ms:
            return False
        child.left_ms = at_ms
        return True
