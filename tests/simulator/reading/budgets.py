"""A second reading of budgets: what each run has reserved and was billed, by its own events."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

OF_BUDGETS = frozenset({"CallReserved", "CallBilled", "ChildBilled", "BudgetReached", "CallRepeated"})
"""The events that this reads."""

Place = tuple[str, int]
"""The id of a call, and the number of an attempt of it."""


class Sum(NamedTuple):
    """So much of each thing that a budget counts. **Units**: billionths of a dollar."""

    nano_usd: int = 0
    tokens: int = 0
    calls: int = 0

    def plus(self, other: Sum) -> Sum:
        """Both together."""
        return Sum(*map(int.__add__, self, other))

    def beyond(self, limit: Sum, percent: int = 100) -> str:
        """The first thing of which this is more than so much of a limit; nothing, if there is none."""
        kinds = zip(self._fields, self, limit, strict=True)
        return next(
            (f"{taken} {kind} of {most}" for kind, taken, most in kinds if 0 < most * percent < taken * 100), ""
        )


NOTHING = Sum()


def total(sums: Any) -> Sum:
    """All of them together."""
    found = Sum()
    for each in sums:
        found = found.plus(each)
    return found


@dataclass(slots=True)
class LoggedPurse:
    """What a run has taken itself, its children apart, and what it may take with them.

    `reserved` is by call and attempt, of which `open` were not billed as far as one knows, and `bills` are what was;
    `cheap` are those that are the cheaper way. `heard` are the runs below whose bill it has got, `told` the runs whose
    soft threshold it has noted, `let_on`: an operator has let it go on beyond that. `asked` is how often each call was
    asked for. `odd` is what may not be where nothing went wrong with planners; it looks at other runs. `tenant` is
    for whom it is, if there are limits for each. `kept` is what the source of a fork has taken, which counts for its
    budget and was paid before.
    """

    limit: Sum = NOTHING
    soft: int = 100
    then: str = ""
    same: int = 0
    reserved: dict[Place, Sum] = field(default_factory=dict)
    cheap: set[Place] = field(default_factory=set)
    open: set[Place] = field(default_factory=set)
    bills: dict[Place, Sum] = field(default_factory=dict)
    billed: Sum = NOTHING
    heard: list[str] = field(default_factory=list)
    told: set[str] = field(default_factory=set)
    let_on: bool = False
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    odd: list[str] = field(default_factory=list, compare=False)
    tenant: str = ""
    kept: Sum = NOTHING

    @property
    def taken(self) -> Sum:
        """What counts as taken."""
        return total([self.billed, *(self.reserved[each] for each in self.open)])

    @property
    def own(self) -> Sum:
        """What it has taken since it was forked, or at all."""
        return Sum(*map(int.__sub__, self.taken, self.kept))

    def copies(self, events: list[tuple[str, dict[str, Any]]]) -> None:
        """It has got these events of another run: what that has heard of those below is as good as paid."""
        for used in [event["used"] for _, event in events if event.get("used")]:
            self.billed = self.billed.plus(Sum(*(used[name] for name in Sum._fields)))
        self.heard.clear()
        self.odd.clear()
        self.kept = self.taken

    def fork(self) -> None:
        """It goes on under another name: nothing is reserved for it."""
        self.open, self.reserved, self.bills, self.cheap = set(), {}, {}, set()
        self.kept = self.taken

    def request(self, requested: dict[str, Any]) -> None:
        """The run is asked for, with a budget or without."""
        self.tenant = requested["labels"].get("tenant", "")
        if given := requested["budget"]:
            self.limit = Sum(*(max(0, given[name]) for name in Sum._fields))
            self.soft, self.then, self.same = given["soft_percent"], given["then"], given["same"]

    def goes(self) -> None:
        """An attempt goes out, which is a call whatever comes of it."""
        self.billed = self.billed.plus(Sum(calls=1))

    def follow(self, name: str, event: dict[str, Any], call: str) -> None:
        """Takes an event of `OF_BUDGETS`; `call` is the id of the call that it is about, if it names a step."""
        if name == "CallReserved" and event["attempt"]:
            place = call, event["attempt"]
            self.reserved[place] = self.reserved.get(place, Sum()).plus(Sum(event["nano_usd"], event["tokens"]))
            self.open.add(place)
            if event["cheap"]:
                self.cheap.add(place)
        elif name == "CallBilled":
            run = next(iter(self.reserved))[0].rpartition("/")[0]
            place = f"{run}/{event['call']}", event["attempt"]
            self.bills[place] = Sum(event["nano_usd"], event["tokens"])
            self.billed = self.billed.plus(self.bills[place])
            if not event["twice"]:
                self.open.discard(place)
        elif name == "ChildBilled":
            self.heard.append(event["run_id"])
        elif name == "BudgetReached":
            self.told.add(event["budget"])
