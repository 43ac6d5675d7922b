"""Effect of retries on a run, beside the part of its history that stays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from immutables import Map

_NOTHING: Map[Any, Any] = Map()


NO_EDIT = (0, "", "", "")


class Retried(NamedTuple):
    """Effect of retries on a run. Immutable. `at` is the seq of the last retry. `left` are the steps left behind, as
    (first, last); `redriven` the seqs of repeated calls by step, `superseded` the steps by earlier seqs of those;
    `edit` the step to get other arguments, the arguments, the tool, and their author. `most_steps`, `most_bytes`,
    `most_children` and `deadline_ms` are limits that operators have set; 0: none, -1: no deadline."""

    at: int = 0
    left: tuple[tuple[int, int], ...] = ()
    redriven: Map[int, int] = _NOTHING
    superseded: Map[int, int] = _NOTHING
    edit: tuple[int, str, str, str] = NO_EDIT
    most_steps: int = 0
    most_bytes: int = 0
    deadline_ms: int = 0
    most_children: int = 0

    def step_before(self, step: int) -> int:
        """The last step up to this one that was not left behind; 0 if there is none."""
        for first, last in reversed(self.left):
            step = first - 1 if first <= step <= last else step
        return step

    def step_after(self, step: int) -> int:
        return next_step(step, self.left)

    def counts(self, step: int) -> bool:
        """True if a step was not left behind."""
        return not any(first <= step <= last for first, last in self.left)

    def __repr__(self) -> str:
        parts = (sorted(each.items()) if isinstance(each, Map) else each for each in self)
        return f"Retried({', '.join(map(repr, parts))})"


ONCE = Retried()
"""State of a run that was never retried."""


def next_step(step: int, left: Iterable[tuple[int, int]]) -> int:
    """The number of the next step: those that a retry has `left` behind keep theirs."""
    for first, last in left:
        step = last if step + 1 == first else step
    return step + 1
