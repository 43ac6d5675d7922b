"""Bodies of a schema from a seed, in some of which a length, a number, a text, a flag or a branch is a lie."""

from __future__ import annotations

import random
from typing import Any

NUMBERS = (0, 1, -1, 63, 64, -64, -65, 127, 128, 8_191, 8_192, 2**31, 2**34, 2**40, 2**62, 2**63 - 1, -(2**63))
LIES = (
    *(b"\x80\x00", b"\x82\x80\x80\x00", b"\x80" * 9 + b"\x00", b"\x80" * 9 + b"\x01", b"\x80" * 9 + b"\x02"),
    *(b"\xff" * 9 + b"\x01", b"\xfe" + b"\xff" * 8 + b"\x01", b"\xff" * 10, b"\x80" * 10 + b"\x00", b"\xff" * 300),
    *(b"", b"\x00", b"\x01", b"\x02", b"\x03", b"\x7f", b"\x80", b"\x81\x00", b"\x81\x01", b"\xfe\xff\xff\xff\x0f"),
    *(b"\xff\xff\xff\xff\x1f", b"\x04\xff\xfe", b"\x04\xc0\x80", b"\x06\xed\xa0\x80", b"\x08\xf4\x90\x80\x80"),
    *(b"\x04\xe2\x82", b"\x02\x80", b"\x00\x00", b"\x03\x02\x00", b"\x01\x04\x00", b"\x7f\xf8\x00\x00\x00\x00\x00\x00"),
)
TEXTS = ("", "a", "k", "tool-completed", "ä€😀\0", "x" * 63, "y" * 64, "z" * 200)


def zigzag(number: int) -> bytes:
    """A long as Avro writes it."""
    n, out = number << 1 if number >= 0 else ~number << 1 | 1, bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


class Bodies:
    """A stream of bodies of a schema."""

    def __init__(self, schema: Any, seed: int) -> None:
        self._schema, self._rng, self._lies, self._last = schema, random.Random(seed), 0.0, b""
        self._records: dict[str, Any] = {}
        self._learn(schema)

    def body(self) -> bytes:
        """The next body: a third of them are in order as far as this goes, and some of all are mutated after it."""
        rng = self._rng
        self._lies = rng.choice((0.0, 0.01, 0.05))
        body = self._of(self._schema)
        for _ in range(rng.choice((0, 0, 0, 1, 3))):
            body = self._mutated(body)
        self._last = body
        return body

    def _learn(self, kind: Any) -> None:
        """Where each record is defined, for the places that only name it."""
        for each in kind if isinstance(kind, list) else ():
            self._learn(each)
        if isinstance(kind, dict) and kind["type"] == "record":
            self._records[kind["name"]] = self._records[f"{kind['namespace']}.{kind['name']}"] = kind
            for field in kind["fields"]:
                self._learn(field["type"])
        elif isinstance(kind, dict):
            self._learn(kind.get("items"))

    def _of(self, kind: Any) -> bytes:
        rng = self._rng
        if rng.random() < self._lies:
            return rng.choice(LIES)
        if isinstance(kind, list):
            branch = rng.randrange(len(kind))
            return zigzag(branch) + self._of(kind[branch])
        if isinstance(kind, dict) and kind["type"] == "record":
            return b"".join([self._of(field["type"]) for field in kind["fields"]])
        if isinstance(kind, dict):
            return self._blocks([*([] if kind["type"] == "array" else ["string"]), kind.get("items") or kind["values"]])
        return self._record_or_primitive(kind)

    def _record_or_primitive(self, kind: str) -> bytes:
        rng = self._rng
        match kind:
            case "null":
                return b""
            case "long":
                return zigzag(rng.choice(NUMBERS) if rng.random() < 0.5 else rng.getrandbits(rng.randrange(1, 63)))
            case "boolean":
                return bytes([rng.randrange(2)])
            case "bytes":
                raw = rng.randbytes(rng.choice((0, 1, 16, 32, 70)))
                return zigzag(len(raw)) + raw
            case "string":
                raw = rng.choice(TEXTS).encode()
                return zigzag(len(raw)) + raw
        return self._of(self._records[kind])

    def _blocks(self, parts: list[Any]) -> bytes:
        """Of an array or a map: no block, one or two, each with or without its size in bytes, which nobody checks."""
        rng, out = self._rng, bytearray()
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            count = rng.choice((1, 1, 2, 3))
            items = b"".join([self._of(part) for _ in range(count) for part in parts])
            out += zigzag(count) if rng.random() < 0.6 else zigzag(-count) + rng.choice((zigzag(len(items)), *LIES))
            out += items
        return bytes(out) + rng.choice((b"\0", b"\0", b"\0", b"\x80\0"))

    def _mutated(self, body: bytes) -> bytes:
        rng = self._rng
        at, to = sorted(rng.choices(range(len(body) + 1), k=2))
        match rng.randrange(6):
            case 0 if at < len(body):
                return body[:at] + bytes([body[at] ^ 1 << rng.randrange(8)]) + body[at + 1 :]
            case 1:
                return body[:at]
            case 2:
                return body[:to] + body[at:]
            case 3:
                return body[:at] + rng.choice(LIES) + body[at + rng.randrange(2) :]
            case 4:
                return body[:at] + self._last[rng.randrange(len(self._last) + 1) :]
            case _:
                return body[:at] + body[to:]
