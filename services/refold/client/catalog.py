"""Publishes into the catalog, an entry once in every partition, and reads what is in force."""

from __future__ import annotations

from refold.adapters.kafka.publisher import KafkaPublisher
from refold.core.approval.catalog import Catalog
from refold.core.messages import CatalogEntry
from refold.core.topics import CATALOG
from refold.core.wire import codec
from refold.core.wire.headers import cloud_event
from refold.ports.log import LogReader
from refold.runtime.clock import clock_ms


def publish(publisher: KafkaPublisher, partitions: int, entry: CatalogEntry) -> None:
    """Writes an entry into every partition of the catalog.

    What an entry refers to goes first: the policy before the `current` that names it.

    **Raises** as `KafkaPublisher.send_raw`; then some partitions may have the entry and others not, and publishing it
    again mends that.
    """
    at_ms = entry.at_ms or clock_ms()
    headers = cloud_event(CATALOG, entry.name, id=f"{entry.name}/{at_ms}", source="refold", at_ms=at_ms)
    key, value = entry.name.encode(), codec.encode(entry)
    for number in range(partitions):
        publisher.send_raw(CATALOG, number, key=key, value=value, headers=headers)


def remove(publisher: KafkaPublisher, partitions: int, name: str) -> None:
    """Takes an entry out of every partition of the catalog. **Raises** as `publish`."""
    for number in range(partitions):
        publisher.send_raw(CATALOG, number, key=name.encode(), value=None, headers=())


def read_catalog(reader: LogReader, partition: int = 0) -> Catalog:
    """The catalog as a partition has it. All have the same, unless a publication broke off."""
    catalog = Catalog()
    for record in reader.scan(CATALOG, partition):
        catalog.follow(record.offset, record.key, record.value)
    return catalog


def read_all(reader: LogReader) -> list[Catalog]:
    """The catalog as each partition has it, in their order."""
    return [read_catalog(reader, number) for number in range(reader.partitions(CATALOG))]
