"""Effect of retries on a run, beside the part of its history that stays."""

from collections.abc import Iterable
from typing import NamedTuple

from immutables import Map

from refold.core.run.persistent import EMPTY, stable_repr

NO_EDIT = (0, "", "", "")


class Retried(NamedTuple):
    """Immutable effect of retries on a run. Limits are set by operators; 0: none, -1: no deadline."""

    at: int = 0  # seq of the last retry
    left: tuple[tuple[int, int], ...] = ()  # steps left behind, as (first, last)
    redriven: Map[int, int] = EMPTY  # seqs of repeated calls by step
    superseded: Map[int, int] = EMPTY  # steps by their earlier seqs in `redriven`
    edit: tuple[int, str, str, str] = NO_EDIT  # step, its new arguments, tool, author
    most_steps: int = 0
    most_bytes: int = 0
    deadline_ms: int = 0
    most_children: int = 0

    def step_before(self, step: int) -> int:
        """Last step up to this one that was not left behind; 0 if there is none."""
        for first, last in reversed(self.left):
            step = first - 1 if first <= step <= last else step
        return step

    def step_after(self, step: int) -> int:
        return next_step(step, self.left)

    def counts(self, step: int) -> bool:
        return not any(first <= step <= last for first, last in self.left)

    def __repr__(self) -> str:
        return stable_repr(self)


ONCE = Retried()


def next_step(step: int, left: Iterable[tuple[int, int]]) -> int:
    """Number of the next step; steps `left` behind keep theirs."""
    for first, last in left:
        step = last if step + 1 == first else step
    return step + 1
