"""Reads Refold's records with confluent-kafka and fastavro alone: five bytes of frame, then Avro.

The exported schemas (`schemas/*.avsc`) and their ids (`schemas/schemas.lock`) are all that has to be copied into a
project of your own.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas"
FRAME = struct.Struct(">bI")  # a zero byte, the schema's id


class Schemas:
    """The exported schemas by the id that records carry."""

    def __init__(self, folder: Path = SCHEMAS) -> None:
        self._by_id: dict[int, Any] = {}
        for line in (folder / "schemas.lock").read_text().splitlines():
            if line and not line.startswith("#"):
                number, subject, version, _ = line.split()
                schema = json.loads((folder / f"{subject}.v{version}.avsc").read_text())
                self._by_id[int(number)] = fastavro.parse_schema(schema)

    def read(self, value: bytes) -> Any:
        """The content of a framed value. A member of a union comes as a pair: the name of its type, and itself."""
        zero, number = FRAME.unpack_from(value)
        if zero != 0:
            raise ValueError("the value is not framed Avro")
        body = BytesIO(value[FRAME.size :])
        return fastavro.schemaless_reader(
            body, self._by_id[number], None, return_record_name=True, return_record_name_override=True
        )


def consumer(bootstrap: str) -> Consumer:
    """A consumer of no group: it remembers nothing and disturbs nobody."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"outside-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )


def from_the_start(bootstrap: str, topic: str, *, follow: bool) -> Iterator[Message]:
    """Every message of a topic, in order per partition; with `follow` it goes on for ever."""
    reader = consumer(bootstrap)
    try:
        partitions = _partitions(reader, topic)
        reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        unfinished = set(partitions)
        while unfinished or follow:
            message = reader.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard(message.partition())
            elif error.fatal() or not error.retriable():
                raise SystemExit(f"Kafka: {error.str()}")
    finally:
        reader.close()


def _partitions(reader: Consumer, topic: str) -> list[int]:
    try:
        found = reader.list_topics(topic, timeout=10).topics[topic].partitions
    except KafkaException as error:
        raise SystemExit(f"Kafka does not answer: {error.args[0].str()}") from None
    if not found:
        raise SystemExit(f"there is no topic {topic}")
    return list(found)
