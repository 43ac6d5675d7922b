"""Seal of an executor's ledger entries under its pool's key, because others may write to the ledger's server. The code
covers pool, partition and idempotency key, so an entry fits no other call."""

import hmac
import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, NamedTuple

from refold.core.errors import MalformedError
from refold.core.ids import CallId

SealedKind = Literal["order", "result"]

_CODE_BYTES, _LENGTH_BYTES = 16, 2
_PERSONS: dict[SealedKind, bytes] = {"order": b"refold order", "result": b"refold result"}
_HEX = re.compile(r"[0-9a-f]{64}\Z")


class OrderPlace(NamedTuple):
    """Position of an attempt's order in its pool's `tool-requested`, in the partition of the entry."""

    call: CallId
    attempt: int
    offset: int


@dataclass(frozen=True, slots=True)
class Seal:
    """Seals and opens the ledger entries of one pool. With an empty `key` any writer can forge them."""

    pool: str = "default"
    key: bytes = b""

    def close(self, kind: SealedKind, home: int, name: str, body: bytes) -> bytes:
        """Ledger entry with this body, sealed for partition `home` and idempotency key `name`."""
        named = name.encode()
        content = len(named).to_bytes(_LENGTH_BYTES, "big") + named + body
        return self._code(kind, home, content) + content

    def open(self, kind: SealedKind, home: int, sealed: bytes) -> tuple[str, bytes]:
        """Idempotency key and body of an entry. **Raises** MalformedError unless this pool has sealed it."""
        content = sealed[_CODE_BYTES:]
        ends = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "big")
        try:
            name = content[_LENGTH_BYTES:ends].decode()
        except UnicodeDecodeError:
            name = ""
        if not name or not hmac.compare_digest(sealed[:_CODE_BYTES], self._code(kind, home, content)):
            raise MalformedError("no executor of this pool has written it", hint="who else may write to this Redis?")
        return name, content[ends:]

    def close_order(self, home: int, name: str, place: OrderPlace) -> bytes:
        """Ledger entry with the position of an order, for another process to take it over or to compare its attempt."""
        return self.close("order", home, name, f"{place.attempt} {place.offset} {place.call}".encode())

    def open_order(self, home: int, name: str, sealed: bytes) -> OrderPlace:
        """Position of the order of the entry under this key. **Raises** MalformedError."""
        named, body = self.open("order", home, sealed)
        try:
            attempt, offset, call = body.decode().split(" ", 2)
            place = OrderPlace(CallId(call), int(attempt), int(offset))
        except ValueError:
            raise MalformedError("it says no place of an order") from None
        if named != name:
            raise MalformedError("it is of another call")
        return place

    def _code(self, kind: SealedKind, home: int, content: bytes) -> bytes:
        begins = f"{self.pool}/{home}/".encode()
        return blake2b(begins + content, digest_size=_CODE_BYTES, key=self.key, person=_PERSONS[kind]).digest()


def is_key(text: str) -> bool:
    return bool(_HEX.match(text))
