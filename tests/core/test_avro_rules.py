"""Bodies that are Avro and bodies that lie, by the specification's "Binary Encoding": own cases, on our own schemas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from refold.core.errors import FoldError, MalformedError
from refold.core.events import Entry
from refold.core.messages import ApprovalRequest, DeadLetter, RunRequest, ToolClaim, ToolResult
from refold.core.wire import codec
from tests.core.hostile import zigzag
from tests.golden.samples import sample

LONGEST, SHORTEST = b"\xfe" + b"\xff" * 8 + b"\x01", b"\xff" * 9 + b"\x01"
"""The zigzag forms of 2**63 - 1 and of -2**63."""
NONE = b"\0"
"""No sessions."""


def text(value: str) -> bytes:
    return zigzag(len(value.encode())) + value.encode()


def framed(cls: type, body: bytes) -> bytes:
    return codec.encode(sample(cls))[:5] + body


def request(*, labels: bytes = b"\0", not_before: bytes = b"\0", requester: bytes = b"\0") -> bytes:
    """A request to run, some of its fields as bytes."""
    head, tail = text("r") + text("a") + text("null"), text("") + NONE + b"\0" + b"\0"
    return framed(RunRequest, head + requester + not_before + labels + tail)


@pytest.mark.parametrize(
    ("spelt", "value"),
    [
        *((zigzag(value), value) for value in (0, -1, 1, -64, 63, 64, -65, 8_191, 8_192, 2**31, 2**62, -(2**62))),
        (LONGEST, 2**63 - 1),
        (SHORTEST, -(2**63)),
        (b"\x80\x00", 0),  # longer than it need be, and no other number
        (b"\x82\x80\x80\x00", 1),
        (b"\x80" * 9 + b"\x00", 0),
        (b"\x82\x80\x80\x80\x80\x00", 1),
    ],
)
def test_a_number_of_64_bits_is_read(spelt: bytes, value: int) -> None:
    assert codec.decode(RunRequest, request(not_before=spelt)).not_before_ms == value


@pytest.mark.parametrize("bits", range(64))
def test_a_number_of_any_length_is_written_and_read(bits: int) -> None:
    for value in {2**bits - 1, -(2**bits), 2**bits // 3 * 2, -(2**bits) // 3}:
        spelt = request(not_before=zigzag(value))
        found = codec.decode(RunRequest, spelt)

        assert found.not_before_ms == value
        assert codec.encode(found) == spelt
        assert codec.decode(ToolResult, codec.encode(replace(sample(ToolResult), took_ms=value))).took_ms == value


@pytest.mark.parametrize("length", range(1, 6))
def test_a_number_that_ends_with_the_body_in_the_middle_is_malformed(length: int) -> None:
    cut = codec.encode(replace(sample(ToolResult), took_ms=1_700_000_000_000))[:-length]

    with pytest.raises(MalformedError, match="ends too early"):
        codec.decode(ToolResult, cut)


@pytest.mark.parametrize(
    "spelt", [b"\xff" * 9 + b"\x02", b"\xff" * 10 + b"\x01", b"\x80" * 10 + b"\x00", b"\xff" * 300]
)
def test_a_number_of_more_bits_is_malformed(spelt: bytes) -> None:
    with pytest.raises(MalformedError, match="64 bits"):
        codec.decode(RunRequest, request(not_before=spelt))


@pytest.mark.parametrize("length", [zigzag(-1), zigzag(-2), SHORTEST, zigzag(7), zigzag(2**31), zigzag(2**40), LONGEST])
def test_a_text_is_as_long_as_it_says_and_is_there(length: bytes) -> None:
    for value in (request(requester=length + b"eve"), request(labels=b"\x02" + length + b"k" + text("v") + b"\0")):
        with pytest.raises(MalformedError):
            codec.decode(RunRequest, value)


@pytest.mark.parametrize("raw", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"a\x80"])
def test_a_text_is_utf_8(raw: bytes) -> None:
    with pytest.raises(MalformedError, match="UTF-8"):
        codec.decode(RunRequest, request(requester=zigzag(len(raw)) + raw))


def test_bytes_may_be_any_and_are_there() -> None:
    letter = replace(sample(DeadLetter), key=b"\xff\0", value=bytes(range(256)))
    whole = codec.encode(letter)
    place = whole.index(zigzag(2) + letter.key)

    assert codec.decode(DeadLetter, whole) == letter
    for length in (zigzag(-2), SHORTEST, LONGEST, zigzag(2**33)):
        with pytest.raises(MalformedError):
            codec.decode(DeadLetter, whole[:place] + length + whole[place + 1 :])


K, V = text("k"), text("v")


@pytest.mark.parametrize(
    ("labels", "read"),
    [
        (b"\0", {}),
        (b"\x02" + K + V + b"\0", {"k": "v"}),
        (b"\x02" + K + V + b"\x02" + V + K + b"\0", {"k": "v", "v": "k"}),
        (zigzag(-1) + zigzag(4) + K + V + b"\0", {"k": "v"}),
        (zigzag(-1) + zigzag(4) + K + V + b"\x02" + V + K + b"\0", {"k": "v", "v": "k"}),
        (zigzag(-2) + zigzag(8) + K + V + V + K + b"\0", {"k": "v", "v": "k"}),
    ],
)
def test_blocks_are_read_one_after_the_other(labels: bytes, read: Any) -> None:
    assert codec.decode(RunRequest, request(labels=labels)).labels == read


@pytest.mark.parametrize(
    "labels",
    [
        b"",  # no end
        b"\x02" + K + V,
        b"\x04" + K + V + b"\0",  # fewer than they say
        b"\x02" + K + V + V + b"\0",  # more
        zigzag(-1) + K + V + b"\0",  # a size in bytes is missing
        zigzag(-2) + zigzag(4) + K + V + b"\0",
        LONGEST + K + V,
        SHORTEST + zigzag(4) + K + V,
        zigzag(2**40) + K + V + b"\0",
        b"\x04" + K + V + K + V + b"\0",  # twice the same key, in a block and in two
        b"\x02" + K + V + b"\x02" + K + V + b"\0",
    ],
)
def test_blocks_that_lie_are_malformed(labels: bytes) -> None:
    with pytest.raises(MalformedError):
        codec.decode(RunRequest, request(labels=labels))


@pytest.mark.parametrize("flag", [b"\x02", b"\x7f", b"\x80", b"\xff", b"\x81\x01", b"\x80\x00", b"\x81\x00"])
def test_a_boolean_is_zero_or_one(flag: bytes) -> None:
    claim = ToolClaim("r/1", "c", "", 1, True, "me", "k")
    whole = codec.encode(claim)
    place = whole.index(b"\x01" + text("me"))

    assert codec.decode(ToolClaim, whole) == claim
    with pytest.raises(MalformedError):
        codec.decode(ToolClaim, whole[:place] + flag + whole[place + 1 :])


@pytest.mark.parametrize("branch", [b"\x01", b"\x03", b"\x04", b"\x7f", b"\x80\x01", b"\xff\x01"])
def test_a_union_has_the_branches_that_it_has(branch: bytes) -> None:
    whole = codec.encode(ToolResult("r/1", "r", 1, 1, "completed", "done"))
    place = whole.index(text("done")) + len(text("done"))  # of what went wrong, which is nothing

    assert whole[place : place + 1] == b"\0"
    with pytest.raises(MalformedError):
        codec.decode(ToolResult, whole[:place] + branch + whole[place + 1 :])


@pytest.mark.parametrize("branch", [b"\x01", b"\x7e", b"\x7f", b"\x80\x01", b"\xfe\x01", b"\xff" * 5])
def test_an_event_is_one_of_those_that_there_are(branch: bytes) -> None:
    entry = replace(sample(Entry), events=sample(Entry).events[:1])
    whole = codec.encode(entry)
    ends = codec.encode(replace(entry, events=[]))
    place = next(index for index in range(len(ends)) if ends[index] != whole[index]) + 1

    assert codec.decode(Entry, whole) == entry
    with pytest.raises((MalformedError, FoldError)):
        codec.decode(Entry, whole[:place] + branch + whole[place + 1 :])


@pytest.mark.parametrize("cls", [RunRequest, ToolClaim, ToolResult, DeadLetter, ApprovalRequest, Entry])
def test_a_body_ends_where_its_value_ends(cls: type) -> None:
    whole = codec.encode(sample(cls))

    for more in (b"\0", b"\x02", whole[5:]):
        with pytest.raises(MalformedError):
            codec.decode(cls, whole + more)
    for cut in range(5, len(whole)):
        with pytest.raises(MalformedError):
            codec.decode(cls, whole[:cut])
