"""Conditions of rules in CEL: no loops beyond its macros, no I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Literal

from cel_expr_python import cel

from refold.core.errors import UsageError

VARIABLES: Mapping[str, str] = {
    "tool.name": "string: what the tool is called",
    "tool.version": "string: the digest of its code, or what it declares",
    "tool.effect": "string: pure, keyed, probed or once",
    "tool.tags": "list<string>: what it declares",
    "args": "map<string, dyn>: its arguments by name",
    "agent": "string: the agent that asks for the call",
    "run.id": "string: the run's id",
    "run.input": "dyn: the run's input, any JSON value",
    "run.session": "string: the session that the run belongs to, empty for none",
    "run.labels": "map<string, string>: the run's labels",
    "run.depth": "int: 0, of a child run 1, of its child 2",
    "run.calls": "int: the calls that the run proposed before this one",
    "run.cost": "double: what the run has cost so far",
    "actor": "string: who asked for the run",
    "environment": "string: where the services run, as their settings say",
}


class Language:
    """Variables of one kind of conditions, in the form of `VARIABLES`."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = variables

    @cached_property
    def environment(self) -> cel.Env:
        return cel.NewEnv(variables={name: cel.Type(text.partition(":")[0]) for name, text in self.variables.items()})


OF_RULES = Language(VARIABLES)

MAX_WHEN = 4_000
"""Longest condition in characters, about a page."""

LINKED = 16
"""Most conditions in a link. Each keeps enough of the parser's 32 levels, and a link compiles in less than 1 ms."""

WALKED = 8_192
"""Largest variable for a condition with a macro, in characters of texts and 8 per value: half a second at worst."""

_ARITHMETIC = ("_+_", "_-_", "_*_", "_/_", "_%_")

NONE = -1
_MACRO = re.compile(r"\.\s*(all|exists|exists_one|existsOne|map|filter)\s*\(")
_RAISED = (RuntimeError, ValueError, TypeError, OverflowError)
"""Errors that the library raises instead of returning."""


class Condition:
    """Compiled CEL condition of a policy rule or on a signal or event. Its type is boolean or known only at evaluation.
    `needs` are the variables that it names. **Raises** UsageError with fault and position."""

    __slots__ = ("_compiled", "_language", "needs", "source", "walks")

    def __init__(self, source: str, language: Language = OF_RULES) -> None:
        if len(source) > MAX_WHEN:
            raise UsageError(f"it is longer than {MAX_WHEN} characters", hint="split the rule")
        try:
            self._compiled = _compile(source, language)
        except _RAISED as error:
            raise _refusal(error, language) from None
        kind = self._compiled.return_type()
        if kind not in (cel.Type.BOOL, cel.Type.DYN):
            raise UsageError(f"it gives {kind.name().lower()}, not true or false", hint="compare it with something")
        self.source, self._language = source, language
        named = set(_names_in(_checked(source, language)))
        self.needs = frozenset(name for name in language.variables if name.encode() in named)
        self.walks = _MACRO.search(source) is not None

    def pitfalls(self) -> list[str]:
        """Warnings about arithmetic that is wrong for whole numbers, or has no value for some types."""
        warnings = []
        for function, operands in _operations(_checked(self.source, self._language)):
            numbers = function in _ARITHMETIC and "other" not in operands
            if numbers and "any" in operands:
                warnings.append(
                    f"{function[1:-1]} has no value where a whole number (50) meets a fraction (50.5), and of whole"
                    " numbers 2999 / 1000 is 2: write double(args.amount) / 1000.0"
                )
            elif function == "_/_" and "fraction" not in operands:
                warnings.append("/ of whole numbers leaves the rest out, 2999 / 1000 is 2: write double(...) / 1000.0")
        return warnings

    def value(self, variables: Mapping[str, Any]) -> bool | str:
        """Result of the condition, or the error's text if it has no boolean value."""
        large = _large(self.needs, variables) if self.walks else ()
        value = self.ask(_activation(self.needs.difference(large), variables, self._language))
        if large and isinstance(value, str):
            return f"{' and '.join(large)} may have {WALKED} characters for a macro to walk through, and has more"
        return value

    def evaluate(self, facts: Facts) -> bool | str:
        """Like `value`, for facts that are evaluated by many conditions."""
        return self.value(facts.variables) if self.walks else self.ask(facts.activation)

    def ask(self, activation: cel.Activation) -> bool | str:
        """Like `value`, for variables that are already converted."""
        try:
            result = self._compiled.eval(activation)
            value = result.value()
            if isinstance(value, bool):
                return value
            kind = result.type()
        except _RAISED as error:
            return _text(error) or "it has no value"
        if kind == cel.Type.ERROR:
            return _text(value) or "it has no value"
        return f"it gives {kind.name().lower()}, not true or false"


class Facts:
    """Variables converted to CEL values once for many conditions: conversion costs more than an evaluation."""

    def __init__(self, variables: Mapping[str, Any], language: Language) -> None:
        self.variables = variables
        self.activation = language.environment.Activation(dict(variables))


class Linked:
    """Conditions in order, linked into few expressions, to find the first that is not false."""

    def __init__(self, conditions: Sequence[Condition]) -> None:
        self._conditions = tuple(conditions)
        # One evaluation costs at least 8 microseconds: one expression, `(r0) ? 0 : (r1) ? 1 : -1`, replaces many.
        self._links = list(_linked(self._conditions, 0))
        self.needs = frozenset[str]().union(*(condition.needs for condition in conditions))
        self._walks = any(condition.walks for condition in conditions)

    def first(self, variables: Mapping[str, Any]) -> tuple[int, str]:
        """Number of the first condition that holds or fails, and the error's text; NONE if all are false."""
        if not self._links:
            return NONE, ""
        if self._walks and _large(self.needs, variables):
            return self._singly(0, len(self._conditions), lambda condition: condition.value(variables))
        activation = _activation(self.needs, variables, OF_RULES)
        for start, count, compiled in self._links:
            number = _number(compiled, activation)
            if number is None:
                # One failure makes the whole link fail, and so do many conditions that walk too far together.
                outcome = self._singly(start, count, lambda condition: condition.ask(activation))
                if outcome[0] != NONE:
                    return outcome
            elif number != NONE:
                return start + number, ""
        return NONE, ""

    def _singly(self, start: int, count: int, ask: Callable[[Condition], bool | str]) -> tuple[int, str]:
        for number in range(start, start + count):
            value = ask(self._conditions[number])
            if value is not False:
                return number, "" if value is True else value
        return NONE, ""


def _linked(conditions: Sequence[Condition], start: int) -> Sequence[tuple[int, int, cel.Expression]]:
    """Links as long as the parser accepts: a deeply nested condition gets a shorter one."""
    if not conditions:
        return []
    if len(conditions) <= LINKED:
        # The line break ends a comment that a condition may end with.
        tests = [f"({condition.source}\n) ? {number} : " for number, condition in enumerate(conditions)]
        try:
            return [(start, len(conditions), _compile("".join(tests) + str(NONE), OF_RULES))]
        except _RAISED:
            if len(conditions) == 1:
                # At the limit of nesting: it is evaluated by itself, because it has no number.
                return [(start, 1, _compile(conditions[0].source, OF_RULES))]
    half = len(conditions) // 2 if len(conditions) < 2 * LINKED else LINKED
    return [*_linked(conditions[:half], start), *_linked(conditions[half:], start + half)]


def _activation(needs: frozenset[str], variables: Mapping[str, Any], language: Language) -> cel.Activation:
    # Only the named variables: to convert one costs more than the evaluation.
    return language.environment.Activation({name: variables[name] for name in needs if name in variables})


def _large(needs: frozenset[str], variables: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in needs if name in variables and _is_large(variables[name]))


def _is_large(value: Any) -> bool:
    left, pending = WALKED, [value]
    while pending:
        value = pending.pop()
        left -= 8 + len(value) if isinstance(value, str) else 8
        if isinstance(value, dict):
            pending.extend(value)
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        if len(pending) * 8 > left:
            return True
    return left < 0


def _number(compiled: cel.Expression, activation: cel.Activation) -> int | None:
    try:
        value = compiled.eval(activation).value()
    except _RAISED:
        return None
    return value if type(value) is int else None


@lru_cache(maxsize=256)
def _compile(source: str, language: Language) -> cel.Expression:
    return language.environment.compile(source)


@lru_cache(maxsize=256)
def _checked(source: str, language: Language) -> bytes:
    data = _compile(source, language).serialize()
    return data if isinstance(data, bytes) else data.encode("latin-1")


def _refusal(error: Exception, language: Language) -> UsageError:
    line = _text(error).partition("\n")[0].replace("<input>:", "").replace(" (in container '')", "")
    for prefix in ("INVALID_ARGUMENT: ", "CANCELLED: ", "ERROR: ", "-1:-1: "):
        line = line.removeprefix(prefix)
    hint = ""
    if "undeclared reference" in line:
        hint = f"the variables are {', '.join(language.variables)}"
    elif "no matching overload" in line:
        hint = "compare like with like: a double with 1.0, a string with '1'"
    return UsageError(line.removesuffix(" [INVALID_ARGUMENT]").removesuffix(" [CANCELLED]").strip(), hint=hint)


def _text(text: Any) -> str:
    return str(text)[:300].encode(errors="replace").decode()


# The functions below read the library's serialised form of a compiled condition: the names of its parts, and their
# types. Source: cel/expr/checked.proto and syntax.proto. An Any (`value` 2) around CheckedExpr: `reference_map` 2 of
# Reference (`name` 1), `type_map` 3 of Type (`dyn` 1, `primitive` 3), `expr` 4 of Expr (`id` 2, `call_expr` 6 with
# `function` 2 and `args` 3).

Fields = Mapping[int, Sequence[Any]]

_DYN, _PRIMITIVE = 1, 3
_NUMBERS: Mapping[int, Kind] = {2: "whole", 3: "whole", 4: "fraction"}

_CALL = 6
_INSIDE = (*((5, 1), (_CALL, 1), (_CALL, 3), (7, 1), (8, 2, 3), (8, 2, 4)), *((9, 2), (9, 4), (9, 5), (9, 6), (9, 7)))
"""Paths to subexpressions: select, call, list, map entries, macro."""

_WITH_LENGTH = 2

Kind = Literal["any", "whole", "fraction", "other"]


def _names_in(data: bytes) -> Iterator[bytes]:
    """Names as resolved by the checker: no text inside the expression can add or hide one."""
    for entry in _expression(data).get(2, ()):
        for reference in _fields(entry).get(2, ()):
            yield from _fields(reference).get(1, ())


def _operations(data: bytes) -> Iterator[tuple[str, list[Kind]]]:
    """Calls of operators such as `_/_`, with the kinds of their operands; `any` is known only at evaluation."""
    checked = _expression(data)
    types = {_one(entry, 1): _fields(_one(entry, 2)) for entry in map(_fields, checked.get(3, ()))}
    for call in _calls(_fields(_one(checked, 4))):
        yield _one(call, 2).decode(), [_kind(types.get(_one(_fields(part), 2), {})) for part in call.get(3, ())]


def _kind(fields: Fields) -> Kind:
    if _DYN in fields:
        return "any"
    return _NUMBERS.get(fields.get(_PRIMITIVE, [0])[0], "other")


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


def _expression(data: bytes) -> Fields:
    return _fields(_one(_fields(data), 2))


def _one(message: Fields, number: int) -> Any:
    return message.get(number, [b""])[0]


def _fields(message: bytes) -> Fields:
    """Fields of a protobuf message by number."""
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        size, at = _varint(message, at)
        values = fields.setdefault(tag >> 3, [])
        if tag & 7 == _WITH_LENGTH:
            values.append(message[at : at + size])
            at += size
        elif tag & 7:
            raise AssertionError("no message on the way has a field of fixed size")
        else:
            values.append(size)
    return fields


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while message[at] & 0x80:
        value, shift, at = value | (message[at] & 0x7F) << shift, shift + 7, at + 1
    return value | message[at] << shift, at + 1
