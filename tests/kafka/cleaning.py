"""Topics whose cleaner is eager: what they are told, and what gives it something to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

EAGER = {
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0.001",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "1000",
    "delete.retention.ms": "0",
}
ROUND_S = 0.7
"""A segment is closed by a record that comes half a second after its first, and then the cleaner has it."""

JUNK = b"junk"
"""A key that nothing of ours has, so its records are void, and compaction may drop all of them but the last."""


def make_eager(kafka: str, topics: Iterable[str], *, settings: Mapping[str, str] = EAGER) -> None:
    """Has topics that are there cleaned as soon as there is something to clean."""
    admin = AdminClient({"bootstrap.servers": kafka, "log_level": 0})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    asked = [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries) for topic in topics]
    for future in admin.incremental_alter_configs(asked).values():
        future.result(60)
