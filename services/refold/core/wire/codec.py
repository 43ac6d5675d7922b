"""Avro bodies in Confluent framing: a zero byte, a 4-byte schema id, the body. The id of a run-log entry covers the
body alone, so it does not depend on the schema's id."""

import dataclasses
import struct
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from refold.core import events, messages, topics
from refold.core.errors import FoldError, MalformedError
from refold.core.ids import EntryId, entry_id
from refold.core.wire import avro, blobs, canonical, schemas

_T = TypeVar("_T")
_FRAME = struct.Struct(">bI")
FRAME_BYTES = _FRAME.size
ReadBody = Callable[[bytes, int], Any]

_READERS: dict[tuple[Any, bytes], ReadBody] = {}


_JSON_TYPES: dict[Any, str] = {
    str: "a string",
    int: "an integer",
    dict: "an object of strings",
    list: "an array of strings",
}


SUBJECTS: dict[type, str] = {
    events.Entry: topics.RUN_LOG,
    messages.RunRequest: topics.RUN_REQUESTED,
    messages.RunSignal: topics.RUN_SIGNALLED,
    messages.RunOperation: topics.RUN_OPERATED,
    messages.ToolRequest: topics.TOOL_REQUESTED,
    messages.ShortRequest: f"{topics.TOOL_REQUESTED}.short",
    messages.ToolClaim: topics.TOOL_CLAIMED,
    messages.ToolResult: topics.TOOL_COMPLETED,
    messages.RunOutcome: topics.RUN_COMPLETED,
    messages.RunView: topics.RUN_VIEW,
    messages.RunInsight: topics.RUN_INSIGHT,
    messages.Hold: f"{topics.RUN_SNAPSHOT}.hold",
    messages.KeptRun: f"{topics.RUN_SNAPSHOT}.run",
    messages.KeptBlock: f"{topics.RUN_SNAPSHOT}.block",
    messages.EndedRuns: f"{topics.RUN_SNAPSHOT}.over",
    messages.Marks: f"{topics.RUN_SNAPSHOT}.marks",
    messages.DeadLetter: topics.DEAD_LETTER,
    messages.StreamPart: topics.RUN_STREAM,
    messages.WindowSpent: topics.BUDGET_SPENT,
    messages.ApprovalRequest: topics.APPROVAL_REQUESTED,
    messages.ApprovalVote: topics.APPROVAL_VOTED,
    messages.ApprovalDecision: topics.APPROVAL_DECIDED,
    messages.CatalogEntry: topics.CATALOG,
    messages.RunErased: f"{topics.RUN_SNAPSHOT}.erased",
    messages.Member: topics.MEMBER,
}

_PARTS = (
    *typing.get_args(events.Event),
    *(events.Cause, events.Failure, events.RetryPolicy, events.Requirement, events.Earlier, events.Spendable),
    *(events.Used, events.Continued, events.ForkedFrom, messages.EarlierCall),
    *(messages.MemberAgent, messages.MemberTool),
)
CLASSES: dict[str, type] = {f"refold.{cls.__name__}": cls for cls in (*SUBJECTS, *_PARTS)}


def encode(message: Any) -> bytes:
    frame, write = _writer(SUBJECTS[type(message)])
    out = bytearray(frame)
    write(out, message)
    return bytes(out)


def encode_entry(entry: events.Entry) -> tuple[EntryId, bytes]:
    value = encode(entry)
    return entry_id(value[FRAME_BYTES:]), value


def decode(cls: type[_T], value: bytes) -> _T:
    """Decode a framed value. **Raises** FoldError for a schema of a newer version, MalformedError for bad bytes."""
    if value[:1] != b"\0" or len(value) < FRAME_BYTES:
        raise MalformedError("the value is neither JSON nor Avro in Confluent framing")
    message: _T = _reader(cls, value[1:5])(value, FRAME_BYTES)
    return message


def decode_known(cls: type[_T], value: bytes | None) -> _T | None:
    """Like `decode`, but None for an unreadable value, such as one of a newer version."""
    try:
        return decode(cls, value or b"")
    except (MalformedError, FoldError):
        return None


def decode_message(cls: type[_T], value: bytes) -> _T:
    """Like `decode`, but **raises** MalformedError for a newer version, too."""
    try:
        return decode(cls, value)
    except FoldError as error:
        raise MalformedError(error.message, hint=error.hint) from None


@cache
def _writer(subject: str) -> tuple[bytes, avro.WriteValue]:
    number, schema = schemas.registered()[1][subject]
    return _FRAME.pack(0, number), avro.writer(schema, CLASSES)


def _reader(cls: Any, number: bytes) -> ReadBody:
    reader = _READERS.get((cls, number))
    if reader is None:
        # Cached only for a known id: invented ids must not fill the memory.
        subject = schemas.registered()[0].get(int.from_bytes(number), ("",))[0]
        # A short order is read in place of an order.
        kind = next((model for model, name in SUBJECTS.items() if name == subject and issubclass(model, cls)), cls)
        reader = avro.reader(schemas.writer_schema(int.from_bytes(number), SUBJECTS[kind]), CLASSES)
        _READERS[cls, number] = reader
    return reader


def decode_input(cls: type[_T], value: bytes, *, json_fields: tuple[str, ...], pointed: str = "") -> _T:
    """Input from outside, Avro or plain JSON. `json_fields` are JSON values in JSON and JSON text in Avro; `pointed`
    may contain a blob pointer in Avro. **Raises** MalformedError."""
    if value[:1] == b"\0":
        message = decode_message(cls, value)
        return dataclasses.replace(
            message,  # type: ignore[type-var]
            **{name: _text(getattr(message, name), pointed=name == pointed) for name in json_fields},
        )
    parsed = canonical.parse(value, containers=canonical.MAX_CONTAINERS)
    if not isinstance(parsed, dict):
        raise MalformedError("the JSON value is not an object", hint='send {"run_id": ..., ...}')
    return _from_json(cls, parsed, json_fields)


def _text(text: str, *, pointed: bool) -> str:
    if pointed and blobs.is_pointer(text):
        blobs.parse_pointer(text)
        return text
    return canonical.dumps(canonical.parse(text, containers=canonical.MAX_CONTAINERS))


def _from_json(cls: type[_T], parsed: dict[str, Any], json_fields: tuple[str, ...]) -> _T:
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if extra := sorted(parsed.keys() - fields.keys()):
        raise MalformedError(f"unknown field {extra[0]!r}", hint=f"the fields are {', '.join(fields)}")
    values: dict[str, Any] = {}
    for name, spec in fields.items():
        value = parsed.get(name)
        # Many producers write null for a field that they leave out. The data of a signal may be null itself.
        if value is None and (name not in parsed or name not in json_fields):
            if _is_optional(spec):
                continue
            if name not in parsed:
                raise MalformedError(f"the field {name!r} is missing")
        if name in json_fields:
            value = canonical.dumps(value)
        elif isinstance(value, dict) and (part := _part(spec.type)) is not None:
            value = _from_json(part, value, ())
        elif not _fits(value, spec.type):
            kind = _JSON_TYPES.get(typing.get_origin(spec.type) or spec.type, "an object")
            hint = f"it is {kind}{', or is left out' * _is_optional(spec)}"
            raise MalformedError(f"the field {name!r} has the wrong type", hint=hint)
        values[name] = value
    return cls(**values)


def _is_optional(spec: dataclasses.Field[Any]) -> bool:
    return spec.default is not dataclasses.MISSING or spec.default_factory is not dataclasses.MISSING


def _part(hint: Any) -> type | None:
    parts = (part for part in typing.get_args(hint) if isinstance(part, type))
    return next((part for part in parts if dataclasses.is_dataclass(part)), None)


def _fits(value: Any, hint: Any) -> bool:
    if hint is int:
        return type(value) is int
    if typing.get_origin(hint) is dict:
        return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
    if typing.get_origin(hint) is list:
        return isinstance(value, list) and all(isinstance(v, str) for v in value)
    return isinstance(value, hint)
