"""What Refold writes is read by the CloudEvents SDK, and holds what the stricter ones (Java, Node) insist on."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from random import Random
from urllib.parse import unquote

import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from refold.core.messages import ApprovalVote, RunOperation, RunRequest, RunSignal
from refold.core.topics import (
    APPROVAL_VOTED,
    CATALOG,
    DEAD_LETTER_SOURCE,
    DEAD_LETTERS,
    RUN_OPERATED,
    RUN_REQUESTED,
    RUN_SIGNALLED,
    RUN_SNAPSHOT,
    RUN_VIEW,
)
from refold.core.wire.headers import cloud_event
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.ports.log import Headers, Outgoing
from refold.engine.runtime.settings import KafkaSettings
from tests.core.histories import NOW, examples
from tests.roots import entry, spread
from tests.simulator.campaign import SCENARIOS
from tests.simulator.case import Case
from tests.simulator.settings import OTHER
from tests.simulator.world.broker import SIM_TOPICS
from tests.simulator.world.faults import Chance

BY_CLIENTS = (RUN_REQUESTED, RUN_SIGNALLED, RUN_OPERATED, APPROVAL_VOTED, CATALOG)
WRITING = ("approve-keyed", "conflict", "limit", "once-shared", "outsiders")
"""Scenarios in which the services write into all their topics."""
KEPT = f"refold.{RUN_SNAPSHOT}"
"""What a lane keeps may have no time: its first marks are what the log is to tell it by."""

# RFC 3986, appendix A: a URI reference in ASCII. A relative one has no colon in its first segment.
_PCT = r"%[0-9A-Fa-f]{2}"
_CHAR = rf"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|{_PCT})"
_NO_COLON = rf"(?:[A-Za-z0-9\-._~!$&'()*+,;=@]|{_PCT})"
_AUTHORITY = rf"//(?:(?:[A-Za-z0-9\-._~!$&'()*+,;=:]|{_PCT})*@)?(?:[A-Za-z0-9\-._~!$&'()*+,;=]|{_PCT})*(?::[0-9]*)?"
_REST = rf"(?:\?(?:{_CHAR}|[/?])*)?(?:#(?:{_CHAR}|[/?])*)?"
_ABEMPTY = rf"(?:/{_CHAR}*)*"
URI_REFERENCE = re.compile(
    rf"(?:[A-Za-z][A-Za-z0-9+.\-]*:(?:{_AUTHORITY}{_ABEMPTY}|/?(?:{_CHAR}+{_ABEMPTY})?)"
    rf"|{_AUTHORITY}{_ABEMPTY}|/(?:{_CHAR}+{_ABEMPTY})?|{_NO_COLON}+{_ABEMPTY}){_REST}\Z"
)
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)\Z")
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


class Avro(JSONFormat):
    """The SDK hands on the data of a record as it is."""

    def read_data(self, body: bytes, datacontenttype: str | None) -> bytes:
        """The bytes."""
        return body


def problems(headers: Headers, value: bytes = b"") -> list[str]:
    """What a strict reader minds in a record, by the CloudEvents specification and its Kafka binding."""
    raw = {name: header or b"" for name, header in headers}
    event = from_binary(KafkaMessage(raw, None, value), Avro(), CloudEvent)
    values = {name: header.decode() for name, header in raw.items()}
    strings = {name: values.get(name, "") for name in ("ce_id", "ce_source", "ce_type", "ce_subject")}
    found = [f"{name} is empty or holds what no string may" for name, text in strings.items() if not _is_string(text)]
    found += [] if URI_REFERENCE.match(event.get_source()) else [f"{event.get_source()!r} is no URI reference"]
    timeless = "ce_time" not in values and values["ce_type"] == KEPT
    found += [] if timeless or RFC_3339.match(values.get("ce_time", "")) else ["ce_time is not as RFC 3339 has it"]
    found += [] if len(values) == len(headers) else ["a header comes twice"]
    return found + ([] if values["content-type"].partition("/")[2] else ["content-type is no media type"])


def _is_string(text: str) -> bool:
    return bool(text) and not _FORBIDDEN.search(text)


class Listening(KafkaPublisher):
    """The publisher of clients, whose records come here instead of to a broker."""

    def __init__(self) -> None:
        super().__init__(KafkaSettings(bootstrap="127.0.0.1:1"), partitions=1, source="refold-cli of ann: at home")
        self.records: list[Outgoing] = []

    def send_raw(
        self,
        topic: str,
        partition: int,
        *,
        key: bytes,
        value: bytes | None,
        headers: Headers,
        timeout_s: float = 10.0,
    ) -> tuple[int, int]:
        """See `KafkaPublisher`."""
        self.records.append(Outgoing(topic, partition, key, value, headers, 0))
        return partition, 0


def written_by_clients() -> list[Outgoing]:
    publisher = Listening()
    publisher.send(RunRequest("run-1", "deploy", "{}"))
    publisher.send(RunSignal("run-1", "no\nprinter \u2713", "cancel", "{}"))
    publisher.send(RunOperation("run-1", "o-1", "cancel", "{}"))
    publisher.send(ApprovalVote("run-1/7", "vote 1", "run-1", "token"))
    spread(publisher, 1, entry("policy/abc", "policy", {}, at_ms=NOW))
    return publisher.records


def written_by_services(name: str) -> list[Outgoing]:
    case = Case(SCENARIOS[name], Chance(Random(name)))
    records: list[Outgoing] = []
    write = case.world.broker.write
    case.world.broker.write = lambda record: (records.append(record), write(record))[1]  # type: ignore[method-assign]
    assert not case.run().wrong
    return records


def checked(records: Sequence[Outgoing]) -> set[str]:
    """The topics of records in which a strict reader minds nothing. Tombstones are no events."""
    for record in records:
        if record.value is not None:
            assert not problems(record.headers, record.value), record
    return {record.topic for record in records}


def test_every_topic_is_read_by_the_cloudevents_sdk() -> None:
    seen = checked(written_by_clients())
    for name in WRITING:
        records = [record for record in written_by_services(name) if record.topic not in BY_CLIENTS]
        seen |= checked(records)

    # What comes to executors from outsiders has no headers; the letters about it have.
    seen |= checked([record for record in written_by_services("poison") if record.topic in DEAD_LETTERS])

    # A second pool is there beside a liar alone, rows of runs where views are kept, and no source at all.
    here = {topic for topic in SIM_TOPICS if not topic.endswith(f".{OTHER}")}
    assert seen == here - {RUN_VIEW, DEAD_LETTER_SOURCE}


@pytest.mark.parametrize(
    "source", ["relay of executor-default-host", "1st:planner", "a b", "http:", "100%", "\u00fc", "[::1]", "//x:y", "^"]
)
def test_a_source_is_a_uri_reference_that_says_the_name(source: str) -> None:
    headers = cloud_event("run-log", "run-1", id="1", source=source, at_ms=NOW)

    assert not problems(headers)
    assert unquote(dict(headers)["ce_source"].decode()) == source


@examples
@given(st.text(min_size=1), st.text(min_size=1), st.text(min_size=1))
def test_whatever_somebody_calls_a_thing_the_record_is_an_event(source: str, name: str, subject: str) -> None:
    assert not problems(cloud_event("run-log", subject, id=name, source=source, at_ms=NOW))


@pytest.mark.parametrize("source", ["relay of a", "1st:planner", "a:b:c d", "100%", "\u00fc", "", "[::1]"])
def test_what_is_no_uri_reference_is_seen(source: str) -> None:
    assert not URI_REFERENCE.match(source)


@pytest.mark.parametrize("source", ["planner-1", "urn:x:y", "//host:80/a?b#c", "/a:b", "mailto:a@b.c", "a/b:c"])
def test_what_is_a_uri_reference_is_taken(source: str) -> None:
    assert URI_REFERENCE.match(source)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ce_id", b"\0"), ("ce_source", b"a b"), ("ce_time", b"2026-01-01 00:00:00Z"), ("ce_subject", b"\x7f")],
)
def test_what_a_strict_reader_minds_is_seen(name: str, value: bytes) -> None:
    headers = dict(cloud_event("run-log", "run-1", id="1", source="planner-1", at_ms=NOW))

    with contextlib.suppress(ValueError):  # the SDK itself may mind it
        assert problems(list({**headers, name: value}.items()))
