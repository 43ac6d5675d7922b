"""State shared by the shipped tables while they apply an entry."""

from __future__ import annotations

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

Standing = tuple[str, str, str]
"""Status and phase of a step, and its open question."""
OUTSIDE: Standing = ("", "", "")
"""Standing of a step that its run does not count."""

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

    def update_counts(self, row: list[Any], before: Standing) -> None:
        """Add a step's difference from `before` to the counts of its run, and close and open its questions."""
        after = standing(row)
        if after != before:
            self.count(before, after)
            self.switch_question(before, after)

    def count(self, before: Standing, after: Standing) -> None:
        less, more = _counts(*before[:2], before[2] != ""), _counts(*after[:2], after[2] != "")
        if less != more:
            for column, now, was in zip(COUNTS, more, less, strict=True):
                self.run[column] += now - was

    def switch_question(self, before: Standing, after: Standing) -> None:
        if after[2] != before[2]:
            self.question(before[2], open=0)
            self.question(after[2], open=1)

    def count_failure(self, tool: str, failure: Failure) -> None:
        """Count a failure of a tool, or with no tool of a run, in the sums of the entry's day."""
        if not self.copied:
            key = (day_of(self.entry.at_ms), self.run[RunAt.agent], tool, cut(failure.code))
            self.batch.totals_of(DAILY_FAILURES, key)[0] += 1

    def question(self, name: str, **change: Any) -> None:
        """Change columns of a question, if there is one of this name."""
        if name and (opened := self.batch.edit(APPROVALS, (name,))) is not None:
            for column, value in change.items():
                opened[APPROVALS.places[column]] = value


def standing(row: list[Any]) -> Standing:
    status = row[StepAt.status]
    return status, row[StepAt.phase], row[StepAt.approval_id] if status in _QUESTIONS else ""


@cache
def _counts(status: str, phase: str, asked: bool) -> tuple[bool, ...]:
    busy = phase != "" and phase not in WAITING
    return phase != "", busy, status == "waiting", asked, status == "doubt", status == "held"


def cut(text: str, most: int = TEXT_CHARS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def failed(row: list[Any], failure: Failure | None) -> None:
    """Set or clear the failure of a step."""
    row[StepAt.failure_code] = cut(failure.code) if failure else ""
    row[StepAt.failure_message] = cut(failure.message) if failure else ""
