"""How long ago a lane knew all of the catalog: what halts a tool or revokes a key may lie where nobody could read."""

from __future__ import annotations


class Sight:
    """Asks where the catalog ends, and waits until it is read up to there. **Units**: milliseconds, monotonic."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, now_ms: int) -> None:
        """The partition is ours: nothing is claimed before the ends that were captured now are reached."""
        self._known_ms = self._asked_ms = now_ms
        self._asking = False
        self._end: int | None = None

    def asks(self, now_ms: int, every_ms: int) -> bool:
        """Whether the end is to be asked for now. One question at a time: its answer may be long in coming."""
        if self._asking or now_ms - self._asked_ms < every_ms:
            return False
        self._asking, self._asked_ms = True, now_ms
        return True

    def told(self, end: int, position: int) -> None:
        """Where it ends; it did when that was asked for."""
        self._end = end
        self.reached(position)

    def reached(self, position: int) -> None:
        """The catalog is read up to here."""
        if self._end is not None and position >= self._end:
            self._known_ms, self._asking, self._end = self._asked_ms, False, None

    def blind_ms(self, now_ms: int) -> int:
        """How long ago all of it was known for the last time."""
        return now_ms - self._known_ms
