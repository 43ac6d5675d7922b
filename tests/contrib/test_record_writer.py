"""Records of a tool in a topic, which a consumer takes once by their ids, on a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from refold import App, TerminalError
from refold.contrib.kafka import RecordWriter
from refold.dev.kafka import EmbeddedKafka
from refold.testing.contracts import KeyedContract

TOPIC = "orders"


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for future in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
            future.result(30)
        yield kafka.bootstrap


def records(bootstrap: str) -> list[tuple[dict[str, str], Any]]:
    """Headers and values of all records of the topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[tuple[dict[str, str], Any]] = []
    try:
        while (record := consumer.poll(30)) is not None:
            if error := record.error():
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            pairs: Any = record.headers() or []
            headers = {name: text.decode() for name, text in pairs}
            found.append((headers, json.loads(record.value() or b"null")))
        raise AssertionError("the end of the topic does not come")
    finally:
        consumer.close()


def taken(bootstrap: str) -> list[Any]:
    """Values by the rule of the guide: an id that was seen is dropped."""
    seen, values = set[str](), []
    for headers, value in records(bootstrap):
        if headers["ce_id"] not in seen:
            seen.add(headers["ce_id"])
            values.append(value)
    return values


def test_a_tool_that_writes_records_keeps_its_contract(bootstrap: str) -> None:
    app, writer = App("shop"), RecordWriter({"bootstrap.servers": bootstrap})

    @app.tool(effect="keyed")
    def announce(order: str, *, idempotency_key: str) -> str:
        return writer.send(TOPIC, {"order": order}, key=order, idempotency_key=idempotency_key)

    suite = type("TestAnnounce", (KeyedContract,), {"app": app, "tool": "announce", "args": {"order": "o-1"}})()
    suite.effects = lambda: len(taken(bootstrap))
    for name in (name for name in dir(suite) if name.startswith("test_")):
        getattr(suite, name)()

    assert {headers["ce_specversion"] for headers, _ in records(bootstrap)} == {"1.0"}
    assert len(records(bootstrap)) > len(taken(bootstrap))


def test_a_record_that_can_never_be_written_ends_the_call(bootstrap: str) -> None:
    writer = RecordWriter({"bootstrap.servers": bootstrap, "message.max.bytes": 50_000_000})

    with pytest.raises(TerminalError, match="refuses the record"):
        writer.send(TOPIC, b"x" * 5_000_000, idempotency_key="k")


def test_without_a_broker_the_outcome_is_unknown(tmp_path: Path) -> None:
    writer = RecordWriter({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, timeout=timedelta(seconds=0.2))

    with pytest.raises(TimeoutError, match="no acknowledgement"):
        writer.send(TOPIC, {}, idempotency_key="k")
