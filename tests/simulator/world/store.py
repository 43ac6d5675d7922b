"""The simulated blob store: slow, sometimes away, and asked by processes that die before they hear of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from refold.core.errors import BlobError
from refold.core.events import Failure
from refold.core.ids import RunId
from refold.core.wire import blobs
from refold.ports.effects import BlobLoaded, BlobSaved, LoadBlob, SaveBlob
from refold.ports.log import Record

MOST_BYTES = 1 << 20
ANSWERS_MS, AWAY_MS = 7, 400
"""How long an answer takes, and how long it may take in a wild world."""

_POINTER = re.compile(rb"blob:[0-9a-f]{64}:[0-9]+")


class Store:
    """What is kept, by run and digest. `wrong` is what was written of values that were not there."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.wrong: list[str] = []

    def answer(self, order: LoadBlob | SaveBlob) -> BlobLoaded | BlobSaved:
        """Does what was asked."""
        if isinstance(order, SaveBlob):
            self.texts[_name(order.run, blobs.pointer_of(order.text.encode()))] = order.text
            return BlobSaved(order.number)
        try:
            text = self.texts[_name(order.run, order.pointer)]
            return BlobLoaded(order.number, blobs.checked(order.pointer, text.encode()))
        except KeyError:
            return BlobLoaded(order.number, Failure("blob_missing", f"{order.pointer} is not there"))
        except BlobError as error:
            return BlobLoaded(order.number, Failure(error.fields["code"], error.message))

    def written(self, record: Record) -> None:
        """A record is in the log: what it points to has to be there by now, whoever's it is."""
        for pointer in _pointers(record.value or b""):
            digest = blobs.parse_pointer(pointer).digest
            if not any(name.endswith(digest) for name in self.texts):
                self.wrong.append(f"unkept: {record.topic}/{record.offset} points to {pointer}, which nobody has kept")


def _name(run: RunId, pointer: str) -> str:
    return blobs.folder_of(run) + blobs.parse_pointer(pointer).digest


def _pointers(value: bytes) -> Iterator[str]:
    return (found.decode() for found in _POINTER.findall(value))
