"""Pointers to values too large for the log: `blob:<SHA-256 in hex>:<bytes>`. A pointer is no JSON, so no user's value
is mistaken for one. A reader looks it up under the run of the record, and verifies the content."""

import re
from hashlib import sha256
from typing import NamedTuple

from refold.core.errors import BlobError, MalformedError
from refold.core.ids import RunId
from refold.core.wire.canonical import hex_digest, utf8_bytes

INLINE_BYTES = 65_536
"""Largest value kept in the log. Below it a second round trip costs more than the bytes."""

MARK = "blob:"
"""Prefix of a pointer: no JSON text begins with it."""

_POINTER = re.compile(r"blob:([0-9a-f]{64}):([1-9][0-9]{0,15})\Z")


class Pointer(NamedTuple):
    """Digest and size of a text. **Units**: `size` in bytes of UTF-8."""

    digest: str
    size: int


def is_pointer(text: str) -> bool:
    return text.startswith(MARK)


def is_large(text: str) -> bool:
    return len(text) > INLINE_BYTES // 4 and utf8_bytes(text) > INLINE_BYTES


def pointer_of(data: bytes) -> str:
    return f"{MARK}{sha256(data).hexdigest()}:{len(data)}"


def parse_pointer(text: str) -> Pointer:
    """Parse a pointer. **Raises** MalformedError."""
    if not (match := _POINTER.match(text)):
        raise MalformedError(f"{text[:80]!r} stands for no value", hint="it is blob:SHA-256:BYTES")
    return Pointer(match[1], int(match[2]))


def size_of(text: str) -> int:
    """Bytes of a value in UTF-8, inline or by its pointer; 0 for a malformed pointer."""
    match = _POINTER.match(text) if is_pointer(text) else None
    return int(match[2]) if match else utf8_bytes(text)


def folder_of(run: RunId) -> str:
    """Folder of a run's values, erased with it."""
    # By a digest, because ids may differ in case alone, folders may not.
    return f"runs/{hex_digest(run)[:40]}/"


def checked(pointer: str, data: bytes | memoryview) -> str:
    """Text of these bytes if they match the pointer. **Raises** BlobError."""
    size, whole = len(data), sha256(data).hexdigest()
    if (whole, size) != parse_pointer(pointer):
        message = f"{pointer} has other content: {size:,} bytes with the digest {whole}"
        raise BlobError(message, hint="restore it from a copy", code="blob_altered")
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise BlobError(f"{pointer} is not UTF-8 ({error})", code="blob_altered") from None


def stands_for(recorded: str, text: str) -> bool:
    """True if the recorded text is this text, or a pointer to it."""
    if recorded == text:
        return True
    return is_pointer(recorded) and recorded == pointer_of(text.encode("utf-8", "surrogatepass"))
