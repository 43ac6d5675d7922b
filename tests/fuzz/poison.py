"""Records that no service writes: keys and values that look right at first, and messages of any kind, bent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from random import Random
from typing import Any

from refold.core.errors import RefoldError
from refold.core.events import Entry
from refold.core.ids import EntryId, RunId, entry_id, log_key
from refold.core.wire import codec
from refold.engine.ports.log import Outgoing
from tests.golden.samples import EVENTS, KINDS, recorded, sample

STARTS = (
    *(b"", b"run/", b"over/", b"held/", b"marks", b"erased/", b"operated/", b"beat", b"r/", b"r/0000000001/"),
    *(b"2026-11/", b"again/", b"again/r/3", b"other/3", b"r/3/v1", b"cb_", b"policy/", b"key/"),
)
TEXTS = (
    "",
    "other",
    "other/3",
    "\x00",
    "\ud7ff",
    "9" * 400,
    "{",
    "[]",
    '{"a":',
    "null",
    "-1",
    "9999-12-31",
    "a.b.c",
    "é" * 50,
)
NUMBERS = (0, -1, 1, 7, 2**31, 2**63 - 1, -(2**63), 10**18)


def key(rng: Random) -> bytes:
    """A key that may be taken for one of any kind, or for none."""
    return rng.choice(STARTS) + rng.choice([b"\xff", b"/", b"x/\xff/0", b"x", b"", rng.randbytes(rng.randrange(9))])


def bent(rng: Random) -> bytes:
    """A message that some service writes, of which some fields say what none would."""
    cls = KINDS[rng.choice(sorted(KINDS))]
    changes: dict[str, Any] = {}
    for spec in fields(cls):
        kind = str(spec.type)
        if rng.random() < 0.5 and kind in ("str", "int", "bytes"):
            found = {
                "str": rng.choice(TEXTS),
                "int": rng.choice(NUMBERS),
                "bytes": rng.randbytes(rng.choice([0, 3, 16])),
            }
            changes[spec.name] = found[kind]
    message = replace(sample(cls), **changes)
    if cls.__name__ in EVENTS:
        message = Entry(
            RunId("other"), rng.choice([1, 2, 3]), rng.randbytes(16), 1, None, "planner", b"nonce", [message]
        )
    return codec.encode(message)


@cache
def _whole() -> list[bytes]:
    return [*recorded().values()]


def value(rng: Random) -> bytes | None:
    """A value of a record."""
    frame, body = b"\0" + rng.randrange(90).to_bytes(4), rng.randbytes(rng.randrange(40))
    kind = rng.randrange(8)
    if kind < 3:
        try:
            return bent(rng)
        except (RefoldError, OverflowError, UnicodeEncodeError):
            kind = 3  # no schema takes that
    if kind < 6:
        whole = rng.choice(_whole())
        at = rng.randrange(len(whole))
        return rng.choice([whole, whole[:at], whole[:at] + bytes([rng.randrange(256)]) + whole[at + 1 :], whole + b"x"])
    return rng.choice(
        [None, b"", b"{", b"null", b'{"run_id": 7}', b'{"run_id": "r"}', b"[" * 2_000, body, frame + body]
    )


def poison(topic: str, seed: int, partitions: int = 1, count: int = 200) -> Iterator[Outgoing]:
    """Such records for a topic."""
    rng = Random(f"{topic} {seed}")
    for _ in range(count):
        name, content = key(rng), value(rng)
        if topic == "run-log" and content and rng.random() < 0.5:  # entries go by their content
            # Not of `r`: one of an unknown schema may be an entry of a newer planner, for which its run would wait.
            name = log_key(RunId("other"), rng.choice([1, 2, 3]), EntryId(entry_id(content[codec.FRAME_BYTES :])))
        yield Outgoing(topic, rng.randrange(partitions), name, content, (), 0)
