"""How far is done: inputs settle in any order, positions are committed only in theirs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from refold.core.planning.verdict import Input
from refold.ports.log import Record


@dataclass(slots=True, eq=False)
class Item:
    """Something that a lane has to answer: an input with its record, a timer, or (no `what`) a run to be driven.

    `end` is a high watermark of the run log captured after the input was taken: only a fold that has reached it may
    say for good that the input changes nothing.
    """

    run_id: str
    what: Input | None
    record: Record | None = None
    end: int | None = None
    parked_ms: int = 0
    letter: tuple[str, str] | None = None
    done: bool = False


class Outstanding:
    """The inputs of one topic in order; `position` is what may be committed: everything below it is settled."""

    def __init__(self) -> None:
        self._items: deque[tuple[int, Item]] = deque()
        self.position: int | None = None

    def add(self, offset: int, item: Item) -> None:
        """Takes note of an input, in order of offset."""
        self._items.append((offset, item))

    def low_water(self) -> int | None:
        """The offset below which everything is done, or None before the first."""
        while self._items and self._items[0][1].done:
            self.position = self._items.popleft()[0] + 1
        return self.position


class Emitted:
    """Commands that are not acknowledged yet, by the run-log offset that ordered them."""

    def __init__(self) -> None:
        self._open: deque[list[int]] = deque()
        self._by_offset: dict[int, list[int]] = {}

    def add(self, offset: int, count: int) -> None:
        """An entry at `offset` (higher than all before) ordered `count` commands."""
        slot = [offset, count]
        self._open.append(slot)
        self._by_offset[offset] = slot

    def acknowledge(self, offset: int) -> None:
        """One command of the entry at `offset` is in its topic."""
        self._by_offset[offset][1] -= 1

    def low_water(self, position: int) -> int:
        """The run-log offset from which a successor has to emit again; `position` when nothing is open."""
        while self._open and self._open[0][1] <= 0:
            del self._by_offset[self._open.popleft()[0]]
        return self._open[0][0] if self._open else position
