"""Creates topics, and compares them with `infra/topics.yaml`."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import yaml
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka import admin as kafka

from refold.core.defaults import PAYLOAD_BYTES
from refold.core.errors import ConflictError, UnreachableError, UsageError
from refold.core.topics import RUN_STREAM, TOOL_COMPLETED, kind_of, pool_of
from refold.core.wire.resources import resource
from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.errors import ANSWER_S, NO_TOPIC, admin_result, translated
from refold.engine.runtime.settings import KafkaSettings

OVERHEAD_BYTES = 262_144
"""Bytes of a record besides payloads: headers (64 KiB at most), key, labels, field names."""

_NO_FLUSH = 2**63 - 1
_VITAL = ("cleanup.policy", "message.timestamp.type", "max.message.bytes")
"""Settings without which records are lost, refused, or judged by a client's clock."""

_NO_SETTINGS = ("doc", "writers", "readers", "alter_configs")


@dataclass(frozen=True, slots=True)
class Topic:
    """Wanted topic; `name` is without the prefix."""

    name: str
    config: dict[str, str]


# No command changes the number of partitions of a topic: every run would have another home.
_COUNT_HINT = "set REFOLD_KAFKA__PARTITIONS to what all topics have, or make them anew under another prefix"


@dataclass(frozen=True, slots=True)
class TopicDifference:
    """Deviation of a topic; `setting` is `topic`, `partitions`, `replication` or a topic setting."""

    topic: str
    setting: str
    expected: str
    found: str

    @property
    def unfit(self) -> bool:
        """True if services must not start with this topic."""
        if self.setting == "max.message.bytes" and self.found:
            return int(self.found) < int(self.expected)
        # What is kept for ever and would be deleted: halts, revocations and roles of the catalog.
        unlimited = self.setting in ("retention.ms", "retention.bytes") and self.expected == "-1"
        return unlimited or self.setting in _VITAL

    @property
    def mend(self) -> str:
        return _COUNT_HINT if self.setting == "partitions" else "`refold topics apply`"


# A tenth of the time, if PyYAML was built with it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Present:
    """Topic of the broker with our prefix."""

    topic: str
    partitions: int
    replication: int


@cache
def declared() -> dict[str, Any]:
    content: dict[str, Any] = yaml.load(resource("infra", "topics.yaml").read_text(), _LOADER)
    return content


def expected_topics(
    pools: tuple[str, ...] = ("default",),
    *,
    sync: bool = False,
    replication: int = 1,
    payload_bytes: int = PAYLOAD_BYTES,
) -> list[Topic]:
    """Wanted topics; `sync`: records that cannot be restored are on disk before they are acknowledged."""
    content = declared()
    topics = []
    for pattern, own in content["topics"].items():
        config = {name: value for name, value in {**content["defaults"], **own}.items() if name not in _NO_SETTINGS}
        recoverable = config.pop("recoverable", False)
        config["max.message.bytes"] = config.pop("payloads") * payload_bytes + OVERHEAD_BYTES
        # One copy may be away; with fewer than three copies there is none to spare.
        config["min.insync.replicas"] = min(config["min.insync.replicas"], max(1, replication - 1))
        config["flush.messages"] = 1 if sync and not recoverable else _NO_FLUSH
        settings = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in config.items()}
        names = [pattern.replace("*", pool) for pool in pools] if "*" in pattern else [pattern]
        topics += [Topic(name, settings) for name in names]
    return topics


class Topics:
    """Topics of the cluster, compared with `infra/topics.yaml`."""

    def __init__(
        self, settings: KafkaSettings, pools: tuple[str, ...] = ("default",), *, payload_bytes: int = PAYLOAD_BYTES
    ) -> None:
        self._settings = settings
        self._admin = clients.admin(settings)
        # Never one copy by default on a cluster that could hold more.
        self.replication = settings.replication or min(3, len(self._metadata().brokers))
        self.expected = expected_topics(
            pools, sync=settings.sync, replication=self.replication, payload_bytes=payload_bytes
        )

    def apply(self) -> list[TopicDifference]:
        """Create and alter topics; return changes. **Raises** ConflictError before any, for other partition counts."""
        changes = [row for row in self.diff() if row.setting != "replication"]
        self._check_counts({row.topic: int(row.found) for row in changes if row.setting == "partitions"})
        self._create([row.topic for row in changes if row.setting == "topic"])
        self._alter([row for row in changes if row.setting != "topic"])
        if changes:
            await_shown(self._unseen, "`refold topics apply`")
        return changes

    def _unseen(self) -> str:
        """First change that brokers do not show yet, in words; "" once all topics can be used."""
        if left := [row for row in self.diff() if row.setting != "replication"]:
            return f"{left[0].topic} has no {left[0].setting} {left[0].expected} yet"
        topics, prefix = self._metadata().topics, self._settings.prefix
        names = (name for topic in self.expected if (name := prefix + topic.name) in topics)
        places = [TopicPartition(name, number) for name in names for number in topics[name].partitions]
        # A leader is named before it serves: its answer shows that the topic can be read.
        newest: kafka.OffsetSpec = kafka.OffsetSpec.latest()  # type: ignore[no-untyped-call]
        answers = self._admin.list_offsets(dict.fromkeys(places, newest), request_timeout=ANSWER_S)
        unled = (place.topic for place, answer in answers.items() if answer.exception(2 * ANSWER_S))
        return next((f"a partition of {name} has no leader yet" for name in unled), "")

    def pools(self) -> set[str]:
        kind = f"{self._settings.prefix}{TOOL_COMPLETED}."
        return {name.removeprefix(kind) for name in self._metadata().topics if name.startswith(kind)}

    def diff(self) -> list[TopicDifference]:
        topics = self._metadata().topics
        differences: list[TopicDifference] = []
        present: list[Topic] = []
        for topic in self.expected:
            meta = topics.get(self._settings.prefix + topic.name)
            if meta is None or meta.error:
                differences.append(TopicDifference(topic.name, "topic", "present", "missing"))
                continue
            present.append(topic)
            count, expected, copies = len(meta.partitions), self._settings.partitions, _copies(meta)
            if count != expected:
                differences.append(TopicDifference(topic.name, "partitions", str(expected), str(count)))
            if copies < self.replication:
                differences.append(TopicDifference(topic.name, "replication", str(self.replication), str(copies)))
        return differences + self._config_differences(present)

    def present(self) -> list[Present]:
        return [
            Present(name, len(meta.partitions), _copies(meta))
            for name, meta in sorted(self._metadata().topics.items())
            if name.startswith(self._settings.prefix)
        ]

    def check(self, *, pools: bool = True) -> None:
        """Check the topics of a service at its start; `run-stream` is optional, and without `pools` so are topics of
        pools. **Raises** UsageError for a missing or unfit topic, ConflictError for another number of partitions."""
        # With another partition count a run would have another home.
        needed = [topic.name for topic in self.expected if kind_of(topic.name) != RUN_STREAM]
        present = self._await([name for name in needed if pools or not pool_of(name)])
        topics = [topic for topic in self.expected if topic.name in present]
        self._check_counts({topic.name: present[topic.name] for topic in topics})
        self._check_settings(topics)

    def _check_settings(self, topics: list[Topic]) -> None:
        if unfit := [row for row in self._config_differences(topics) if row.unfit]:
            worst, name = unfit[0], self._settings.prefix + unfit[0].topic
            text = f"the topic {name} has {worst.setting}={worst.found}, and {worst.expected} is needed"
            hint = "run `refold topics apply`; what a policy of the cluster forbids has to be allowed there"
            raise UsageError(text, hint=hint, topics=sorted({row.topic for row in unfit}))

    def _await(self, needed: Collection[str]) -> dict[str, int]:
        """Partition counts, once all these topics are listed. **Raises** UsageError if one is missing."""
        prefix, deadline = self._settings.prefix, time.monotonic() + NO_TOPIC.start_s
        while True:  # a broker that is just back lists none
            counts = {topic.topic.removeprefix(prefix): topic.partitions for topic in self.present()}
            missing = [name for name in needed if name not in counts]
            if not missing:
                return counts
            if time.monotonic() > deadline:
                raise UsageError(f"the topic {prefix}{missing[0]} is missing", hint=NO_TOPIC.hint)
            time.sleep(0.1)

    def _check_counts(self, counts: dict[str, int]) -> None:
        needed = self._settings.partitions
        if wrong := {name: count for name, count in counts.items() if count != needed}:
            listed = ", ".join(f"{self._settings.prefix}{name} has {count}" for name, count in wrong.items())
            raise ConflictError(f"every topic needs {needed} partitions, and {listed}", hint=_COUNT_HINT, counts=wrong)

    @cached_property
    def hosts(self) -> set[str]:
        """Advertised hosts of the brokers. **Raises** UnreachableError."""
        return {str(broker.host) for broker in self._metadata().brokers.values()}

    def _metadata(self) -> kafka.ClusterMetadata:
        with translated(f"reach Kafka at {self._settings.bootstrap}"):
            return self._admin.list_topics(timeout=ANSWER_S)

    def _create(self, names: list[str]) -> None:
        prefix, partitions = self._settings.prefix, self._settings.partitions
        new = [
            kafka.NewTopic(prefix + topic.name, partitions, self.replication, config=topic.config)
            for topic in self.expected
            if topic.name in names
        ]
        for name, future in (self._admin.create_topics(new) if new else {}).items():
            admin_result(future, f"create {name}", unless=KafkaError.TOPIC_ALREADY_EXISTS)

    def _alter(self, differences: list[TopicDifference]) -> None:
        kind, prefix, changes = kafka.ResourceType.TOPIC, self._settings.prefix, dict[str, list[kafka.ConfigEntry]]()
        for row in differences:
            entry = kafka.ConfigEntry(row.setting, row.expected, incremental_operation=kafka.AlterConfigOpType.SET)
            changes.setdefault(row.topic, []).append(entry)
        altered = [kafka.ConfigResource(kind, prefix + name, incremental_configs=own) for name, own in changes.items()]
        for where, future in (self._admin.incremental_alter_configs(altered) if altered else {}).items():
            admin_result(future, f"alter {where.name}")

    def _config_differences(self, topics: list[Topic]) -> list[TopicDifference]:
        kind, prefix = kafka.ResourceType.TOPIC, self._settings.prefix
        resources = {topic.name: kafka.ConfigResource(kind, prefix + topic.name) for topic in topics}
        answers = self._admin.describe_configs(list(resources.values())) if resources else {}
        differences = []
        for topic in topics:
            future, action = answers[resources[topic.name]], f"read the settings of {topic.name}"
            settings = admin_result(future, action, unless=KafkaError.UNKNOWN_TOPIC_OR_PART)
            if settings is None:
                # Just created: this broker does not know the topic yet, unlike the one that listed it.
                differences.append(TopicDifference(topic.name, "topic", "present", "missing"))
                continue
            for setting, expected in topic.config.items():
                value = str(settings[setting].value) if setting in settings else ""
                if value != expected:
                    differences.append(TopicDifference(topic.name, setting, expected, value))
        return differences


def await_shown(unseen: Callable[[], str], command: str) -> None:
    """Wait until brokers show a change. **Raises** UnreachableError with the `unseen` changes."""
    # The controller has a change seconds earlier, and services start right after this.
    deadline = time.monotonic() + 4 * ANSWER_S  # a busy machine takes more than one
    while True:
        try:
            problem = unseen()
        except UnreachableError as error:  # a broker that loads new topics leaves a request without an answer
            problem = error.message
        if not problem:
            return
        if time.monotonic() > deadline:
            raise UnreachableError(problem, hint=f"look at the broker's log, then run {command} again")
        time.sleep(0.02)


def _copies(meta: Any) -> int:
    return min((len(part.replicas) for part in meta.partitions.values()), default=0)
