"""The simulated blob store: slow, sometimes away, and asked by processes that die before they hear of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from refold.core.errors import BlobError
from refold.core.events import Failure
from refold.core.ids import RunId
from refold.core.wire import blobs
from refold.engine.ports.effects import BlobLoaded, BlobSaved, LoadBlob, SaveBlob
from refold.engine.ports.log import Record

FED_BYTES = 1 << 20
ANSWERS_MS, AWAY_MS = 7, 400
"""How long an answer takes, and how long it may take in a wild world."""

_POINTER = re.compile(rb"blob:[0-9a-f]{64}:[0-9]+")


class Store:
    """What is kept, by run and digest. `wrong` is what was written of values that never were there."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._elsewhere: dict[str, str] | None = None
        self._kept: set[str] = set()
        self.wrong: list[str] = []

    def answer(self, order: LoadBlob | SaveBlob) -> BlobLoaded | BlobSaved:
        """Does what was asked."""
        if isinstance(order, SaveBlob):
            self.keep(order.run, order.text)
            return BlobSaved(order.number)
        try:
            text = self.texts[name_of(order.run, order.pointer)]
            return BlobLoaded(order.number, blobs.checked(order.pointer, text.encode()))
        except KeyError:
            return BlobLoaded(order.number, Failure("blob_missing", f"{order.pointer} is not there"))
        except BlobError as error:
            return BlobLoaded(order.number, Failure(error.fields["code"], error.message))

    def keep(self, run: RunId, text: str) -> str:
        """Keeps a value of a run, and returns what stands for it."""
        pointer = blobs.pointer_of(text.encode())
        self.texts[name_of(run, pointer)] = text
        self._kept.add(blobs.parse_pointer(pointer).digest)
        return pointer

    def swap(self) -> None:
        """Everybody has another store, which is empty; or, once more, the first again, with what was kept meanwhile."""
        if self._elsewhere is None:
            self._elsewhere, self.texts = self.texts, {}
        else:
            self.texts, self._elsewhere = {**self._elsewhere, **self.texts}, None

    def erase(self, run: RunId) -> int:
        """Drops all values of a run; returns how many there were."""
        names = [name for name in self.texts if name.startswith(blobs.folder_of(run))]
        for name in names:
            del self.texts[name]
        return len(names)

    def written(self, record: Record) -> None:
        """A record is in the log: what it points to has to be there by now, whoever's it is."""
        for pointer in _pointers(record.value or b""):
            if blobs.parse_pointer(pointer).digest not in self._kept:
                self.wrong.append(f"unkept: {record.topic}/{record.offset} points to {pointer}, which nobody has kept")


def name_of(run: RunId, pointer: str) -> str:
    """Where a value of a run lies."""
    return blobs.folder_of(run) + blobs.parse_pointer(pointer).digest


def _pointers(value: bytes) -> Iterator[str]:
    return (found.decode() for found in _POINTER.findall(value))
