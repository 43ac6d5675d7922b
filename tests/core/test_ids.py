"""Ids, homes and keys: published vectors, and encodings that cannot collide."""

from __future__ import annotations

from hashlib import sha256

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from refold.core.errors import MalformedError
from refold.core.ids import call_id, entry_id, home, log_key, murmur2, parse_call_id, parse_log_key, root_of, run_id
from refold.core.wire import canonical
from refold.core.wire.canonical import idempotency_key
from tests.core.histories import examples

text = st.text(st.characters(codec="utf-8"), max_size=30)
run_ids = st.from_regex(r"\A[a-z0-9_]([a-z0-9_:@~-]{0,20}[a-z0-9_])?(\.[1-9][0-9]{0,3}){0,3}\Z")
seqs = st.integers(1, 3_999_999_999)


# Kafka's own UtilsTest.testMurmur2; "abc" is the vector of other clients.
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_the_java_client(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected & 0xFFFFFFFF


# librdkafka's unittest_murmur2: the same function, whose partitioner masks the sign as the Java client does.
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"kafka", 0xD067CF64),
        (b"giberish123456789", 0x8F552B0C),
        (b"1234", 0x9FC97B14),
        (b"234", 0xE7C009CA),
        (b"34", 0x873930DA),
        (b"4", 0x5A4B5CA1),
        (b"PreAmbleWillBeRemoved,ThePrePartThatIs", 0x78424F1C),
        (b"reAmbleWillBeRemoved,ThePrePartThatIs", 0x4A62B377),
        (b"eAmbleWillBeRemoved,ThePrePartThatIs", 0xE0E4E09E),
        (b"AmbleWillBeRemoved,ThePrePartThatIs", 0x62B8B43F),
        (b"", 0x106E08D9),
    ],
)
def test_murmur2_is_that_of_librdkafka(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected
    if data.isalnum():
        assert home(data.decode(), 12) == (expected & 0x7FFFFFFF) % 12


@examples
@given(run_ids, st.integers(1, 64))
def test_a_family_has_one_home(run: str, partitions: int) -> None:
    assert home(run, partitions) == home(f"{run}.7", partitions) == home(root_of(run), partitions)
    assert 0 <= home(run, partitions) < partitions


@examples
@given(run_ids)
def test_a_run_id_is_taken_as_it_is(run: str) -> None:
    assert run_id(run) == run


@pytest.mark.parametrize(
    "text",
    ["", "a/b", "a b", "a.", ".1", "a.0", "a.01", "a.b", "-a", "a-", "ä", "a\n", "a\0", "x" * 129, "a" + ".1" * 200],
)
def test_what_could_reach_into_another_key_is_no_run_id(text: str) -> None:
    with pytest.raises(MalformedError):
        run_id(text)


@examples
@given(run_ids, seqs, st.binary())
def test_a_log_key_gives_its_parts_back(run: str, seq: int, body: bytes) -> None:
    name = entry_id(body)

    assert parse_log_key(log_key(run, seq, name)) == (run, seq, name)


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"run/1/" + b"a" * 32,
        b"run/0000000001/" + b"A" * 32,
        b"run/0000000001/" + b"a" * 31,
        b"run/0000000001/" + b"a" * 32 + b"\n",
        b"/0000000001/" + b"a" * 32,
        b"a/b/0000000001/" + b"a" * 32,
        b"\xff/0000000001/" + b"a" * 32,
        "run/\u0660000000001/".encode() + b"a" * 32,
        b"run/0000000000/" + b"a" * 32,
        b"run/4294967296/" + b"a" * 32,
        b"run/00000000001/" + b"a" * 32,
        *(
            run + b"/0000000001/" + b"a" * 32
            for run in (b"a\nb", b"a b", b"a\0", b".1", b"a..1", b"a.0", b"-a", b"<b>")
        ),
        *(run + b"/0000000001/" + b"a" * 32 for run in (b"x" * 129, b"x" * 5_000, b"a" + b".1" * 128, "é".encode())),
    ],
)
def test_what_is_no_log_key_is_none(key: bytes | None) -> None:
    assert parse_log_key(key) is None


@examples
@given(run_ids, run_ids, seqs, seqs)
def test_call_ids_of_different_calls_differ(run: str, other: str, seq: int, another: int) -> None:
    same = (run, seq) == (other, another)

    assert (call_id(run, seq) == call_id(other, another)) is same
    assert parse_call_id(call_id(run, seq)) == (run, seq)


@pytest.mark.parametrize(
    "text", ["", "run", "run/", "/1", "run/0", "run/01", "run/-1", "run/1/2", "run/\u0661", "run/1\n"]
)
def test_what_is_no_call_id_is_refused(text: str) -> None:
    with pytest.raises(MalformedError):
        parse_call_id(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=10,
)


@examples
@given(text, run_ids, st.integers(1, 10**6), text, json_values)
def test_an_idempotency_key_is_the_digest_of_the_canonical_object(
    environment: str, run: str, step: int, tool: str, args: object
) -> None:
    whole = {"environment": environment, "run": run, "step": step, "tool": tool, "args": args}

    key = idempotency_key(environment=environment, run=run, step=step, tool=tool, args=canonical.dumps(args))

    assert key == sha256(rfc8785.dumps(whole)).hexdigest()  # type: ignore[arg-type]


def test_a_number_and_its_text_have_different_keys() -> None:
    keys = {
        idempotency_key(environment="e", run="r", step=1, tool="t", args=canonical.dumps(args))
        for args in (1, "1", True, "true", [1], ["1"], {"1": 1}, None, "null")
    }

    assert len(keys) == 9


def test_text_cannot_move_from_one_field_of_a_key_to_another() -> None:
    keys = {
        idempotency_key(environment=environment, run="r", step=1, tool=tool, args="1")
        for environment, tool in (("a", "b"), ("ab", ""), ("", "ab"), ('a","run":"r', "b"), ("a", 'b"}'))
    }

    assert len(keys) == 5
