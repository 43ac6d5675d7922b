"""State shared by the shipped tables while they apply an entry."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from refold.console.projections.batch import Batch
from refold.console.projections.shipped.tables import APPROVALS, DAILY, DAILY_FAILURES, STEPS, TEXT_CHARS, RunAt, StepAt
from refold.core.events import Entry, Failure
from refold.core.run.state import WAITING
from refold.sdk.projection import day_of

_QUESTIONS = frozenset({"approval", "doubt"})
COUNTS = (RunAt.open, RunAt.busy, RunAt.waiting, RunAt.waiting_for_people, RunAt.doubt, RunAt.on_hold)
"""Columns of a run that count its steps."""

StepStanding = tuple[str, str, bool]
"""Status and phase of a step, and True if people are asked about it."""
UNCOUNTED: StepStanding = ("", "", False)
"""That of a step which its run does not count."""

PriceOf = Callable[[Mapping[str, Any], int], int]
"""Returns the cost of a usage at a time (ms) in billionths of a dollar."""


@dataclass(slots=True)
class Turn:
    """An entry, and the row of its run, changed in place. `price` is for usage that no budget bills."""

    batch: Batch
    entry: Entry
    run: list[Any]
    price: PriceOf | None
    price_table: str
    _of: tuple[str, ...] = ()
    _sums: list[int] = field(default_factory=list)

    def step(self, number: int) -> list[Any] | None:
        """Return the row of a step, to be changed in place; None if the history contradicts itself."""
        return self.batch.edit(STEPS, (self.entry.run_id, number))

    @property
    def copied(self) -> bool:
        """True if the entry was copied from another run, where it was counted."""
        return bool(self.entry.last_seq <= self.run[RunAt.forked_at])

    def sums(self, tool: str = "", model: str = "") -> list[int]:
        """Return the sums of the entry's day, to be changed in place."""
        if self.copied:
            return [0] * len(DAILY.columns)
        if self._of != (of := (tool, model)):
            self._of = of
            self._sums = self.batch.totals_of(DAILY, (day_of(self.entry.at_ms), self.run[RunAt.agent], *of))
        return self._sums

    def update_counts(self, row: list[Any], before: StepStanding, question: str) -> None:
        """Add a step's difference from `before` to the counts of its run. Close the `question` that was asked then, and
        open the one that is asked now."""
        after = standing(row)
        self.count(before, after)
        if (before[2] or after[2]) and (before[2] != after[2] or question != row[StepAt.approval_id]):
            if before[2]:
                self.question(question, open=0)
            if after[2]:
                self.question(row[StepAt.approval_id], open=1)

    def count(self, before: StepStanding, after: StepStanding) -> None:
        for column, number in _difference(before, after):
            self.run[column] += number

    def count_failure(self, tool: str, failure: Failure) -> None:
        """Count a failure of a tool, or with no tool of a run, in the sums of the entry's day."""
        if not self.copied:
            key = (day_of(self.entry.at_ms), self.run[RunAt.agent], tool, cut(failure.code))
            self.batch.totals_of(DAILY_FAILURES, key)[0] += 1

    def question(self, name: str, **change: Any) -> None:
        if name and (opened := self.batch.edit(APPROVALS, (name,))) is not None:
            for column, value in change.items():
                opened[APPROVALS.places[column]] = value


def standing(row: list[Any]) -> StepStanding:
    """Return the part of a step's row that its run counts."""
    status = row[StepAt.status]
    return status, row[StepAt.phase], status in _QUESTIONS and row[StepAt.approval_id] != ""


# Cached: a step has few standings, and each event compares two.
@cache
def _difference(before: StepStanding, after: StepStanding) -> tuple[tuple[int, int], ...]:
    """Return the columns of a run that the change of a step changes, with the numbers to add."""
    changes = zip(COUNTS, _step_counts(*after), _step_counts(*before), strict=True)
    return tuple((column, now - was) for column, now, was in changes if now != was)


def _step_counts(status: str, phase: str, asks_people: bool) -> tuple[bool, ...]:
    busy = phase != "" and phase not in WAITING
    return phase != "", busy, status == "waiting", asks_people, status == "doubt", status == "held"


def cut(text: str, most: int = TEXT_CHARS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def failed(row: list[Any], failure: Failure | None, place: int = StepAt.failure_code) -> None:
    """Set or clear the two columns of a failure, by default a step's."""
    row[place : place + 2] = (cut(failure.code), cut(failure.message)) if failure else ("", "")
