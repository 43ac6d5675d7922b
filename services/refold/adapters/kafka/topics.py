"""Creates and compares topics. `infra/topics.yaml` says how they should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from refold.adapters.kafka import config
from refold.core.errors import ConflictError, UsageError
from refold.resources import resource
from refold.runtime.settings import KafkaSettings

ASK_S = 15.0


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it should be. `name` is without the prefix."""

    name: str
    doc: str
    config: dict[str, str]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a topic is not as it should be. `setting` is `topic`, `partitions`, `replication` or a topic setting."""

    topic: str
    setting: str
    expected: str
    found: str


def wanted(pools: tuple[str, ...] = ("default",), *, sync: bool = False, brokers: int = 1) -> list[Topic]:
    """The topics of the product. `sync`: every append is on disk before it is acknowledged."""
    content = yaml.safe_load(resource("infra", "topics.yaml").read_text())
    found = []
    for pattern, own in content["topics"].items():
        own = dict(own)
        doc = own.pop("doc")
        settings = {key: _text(value) for key, value in {**content["defaults"], **own}.items()}
        settings["min.insync.replicas"] = str(min(int(settings["min.insync.replicas"]), max(1, brokers - 1)))
        if sync:
            settings["flush.messages"] = "1"
        names = [pattern.replace("*", pool) for pool in pools] if "*" in pattern else [pattern]
        found += [Topic(name, doc, settings) for name in names]
    return found


class Topics:
    """The topics on a broker."""

    def __init__(self, settings: KafkaSettings, pools: tuple[str, ...] = ("default",)) -> None:
        self._settings = settings
        self._admin = AdminClient(config.common(settings))
        self._brokers = len(self._metadata().brokers)
        self.wanted = wanted(pools, sync=settings.sync, brokers=self._brokers)

    @property
    def replication(self) -> int:
        """How many copies a new topic gets: as set, else 3 or the number of brokers."""
        return self._settings.replication or min(3, self._brokers)

    def apply(self) -> list[Difference]:
        """Creates what is missing and alters settings that differ; returns what it changed.

        **Raises** ConflictError when a topic has another partition count: the home of a run would change with it.
        """
        found = self.diff()
        if wrong := [difference for difference in found if difference.setting == "partitions"]:
            first = wrong[0]
            raise ConflictError(
                f"{first.topic} has {first.found} partitions, not {first.expected}",
                hint="set REFOLD_KAFKA__PARTITIONS to what is there, or use another prefix",
            )
        self._create([difference.topic for difference in found if difference.setting == "topic"])
        self._alter([difference for difference in found if difference.setting not in ("topic", "replication")])
        return [difference for difference in found if difference.setting != "replication"]

    def diff(self) -> list[Difference]:
        """How the broker's topics differ from what they should be; empty when they do not."""
        there = self._metadata().topics
        found: list[Difference] = []
        present: list[Topic] = []
        for topic in self.wanted:
            meta = there.get(self._settings.prefix + topic.name)
            if meta is None or meta.error:
                found.append(Difference(topic.name, "topic", "present", "missing"))
                continue
            present.append(topic)
            count, expected = len(meta.partitions), self._settings.partitions
            copies = min(len(part.replicas) for part in meta.partitions.values())
            if count != expected:
                found.append(Difference(topic.name, "partitions", str(expected), str(count)))
            if copies < self.replication:
                found.append(Difference(topic.name, "replication", str(self.replication), str(copies)))
        return found + self._config_differences(present)

    def describe(self) -> list[dict[str, Any]]:
        """The topics with our prefix: name, partitions, replication."""
        prefix = self._settings.prefix
        return [
            {
                "topic": name,
                "partitions": len(meta.partitions),
                "replication": min((len(part.replicas) for part in meta.partitions.values()), default=0),
            }
            for name, meta in sorted(self._metadata().topics.items())
            if name.startswith(prefix)
        ]

    def check(self) -> None:
        """What a service asks for before it starts: all topics, with equal partition counts.

        **Raises** UsageError when one is missing, ConflictError when counts differ.
        """
        there = self._metadata().topics
        counts: dict[str, int] = {}
        for topic in self.wanted:
            meta = there.get(self._settings.prefix + topic.name)
            if meta is None or meta.error:
                raise UsageError(
                    f"the topic {self._settings.prefix}{topic.name} is missing",
                    hint="create the topics with `refold topics apply`",
                )
            counts[topic.name] = len(meta.partitions)
        if set(counts.values()) != {self._settings.partitions}:
            found = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise ConflictError(
                f"every topic needs {self._settings.partitions} partitions; there are: {found}",
                hint="REFOLD_KAFKA__PARTITIONS must be what every topic has",
            )

    def _metadata(self) -> Any:
        try:
            return self._admin.list_topics(timeout=ASK_S)
        except KafkaException as error:
            raise config.translate(error, self._settings.bootstrap) from None

    def _create(self, names: list[str]) -> None:
        new = [
            NewTopic(
                self._settings.prefix + topic.name, self._settings.partitions, self.replication, config=topic.config
            )
            for topic in self.wanted
            if topic.name in names
        ]
        for future in (self._admin.create_topics(new) if new else {}).values():
            try:
                future.result(ASK_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise config.translate(error, self._settings.bootstrap) from None

    def _alter(self, differences: list[Difference]) -> None:
        by_topic: dict[str, list[ConfigEntry]] = {}
        for difference in differences:
            entry = ConfigEntry(difference.setting, difference.expected, incremental_operation=AlterConfigOpType.SET)
            by_topic.setdefault(difference.topic, []).append(entry)
        resources = [
            ConfigResource(ResourceType.TOPIC, self._settings.prefix + name, incremental_configs=entries)
            for name, entries in by_topic.items()
        ]
        for future in (self._admin.incremental_alter_configs(resources) if resources else {}).values():
            future.result(ASK_S)

    def _config_differences(self, topics: list[Topic]) -> list[Difference]:
        resources = {
            topic.name: ConfigResource(ResourceType.TOPIC, self._settings.prefix + topic.name) for topic in topics
        }
        answers = self._admin.describe_configs(list(resources.values())) if resources else {}
        found = []
        for topic in topics:
            there = answers[resources[topic.name]].result(ASK_S)
            for setting, expected in topic.config.items():
                value = there[setting].value if setting in there else ""
                if value != expected:
                    found.append(Difference(topic.name, setting, expected, str(value)))
        return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
