"""Bytes and back, for every message, with fastavro as the oracle; and inputs from outside in Avro or JSON."""

import io
import json
import re
from dataclasses import FrozenInstanceError, asdict, dataclass, fields, is_dataclass, replace
from typing import Any, get_args, get_origin

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.errors import FoldError, MalformedError
from refold.core.events import (
    Cause,
    Continued,
    Entry,
    Event,
    Failure,
    ForkedFrom,
    Requirement,
    RetryPolicy,
    Spendable,
    Used,
)
from refold.core.ids import RunId, entry_id
from refold.core.messages import RunRequest, RunSignal, ToolResult
from refold.core.wire import avro, codec, schemas
from refold.dev.schemas.export import generate
from tests.core.histories import examples

longs = st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(codec="utf-8"), max_size=200)
flat: dict[Any, st.SearchStrategy[Any]] = {
    int: longs,
    str: text,
    bool: st.booleans(),
    bytes: st.binary(max_size=100),
    dict[str, str]: st.dictionaries(text, text, max_size=3),
}


def anything(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that the schemas know: numbers of 64 bits, text that is Unicode."""
    if kind in flat:
        return flat[kind]
    if is_dataclass(kind) and isinstance(kind, type):
        return st.builds(kind, **{field.name: anything(field.type) for field in fields(kind)})
    if get_origin(kind) is list:
        return st.lists(anything(get_args(kind)[0]), max_size=4)
    return st.one_of([st.none() if option is type(None) else anything(option) for option in get_args(kind)])


messages: st.SearchStrategy[Any] = st.one_of([anything(cls) for cls in codec.SUBJECTS])


@examples
@given(messages)
def test_a_message_goes_through_its_bytes_and_back(message: Any) -> None:
    assert codec.decode(type(message), codec.encode(message)) == message


@examples
@given(messages)
def test_the_bytes_are_what_any_avro_library_writes_and_reads(message: Any) -> None:
    subject = codec.SUBJECTS[type(message)]
    number, schema = schemas.registered()[1][subject]
    value = codec.encode(message)
    datum = plain(message)
    written = io.BytesIO()
    fastavro.schemaless_writer(written, schema, datum)

    assert value == b"\0" + number.to_bytes(4) + written.getvalue()
    assert datum == fastavro.schemaless_reader(
        io.BytesIO(value[5:]), schema, None, return_record_name=True, return_record_name_override=True
    )


def plain(value: Any) -> Any:
    """A message as fastavro has it: dictionaries, and the members of a union of records with their names."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, list):
        # One of many kinds is named; of one kind alone there is nothing to tell.
        named = get_args(Event)
        return [
            (f"refold.{type(each).__name__}", plain(each)) if isinstance(each, named) else plain(each) for each in value
        ]
    return value


@pytest.mark.parametrize("cls", get_args(Event), ids=lambda cls: cls.__name__)
def test_what_is_decoded_cannot_be_changed(cls: type) -> None:
    entry = Entry("r", 1, b"", 0, None, "a", b"n", [sample(cls)])

    (read,) = codec.decode(Entry, codec.encode(entry)).events

    assert type(read) is cls
    assert read == sample(cls)
    with pytest.raises(FrozenInstanceError):
        setattr(read, fields(cls)[0].name, None)


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\0\0\0", b"\1\0\0\0\1", b"{}", b"\0\0\0\0\2"])
def test_a_value_without_frame_or_body_is_malformed(value: bytes) -> None:
    with pytest.raises(MalformedError):
        codec.decode(RunRequest, value)


@pytest.mark.parametrize("number", [0, 1, 3, 999, 2**32 - 1])
def test_a_schema_of_another_subject_or_of_tomorrow_stops_a_fold(number: int) -> None:
    body = codec.encode(RunRequest("r", "a"))[5:]

    with pytest.raises(FoldError, match=f"schema id {number} is not"):
        codec.decode(RunRequest, b"\0" + number.to_bytes(4) + body)


REQUEST = codec.encode(RunRequest("r", "a", labels={"k": "v"}))


@pytest.mark.parametrize("cut", range(len(REQUEST)))
def test_a_value_that_was_cut_short_is_malformed(cut: int) -> None:
    with pytest.raises(MalformedError):
        codec.decode(RunRequest, REQUEST[:cut])


HUGE = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # the zigzag form of 2**63 - 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x02r\x02a\x08null\x00\x00\x00\x00\x00\x00\x00!", "does not end"),
        (b"\x01", "negative length"),
        (HUGE, "does not end|too early"),
        (b"\x02r\x02a\x08null\x00\x00" + HUGE, "too early"),
        (b"\x02r\x02a\x08null\x00\x00\x02\x02k\x02v\x02\x02k\x02w\x00", "same key twice"),
        (b"\x02r\x02a\x08null\x00" + b"\xff" * 9 + b"\x02\x00", "64 bits"),
        (b"\x02r\x02a\x08null\x00" + b"\xff" * 20, "64 bits"),
        (b"\x02\xff\x02a\x08null\x00\x00\x00", "UTF-8"),
        (b"\x06\xed\xa0\x80\x02a\x08null\x00\x00\x00", "UTF-8"),
    ],
)
def test_a_body_that_lies_is_malformed(body: bytes, reason: str) -> None:
    with pytest.raises(MalformedError, match=reason):
        codec.decode(RunRequest, REQUEST[:5] + body)


def test_a_map_in_blocks_with_sizes_is_read() -> None:
    body = b"\x02r\x02a\x08null\x00\x00" + b"\x01\x08\x02k\x02v" + b"\x02\x02l\x02w" + b"\x00\x00\x00\x00\x00"

    assert codec.decode(RunRequest, REQUEST[:5] + body).labels == {"k": "v", "l": "w"}


def test_a_boolean_is_zero_or_one_and_a_union_has_its_branches() -> None:
    value = codec.encode(ToolResult("c", "r", 1, 1, "completed", retryable=True, late=True))
    body = [index for index in range(5, len(value)) if value[index] == 1]

    for index in body:
        with pytest.raises(MalformedError):
            codec.decode(ToolResult, value[:index] + b"\x05" + value[index + 1 :])


def test_text_that_is_not_unicode_is_written_as_its_escape() -> None:
    broken = ToolResult("c", "r", 1, 1, "failed", failure=Failure("x", "no such file: \udcff"))

    read = codec.decode(ToolResult, codec.encode(broken))

    assert read.failure == Failure("x", "no such file: \\udcff")


def test_a_number_of_more_than_64_bits_is_not_written() -> None:
    for number in (2**63, -(2**63) - 1):
        with pytest.raises(MalformedError):
            codec.encode(RunRequest("r", "a", not_before_ms=number))


def test_an_older_schema_is_read_with_defaults_and_without_what_is_gone() -> None:
    older = {
        "type": "record",
        "namespace": "refold",
        "name": "Failure",
        "fields": [
            {"name": "gone", "type": "string"},
            {"name": "code", "type": "string"},
            {"name": "message", "type": "string"},
        ],
    }

    read = avro.reader(older, _classes())(b"\x02?\x02c\x02m", 0)

    assert read == Failure("c", "m", "")


@dataclass(frozen=True, slots=True)
class Later:
    note: str | None
    count: int | None
    on: bool
    raw: bytes | None = None


@examples
@given(anything(Later))
def test_a_schema_may_have_optional_text_and_numbers(value: Later) -> None:
    schema = json.loads(generate(Later))
    body = bytearray()

    avro.writer(schema, {"refold.Later": Later})(body, value)

    assert avro.reader(schema, {"refold.Later": Later})(bytes(body), 0) == value
    assert fastavro.schemaless_reader(io.BytesIO(body), schema, None) == asdict(value)


def test_a_field_that_older_records_lack_needs_a_default() -> None:
    older = {"type": "record", "namespace": "refold", "name": "Failure", "fields": [{"name": "code", "type": "string"}]}

    with pytest.raises(TypeError, match="message has no default"):
        avro.reader(older, _classes())


@examples
@given(anything(RunRequest), st.sampled_from([{"a": [1, 2.5, None]}, "x", 7, None]))
def test_a_request_reads_the_same_from_avro_and_from_json(request: RunRequest, asked: Any) -> None:
    if request.budget:  # numbers in JSON have 53 bits
        request = replace(request, budget=Spendable(7, then=request.budget.then))
    in_avro = {**asdict(request), "input": json.dumps(asked, indent=1), "not_before_ms": 5, "deadline_ms": 7}
    in_json = {**in_avro, "input": asked}
    written = RunRequest(**{**in_avro, "budget": request.budget})

    one = codec.decode_input(RunRequest, codec.encode(written), json_fields=("input",))
    other = codec.decode_input(RunRequest, json.dumps(in_json).encode(), json_fields=("input",))

    assert one == other
    assert json.loads(one.input) == asked


def test_null_for_an_optional_field_is_as_left_out() -> None:
    optional = [f.name for f in fields(RunRequest) if f.name not in ("run_id", "agent", "input")]
    value = json.dumps({"run_id": "r-1", "agent": "deploy", "input": None, **dict.fromkeys(optional)}).encode()
    part = json.dumps({"run_id": "r-1", "agent": "deploy", "budget": {"nano_usd": None, "then": None}}).encode()
    signal = b'{"run_id": "r", "signal_id": "s", "kind": "x", "data": null, "actor": null}'

    assert codec.decode_input(RunRequest, value, json_fields=("input",)) == RunRequest("r-1", "deploy", "null")
    assert codec.decode_input(RunRequest, part, json_fields=("input",)).budget == Spendable()
    assert codec.decode_input(RunSignal, signal, json_fields=("data",)) == RunSignal(
        RunId("r"), signal_id="s", kind="x", data="null"
    )


@pytest.mark.parametrize(("name", "hint"), [("requester", "a string, or is left out"), ("agent", "a string$")])
def test_a_field_of_the_wrong_type_is_explained_in_words_of_json(name: str, hint: str) -> None:
    value = json.dumps({"run_id": "r-1", "agent": "a", name: 7}).encode()

    with pytest.raises(MalformedError) as refused:
        codec.decode_input(RunRequest, value, json_fields=("input",))

    assert re.search(hint, refused.value.hint)


def test_the_smallest_request_is_enough() -> None:
    value = b'{"run_id": "r-1", "agent": "deploy", "input": {"b": 1, "a": 2}}'

    read = codec.decode_input(RunRequest, value, json_fields=("input",))

    assert read == RunRequest("r-1", "deploy", '{"a":2,"b":1}')


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not JSON"),
        (b"[]", "not an object"),
        (b'"r-1"', "not an object"),
        (b'{"run_id": "r-1"}', "'agent' is missing"),
        (b'{"run_id": "r-1", "agent": "a", "inptu": 1}', "unknown field 'inptu'"),
        (b'{"run_id": 1, "agent": "a"}', "'run_id' has the wrong type"),
        (b'{"run_id": "r-1", "agent": null}', "'agent' has the wrong type"),
        (b'{"run_id": "r-1", "agent": "a", "not_before_ms": true}', "'not_before_ms' has the wrong type"),
        (b'{"run_id": "r-1", "agent": "a", "not_before_ms": 1.0}', "'not_before_ms' has the wrong type"),
        (b'{"run_id": "r-1", "agent": "a", "labels": {"x": 1}}', "'labels' has the wrong type"),
        (b'{"run_id": "r-1", "agent": "a", "labels": []}', "'labels' has the wrong type"),
        (b"\0\0\0\0\xff", "schema id 255"),
        (REQUEST.replace(b"\x08null", b"\x08nul!"), "not JSON"),
    ],
)
def test_an_input_that_is_not_exactly_a_message_is_malformed(value: bytes, reason: str) -> None:
    with pytest.raises(MalformedError, match=reason):
        codec.decode_input(RunRequest, value, json_fields=("input",))


def test_a_signal_is_read_from_json() -> None:
    value = b'{"run_id": "r", "signal_id": "s", "kind": "cancel", "data": {"reason": "enough"}}'

    read = codec.decode_input(RunSignal, value, json_fields=("data",))

    assert read == RunSignal("r", "s", "cancel", '{"reason":"enough"}')


def test_an_entry_is_named_by_its_body_alone() -> None:
    entry = Entry("r", 1, b"", 0, None, "a", b"n", [])

    name, value = codec.encode_entry(entry)

    assert len(name) == 16
    assert name == entry_id(value[5:])
    assert name != codec.encode_entry(Entry("r", 1, b"", 0, None, "a", b"m", []))[0]


def _classes() -> dict[str, type]:
    return {f"refold.{cls.__name__}": cls for cls in (*get_args(Event), Cause, Failure, RetryPolicy)}


def sample(cls: type) -> Any:
    """An instance with a value in every field."""
    made: dict[Any, Any] = {str: "x", int: -70, bool: True, Failure: Failure("c", "m"), RetryPolicy: RetryPolicy()}
    made |= {list[str]: ["ada", "x"], list[int]: [1, -70], Failure | None: None, Requirement: Requirement(["ada"])}
    made |= {Used: Used(1), Used | None: Used(1), Spendable | None: Spendable(5)}
    source = ForkedFrom("r", 1, b"n", ["r"])
    made |= {
        Continued | None: Continued(b"h", b"12345678"),
        ForkedFrom: source,
        ForkedFrom | None: source,
        dict[str, str]: {"k": "v"},
    }
    return cls(**{field.name: made.get(field.type, {"k": "v"}) for field in fields(cls)})
