"""Signals of a run, kept or taken by waits, and the open waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from immutables import Map

from refold.core.events import SignalReceived
from refold.core.run.persistent import EMPTY, stable_repr
from refold.core.wire.canonical import utf8_bytes

AROUND_BYTES = 256
"""Approximate bytes of a kept signal besides its texts; this bounds the number of empty signals."""


class KeptSignal(NamedTuple):
    """Signal that no wait took so far, the seq of its event, and its time."""

    seq: int
    came_ms: int
    signal: SignalReceived


class Mailbox(NamedTuple):
    """Signals and open waits of a run, immutable."""

    kept: Map[str, KeptSignal] = EMPTY  # untaken signals by id
    names: Map[str, tuple[str, ...]] = EMPTY  # ids of `kept` by name, in order of arrival
    taken: Map[str, int] = EMPTY  # steps that took the other signals
    waits: Map[str, tuple[int, ...]] = EMPTY  # open waits by name, in order
    bytes: int = 0
    full: bool = False  # a signal was dropped since a wait took one
    behind: int = 0  # first wait not yet matched with the kept signals; 0: none

    def receive(self, signal: SignalReceived, seq: int, at_ms: int) -> Mailbox:
        name, number = signal.name, signal.signal_id
        return self._replace(
            kept=self.kept.set(number, KeptSignal(seq, signal.sent_ms or at_ms, signal)),
            names=self.names.set(name, (*self.names.get(name, ()), number)),
            bytes=self.bytes + signal_bytes(signal),
        )

    def take(self, signal_id: str, step: int) -> tuple[SignalReceived, Mailbox]:
        """Give a kept signal to a step. **Raises** KeyError if it is not there, or was taken."""
        signal = self.kept[signal_id].signal
        left = tuple(other for other in self.names[signal.name] if other != signal_id)
        rest = self._replace(
            kept=self.kept.delete(signal_id),
            names=self.names.set(signal.name, left) if left else self.names.delete(signal.name),
            taken=self.taken.set(signal_id, step),
            bytes=self.bytes - signal_bytes(signal),
            full=False,
        )
        return signal, rest

    def wait(self, name: str, step: int) -> Mailbox:
        return self._replace(waits=self.waits.set(name, (*self.waits.get(name, ()), step)))

    def wait_no_more(self, name: str, step: int) -> Mailbox:
        left = tuple(other for other in self.waits[name] if other != step)
        return self._replace(waits=self.waits.set(name, left) if left else self.waits.delete(name))

    def reopen(self, back: Iterable[KeptSignal], waits: Iterable[tuple[str, int]]) -> Mailbox:
        """Return signals that were taken by steps left behind, and set these waits, in order, to be matched again."""
        signals, takers, size = self.kept, self.taken, self.bytes
        for entry in back:
            name = entry.signal.signal_id
            signals, takers, size = signals.set(name, entry), takers.delete(name), size + signal_bytes(entry.signal)
        names: dict[str, tuple[str, ...]] = {}
        for entry in sorted(signals.values(), key=attrgetter("seq")):
            names[entry.signal.name] = (*names.get(entry.signal.name, ()), entry.signal.signal_id)
        mail = self._replace(kept=signals, names=Map(names), taken=takers, bytes=size, waits=EMPTY, behind=0)
        for name, step in waits:
            mail = mail.wait(name, step)
        return mail._replace(behind=min([mail.waits[name][0] for name in names if name in mail.waits], default=0))

    def named(self, name: str) -> Iterator[KeptSignal]:
        return map(self.kept.__getitem__, self.names.get(name, ()))

    def __repr__(self) -> str:
        return stable_repr(self)


NO_MAIL = Mailbox()


def signal_bytes(signal: SignalReceived) -> int:
    texts = (signal.signal_id, signal.name, signal.data, signal.actor)
    return AROUND_BYTES + sum(map(utf8_bytes, texts))
