"""Raw topics, read and judged without the product's code: fastavro, the exported schemas, and the rule of the chain.

Written from design 2 and 3 alone, so that a mistake in `core` cannot hide itself here.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition
from fastavro import parse_schema, schemaless_reader

SCHEMAS = Path(__file__).parents[2] / "schemas"
TERMINAL = {"RunCompleted", "RunFailed", "RunCancelled"}
Fields = dict[str, Any]
Event = tuple[str, Fields]


class Raw(NamedTuple):
    """A record as the broker has it. **Units**: `at_ms` is its timestamp, in milliseconds since 1970."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None
    at_ms: int = 0


def scan(bootstrap: str, topic: str) -> list[Raw]:
    """Every record of a topic, up to the ends of its partitions as they are when they are reached."""
    return list(_read(bootstrap, topic, live=False))


def tail(bootstrap: str, topic: str) -> Iterator[Raw | None]:
    """Every record and then each new one; None whenever nothing is new for a moment. Outlives broker restarts."""
    return _read(bootstrap, topic, live=True)


def _read(bootstrap: str, topic: str, *, live: bool) -> Iterator[Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "chaos-eye",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )
    deadline = time.monotonic() + 60
    try:
        numbers = sorted(consumer.list_topics(topic, timeout=20).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
        left = set(numbers)
        while live or left:
            for message in consumer.consume(1000, 0.1):
                error = message.error()
                if error is None:
                    yield _raw(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
            if live:
                yield None
            elif time.monotonic() > deadline:
                raise TimeoutError(f"{topic} cannot be read to its end in a minute")
    finally:
        consumer.close()


def _raw(message: Message) -> Raw:
    place = message.partition() or 0, message.offset() or 0
    return Raw(*place, message.key() or b"", message.value(), message.timestamp()[1])


@cache
def _schemas() -> dict[int, Any]:
    lines = [line.split() for line in (SCHEMAS / "schemas.lock").read_text().splitlines() if not line.startswith("#")]
    return {
        int(number): parse_schema(json.loads((SCHEMAS / f"{subject}.v{version}.avsc").read_text()))
        for number, subject, version, _ in (line for line in lines if line)
    }


def decode(value: bytes) -> Fields:
    """An Avro value in Confluent framing as a dictionary; members of unions as (name, fields)."""
    if value[:1] != b"\0":
        raise ValueError("not in Confluent framing")
    schema = _schemas()[int.from_bytes(value[1:5])]
    body = BytesIO(value[5:])
    found: Fields = schemaless_reader(body, schema, None, return_record_name=True, return_record_name_override=True)  # type: ignore[assignment]
    if body.read(1):
        raise ValueError("bytes after the end")
    return found


@dataclass(slots=True)
class History:
    """The accepted events of a run. `actors` are who wrote its entries, in order, a name once per stretch.

    **Units**: milliseconds since 1970; `times` are those that the entries say, `appended` those of the records.
    """

    run: str
    head: bytes = b""
    seq: int = 0
    events: list[Event] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    appended: list[int] = field(default_factory=list)
    actors: list[str] = field(default_factory=list)
    cause: Fields | None = None

    @property
    def end(self) -> Event | None:
        """The terminal event, if there is one."""
        return self.events[-1] if self.events and self.events[-1][0] in TERMINAL else None


class Chain:
    """The run log's referee: a record counts if and only if it extends the head of its run."""

    def __init__(self) -> None:
        self.runs: dict[str, History] = {}
        self.void: Counter[str] = Counter()
        self.accepted = 0

    def feed(self, record: Raw) -> tuple[History, list[Event]] | None:
        """The run and the new events of a record that counts; None, and counted, for a void one."""
        entry = self._entry(record)
        if isinstance(entry, str):
            self.void[entry] += 1
            return None
        history = self.runs.setdefault(entry["run_id"], History(entry["run_id"], cause=entry["cause"]))
        if history.end or entry["prev"] != history.head or entry["seq"] != history.seq + 1:
            self.void["raced"] += 1
            return None
        self.accepted += 1
        events = [(name.rpartition(".")[2], fields) for name, fields in entry["events"]]
        history.head = blake2b(record.value[5:], digest_size=16).digest() if record.value else b""
        history.seq += len(events)
        history.events += events
        history.times += [entry["at_ms"]] * len(events)
        history.appended += [record.at_ms] * len(events)
        if history.actors[-1:] != [entry["actor"]]:
            history.actors.append(entry["actor"])
        return history, events

    def _entry(self, record: Raw) -> Fields | str:
        parts = record.key.split(b"/")
        if len(parts) != 3 or not int(parts[1] or b"0"):  # what is of no run has the number 0
            return "key"
        if record.value is None:
            return "tombstone"
        if blake2b(record.value[5:], digest_size=16).hexdigest().encode() != parts[2]:
            return "hash"
        try:
            entry = decode(record.value)
        except (ValueError, KeyError, EOFError, IndexError):
            return "body"
        if entry["run_id"].encode() != parts[0] or b"%010d" % entry["seq"] != parts[1] or not entry["events"]:
            return "body"
        return entry
