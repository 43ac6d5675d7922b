"""Avro directly into frozen dataclasses and back, by code generated once per schema. fastavro takes 18 to 28
microseconds for a typical entry and returns dictionaries, which would halve the speed of the fold; it is the oracle of
the tests. No length or count reserves memory before its bytes are there. **Source**: Avro 1.12 specification, "Binary
Encoding"."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from refold.core.errors import MalformedError

ReadValue = Callable[[bytes, int], tuple[Any, int]]
WriteValue = Callable[[bytearray, Any], None]
Schema = Any

_CONTINUED = 128 << 14 | 128 << 21 | 128 << 28
"""Continuation bits of the third to the fifth byte of a number."""


def reader(schema: Schema, classes: Mapping[str, type]) -> Callable[[bytes, int], Any]:
    """Function that reads a body written with the schema, from an offset to the end of the bytes. `classes` are the
    dataclasses by record name. A field that a class lacks is skipped, one that the schema lacks gets its default. The
    function **raises** MalformedError."""
    read = _Reading(classes).of(schema)

    def read_all(data: bytes, start: int) -> Any:
        try:
            value, end = read(data, start)
        except IndexError:
            raise MalformedError("the Avro body ends too early or names a branch that is not there") from None
        except UnicodeDecodeError:
            raise MalformedError("the Avro body holds a string that is not UTF-8") from None
        if end != len(data):
            raise MalformedError("the Avro body does not end where the value ends")
        return value

    return read_all


def writer(schema: Schema, classes: Mapping[str, type]) -> WriteValue:
    return _Writing(classes).of(schema)


class _Reading:
    """Makes readers, one per named record; in the source `o` is the record, `b` the bytes, `i` the place."""

    def __init__(self, classes: Mapping[str, type]) -> None:
        self._classes = classes
        self._records: dict[str, ReadValue] = {}

    def of(self, schema: Schema) -> ReadValue:
        match schema:
            case str() if schema in self._records:
                return self._records[schema]
            case {"type": "record"}:
                return self._record(schema)
            case {"type": "array", "items": list() as branches}:
                return _read_array(tuple(map(self.of, branches)))
            case {"type": "array", "items": item}:
                return _read_list(self.of(item))
            case {"type": "map", "values": "string"}:
                return _read_map(self.of("string"))
            case str() if schema in _PRIMITIVES:
                return _compile("b, i", [*_read_lines(schema, "v"), "return v, i"], {})
        raise TypeError(f"{schema} is not among the Avro types that Refold uses")

    def _record(self, schema: dict[str, Any]) -> ReadValue:
        name = f"{schema['namespace']}.{schema['name']}"
        cls = self._classes[name]
        # Frozen dataclasses set their fields by a detour that costs as much as the decoding. A draft of the same layout
        # takes them directly and then becomes the real class: it is never visible while mutable.
        own = {"__slots__": cls.__slots__, "__setattr__": object.__setattr__}  # type: ignore[attr-defined]
        draft = type(cls.__name__, cls.__bases__, own)
        names: dict[str, Any] = {"new": object.__new__, "Draft": draft, "Real": cls}
        specs = {f.name: f for f in dataclasses.fields(cls)}
        lines = ["o = new(Draft)"]
        for field in schema["fields"]:
            target = f"o.{field['name']}" if specs.pop(field["name"], None) else "_"
            if isinstance(field["type"], str) and field["type"] in _PRIMITIVES:
                lines += _read_lines(field["type"], target)
                continue
            optional = isinstance(field["type"], list)
            inner = next(t for t in field["type"] if t != "null") if optional else field["type"]
            names[f"read_{field['name']}"] = self.of(inner)
            if optional:
                null = 2 * field["type"].index("null")
                lines += ["n = b[i]; i += 1", f"if n == {null}: {target} = None"]
                lines += [f"elif n != {2 - null}: refuse({_NO_BRANCH!r})", "else:"]
            read_it = f"{target}, i = read_{field['name']}(b, i)"
            # Most lists of most records are empty.
            if not optional and isinstance(inner, dict) and inner["type"] in _EMPTY:
                lines += [f"if b[i]: {read_it}", f"else: {target} = {_EMPTY[inner['type']]}; i += 1"]
                continue
            lines.append(f"{'    ' * optional}{read_it}")
        for field_name, spec in specs.items():
            names[f"new_{field_name}"] = default_of(spec)
            lines.append(f"o.{field_name} = new_{field_name}()")
        read = _compile("b, i", [*lines, "o.__class__ = Real", "return o, i"], names)
        self._records[name] = self._records[schema["name"]] = read
        return read


def default_of(spec: dataclasses.Field[Any]) -> Callable[[], Any]:
    """Factory of the default for a field that a schema lacks. **Raises** TypeError if there is none."""
    if spec.default_factory is not dataclasses.MISSING:
        return spec.default_factory
    if spec.default is dataclasses.MISSING:
        raise TypeError(f"{spec.name} has no default and is not in every schema: `make schemas CHECK=1`")
    return lambda: spec.default


_PRIMITIVES = {
    "long": "{target} = ~(n >> 1) if n & 1 else n >> 1",
    "string": "j = i + (n >> 1); {target} = b[i:j].decode() if not n & 1 else refuse('holds a negative length'); i = j",
    "bytes": "j = i + (n >> 1); {target} = b[i:j] if not n & 1 else refuse('holds a negative length'); i = j",
    "boolean": "{target} = n == 1 if n < 2 else refuse('holds a boolean that is neither 0 nor 1')",
}
_NO_BRANCH = "names a union branch that is not there"
_EMPTY = {"array": "[]", "map": "{}"}
_TYPES = {"long": int, "string": str, "bytes": bytes, "boolean": bool}
_NUMBER = """\
if n > 127:
    m = b[i]; i += 1
    if m < 128: n += (m << 7) - 128
    else: n, i = tail(b, i, n, m)"""


def _read_lines(schema: str, target: str) -> list[str]:
    """Source that reads a primitive. A slice past the end is short without an error: the final check detects it."""
    first, rest = "n = b[i]; i += 1", [*_NUMBER.split("\n"), _PRIMITIVES[schema].format(target=target)]
    if schema == "boolean":  # one byte: `80 00` is no boolean in Avro
        return [first, rest[-1]]
    if schema != "string":
        return [first, *rest]
    return [first, "if n:", *(f"    {line}" for line in rest), f"else: {target} = ''"]  # most texts are empty


def _compile(parameters: str, lines: list[str], names: dict[str, Any]) -> Callable[..., Any]:
    source = f"def function({parameters}):\n" + "".join(f"    {line}\n" for line in lines)
    scope: dict[str, Any] = {"tail": _tail, "refuse": _refuse, "put": _put, **names}
    exec(source, scope)
    function: Callable[..., Any] = scope["function"]
    return function


def _tail(b: bytes, i: int, n: int, m: int) -> tuple[int, int]:
    """Value and end of a number in zigzag form, after its first two bytes."""
    n += (m << 7) - 128 - (128 << 7)
    m = b[i]
    if m < 128:
        return n + (m << 14), i + 1
    if len(b) >= i + 4:
        m, o, p, q = b[i : i + 4]
        if m & o & p & ~q & 128:  # six bytes: a time, as most numbers of this size are
            return n + (m << 14) + (o << 21) + (p << 28) + (q << 35) - _CONTINUED, i + 4
    for shift in (14, 21, 28, 35, 42, 49, 56):
        m = b[i]
        i += 1
        if m < 128:
            return n + (m << shift), i
        n += (m - 128) << shift
    if b[i] > 1:
        raise MalformedError("the Avro body holds a number of more than 64 bits")
    return n + (b[i] << 63), i + 1


def _refuse(problem: str) -> None:
    raise MalformedError(f"the Avro body {problem}")


@lru_cache(maxsize=64)
def _time(n: int) -> bytes:
    # Cached: records of one turn have few different times.
    return bytes(
        (n & 127 | 128, n >> 7 & 127 | 128, n >> 14 & 127 | 128, n >> 21 & 127 | 128, n >> 28 & 127 | 128, n >> 35)
    )


def _put(out: bytearray, n: int) -> None:
    """Append a number in zigzag form that takes more than one byte."""
    if n < 16_384:  # mostly the length of a text
        out.append(n & 127 | 128)
        out.append(n >> 7)
        return
    if 1 << 35 <= n < 1 << 42:
        out += _time(n)
        return
    if n >> 64:
        raise MalformedError("a number has more than 64 bits")
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)


_read_long: ReadValue = _compile("b, i", [*_read_lines("long", "v"), "return v, i"], {})


def _count(b: bytes, i: int) -> tuple[int, int]:
    """Number of items in the next block; a negative count is followed by the size of the block in bytes."""
    count, i = _read_long(b, i)
    if count < 0:
        _, i = _read_long(b, i)
        return -count, i
    return count, i


def _read_array(branches: tuple[ReadValue, ...]) -> ReadValue:
    def read(b: bytes, i: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        left, i = _count(b, i)
        while left:
            for _ in range(left):
                n = b[i]
                if n & 129:  # odd: negative; above 127: no union is as large
                    _refuse(_NO_BRANCH)
                value, i = branches[n >> 1](b, i + 1)
                values.append(value)
            if not b[i]:
                return values, i + 1
            left, i = _count(b, i)
        return values, i

    return read


def _read_list(item: ReadValue) -> ReadValue:
    """Reader of an array of one type. Items take at least one byte, so a count that is too large ends soon."""

    def read(b: bytes, i: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        left, i = _count(b, i)
        while left:
            for _ in range(left):
                value, i = item(b, i)
                values.append(value)
            left, i = _count(b, i)
        return values, i

    return read


def _read_map(text: ReadValue) -> ReadValue:
    def read(b: bytes, i: int) -> tuple[dict[str, str], int]:
        entries: dict[str, str] = {}
        left, i = _count(b, i)
        while left:
            for _ in range(left):
                key, i = text(b, i)
                if key in entries:
                    raise MalformedError("the Avro body has a map with the same key twice")
                entries[key], i = text(b, i)
            left, i = _count(b, i)
        return entries, i

    return read


class _Writing:
    """Makes writers, one per named record; in the source `out` is the buffer, `v` the value."""

    def __init__(self, classes: Mapping[str, type]) -> None:
        self._classes = classes
        self._records: dict[str, WriteValue] = {}

    def of(self, schema: Schema) -> WriteValue:
        match schema:
            case str() if schema in self._records:
                return self._records[schema]
            case list():
                return self._union(schema)
            case {"type": "record"}:
                return self._record(schema)
            case {"type": "array", "items": item}:
                return _write_array(self.of(item))
            case {"type": "map", "values": "string"}:
                return _write_map(self.of("string"))
            case str() if schema in _PRIMITIVES:
                return _compile("out, v", _write_lines(schema, "v"), {})
        raise TypeError(f"{schema} is not among the Avro types that Refold uses")

    def _union(self, branches: list[Any]) -> WriteValue:
        table: dict[type, tuple[int, WriteValue]] = {}
        for index, branch in enumerate(branches):
            if branch == "null":
                table[type(None)] = (index * 2, lambda out, v: None)
            else:
                write = self.of(branch)
                name = branch if isinstance(branch, str) else f"{branch['namespace']}.{branch['name']}"
                table[_TYPES.get(name) or self._classes[name]] = (index * 2, write)

        def write_union(out: bytearray, v: Any) -> None:
            index, write = table[type(v)]
            out.append(index)
            write(out, v)

        return write_union

    def _record(self, schema: dict[str, Any]) -> WriteValue:
        names: dict[str, Any] = {}
        lines = []
        for field in schema["fields"]:
            kind, source = field["type"], f"v.{field['name']}"
            if isinstance(kind, str) and kind in _PRIMITIVES:
                lines += _write_lines(kind, source)
                continue
            names[f"write_{field['name']}"] = self.of(kind)
            lines.append(f"write_{field['name']}(out, {source})")
            if isinstance(kind, list) and "null" in kind:  # no call for a missing value
                lines[-1:] = [f"if {source} is None: out.append({2 * kind.index('null')})", f"else: {lines[-1]}"]
            elif isinstance(kind, dict) and kind["type"] in ("array", "map"):
                lines[-1:] = [f"if {source}: {lines[-1]}", "else: out.append(0)"]
        write: WriteValue = _compile("out, v", lines or ["pass"], names)
        self._records[f"{schema['namespace']}.{schema['name']}"] = self._records[schema["name"]] = write
        return write


def _write_lines(schema: str, source: str) -> list[str]:
    if schema == "long":
        return [f"n = {source}; n = n << 1 if n >= 0 else ~n << 1 | 1", "out.append(n) if n < 128 else put(out, n)"]
    if schema == "boolean":
        return [f"out.append(1 if {source} else 0)"]
    # A lone surrogate, which only the message of an error can contain, is written as its escape.
    encode = ".encode('utf-8', 'backslashreplace')" if schema == "string" else ""
    write = f"s = s{encode}; n = len(s) << 1; out.append(n) if n < 128 else put(out, n); out += s"
    return [f"s = {source}", f"if s: {write}", "else: out.append(0)"]  # most texts of most records are empty


_write_long: WriteValue = _compile("out, v", _write_lines("long", "v"), {})


def _write_array(item: WriteValue) -> WriteValue:
    def write(out: bytearray, v: list[Any]) -> None:
        if v:
            _write_long(out, len(v))
            for value in v:
                item(out, value)
        out.append(0)

    return write


def _write_map(text: WriteValue) -> WriteValue:
    def write(out: bytearray, v: dict[str, str]) -> None:
        if v:
            _write_long(out, len(v))
            for key, value in v.items():
                text(out, key)
                text(out, value)
        out.append(0)

    return write
