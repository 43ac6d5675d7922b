"""State shared by the shipped tables while they apply an entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from refold.console.projections.batch import Batch
from refold.console.projections.shipped.tables import APPROVALS, DAILY, STEPS, TEXT_CHARS, RunAt, StepAt
from refold.core.events import Entry, Failure
from refold.sdk.projection import day_of

_COUNTED = frozenset({"doubt", "held", "waiting"})
_QUESTIONS = frozenset({"approval", "doubt"})
_BUSY = frozenset({"proposed", "dispatched"})


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

    def move(self, row: list[Any], status: str, phase: str) -> None:
        """Set a step's status and phase ("" once closed), and update the counts of its run."""
        run, was = self.run, row[StepAt.phase]
        if was != phase:
            run[RunAt.open] += bool(phase) - bool(was)
            run[RunAt.busy] += (phase in _BUSY) - (was in _BUSY)
            row[StepAt.phase] = phase
        if row[StepAt.status] in _COUNTED or status in _COUNTED or row[StepAt.approval_id]:
            self.count(row, -1)
            asking = is_question(row)
            row[StepAt.status] = status
            self.count(row, 1)
            if asking != is_question(row):
                self.question(row, open=int(not asking))
        else:
            row[StepAt.status] = status

    def count(self, row: list[Any], sign: int) -> None:
        """Add a step to the counts of its run, or subtract it (`sign` -1)."""
        run, status = self.run, row[StepAt.status]
        run[RunAt.doubt] += sign * (status == "doubt")
        run[RunAt.on_hold] += sign * (status == "held")
        run[RunAt.waiting] += sign * (status == "waiting")
        run[RunAt.waiting_for_people] += sign * is_question(row)

    def question(self, row: list[Any], **change: Any) -> None:
        """Change columns of a step's newest question."""
        if (opened := self.batch.edit(APPROVALS, (row[StepAt.approval_id],))) is not None:
            for name, value in change.items():
                opened[APPROVALS.places[name]] = value


def is_question(row: list[Any]) -> bool:
    return bool(row[StepAt.approval_id]) and row[StepAt.status] in _QUESTIONS


def cut(text: str, most: int = TEXT_CHARS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def failed(row: list[Any], failure: Failure | None) -> None:
    """Set or clear the failure of a step."""
    row[StepAt.failure_code] = cut(failure.code) if failure else ""
    row[StepAt.failure_message] = cut(failure.message) if failure else ""
