"""What the fuzz sends: valid samples, their mutations, random bytes, and texts that were made to hurt."""

from __future__ import annotations

import random

from refold.core.events import Entry
from refold.core.ids import entry_id, log_key
from refold.core.messages import RunRequest, RunSignal, ToolClaim, ToolRequest, ToolResult
from refold.core.wire import codec
from tests.core.histories import RUN, random_log
from tests.golden.samples import KINDS, sample

HUGE = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
"""The number 2^63 - 1 as Avro writes it: the longest length and the largest count that can be claimed."""

MINIMUM = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
BYTES = [
    b"",
    b"\0",
    b"\1",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\xff" * 12,
    HUGE,
    MINIMUM,
    b"\xed\xa0\x80",
    b"\xf8\x88\x80\x80\x80",
]
TOKENS = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "-1e400",
    "1e20",
    "9007199254740993",
    "1" * 5_000,
    "-0",
    "1e-400",
    '"\\ud800"',
    '"\\udfff\\ud800"',
    "\\u0000",
    '{"a":1,"a":2}',
    '{"run_id":1}',
    "\ufeff",
    "\0",
    "[" * 70,
    "]" * 70,
    '"',
    "\\",
    "null",
    "{}",
    ",",
]

REQUEST = '{"run_id":"run-1","agent":"deploy","input":{"a":[1,2.5,"x"]},"labels":{"team":"shop"},"not_before_ms":5}'
SIGNAL = (
    '{"run_id":"run-1","signal_id":"s-1","kind":"resolve",'
    '"data":{"step":1,"attempt":1,"verdict":"happened","result":[1,{"b":null}]},"actor":"ann"}'
)

NASTY: list[bytes] = [
    b"[" * 200_000,
    b'{"a":' * 200_000,
    b"[" * 200_000 + b"]" * 200_000,
    b'{"run_id":"run-1","agent":"a","input":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    b'"' * 200_000,
    b'"' + b'\\"' * 200_000,
    b"\\" * 200_000,
    b"1" * 200_000,
    b'{"run_id":"run-1","agent":"a","input":' + b"9" * 200_000 + b"}",
    b'{"run_id":"run-1","agent":"a","input":1e400}',
    b'{"run_id":"run-1","agent":"a","labels":{"\\ud800":"x"}}',
    b'{"run_id":"run-1","agent":"\xed\xa0\x80"}',
    b"\xef\xbb\xbf" + REQUEST.encode(),
    REQUEST.encode("utf-16"),
    REQUEST.encode("utf-32"),
    REQUEST.encode() + b"\0",
    b"\0" * 200_000,
    b"\xff" * 200_000,
    b"{" + b",".join(b'"k%d":1' % n for n in range(20_000)) + b"}",
    b"{" + b'"k":1,' * 20_000 + b'"k":1}',
    b" " * 200_000,
    b"\0\0\0\0\1" + HUGE,
]


def _framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4) + body


# Every schema, the unknown ones too, with lengths and counts that would take all memory if they were believed.
NASTY += [_framed(n, HUGE * times) for n in (*range(12), 999, 2**32 - 1) for times in (1, 3, 30)]
NASTY += [_framed(n, MINIMUM * times) for n in range(12) for times in (1, 3, 30)]
NASTY += [_framed(n, b"\x02x" * 3 + HUGE + b"\0" * 50) for n in range(12)]
NASTY += [_framed(n, b"\0" * 100_000) for n in range(12)]
NASTY += [
    _framed(1, b"\0" * 6 + HUGE + b"\x18\x02" * 50_000),
    _framed(1, b"\0" * 6 + b"\xfe\xff\x03" + b"\x18\x02" * 9),
]


def samples() -> list[bytes]:
    """Valid values: all golden samples, the entries of some histories, and inputs as JSON."""
    found = [codec.encode(sample(KINDS[name])) for name in KINDS if KINDS[name] in codec.SUBJECTS]
    found += [value for seed in range(20) for _, value in random_log(seed).records]
    found += [REQUEST.encode(), SIGNAL.encode(), b'{"run_id":"run-1","agent":"a"}', b"[1,2,{}]"]
    found += [codec.encode(message) for message in PLAIN]
    return found


PLAIN = (
    RunRequest(RUN, "deploy", '{"a":1}', labels={"k": "v"}),
    RunSignal(RUN, "s-1", "cancel", '{"reason":"enough"}'),
    RunSignal(RUN, "n-1", "annotate", '{"id":"n-1","note":"look"}'),
    ToolResult(f"{RUN}/3", RUN, 1, 1, "completed", '"done"'),
    ToolRequest(f"{RUN}/3", RUN, 1, 1, 7, "push", "{}", "key", "keyed", 1_000),
    ToolClaim(f"{RUN}/3", "a", "", 1, False, "e-1"),
    Entry(RUN, 1, b"", 0, None, "p", b"n", []),
)


FRAMES = {type(message): codec.encode(message)[:5] for message in PLAIN}


class Inputs:
    """A stream of inputs from a seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._valid: dict[bytes, list[bytes]] = {}
        for value in samples():
            self._valid.setdefault(value[:5] if value[:1] == b"\0" else b"", []).append(value)
        self._kinds = list(self._valid)
        self._aim = b""

    def value(self, aim: type | None = None) -> bytes:
        """The next value: half of what is made of a sample is made of one of the class that is aimed at."""
        rng = self._rng
        self._aim = FRAMES[aim] if aim else b""
        draw = rng.random()
        if draw < 0.05:
            return rng.randbytes(rng.choice([0, 1, 4, 5, 6, 20, 300]))
        if draw < 0.10:
            return _framed(rng.randint(0, 10), rng.randbytes(rng.choice([0, 1, 10, 100])))
        if draw < 0.15:
            return self._sample()
        if draw < 0.40:
            return self._text()
        value = self._sample()
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            value = self._mutated(value)
        return value

    def key(self, value: bytes) -> bytes | None:
        """A key for a value of the run log: mostly the right one, for else nothing behind it would be tried."""
        rng, name = self._rng, entry_id(value[5:])
        right = log_key(RUN, rng.choice([1, 3, 6]), name)
        if rng.random() < 0.8:
            return right
        return rng.choice([None, b"", self._mutated(right), right[:-1], log_key("a\xff", 2**40, name)])

    def _sample(self) -> bytes:
        """A valid value, of the kind that is aimed at or of any."""
        kind = self._aim if self._rng.random() < 0.5 else self._rng.choice(self._kinds)
        return self._rng.choice(self._valid[kind])

    def _text(self) -> bytes:
        """A JSON input in which tokens were replaced."""
        rng = self._rng
        text = rng.choice([REQUEST, SIGNAL])
        for _ in range(rng.choice([1, 1, 2, 4])):
            cuts = [i for i, char in enumerate(text) if char in '[]{}:,"'] or [0]
            start, end = sorted(rng.choices([*cuts, len(text)], k=2))
            text = text[:start] + rng.choice(TOKENS) + text[rng.choice([start, end]) :]
        return text.encode(rng.choice(["utf-8", "utf-8", "utf-8", "utf-16"]), "surrogatepass")

    def _mutated(self, value: bytes) -> bytes:
        rng = self._rng
        at, to = sorted(rng.choices(range(len(value) + 1), k=2))
        other = self._sample()
        cut = rng.randint(0, len(other))
        match rng.randrange(7):
            case 0 if value:
                at = min(at, len(value) - 1)
                return value[:at] + bytes([value[at] ^ 1 << rng.randrange(8)]) + value[at + 1 :]
            case 1:
                return value[:at]
            case 2:
                return value[:to] + value[at:]
            case 3:
                return value[:at] + other[cut:]
            case 4:
                return value[:at] + rng.choice(BYTES) + value[at:]
            case 5:
                return value[:at] + rng.choice(BYTES) + value[at + 1 :]
            case _:
                return value[:at] + value[to:]
