"""The catalog of all partitions, with its halts, and the publication of signed entries into all of them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter

from refold.client.reading.model import ReadModel
from refold.core.approval.catalog import Catalog, Halts
from refold.core.approval.signature import SigningKey, Trust, platform_of, sealed
from refold.core.errors import ConflictError, UsageError
from refold.core.messages import CatalogEntry
from refold.core.topics import CATALOG
from refold.core.wire import codec
from refold.core.wire.headers import cloud_event
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.ports.log import LogReader


@dataclass(frozen=True, slots=True)
class CatalogReader:
    """Catalog by partition. `void` has the place of each void record, with the reason."""

    partitions: list[Catalog]
    void: list[str]
    trust: Trust

    @property
    def whole(self) -> Catalog:
        """Newest entry of each name over all partitions, which every partition should have."""
        catalog = Catalog(self.trust)
        entries = (entry for partition in self.partitions for entry in partition.entries.values())
        for entry in sorted(entries, key=_counter):
            catalog.follow(catalog.position, entry.name.encode(), codec.encode(entry))
        return catalog

    @property
    def behind(self) -> list[int]:
        """Partitions that miss entries of `whole`, or have others."""
        newest = self.whole.entries
        return [n for n, partition in enumerate(self.partitions) if partition.entries != newest or partition.closed]

    def without(self, entry: CatalogEntry) -> list[int]:
        """Partitions that lack this entry, or have another of its name."""
        return [n for n, partition in enumerate(self.partitions) if partition.entries.get(entry.name) != entry]

    @property
    def lost(self) -> list[int]:
        """Partitions with a gap, at the beginning or later."""
        return [n for n, partition in enumerate(self.partitions) if partition.lost]

    @property
    def closed(self) -> set[str]:
        """Names whose latest entry in some partition is unreadable."""
        return set().union(*(partition.closed for partition in self.partitions))


def read(reader: LogReader, trust: Trust) -> CatalogReader:
    """Read the catalog of each partition."""
    partitions = [Catalog(trust) for _ in range(reader.partitions(CATALOG))]
    void = []
    for record in reader.scan(CATALOG):
        if why := partitions[record.partition].follow(record.offset, record.key, record.value):
            name = (record.key or b"").decode(errors="backslashreplace")
            void.append(f"{record.partition}/{record.offset} {name}: {why}")
    return CatalogReader(partitions, void, trust)


def publish(
    publisher: KafkaPublisher, catalog_reader: CatalogReader, entries: Iterable[CatalogEntry], root: SigningKey
) -> None:
    """Signs entries and writes them, with missing ones, into every partition. The policy goes before the `current` that
    names it. **Raises** UsageError for another platform's catalog; ConflictError if the catalog has lost records; as
    `KafkaPublisher.send_raw`, with only some partitions written: publish again."""
    if catalog_reader.lost:
        hint = "no run starts and no vote counts until the topic is recreated: docs/guides/keys-and-acls.md"
        raise ConflictError(f"partition {catalog_reader.lost[0]} of the catalog has lost records", hint=hint)
    whole, platform = catalog_reader.whole, platform_of(catalog_reader.trust)
    if not whole.entries and (others := {partition.elsewhere for partition in catalog_reader.partitions} - {""}):
        hint = "REFOLD_ENVIRONMENT and REFOLD_KAFKA__PREFIX have to be those of the services"
        raise UsageError(f"this is the catalog of {min(others)}, and what is signed here is for {platform}", hint=hint)
    again = []
    for entry in sorted(whole.entries.values(), key=_counter):
        lacking = catalog_reader.without(entry)
        # An entry that names no platform would not count there any more: it is signed again.
        if lacking and platform and not entry.platform:
            again.append(entry)
        else:
            write(publisher, lacking, entry)
    for counter, entry in enumerate([*again, *entries], whole.counter + 1):
        signed = sealed(replace(entry, platform=platform), root, counter)
        write(publisher, range(len(catalog_reader.partitions)), signed)


_counter = attrgetter("counter")


def write(publisher: KafkaPublisher, partitions: Iterable[int], entry: CatalogEntry) -> None:
    """Send a signed entry to some partitions of the catalog."""
    named, key, value = f"{entry.name}/{entry.counter}", entry.name.encode(), codec.encode(entry)
    headers = cloud_event(CATALOG, entry.name, id=named, source="refold", at_ms=entry.at_ms)
    for number in partitions:
        publisher.send_raw(CATALOG, number, key=key, value=value, headers=headers)


class HaltRow(ReadModel):
    """A halt. `scope` is `agent`, `tool`, `pool`, `requester` or `all`; `what` is scope and name in one text."""

    what: str
    scope: str
    name: str
    reason: str


def halt_rows(halts: Halts) -> list[HaltRow]:
    return [
        HaltRow(what=f"{scope} {name}".rstrip(), scope=scope, name=name, reason=reason)
        for (scope, name), reason in sorted(halts.by_name.items())
    ]
