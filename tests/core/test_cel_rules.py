"""What conditions rest on of the language: the rules of the CEL specification, own cases.

Who changes the library finds here what a policy means by the words that it uses.
"""

from __future__ import annotations

from typing import Any

import pytest

from refold.core.approval.condition import Condition

ABSENT = "not found"
"""Of a missing argument nothing is known: whatever needs it has no value."""

COMPARISONS: list[tuple[str, Any, bool | str]] = [
    ("args.n == 1", {"n": 1.0}, True),
    ("args.n == 1.0", {"n": 1}, True),
    ("args.n == 1u", {"n": 1}, True),
    ("args.n < 1.5", {"n": 1}, True),
    ("args.n > 1", {"n": 1.5}, True),
    ("args.n >= 2", {"n": 1.9999999999999998}, False),
    ("args.n < 9007199254740992.0", {"n": 9007199254740991}, True),
    ("args.n == 0", {"n": -0.0}, True),
    # What is of two types is not equal, and has no order.
    ("args.s == 1", {"s": "1"}, False),
    ("args.s != 1", {"s": "1"}, True),
    ("args.b == 1", {"b": True}, False),
    ("args.x == 0", {"x": None}, False),
    ("args.x == null", {"x": None}, True),
    ("args.s > 1", {"s": "1"}, "no matching overloads"),
    ("args.x < 1", {"x": None}, "no matching overloads"),
    ("args.b > false", {"b": True}, True),
    # Strings have the order of their code points, and no other form than the one they have.
    ('args.s < "b"', {"s": "a"}, True),
    ('args.s < "a"', {"s": "Z"}, True),
    ('args.s > "\\uffff"', {"s": "\U0001f600"}, True),
    ('args.s == "e\\u0301"', {"s": "\u00e9"}, False),
    ("args.l == [1.0, 2]", {"l": [1, 2]}, True),
    ("args.l == [2, 1]", {"l": [1, 2]}, False),
    ('args.m == {"b": 2, "a": 1}', {"m": {"a": 1.0, "b": 2}}, True),
]

TEXTS: list[tuple[str, Any, bool | str]] = [
    ('args.s.startsWith("")', {"s": ""}, True),
    ('args.s.startsWith("ab")', {"s": "a"}, False),
    ('args.s.endsWith("")', {"s": "x"}, True),
    ('args.s.contains("\u00e9")', {"s": "caf\u00e9"}, True),
    ('args.s + "b" == "ab"', {"s": "a"}, True),
    ("size(args.s) == 1", {"s": "\U0001f600"}, True),
    ("args.s.size() == 4", {"s": "caf\u00e9"}, True),
    # A pattern is looked for anywhere, unless it says where, and takes no longer for a text that is made for it.
    ('args.s.matches("b")', {"s": "abc"}, True),
    ('args.s.matches("^b")', {"s": "abc"}, False),
    ('args.s.matches("^abc$")', {"s": "abc\n"}, False),
    ('args.s.matches("(?i)ABC")', {"s": "abc"}, True),
    ('args.s.matches("^a\\\\.b$")', {"s": "a.b"}, True),
    ('args.s.matches(r"^a\\.b$")', {"s": "axb"}, False),
    ('args.s.matches("^(a+)+$")', {"s": "a" * 4_000 + "b"}, False),
    ('args.s.matches("(")', {"s": "a"}, "invalid regular expression"),
    ('"\\x41\\u0042\\103" == "ABC"', {}, True),
]

MEMBERS: list[tuple[str, Any, bool | str]] = [
    ("1 in args.l", {"l": [1.0]}, True),
    ('"1" in args.l', {"l": [1]}, False),
    ('"a" in args.m', {"m": {"a": None}}, True),
    ("1 in args.m", {"m": {"1": 1}}, False),
    ("has(args.x)", {"x": None}, True),
    ("has(args.x)", {}, False),
    ("has(args.x.y)", {"x": {}}, False),
    ("has(args.x.y)", {}, ABSENT),
    ("has(args.x.y)", {"x": 1}, "applying select"),
    ("args.x == null", {}, ABSENT),
    ("args.a.b == 1", {"a": None}, "applying select"),
    ("args.l[0] == 1", {"l": [1]}, True),
    ("args.l[1] == 1", {"l": [1]}, "index error"),
    ("args.l[-1] == 1", {"l": [1]}, "index error"),
    ('args["a b"] == 1', {"a b": 1}, True),
]

LOGIC: list[tuple[str, Any, bool | str]] = [
    # What decides alone decides, on either side of what has no value.
    ("args.x == 1 && false", {}, False),
    ("false && args.x == 1", {}, False),
    ("args.x == 1 || true", {}, True),
    ("true || args.x == 1", {}, True),
    ("args.x == 1 || false", {}, ABSENT),
    ("args.x == 1 && true", {}, ABSENT),
    ("!has(args.x) || args.x > 1", {}, True),
    ("args.n && false", {"n": 1}, False),
    ("args.n && true", {"n": 1}, "no matching overloads"),
    ("!args.n", {"n": 0}, "no matching overloads"),
    ("args.n", {"n": 1}, "not true or false"),
    # Of a choice only what is chosen is looked at.
    ("args.b ? true : args.x == 1", {"b": True}, True),
    ("args.b ? true : args.x == 1", {"b": False}, ABSENT),
    ("args.n ? true : false", {"n": 1}, "no matching overloads"),
    ("1 / 0 == 1 ? true : true", {}, "divide by zero"),
]

MACROS: list[tuple[str, Any, bool | str]] = [
    ("args.l.all(i, i > 0)", {"l": []}, True),
    ("args.l.exists(i, i > 0)", {"l": []}, False),
    ("args.l.all(i, i > 0)", {"l": ["a", 0]}, False),
    ("args.l.all(i, i > 0)", {"l": [1, "a"]}, "no matching overloads"),
    ("args.l.exists(i, i > 0)", {"l": ["a", 1]}, True),
    ("args.l.exists(i, i > 0)", {"l": ["a", 0]}, "no matching overloads"),
    ("args.l.exists_one(i, i > 0)", {"l": [1, 0]}, True),
    ("args.l.exists_one(i, i > 0)", {"l": [1, 1]}, False),
    ("args.l.exists_one(i, i > 0)", {"l": [1, "a"]}, "no matching overloads"),
    ("args.l.map(i, i * 2) == [2, 4]", {"l": [1, 2]}, True),
    ("args.l.filter(i, i > 1) == [2]", {"l": [1, 2]}, True),
    ('args.m.all(k, k.startsWith("a"))', {"m": {"ab": 1, "ac": 2}}, True),
    ("args.m.exists(k, args.m[k] == 2)", {"m": {"ab": 1, "ac": 2}}, True),
    ("args.l.exists(args, args > 1)", {"l": [1, 2]}, True),  # the name inside hides the one outside
]

ARITHMETIC: list[tuple[str, Any, bool | str]] = [
    ("args.n / 2 == 1", {"n": 3}, True),
    ("args.n / 2 == -1", {"n": -3}, True),  # towards zero
    ("args.n % 2 == -1", {"n": -3}, True),
    ("args.n / 0 == 0", {"n": 1}, "divide by zero"),
    ("args.n % 0 == 0", {"n": 1}, "modulus by zero"),
    ("args.n / 0.0 > 1.0", {"n": 1.5}, True),  # infinity
    ("args.n / 2 == 1", {"n": 2.5}, "no matching overloads"),
    ("args.n * 9007199254740991 * 9007199254740991 > 0", {"n": 9007199254740991}, "integer overflow"),
    ("args.n + 9223372036854775807 > 0", {"n": 1}, "integer overflow"),
    ("-args.n == -1", {"n": 1}, True),
    ("int(args.n) == -1", {"n": -1.9}, True),
    ("int(args.n) == 1", {"n": 1e300}, "out of int64 range"),
    ("int(args.s) == 7", {"s": "7"}, True),
    ("int(args.s) == 7", {"s": "x"}, "cannot convert"),
    ("double(args.s) > 1.0", {"s": "1.5"}, True),
    ("double(args.n) == 1.0", {"n": 1}, True),
    ('string(args.n) == "1.5"', {"n": 1.5}, True),
    ("type(args.n) == int", {"n": 1}, True),
    ("type(args.n) == double", {"n": 1.0}, True),
]


@pytest.mark.parametrize(
    ("when", "args", "value"),
    [*COMPARISONS, *TEXTS, *MEMBERS, *LOGIC, *MACROS, *ARITHMETIC],
    ids=lambda part: str(part),
)
def test_a_condition_means_what_the_language_says(when: str, args: Any, value: bool | str) -> None:
    found = Condition(when).value({"args": args})

    if isinstance(value, bool):
        assert found is value
    else:
        assert isinstance(found, str)
        assert value in found.lower()
