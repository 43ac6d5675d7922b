"""Inputs whose subject is unknown, as the topics of a partition are read in any order. They wait for the end of the
topic that would have the subject, captured after they were read: past it the subject does not exist."""

from collections import deque
from itertools import count
from typing import Generic, TypeVar

W = TypeVar("W")


class UnresolvedInputs(Generic[W]):
    """Parked inputs by subject; `bytes` is their memory."""

    def __init__(self) -> None:
        self._numbers = count()
        self._waiting: dict[str, dict[int, tuple[W, int]]] = {}
        self.bytes = 0
        self._fresh: list[tuple[str, int]] = []
        self._in_question: list[tuple[str, int]] = []
        self._ends: deque[tuple[int, list[tuple[str, int]]]] = deque()

    def park(self, awaited: str, item: W, size: int) -> None:
        number = next(self._numbers)
        self._waiting.setdefault(awaited, {})[number] = item, size
        self._fresh.append((awaited, number))
        self.bytes += size

    def take(self, awaited: str) -> list[W]:
        parked = self._waiting.pop(awaited, {}).values()
        self.bytes -= sum(size for _, size in parked)
        return [item for item, _ in parked]

    def has_fresh(self) -> bool:
        """True if the end must be requested now, once for all inputs parked since the last request."""
        if self._in_question or not self._fresh:
            return False
        self._in_question, self._fresh = self._fresh, []
        return True

    def reached_end(self, end: int) -> None:
        self._ends.append((end, self._in_question))
        self._in_question = []

    def over(self, position: int) -> list[W]:
        """Remove and return inputs whose end was read without their subject."""
        items: list[W] = []
        while self._ends and self._ends[0][0] <= position:
            for awaited, number in self._ends.popleft()[1]:
                waiting = self._waiting.get(awaited, {})
                if number in waiting:
                    item, size = waiting.pop(number)
                    items.append(item)
                    self.bytes -= size
                if not waiting:
                    self._waiting.pop(awaited, None)
        return items
