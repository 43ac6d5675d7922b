"""The authority of the tests: a root key, and entries of the catalog that it has signed."""

from __future__ import annotations

from itertools import count
from typing import Any

from refold.client.catalog import write
from refold.core.approval.catalog import Catalog
from refold.core.approval.signature import SigningKey, Trust, pinned, sealed
from refold.core.messages import CatalogEntry
from refold.core.wire import canonical, codec
from refold.engine.adapters.kafka.publisher import KafkaPublisher

ROOT = SigningKey("root-test", "root", b"r" * 32)
TRUST: Trust = {ROOT.kid: ROOT.public()}
PINNED = pinned(ROOT.public())
"""REFOLD_TRUST of a service of the tests."""

_counters = count(1)


def entry(
    name: str, kind: str, content: Any, *, actor: str = "", at_ms: int = 0, counter: int = 0, platform: str = ""
) -> CatalogEntry:
    """An entry, signed; its counter is higher than that of every entry before, unless another is named."""
    plain = CatalogEntry(name, kind, canonical.dumps(content), actor, at_ms, platform=platform)
    return sealed(plain, ROOT, counter or next(_counters))


def publish(catalog: Catalog, name: str, kind: str, content: Any) -> str:
    """Puts an entry into a catalog as a lane reads it; returns why it is void, or nothing."""
    return catalog.follow(catalog.position, name.encode(), codec.encode(entry(name, kind, content)))


def spread(publisher: KafkaPublisher, partitions: int, signed: CatalogEntry) -> None:
    """Writes an entry into every partition of a real catalog."""
    write(publisher, range(partitions), signed)
