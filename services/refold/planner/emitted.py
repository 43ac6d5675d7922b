"""What accepted entries have ordered and is not done so far, by where they lie in the run log."""

from __future__ import annotations

from collections import OrderedDict


class Emitted:
    """Orders that are not acknowledged so far, by the run-log offset of the entry behind them."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, int] = OrderedDict()

    def add(self, offset: int, count: int) -> None:
        """An entry at `offset` (not lower than any before) ordered `count` commands."""
        self._open[offset] = self._open.get(offset, 0) + count

    def acknowledge(self, offset: int) -> None:
        """One command of the entry at `offset` is in its topic."""
        self._open[offset] -= 1

    def low_water(self, position: int) -> int:
        """The run-log offset from which a successor has to emit again; `position` when nothing is open."""
        while self._open and self._open[offset := next(iter(self._open))] <= 0:
            del self._open[offset]
        return next(iter(self._open), position)
