"""Cython source of a decoder, generated from schemas: what `core.wire.avro` does, in C.

A compiled reader takes a body only if all of it is in order, and returns None for any other: the Python reader reads
the same bytes then, and its refusal is the one that counts. So the two can differ in one way alone: C takes a body
that Python refuses or reads otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_PRIMITIVES = {"long": "long", "string": "string", "bytes": "bytes_", "boolean": "boolean"}
_DOOR = "def read_{number}(data, Py_ssize_t start):\n    return whole(data, start, {root})\n"
_ALIKE = Path(__file__).with_name("decoder.pyx")


def pyx_of(roots: Iterable[tuple[int, Any]], classes: Mapping[str, type]) -> str:
    """Source of a module whose `bind` returns readers by id, each of which takes a body and where it begins.

    `roots` are ids and schemas, `classes` the dataclasses by record name; `bind` takes them once more, as objects.
    """
    made = _Source(classes)
    doors = {number: _DOOR.format(number=number, root=made.root(number, schema)) for number, schema in roots}
    bound = [f"    global {name}\n    {name} = {value}\n" for name, value in made.bound.items()]
    ids = ", ".join(f"{number}: read_{number}" for number in doors)
    parts = [_ALIKE.read_text(), *(f"cdef object {name}\n" for name in made.bound), *made.parts, *doors.values()]
    return "".join([*parts, "def bind(classes, default):\n", *bound, f"    return {{{ids}}}\n"])


class _Source:
    """C functions by what they read; `bound` are the module's objects, and what each is made from."""

    def __init__(self, classes: Mapping[str, type]) -> None:
        self.parts: list[str] = []
        self.bound: dict[str, str] = {}
        self._classes = classes
        self._names: dict[str, str] = {}
        self._number = 0

    def root(self, number: int, schema: Any) -> str:
        """The name of the function that reads a schema. Its records are its own: another version has others."""
        self._number, self._names = number, dict(_PRIMITIVES)
        return self._function(schema)

    def _function(self, schema: Any) -> str:
        if isinstance(schema, str) and schema in self._names:
            return self._names[schema]
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, dict) and schema["type"] == "record":
            return self._record(schema)
        raise TypeError(f"{schema} is not among the Avro types that Refold uses")

    def _read(self, schema: Any) -> str:
        if schema == {"type": "map", "values": "string"}:
            return "map_(p)"
        if isinstance(schema, dict) and schema["type"] == "array":
            return f"array(p, {self._function(schema['items'])})"
        return f"{self._function(schema)}(p)"

    def _union(self, branches: list[Any]) -> str:
        reads = ["None" if each == "null" else self._read(each) for each in branches]
        name = f"union_{self._number}_{len(self.parts)}"
        lines = [f"    if n == {2 * index}:\n        return {read}\n" for index, read in enumerate(reads)]
        self.parts.append(f"cdef object {name}(Place *p):\n    cdef int n = byte(p)\n{''.join(lines)}    refuse()\n")
        return name

    def _record(self, schema: dict[str, Any]) -> str:
        full = f"{schema['namespace']}.{schema['name']}"
        name, cls = f"record_{self._number}_{schema['name']}", f"class_{schema['name']}"
        self.bound[cls] = f"classes[{full!r}]"
        new = {field.name for field in dataclasses.fields(self._classes[full])}
        lines = [f"cdef object {name}(Place *p):", f"    cdef object o = (<type>{cls}).__new__({cls})"]
        for field in schema["fields"]:
            read = self._read(field["type"])
            lines.append(f"    put(o, {field['name']!r}, {read})" if field["name"] in new else f"    {read}")
            new.discard(field["name"])
        for missing in sorted(new):
            self.bound[f"new_{name}_{missing}"] = f"default(classes[{full!r}].__dataclass_fields__[{missing!r}])"
            lines.append(f"    put(o, {missing!r}, new_{name}_{missing}())")
        self.parts.append("\n".join([*lines, "    return o\n"]))
        self._names[full] = self._names[schema["name"]] = name
        return name
