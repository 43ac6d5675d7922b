"""A compiled condition as the library writes it out: what its parts are called, and of which types.

**Source**: cel/expr/checked.proto and syntax.proto. An Any (`value` 2) around CheckedExpr: `reference_map` 2 of
Reference (`name` 1), `type_map` 3 of Type (`dyn` 1, `primitive` 3), `expr` 4 of Expr (`id` 2, `call_expr` 6 with
`function` 2 and `args` 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Fields = Mapping[int, Sequence[Any]]
"""The fields of a protobuf message by number: integers, or bytes for texts and messages."""

_DYN, _PRIMITIVE = 1, 3
_NUMBERS: Mapping[int, Kind] = {2: "whole", 3: "whole", 4: "fraction"}

_CALL = 6
_INSIDE = (
    *((5, 1), (_CALL, 1), (_CALL, 3), (7, 1), (8, 2, 3), (8, 2, 4)),
    *((9, 2), (9, 4), (9, 5), (9, 6), (9, 7)),
)
"""Where an expression holds others: select, call, list, entries of a map, macro."""

_WITH_LENGTH = 2
"""The wire type of strings and messages; 0 is that of numbers."""


Kind = Literal["any", "whole", "fraction", "other"]


class OperatorCall(NamedTuple):
    """A call of an operator, as `_/_`, and what its operands are: of `any` type is what only the run tells."""

    function: str
    operands: tuple[Kind, ...]


def names(data: bytes) -> Iterator[bytes]:
    """What is named, as the checker has resolved it: no text that the expression contains can add or hide one."""
    for entry in _checked(data).get(2, ()):
        for reference in _fields(entry).get(2, ()):
            yield from _fields(reference).get(1, ())


def operations(data: bytes) -> Iterator[OperatorCall]:
    """The calls in an expression, in any order."""
    checked = _checked(data)
    types = {_one(entry, 1): _fields(_one(entry, 2)) for entry in map(_fields, checked.get(3, ()))}
    for call in _calls(_fields(_one(checked, 4))):
        operands = (types.get(_one(_fields(operand), 2), {}) for operand in call.get(3, ()))
        yield OperatorCall(_one(call, 2).decode(), tuple(map(_kind, operands)))


def _kind(found: Fields) -> Kind:
    if _DYN in found:
        return "any"
    return _NUMBERS.get(found.get(_PRIMITIVE, [0])[0], "other")


def _calls(expression: Fields) -> Iterator[Fields]:
    yield from map(_fields, expression.get(_CALL, ()))
    for path in _INSIDE:
        for inner in _at(expression, path):
            yield from _calls(inner)


def _at(message: Fields, path: Sequence[int]) -> Iterator[Fields]:
    for inner in map(_fields, message.get(path[0], ())):
        if path[1:]:
            yield from _at(inner, path[1:])
        else:
            yield inner


def _checked(data: bytes) -> Fields:
    return _fields(_one(_fields(data), 2))


def _one(message: Fields, number: int) -> Any:
    """The value of a field, as Protobuf leaves it out: empty."""
    return message.get(number, [b""])[0]


def _fields(message: bytes) -> Fields:
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        size, at = _varint(message, at)
        values = found.setdefault(tag >> 3, [])
        if tag & 7 == _WITH_LENGTH:
            values.append(message[at : at + size])
            at += size
        elif tag & 7:
            raise AssertionError("no message on the way has a field of fixed size")
        else:
            values.append(size)
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while message[at] & 0x80:
        value, shift, at = value | (message[at] & 0x7F) << shift, shift + 7, at + 1
    return value | message[at] << shift, at + 1
