"""Whether a record written with one Avro schema can be read with another: the resolution rules, as a check.

**Source**: Avro 1.12 specification, "Schema Resolution". Without aliases: Refold never renames.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_PROMOTIONS: dict[str, frozenset[str]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
_NAMED = frozenset({"record", "enum", "fixed"})


def conflicts(*, reader: Any, writer: Any) -> list[str]:
    """Why the reader cannot read everything that the writer can write, in words; empty when it can.

    **Shape**: schemas as parsed JSON. One entry per reason, each beginning with the place in the schema.
    """
    return list(_Resolution(_names(reader, ""), _names(writer, "")).compare(reader, writer, "", ("", "")))


class _Resolution:
    """One comparison: the named types of both sides, and the pairs that were seen before (schemas may be recursive)."""

    def __init__(self, reader: dict[str, Any], writer: dict[str, Any]) -> None:
        self._reader = reader
        self._writer = writer
        self._seen: set[tuple[str, str]] = set()

    def compare(self, reader: Any, writer: Any, at: str, spaces: tuple[str, str]) -> Iterator[str]:
        """The conflicts between two schemas. `spaces` are the namespaces that enclose them."""
        reader, writer = _resolve(reader, self._reader, spaces[0]), _resolve(writer, self._writer, spaces[1])
        if isinstance(writer, list):
            for branch in writer:
                yield from self.compare(reader, branch, at, spaces)
            return
        if isinstance(reader, list):
            yield from self._into_union(reader, writer, at, spaces)
            return
        kind, written = _kind(reader), _kind(writer)
        if kind != written:
            if kind not in _PROMOTIONS.get(written, ()):
                yield f"{at or 'the schema'}: a {written} cannot be read as a {kind}"
        elif kind in _NAMED:
            yield from self._named(reader, writer, at, spaces)
        elif kind == "array":
            yield from self.compare(reader["items"], writer["items"], f"{at}[]", spaces)
        elif kind == "map":
            yield from self.compare(reader["values"], writer["values"], f"{at}{{}}", spaces)

    def _into_union(self, reader: list[Any], writer: Any, at: str, spaces: tuple[str, str]) -> Iterator[str]:
        # The first branch that matches is taken. A record matches by its name, so that a conflict inside it is told.
        name = _full_name(writer, spaces[1]) if _kind(writer) in _NAMED else None
        for branch in reader:
            resolved = _resolve(branch, self._reader, spaces[0])
            if name is not None and _kind(resolved) in _NAMED and _full_name(resolved, spaces[0]) == name:
                yield from self.compare(resolved, writer, at, spaces)
                return
        if not any(not list(_Resolution(self._reader, self._writer).compare(b, writer, at, spaces)) for b in reader):
            yield f"{at or 'the schema'}: the union has no branch for {name or _kind(writer)} any more"

    def _named(self, reader: dict[str, Any], writer: dict[str, Any], at: str, spaces: tuple[str, str]) -> Iterator[str]:
        name, written = _full_name(reader, spaces[0]), _full_name(writer, spaces[1])
        if name != written:
            yield f"{at or 'the schema'}: {written} cannot be read as {name}"
        elif (name, written) in self._seen:
            return
        else:
            self._seen.add((name, written))
            inner = (name.rpartition(".")[0], written.rpartition(".")[0])
            if reader["type"] == "record":
                yield from self._fields(reader, writer, name, inner)
            elif reader["type"] == "fixed" and reader["size"] != writer["size"]:
                yield f"{name}: its size was {writer['size']} and is {reader['size']}"
            elif reader["type"] == "enum" and "default" not in reader:
                for symbol in writer["symbols"]:
                    if symbol not in reader["symbols"]:
                        yield f"{name}: the symbol {symbol} is gone"

    def _fields(
        self, reader: dict[str, Any], writer: dict[str, Any], at: str, spaces: tuple[str, str]
    ) -> Iterator[str]:
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            place = f"{at}.{field['name']}"
            if other := written.get(field["name"]):
                yield from self.compare(field["type"], other["type"], place, spaces)
            elif "default" not in field:
                yield f"{place}: older records lack the field and it has no default"


def _kind(schema: Any) -> str:
    return str(schema["type"]) if isinstance(schema, dict) else str(schema)


def _full_name(schema: dict[str, Any], enclosing: str) -> str:
    name = str(schema["name"])
    space = schema.get("namespace", enclosing)
    return name if "." in name or not space else f"{space}.{name}"


def _resolve(schema: Any, names: dict[str, Any], enclosing: str) -> Any:
    """The definition behind a name, and a primitive type without its dictionary."""
    if isinstance(schema, dict) and not isinstance(schema["type"], str):
        return _resolve(schema["type"], names, enclosing)
    if isinstance(schema, str):
        full = schema if "." in schema or not enclosing else f"{enclosing}.{schema}"
        return names.get(full, names.get(schema, schema))
    return schema


def _names(schema: Any, enclosing: str) -> dict[str, Any]:
    """Every named type of a schema, by full name."""
    if isinstance(schema, list):
        return {name: found for branch in schema for name, found in _names(branch, enclosing).items()}
    if not isinstance(schema, dict):
        return {}
    found: dict[str, Any] = {}
    if schema["type"] in _NAMED:
        full = _full_name(schema, enclosing)
        enclosing = full.rpartition(".")[0]
        found[full] = {**schema, "name": full}
    inner = [field["type"] for field in schema.get("fields", ())]
    inner += [schema[key] for key in ("items", "values") if key in schema]
    if not isinstance(schema["type"], str):
        inner.append(schema["type"])
    for part in inner:
        found |= _names(part, enclosing)
    return found
