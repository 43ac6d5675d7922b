"""Texts that are JSON and texts that are not, by RFC 8259, and the one spelling of RFC 8785: own cases.

What the standard leaves to each reader is refused wherever two of them could read two things.
"""

from __future__ import annotations

from typing import Any

import pytest

from refold.core.errors import MalformedError
from refold.core.wire.canonical import dumps, parse

TAKEN: list[tuple[str, Any]] = [
    *((text, value) for text, value in (("null", None), ("true", True), ("false", False), ('""', ""), ("0", 0))),
    (" \t\r\n[ \t\r\n1 \t\r\n, \t\r\n2 \t\r\n] \t\r\n", [1, 2]),
    ('{"":0}', {"": 0}),
    ('{ "a" : { "a" : [ ] } }', {"a": {"a": []}}),
    ('{"a":1,"A":2,"\\u0061b":3}', {"a": 1, "A": 2, "ab": 3}),
    *((text, 0) for text in ("-0", "0.0", "-0.0", "0e0", "0E+1", "0e-400", "1e-999")),
    *((text, 10) for text in ("1e1", "1E1", "1e+1", "1e01", "100e-1", "0.1e2", "10.000")),
    ("-1.5e-3", -0.0015),
    ("5e-324", 5e-324),
    ("1.7976931348623157e308", 1.7976931348623157e308),
    ("0." + "3" * 400, 1 / 3),
    ('"\\"\\\\\\/\\b\\f\\n\\r\\t"', '"\\/\b\f\n\r\t'),
    ('"\\u0000\\u001f\\u00e9\\u20AC\\uFFFF"', "\0\x1f\u00e9\u20ac\uffff"),
    ('"\\ud834\\udd1e\\uDBFF\\uDFFF"', "\U0001d11e\U0010ffff"),
    ('"\\\\ud800"', "\\ud800"),
    ('"\x7f\u0085\u00a0\u2028\u2029\ufeff\ufffe\U0010ffff"', "\x7f\u0085\u00a0\u2028\u2029\ufeff\ufffe\U0010ffff"),
    ('"/* no comment */ // none"', "/* no comment */ // none"),
]


def answer(text: str | bytes) -> Any:
    """What is read of a text, or `REFUSED`."""
    try:
        return parse(text)
    except MalformedError:
        return REFUSED


REFUSED = object()


def test_what_is_json_is_read() -> None:
    for text, value in TAKEN:
        found = answer(text)

        assert found == value, text
        assert type(found) in (type(value), int, float), text
        assert answer(text.encode()) == value, text


STRUCTURE = (
    *("[1,]", "[,1]", "[1,,2]", "[,]", "[1 2]", "[1:2]", "[", "]", "[1", "[[1]", "[1]]", "[1}", "[a]", "[<null>]"),
    *('{"a":1,}', '{,"a":1}', '{"a":1,,"b":2}', '{"a"}', '{"a",1}', '{"a":}', "{:1}", '{"a" 1}', '{"a":1', '{"a":1]'),
    *("{1:1}", "{a:1}", "{'a':1}", "{null:1}", '{["a"]:1}', '{"a":1 "b":2}', '{"a"::1}', '{"a":1}}', '{"a":"b":1}'),
    *("[1]#", "[1]x", "1 1", '"a" "b"', "{}{}", "null,", "[]//", "[]/**/", "/**/[]", "//\n1", "#1", "<a/>", "*", "\\"),
    *("", " ", "\n", "\0", "1\0", "[\0]", "{}\0"),
)
NUMBERS = (
    *(
        "+1",
        "++1",
        "--1",
        "-",
        "- 1",
        "01",
        "-01",
        "00",
        "1.",
        ".5",
        "-.5",
        "1.e1",
        ".e1",
        "1e",
        "1e+",
        "1e1.5",
        "1ee1",
    ),
    *("0x1", "0b1", "0o1", "1_000", "1,000", "1 000", "1f", "1L", "1n", "1/2", "1+1", "e1", "-e", "0.1.2", "1e-", "-x"),
    *("\uff11", "\u0661", "1\u0660", "\u22121", "inf", "-inf", "nan", "NAN", "-NaN", "+Infinity", "Infinit", "-"),
)
TEXTS = (
    *('"', '"a', 'a"', "'a'", '"a\\"', '"\\', '"\\a"', '"\\x41"', '"\\0"', '"\\\'"', '"\\ "', '"\\\n"', '"\\U0041"'),
    *(
        '"\\u"',
        '"\\u1"',
        '"\\u123"',
        '"\\u12"',
        '"\\uzzzz"',
        '"\\u{41}"',
        '"\\u+041"',
        '"\\u 041"',
        '"\\u00A"',
        '"\\u-041"',
    ),
    *('"\t"', '"\n"', '"\r"', '"\0"', '"\x1f"', '"\x0b"', "`a`", "\u201ca\u201d", '"a"b', 'b"a"', '""""', "a"),
)
WORDS = (
    *("True", "TRUE", "nul", "nulll", "Null", "tru", "truee", "fals", "None", "undefined", "NaN1", "n", "true false"),
    *(
        "\u00a01",
        "1\u00a0",
        "\x0c1",
        "\x0b1",
        "1\u2028",
        "\u30001",
        "\u20601",
        "\ufeff{}",
        "{}\ufeff",
        "\u200b1",
        "1\x85",
    ),
)


@pytest.mark.parametrize("texts", [STRUCTURE, NUMBERS, TEXTS, WORDS], ids=["structure", "numbers", "texts", "words"])
def test_what_is_not_json_is_refused(texts: tuple[str, ...]) -> None:
    assert [text for text in texts if answer(text) is not REFUSED or answer(text.encode()) is not REFUSED] == []


OPEN: list[str | bytes] = [
    # Twice the same key, however each is written, at any depth.
    *('{"a":1,"a":1}', '{"a":1,"b":2,"\\u0061":3}', '{"":0,"":0}', '[{"x":{"\\/":1,"/":1}}]'),
    '{"\\ud83d\\ude00":1,"\U0001f600":1}',
    # Half a character.
    *(
        '"\\ud800"',
        '"\\udfff"',
        '"\\ud800\\u0041"',
        '"\\udc00\\ud800"',
        '"a\\ud800\\ud800\\udc00"',
        '{"\\ud83d":1}',
    ),
    *('"\\ud800\\\\udc00"', '["\\uD834\\u0000"]'),
    *("1e309", "-1e999"),
    *(b"\xef\xbb\xbf1", b"\xff\xfe1\0", b"1\0", b"\01"),
    # Bytes that are no UTF-8: too long a spelling, half of a character, a surrogate, beyond the last one.
    *(b'"\xc0\x80"', b'"\xc0\xaf"', b'"\xe0\x80\xaf"', b'"\xf0\x80\x80\xaf"', b'"\xc3"', b'"\xe2\x82"', b'"\x80"'),
    *(
        b'"\xed\xa0\x80"',
        b'"\xed\xb0\x80"',
        b'"\xed\xa0\xbd\xed\xb8\x80"',
        b'"\xf4\x90\x80\x80"',
        b'"\xf8\x88\x80"',
    ),
    *("[" * 65 + "]" * 65, '{"a":' * 65 + "1" + "}" * 65, '[{"a":' * 33 + "1" + "}]" * 33),
]


def test_what_the_standard_leaves_open_is_refused_where_readers_differ() -> None:
    assert [text for text in OPEN if answer(text) is not REFUSED] == []


SPELT: list[tuple[Any, str]] = [
    # Numbers as ECMAScript writes them: the shortest digits, and an exponent only far out.
    *((value, "0") for value in (0, 0.0, -0.0)),
    *((value, "1") for value in (1, 1.0)),
    (-1.5, "-1.5"),
    (0.000001, "0.000001"),
    (0.0000015, "0.0000015"),
    (0.0000001, "1e-7"),
    (1.5e-7, "1.5e-7"),
    (1e21, "1e+21"),
    (1.5e300, "1.5e+300"),
    (5e-324, "5e-324"),
    (2.2250738585072014e-308, "2.2250738585072014e-308"),
    (1.7976931348623157e308, "1.7976931348623157e+308"),
    (0.1 + 0.2, "0.30000000000000004"),
    (2 / 3, "0.6666666666666666"),
    (333333333.3333333, "333333333.3333333"),
    (2251799813685248.5, "2251799813685248.5"),
    (9007199254740991.0, "9007199254740991"),
    # Strings as they are, but for what has to be escaped, which has one escape.
    ('"\\/', '"\\"\\\\/"'),
    ("\b\t\n\f\r", '"\\b\\t\\n\\f\\r"'),
    ("\0\x0b\x1f", '"\\u0000\\u000b\\u001f"'),
    ("\x7f\u00e9e\u0301\u2028\ufeff\U0001f600", '"\x7f\u00e9e\u0301\u2028\ufeff\U0001f600"'),
    ("<&>'", '"<&>\'"'),
    # Keys in the order of their UTF-16: what needs two of them comes before the end of what needs one.
    (
        {"\ufb33": 7, "\U0001f600": 6, "\u20ac": 5, "\u00f6": 4, "\x80": 3, "1": 2, "\r": 1},
        '{"\\r":1,"1":2,"\x80":3,"\u00f6":4,"\u20ac":5,"\U0001f600":6,"\ufb33":7}',
    ),
    ({"b": {"d": 1, "c": 2}, "a": [{"z": 1, "y": 2}]}, '{"a":[{"y":2,"z":1}],"b":{"c":2,"d":1}}'),
    ({"aa": 1, "a": 2, "A": 3, "": 4, "10": 5, "9": 6}, '{"":4,"10":5,"9":6,"A":3,"a":2,"aa":1}'),
    ([], "[]"),
    ([None, True, False, {}, [[]], ""], '[null,true,false,{},[[]],""]'),
]


def test_a_value_has_the_one_spelling() -> None:
    for value, text in SPELT:
        assert dumps(value) == text
        assert dumps(parse(text)) == text
