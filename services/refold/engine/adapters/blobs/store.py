"""Large values as files of an object store: `runs/<digest of the run's id>/<digest of the text>`."""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import obstore

from refold.core.errors import BlobError, MalformedError
from refold.core.ids import RunId
from refold.core.wire import blobs
from refold.engine.runtime.objects import ObjectStore

PART_BYTES = 1 << 20
"""Bytes of one part of a streamed value; a reader has about three in memory."""


class ObjectBlobs:
    """Blob store at an address of `ObjectStore`. **Units**: `most` in bytes."""

    def __init__(self, url: str, *, most: int) -> None:
        self._most, self._objects = most, ObjectStore(url, "a blob store")
        self.url = self._objects.url

    def put(self, run: RunId, text: str) -> str:
        data = text.encode()
        pointer = blobs.pointer_of(data)
        # Names follow from the content: writing again changes nothing, and repairs an altered file.
        self._objects.put(_path(run, pointer), data, over=True)
        return pointer

    def get(self, run: RunId, pointer: str) -> str:
        with self._translating(run, pointer):
            data = memoryview(self._open(run, pointer).bytes())
        return blobs.checked(pointer, data)

    def stream(self, run: RunId, pointer: str) -> Iterator[bytes]:
        """Yield a text as UTF-8, in parts. **Raises** as `get`; before the last part if the text was altered."""
        digest, last = sha256(), b""
        with self._translating(run, pointer):
            for part in self._open(run, pointer).stream(min_chunk_size=PART_BYTES):
                digest.update(part)
                if last:
                    yield last
                last = bytes(part)
        if digest.hexdigest() != blobs.parse_pointer(pointer).digest:
            raise BlobError(f"{pointer} has other content", hint="restore it from a copy", code="blob_altered")
        yield last

    def _open(self, run: RunId, pointer: str) -> "obstore.GetResult":
        try:
            size = blobs.parse_pointer(pointer).size
        except MalformedError as error:
            raise BlobError(error.message, code="blob_missing") from None
        if size > self._most:
            raise BlobError(f"{pointer} is longer than {self._most:,} bytes", code="too_large")
        answer = obstore.get(self._objects.store, _path(run, pointer))
        if answer.meta["size"] != size:  # it may be endless
            message = f"{pointer} has {answer.meta['size']:,} bytes in {self.url}"
            raise BlobError(message, hint="restore it from a copy", code="blob_altered")
        return answer

    @contextmanager
    def _translating(self, run: RunId, pointer: str) -> Iterator[None]:
        try:
            with self._objects.requests(FileNotFoundError):
                yield
        except FileNotFoundError:
            message = f"{pointer} of run {run} is not in {self.url}"
            raise BlobError(message, hint="restore it from a copy", code="blob_missing") from None

    def erase(self, run: RunId) -> int:
        store, count = self._objects.store, 0
        try:
            with self._objects.requests(FileNotFoundError):
                for batch in obstore.list(store, blobs.folder_of(run)):
                    obstore.delete(store, [meta["path"] for meta in batch])
                    count += len(batch)
        except FileNotFoundError:
            return self.erase(run)  # another process erases it as well
        return count


def _path(run: RunId, pointer: str) -> str:
    return blobs.folder_of(run) + blobs.parse_pointer(pointer).digest
