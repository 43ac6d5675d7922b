"""A second reading of budgets: what each run has reserved and was billed, by its own events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OF_BUDGETS = frozenset({"CallReserved", "CallBilled", "ChildBilled", "BudgetReached", "CallRepeated"})
"""The events that this reads."""


@dataclass(slots=True)
class LoggedPurse:
    """What a run has taken itself, its children apart. **Units**: billionths of a dollar.

    `reserved` is by call and attempt, of which `open` were not billed; `excess` is the most by which its family went
    beyond its `limit`.
    """

    limit: int = 0
    reserved: dict[tuple[str, int], int] = field(default_factory=dict)
    open: set[tuple[str, int]] = field(default_factory=set)
    billed: int = 0
    excess: int = 0

    @property
    def taken(self) -> int:
        """What counts as taken."""
        return self.billed + sum(self.reserved[each] for each in self.open)

    def follow(self, name: str, event: dict[str, Any], call: str) -> None:
        """Takes an event of `OF_BUDGETS`; `call` is the id of the call that it is about, if it names a step."""
        if name == "CallReserved" and event["attempt"]:
            place = call, event["attempt"]
            self.reserved[place] = event["nano_usd"]
            self.open.add(place)
        elif name == "CallBilled":
            run = next(iter(self.reserved))[0].rpartition("/")[0]
            self.billed += event["nano_usd"]
            if not event["twice"]:
                self.open.discard((f"{run}/{event['call']}", event["attempt"]))


def limit_in(requested: dict[str, Any]) -> int:
    """What a run that is requested may spend; 0: any amount."""
    return int((requested["budget"] or {}).get("nano_usd", 0))
