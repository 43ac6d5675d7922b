"""Strict JSON parsing and canonical JSON text. Every service refuses the same texts, because parsers that differ can be
played against each other. The text follows RFC 8785, except for numbers of 2^53 and more, which JavaScript rounds: an
integer has all its digits, a float an exponent so that it is read as a float."""

import json
import math
import re
from hashlib import sha256
from typing import Any

import orjson

from refold.core.errors import MalformedError
from refold.core.ids import RunId

MAX_DEPTH = 64
"""Levels of nesting: more than real arguments have, and far below the stack of any parser."""

MAX_CONTAINERS = 150_000
"""Most arrays and objects in an input: a megabyte of `[10,20]`, read in less than half a second."""

MAX_INTEGER = 2**53 - 1
_PLAIN = re.compile(r'[^\x00-\x1f"\\\ud800-\udfff]*\Z')
# An unclosed string matches to the end, and nothing is tried twice: else a megabyte of quotes takes hours.
_NOT_BRACKETS = re.compile(r'[^\[\]{}"]++|"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
_ROUND = str.maketrans("[{]}", "(())")
_AS_IS = frozenset({str, bool, type(None)})
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
"""Integers that orjson writes."""

_MOST_DIGITS = 4_300
"""Most digits of an integer: Python and pydantic refuse longer ones, whose parsing takes quadratic time."""


def parse(data: bytes | str, *, containers: int = 0) -> Any:
    """Value of a JSON text; `containers` limits its arrays and objects. **Raises** MalformedError."""
    try:
        source = data.decode() if isinstance(data, bytes) else data
    except UnicodeDecodeError as error:
        raise MalformedError(f"the text is not UTF-8: {error}", hint="send JSON in UTF-8") from None
    refuse_depth(source, containers)
    try:
        value = json.loads(
            source, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_int=_integer, parse_float=_float
        )
        _refuse_surrogates(source, value)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"the text is not JSON: {str(error)[:200]}") from None
    return value


def dumps(value: Any) -> str:
    """Canonical text of a JSON value. **Raises** MalformedError if `parse` would refuse it."""
    try:
        if _is_plain(value, MAX_DEPTH):
            # orjson writes the same text for ASCII keys and plain numbers, in a tenth of the time.
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
        return orjson.dumps(_spelt(value, MAX_DEPTH)).decode()
    except (ValueError, RecursionError, TypeError) as error:
        raise MalformedError(f"the value has no JSON form: {str(error)[:200]}") from None


def text(value: str) -> str:
    return f'"{value}"' if _PLAIN.match(value) else dumps(value)


def hex_digest(value: str) -> str:
    """SHA-256 of a text in UTF-8, in hex."""
    return sha256(value.encode()).hexdigest()


def utf8_bytes(value: str) -> int:
    """Bytes of a text in UTF-8: the unit of every limit, and its size in a record."""
    return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))


def _is_plain(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind in _AS_IS:
        return True
    if kind is int:
        return bool(_SMALLEST <= value <= _LARGEST)
    if kind is float:
        return _is_spelt(value)
    if not depth:
        return False
    if kind is dict:
        for key, item in value.items():  # `all` of a generator takes twice as long
            if not (type(key) is str and key.isascii() and (type(item) is str or _is_plain(item, depth - 1))):
                return False
        return True
    return kind is list and all(type(item) is str or _is_plain(item, depth - 1) for item in value)


def _is_spelt(value: float) -> bool:
    """True if orjson spells a number like RFC 8785: no integral float, and not between 0.000001 and 0.00001."""
    return not value.is_integer() and not 1e-6 <= abs(value) < 1e-5 and math.isfinite(value)


def _spelt(value: Any, depth: int) -> Any:
    """Copy that orjson writes in canonical form: sorted keys, and numbers in their one spelling."""
    if isinstance(value, dict) and depth:
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a key of an object is no text")
        # RFC 8785 sorts by UTF-16, where a character of two units precedes some of one.
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return {str.__str__(key): _spelt(value[key], depth - 1) for key in keys}
    if isinstance(value, list | tuple) and depth:
        return [_spelt(item, depth - 1) for item in value]
    if isinstance(value, dict | list | tuple):
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if type(value) in _AS_IS:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return _number(float(value))
    if isinstance(value, int):
        return int(value) if _SMALLEST <= value <= _LARGEST else orjson.Fragment(_digits(value))
    raise TypeError(f"it holds a {type(value).__name__}")


def _digits(value: int) -> str:
    if value.bit_length() > 14_000 and abs(value) >= 10**_MOST_DIGITS:
        raise ValueError(f"it holds an integer of more than {_MOST_DIGITS:,} digits")
    return int.__repr__(value)


def _number(value: float) -> Any:
    if not math.isfinite(value):
        raise ValueError(f"it holds {value}, which JSON has no number for")
    if _is_spelt(value):
        return value
    if abs(value) <= MAX_INTEGER:
        if value.is_integer():
            return int(value)
        digits = repr(abs(value)).partition("e")[0].replace(".", "")
        return orjson.Fragment(f"{'-' if value < 0 else ''}0.00000{digits}")
    mantissa, _, exponent = (f"{value:.15e}" if abs(value) < 1e16 else repr(value)).partition("e")
    return orjson.Fragment(f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{exponent}")


def refuse_depth(source: str, containers: int = 0) -> None:
    """Check the nesting of a JSON text, and the number of its arrays and objects. **Raises** MalformedError."""
    depth = 0
    if source.count("[") + source.count("{") <= MAX_DEPTH:
        return
    brackets = _NOT_BRACKETS.sub("", source)
    if containers and len(brackets) > 2 * containers:
        problem = f"the JSON text has more than {containers:,} arrays and objects"
        raise MalformedError(problem, hint="send fewer, or where they lie")
    level = brackets.translate(_ROUND)
    for _ in range(MAX_DEPTH):  # removes one level of nesting each time, the innermost first
        if not (level := level.replace("()", "")):
            return
    for char in brackets:
        depth += 1 if char in "[{" else -1
        if depth > MAX_DEPTH:
            raise MalformedError(f"the JSON text is nested deeper than {MAX_DEPTH} levels", hint="flatten it")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise MalformedError("the JSON text has an object with the same key twice", hint="send every key once")
    return members


def _refuse_constant(name: str) -> Any:
    raise MalformedError(f"the JSON text holds {name}", hint="JSON has no such number; send null or a string")


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise MalformedError(f"an integer has more than {_MOST_DIGITS:,} digits", hint="send it as a string")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise MalformedError(f"the number {digits[:30]} is beyond every float", hint="send it as a string")
    return value


def _refuse_surrogates(source: str, value: Any) -> None:
    if "\\u" in source or not source.isascii():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise MalformedError("the JSON text holds a lone surrogate", hint="send valid Unicode") from None


def idempotency_key(*, environment: str, run: RunId, step: int, tool: str, args: str) -> str:
    """Key of a call, equal for all its attempts: SHA-256 (hex) of its identity in canonical JSON, as `args` must be."""
    parts = f'{{"args":{args},"environment":{text(environment)},"run":{text(run)},"step":{step},"tool":{text(tool)}}}'
    return hex_digest(parts)
