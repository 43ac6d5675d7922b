"""JSON, strict on the way in and canonical on the way out."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from refold.core.errors import MalformedError
from refold.core.wire.canonical import MAX_DEPTH, dumps, parse, text
from tests.core.histories import examples

strings = st.text(st.characters(codec="utf-8"), max_size=20)
floats = st.floats(allow_nan=False, allow_infinity=False)


def trees(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | numbers | strings,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strings, inner, max_size=4),
        max_leaves=15,
    )


values = trees(st.integers() | st.integers(2**53, 2**70) | floats)
rounded_nowhere = trees(
    st.integers(-(2**53) + 1, 2**53 - 1) | floats.filter(lambda x: abs(x) < 2**53 or abs(x) >= 1e21)
)


@examples
@given(values)
def test_what_is_written_is_read_back(value: Any) -> None:
    assert parse(dumps(value)) == value


@examples
@given(rounded_nowhere)
def test_the_canonical_text_is_that_of_rfc_8785(value: Any) -> None:
    assert dumps(value).encode() == rfc8785.dumps(value)


@examples
@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_however_it_was_written_it_has_one_canonical_text(value: Any, ascii_only: bool, indent: int | None) -> None:
    loose = json.dumps(value, ensure_ascii=ascii_only, indent=indent)

    assert dumps(parse(loose)) == dumps(parse(loose.encode())) == dumps(value)


@pytest.mark.parametrize(
    ("value", "canonical"),
    [
        (2**53, "9007199254740992"),
        (616581622363398142, "616581622363398142"),
        (-(2**70), "-1180591620717411303424"),
        (2.0**53, "9.007199254740992e+15"),
        (-9007199254741000.0, "-9.007199254741e+15"),
        (1e16, "1e+16"),
        (2.0**60, "1.152921504606847e+18"),
        (1e21, "1e+21"),
    ],
)
def test_an_integer_has_all_its_digits_and_a_large_float_an_exponent(value: float, canonical: str) -> None:
    assert dumps(value) == canonical
    assert dumps([{"\u00e9": value}]) == f'[{{"\u00e9":{canonical}}}]'
    assert (parse(canonical), type(parse(canonical))) == (value, type(value))


@examples
@given(strings)
def test_the_text_of_a_string_is_canonical(value: str) -> None:
    assert text(value) == dumps(value)


@examples
@given(st.text() | st.binary())
def test_any_text_is_a_value_with_a_canonical_text_or_malformed(data: str | bytes) -> None:
    try:
        value = parse(data)
    except MalformedError:
        return

    assert parse(dumps(value)) == value


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("1 2", "not JSON"),
        ("'a'", "not JSON"),
        ("\ufeff1", "not JSON"),
        ('"a\0b"', "not JSON"),
        (b"\xff", "not UTF-8"),
        ("1".encode("utf-16"), "not UTF-8"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        ('{"a":1,"a":1}', "same key twice"),
        ('{"a":1,"\\u0061":1}', "same key twice"),
        ('[{"b":{"a":1,"a":2}}]', "same key twice"),
        ("NaN", "NaN"),
        ("[Infinity]", "Infinity"),
        ("-Infinity", "Infinity"),
        ("1e400", "beyond every float"),
        ("-1e400", "beyond every float"),
        ("1" * 4_301, "more than 4,300 digits"),
        ("1" * 100_000, "more than 4,300 digits"),
        ('"\\ud800"', "lone surrogate"),
        ('{"\\udc00":1}', "lone surrogate"),
        ('"\ud800"', "lone surrogate"),
        ('["\\ude00\\ud83d"]', "lone surrogate"),
        ("[" * 65 + "]" * 65, "deeper than 64"),
        ('{"a":' * 200_000, "deeper than 64"),
        ("[" * 200_000, "deeper than 64"),
        ("]" * 1_000 + "[" * 200_000, "deeper than 64"),
    ],
)
def test_what_two_parsers_could_disagree_on_is_refused(source: str | bytes, reason: str) -> None:
    with pytest.raises(MalformedError, match=reason):
        parse(source)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("9007199254740991", 2**53 - 1),
        ("9007199254740993", 2**53 + 1),
        ("-" + "1" * 4_299, -int("1" * 4_299)),
        ("9007199254740992.0", 2.0**53),
        ("1e20", 1e20),
        ("1e22", 1e22),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ("[" * 64 + "]" * 64, None),
        ('"' + "[" * 1_000 + '"', "[" * 1_000),
        ("[" + ",".join(["[]"] * 1_000) + "]", [[]] * 1_000),
        ('["\\"[[[", "' + "[" * 100 + '\\\\"]', ['"[[[', "[" * 100 + "\\"]),
    ],
)
def test_what_is_only_unusual_is_read(source: str, value: Any) -> None:
    parsed = parse(source)

    assert value is None or parsed == value


@pytest.mark.parametrize("unit", ['"', '\\"', '"\\"', "[", '["', "\\", '{"a":', "]["])
def test_half_a_megabyte_of_anything_is_judged_quickly(unit: str) -> None:
    for prefix in ("", '"', "["):
        source = prefix + unit * (500_000 // len(unit))
        began = time.process_time()

        with pytest.raises(MalformedError):
            parse(source)

        assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "unit", ["1e-5", "1e-6", "1.5e-06", "1e-7", "1.0", "-0.0", "0.1", "1e300", '{"a":1.0}', "[[]]", "[]", '"\\u00e9"']
)
def test_half_a_megabyte_of_values_is_read_and_written_quickly(unit: str) -> None:
    source = f"[{','.join([unit] * (500_000 // (len(unit) + 1)))}]"
    began = time.process_time()

    canonical = dumps(parse(source))

    assert time.process_time() - began < 2  # 0.3 s when nothing else runs
    assert canonical == f"[{','.join([rfc8785.dumps(json.loads(unit)).decode()] * source.count(unit))}]"


@pytest.mark.parametrize("mantissa", [1.0, -1.5, 9.999999999999999, 4.35])
def test_a_number_of_any_size_is_spelt_as_rfc_8785_says(mantissa: float) -> None:
    for exponent in range(-320, 300):
        number = float(f"{mantissa}e{exponent}")
        if not 2**53 <= abs(number) < 1e21:
            assert dumps([number]) == rfc8785.dumps([number]).decode()


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        [10**4_300],
        "\ud800",
        {"\udfff": 1},
        {1: 1},
        {None: 1},
        object(),
        {1},
        b"",
    ],
)
def test_a_value_that_no_reader_would_take_is_not_written(value: Any) -> None:
    with pytest.raises(MalformedError):
        dumps(value)


def test_a_value_is_written_as_deep_as_it_is_read() -> None:
    deep: Any = []
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]

    assert parse(dumps(deep)) == deep
    with pytest.raises(MalformedError):
        dumps([deep])
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(MalformedError):
        dumps(deep)
