"""The signals of a run: those that are kept, those that a wait took, and the waits that are open."""

from __future__ import annotations

from typing import Any, NamedTuple

from immutables import Map

from refold.core.waits import SignalReceived
from refold.core.wire.canonical import utf8_bytes

AROUND_BYTES = 256
"""What a signal that is kept takes besides its texts, roughly: of empty ones there are not any number, either."""

_NOTHING: Map[Any, Any] = Map()


class Mailbox(NamedTuple):
    """What a run was told. Never changes: what becomes of it is another.

    `kept` has the signals that no wait took so far, by id, with the seq of their events, `bytes` is what they take;
    `taken` the steps that took the others. `waits` are the steps that are open, by name and in order. `full`: a signal
    was dropped since a wait took one.
    """

    kept: Map[str, tuple[int, SignalReceived]] = _NOTHING
    taken: Map[str, int] = _NOTHING
    waits: Map[str, tuple[int, ...]] = _NOTHING
    bytes: int = 0
    full: bool = False

    def receive(self, signal: SignalReceived, seq: int) -> Mailbox:
        """Keeps a signal."""
        kept = self.kept.set(signal.signal_id, (seq, signal))
        return self._replace(kept=kept, bytes=self.bytes + signal_bytes(signal))

    def take(self, signal_id: str, step: int) -> tuple[SignalReceived, Mailbox]:
        """Gives a signal that is kept to a step. **Raises** KeyError: nobody gets what is not there, or was taken."""
        _, signal = self.kept[signal_id]
        rest = self._replace(
            kept=self.kept.delete(signal_id),
            taken=self.taken.set(signal_id, step),
            bytes=self.bytes - signal_bytes(signal),
            full=False,
        )
        return signal, rest

    def wait(self, name: str, step: int) -> Mailbox:
        """A step waits from now on; it is the last that was asked for."""
        return self._replace(waits=self.waits.set(name, (*self.waits.get(name, ()), step)))

    def wait_no_more(self, name: str, step: int) -> Mailbox:
        """A step has what it waited for, or does not wait any more."""
        left = tuple(each for each in self.waits[name] if each != step)
        return self._replace(waits=self.waits.set(name, left) if left else self.waits.delete(name))

    def named(self, name: str) -> list[SignalReceived]:
        """The signals of a name that are kept, in the order in which they came."""
        return [signal for _, signal in sorted(kept for kept in self.kept.values() if kept[1].name == name)]

    def __repr__(self) -> str:
        parts = (sorted(each.items()) if isinstance(each, Map) else each for each in self)
        return f"Mailbox({', '.join(map(repr, parts))})"


EMPTY = Mailbox()
"""Of a run that was told nothing."""


def signal_bytes(signal: SignalReceived) -> int:
    """What a signal takes while it is kept."""
    texts = (signal.signal_id, signal.name, signal.data, signal.actor)
    return AROUND_BYTES + sum(map(utf8_bytes, texts))
