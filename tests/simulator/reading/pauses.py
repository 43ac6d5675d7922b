"""A second reading of pauses: since when a run is paused, by itself or with its parent, and what goes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OF_PAUSES = frozenset({"RunPaused", "RunUnpaused"})
"""The events that this reads."""

GOES_OUT = frozenset(
    {
        *("RunStarted", "CallProposed", "CallDispatched", "NoteRecorded", "CheckpointReached", "StepGivenUp"),
        "SignalAnswered",
        *("SleepStarted", "SleepEnded", "WaitStarted", "WaitExpired", "CallbackCreated"),
        *("ChildStarted", "EventPublished", "RunCompleted", "RunResumed"),
    }
)
"""What happens to no run that is paused: its code, its time, and whatever lets something out."""


@dataclass(slots=True)
class LoggedPauses:
    """The pauses of a run. `spans` are the times in which it was paused (until 0: still), `went` when something went.

    `own` and `inherited`: whether it is paused by itself, and with its parent.
    """

    own: bool = False
    inherited: bool = False
    spans: list[tuple[int, int]] = field(default_factory=list)
    went: list[tuple[int, str]] = field(default_factory=list)

    def follow(self, name: str, event: dict[str, Any], at_ms: int) -> None:
        """Takes an event of `OF_PAUSES`."""
        before = self.own or self.inherited
        if event["role"] == "parent":
            self.inherited = name == "RunPaused"
        else:
            self.own = name == "RunPaused"
        if (self.own or self.inherited) and not before:
            self.spans.append((at_ms, 0))
        elif before and not (self.own or self.inherited):
            self.spans[-1] = self.spans[-1][0], at_ms

    def fork(self, at_ms: int) -> None:
        """The run goes on under another name, and without its parent."""
        if self.inherited and not self.own:
            self.spans[-1] = self.spans[-1][0], at_ms
        self.inherited = False
        self.went.clear()

    def keeps_back(self, ordered_ms: int, at_ms: int) -> bool:
        """True if what was ordered may not have gone out: the run was paused in the same turn, and goes on now."""
        return (ordered_ms, at_ms) in self.spans

    def goes(self, name: str, at_ms: int) -> str:
        """Something of `GOES_OUT` happens; what is wrong with that."""
        self.went.append((at_ms, name))
        return f"paused: {name} at {at_ms}" if self.own or self.inherited else ""
