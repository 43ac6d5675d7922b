"""Calls that build on others: what goes out with one, so that its arguments need not hold what was said before."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def below(steps: Iterable[int], under: Callable[[int], Iterable[int] | None]) -> list[int]:
    """These steps and those on which they build, in order. `under` has those of a step; None: it has no result."""
    found: set[int] = set()
    ahead = list(steps)
    while ahead:
        step = ahead.pop()
        if step not in found and (further := under(step)) is not None:
            found.add(step)
            ahead += further
    return sorted(found)
