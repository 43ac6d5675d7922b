"""Bytes and back: Avro bodies in Confluent framing (a zero byte, a 4-byte schema id, the body).

The id of a run-log entry is taken over the body alone, so a record re-registered under another id stays itself.
"""

from __future__ import annotations

import dataclasses
import struct
import types
import typing
from collections.abc import Callable
from functools import cache
from io import BytesIO
from typing import Any, TypeVar

import fastavro

from refold.core import canonical, events, messages, schemas
from refold.core.errors import FoldError, MalformedError
from refold.core.ids import EntryId, entry_id

T = TypeVar("T")
_FRAME = struct.Struct(">bI")

SUBJECTS: dict[type, str] = {
    events.Entry: "run-log",
    messages.RunRequest: "run-requested",
    messages.RunSignal: "run-signalled",
    messages.ToolRequest: "tool-requested",
    messages.ToolClaim: "tool-claimed",
    messages.ToolResult: "tool-completed",
    messages.RunOutcome: "run-completed",
    messages.DeadLetter: "dead-letter",
}

_EVENTS: dict[str, type] = {f"refold.{cls.__name__}": cls for cls in typing.get_args(events.Event)}
_NAMES = {cls: name for name, cls in _EVENTS.items()}


def encode(message: Any) -> bytes:
    """The framed value of a message or an entry."""
    number, schema = schemas.table()[1][SUBJECTS[type(message)]]
    out = BytesIO()
    out.write(_FRAME.pack(0, number))
    fastavro.schemaless_writer(out, schema, _to_datum(type(message))(message))
    return out.getvalue()


def encode_entry(entry: events.Entry) -> tuple[EntryId, bytes]:
    """The id and the framed value of an entry."""
    value = encode(entry)
    return entry_id(value[_FRAME.size :]), value


def decode(cls: type[T], value: bytes) -> T:
    """A framed value as a message or an entry.

    **Raises** FoldError when the schema or an event type is of a newer version, MalformedError when the bytes are
    not what the frame says.
    """
    number = schema_id(value)
    if number is None:
        raise MalformedError("the value is neither JSON nor Avro in Confluent framing")
    subject = SUBJECTS[cls]
    writer = schemas.writer_schema(number, subject)
    reader = schemas.table()[1][subject][1]
    source = BytesIO(value)
    source.seek(_FRAME.size)
    try:
        datum = fastavro.schemaless_reader(
            source,
            writer,
            None if writer is reader else reader,
            return_record_name=True,
            return_record_name_override=True,
        )
        if source.read(1):
            raise MalformedError("the value goes on after the end of its Avro body")
        return typing.cast(T, _from_datum(cls)(datum))
    except (FoldError, MalformedError):
        raise
    except Exception as error:  # fastavro has no error class of its own: any broken byte may surface as anything
        raise MalformedError(f"the value is not Avro of {subject}", hint=repr(error)[:200]) from None


def schema_id(value: bytes) -> int | None:
    """The schema id in the frame, or None when there is no frame."""
    if len(value) < _FRAME.size or value[0] != 0:
        return None
    return int(_FRAME.unpack_from(value)[1])


def body(value: bytes) -> bytes:
    """The Avro body of a framed value."""
    return value[_FRAME.size :]


def decode_input(cls: type[T], value: bytes, *, json_fields: tuple[str, ...]) -> T:
    """An input from outside, Avro or plain JSON. `json_fields` are JSON values in JSON and JSON text in Avro.

    **Raises** MalformedError for everything that is not exactly such a message.
    """
    if value[:1] == b"\0":
        try:
            message = decode(cls, value)
        except FoldError as error:
            raise MalformedError(error.message, hint=error.hint) from None
        return dataclasses.replace(
            message,  # type: ignore[type-var]
            **{name: canonical.dumps(canonical.parse(getattr(message, name))) for name in json_fields},
        )
    parsed = canonical.parse(value)
    if not isinstance(parsed, dict):
        raise MalformedError("the JSON value is not an object", hint='send {"run_id": ..., ...}')
    return _from_json(cls, parsed, json_fields)


def _from_json(cls: type[T], parsed: dict[str, Any], json_fields: tuple[str, ...]) -> T:
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = _hints(cls)
    if extra := sorted(parsed.keys() - fields.keys()):
        raise MalformedError(f"unknown field {extra[0]!r}", hint=f"the fields are {', '.join(fields)}")
    values: dict[str, Any] = {}
    for name, spec in fields.items():
        if name not in parsed:
            if spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
                raise MalformedError(f"the field {name!r} is missing")
            continue
        value = parsed[name]
        if name in json_fields:
            value = canonical.dumps(value)
        elif not _fits(value, hints[name]):
            raise MalformedError(f"the field {name!r} has the wrong type", hint=f"it is {hints[name]}")
        values[name] = value
    return cls(**values)


def _fits(value: Any, hint: Any) -> bool:
    if hint is int:
        return type(value) is int
    if typing.get_origin(hint) is dict:
        return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
    return isinstance(value, hint)


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


@cache
def _to_datum(cls: type) -> Callable[[Any], Any]:
    """A function from an instance to what fastavro writes; built once per class because this is the hot path."""
    parts = []
    env: dict[str, Any] = {}
    for name, hint in _hints(cls).items():
        nested = _nested(hint)
        if hint == list[events.Event]:
            env["event"] = _event_to_datum
            parts.append(f"{name!r}: [event(e) for e in m.{name}]")
        elif nested:
            env[f"to_{name}"] = _to_datum(nested)
            parts.append(f"{name!r}: None if m.{name} is None else to_{name}(m.{name})")
        else:
            parts.append(f"{name!r}: m.{name}")
    function = eval(f"lambda m: {{{', '.join(parts)}}}", env)
    return typing.cast(Callable[[Any], Any], function)


def _event_to_datum(event: Any) -> tuple[str, Any]:
    cls = type(event)
    return _NAMES[cls], _to_datum(cls)(event)


@cache
def _from_datum(cls: type) -> Callable[[Any], Any]:
    converters: dict[str, Callable[[Any], Any]] = {}
    for name, hint in _hints(cls).items():
        if hint == list[events.Event]:
            converters[name] = lambda items: [_event_from_datum(item) for item in items]
        elif nested := _nested(hint):
            converters[name] = _optional(_from_datum(nested))
    if not converters:
        return lambda datum: cls(**datum)
    pairs = tuple(converters.items())

    def build(datum: dict[str, Any]) -> Any:
        for name, convert in pairs:
            datum[name] = convert(datum[name])
        return cls(**datum)

    return build


def _optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _event_from_datum(item: Any) -> Any:
    name, datum = item
    cls = _EVENTS.get(name)
    if cls is None:
        raise FoldError(f"{name} is not an event that this version knows", hint="upgrade before reading this run")
    return _from_datum(cls)(datum)


def _nested(hint: Any) -> type | None:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    found = [option for option in options if dataclasses.is_dataclass(option)]
    return typing.cast(type, found[0]) if len(found) == 1 else None
