"""What an executor is asked to do: requests, and up to where those of a partition are done with."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from refold.core.messages import ToolRequest


@dataclass(frozen=True, slots=True)
class Requested:
    """A call that is to be made, and the bytes that say so. `offset` None: it was not read but left by another."""

    request: ToolRequest
    raw: bytes
    offset: int | None


class Offsets:
    """The requests of a partition in order: they are done with in any order, what may be committed moves in theirs."""

    def __init__(self) -> None:
        self._done: OrderedDict[int, bool] = OrderedDict()
        self._low_water: int | None = None

    def read(self, offset: int) -> None:
        """Takes note of a request."""
        self._done[offset] = False

    def done(self, offset: int | None) -> None:
        """A request is done with: its claim is answered, or there will be none."""
        if offset is not None and offset in self._done:
            self._done[offset] = True

    def low_water(self) -> int | None:
        """The offset below which everything is done with, or None before the first."""
        while self._done and self._done[offset := next(iter(self._done))]:
            del self._done[offset]
            self._low_water = offset + 1
        return self._low_water
