"""Configuration of all Kafka clients, with its reasons."""

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any, TypeVar, cast

import orjson
import structlog
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from refold.core.errors import UnreachableError, UsageError
from refold.engine.adapters.kafka.errors import OUT_OF_RANGE, REFUSED, is_final, translate, translated
from refold.engine.adapters.kafka.light import LightClient
from refold.engine.ports.log import NEVER, Delivery, Membership, Outgoing, Place, Reached, Record
from refold.engine.runtime.outages import OUTAGES
from refold.engine.runtime.settings import KafkaSettings

Config = dict[str, Any]

REQUEST_TIMEOUT_S = 10.0
"""Timeout of a request to the broker: longer than its restart on one machine; a stop may take as long."""

MAX_MESSAGE_BYTES = 256 << 20
"""Largest message of a producer: high, so that the topic's limit is the only one."""

STATISTICS = "statistics.interval.ms"

_FIXED = (
    "acks", "bootstrap.servers", "enable.auto.commit", "enable.auto.offset.store", "enable.idempotence",
    "enable.partition.eof", "group.id", "group.instance.id", "group.protocol", "isolation.level",
    "partition.assignment.strategy", "partitioner", "request.required.acks", "transactional.id",
)  # fmt: skip
"""Options that correctness depends on."""

_record: Callable[[tuple[Any, ...]], Record] = Record._make
_T = TypeVar("_T", Consumer, Producer, AdminClient)

_log = structlog.get_logger()


class Names(dict[str, str]):
    """Topic names of the cluster by logical name."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix, self._logical = prefix, dict[str, str]()

    def __missing__(self, logical: str) -> str:
        return self.setdefault(logical, self.prefix + logical)

    def logical(self, topic: str) -> str:
        # Each message brings a text of its own: records that wait share this one, and its hash.
        return self._logical.get(topic) or self._logical.setdefault(topic, topic.removeprefix(self.prefix))

    def at(self, place: Place, offset: int = OFFSET_INVALID) -> TopicPartition:
        return TopicPartition(self[place[0]], place[1], offset)

    def offsets(self, places: list[TopicPartition]) -> dict[Place, int]:
        return {(self.logical(at.topic), at.partition): at.offset for at in places}


class _Log:
    """Logger that turns librdkafka's lines into events."""

    def log(self, level: int, message: str, *args: object) -> None:
        line = message % args if args else message
        # Dropped without logging: important problems are raised or reported as errors anyway.
        if structlog.is_configured():
            name = logging.getLevelName(min(level, logging.ERROR)).lower()
            OUTAGES.failed("kafka.client", line.partition(" ")[0], name, line=line)


class SentRequests:
    """Requests to brokers by kind, as librdkafka counts them, if `statistics.interval.ms` is set."""

    def __init__(self) -> None:
        self._of: dict[str, Counter[str]] = {}

    def add(self, statistics: str) -> None:
        client = orjson.loads(statistics)
        # Statistics are sums since the client's start.
        brokers = client["brokers"].values()
        self._of[client["name"]] = sum((Counter(broker["req"]) for broker in brokers), Counter[str]())

    def counts(self) -> Counter[str]:
        return sum(list(self._of.values()), Counter[str]())


SENT_REQUESTS = SentRequests()


def consumer(settings: KafkaSettings, group: str, **more: Any) -> Consumer:
    """Consumer that joins no group until it subscribes."""
    config: Config = {
        "group.id": settings.prefix + group,
        # librdkafka's default is `largest`: inputs that came before the first commit would be lost.
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # Where reading has come to though the last records are gone: "the last offset + 1" may never come.
        "enable.partition.eof": True,
        # What a user's transaction aborts was never asked for; and aborted records vanish with compaction.
        "isolation.level": "read_committed",
        # How long an idle fetch lies at the broker, in front of the fetch for a partition that is new or resumed.
        "fetch.wait.max.ms": 100,
        # After a full queue: the default of 1000 ms halves the rate of a replay (140,000 against 290,000 records/s).
        "fetch.queue.backoff.ms": 8,
        "fetch.error.backoff.ms": 100,
        # Prefetched and not yet taken; the default of 64 MiB would be most of a service's memory.
        "queued.max.messages.kbytes": 8_192,
        "fetch.max.bytes": 8 << 20,
        **more,
    }
    return _client(Consumer, settings, config)


def member(settings: KafkaSettings, membership: Membership, **more: Any) -> Consumer:
    return consumer(
        settings,
        membership.group,
        **{
            "client.id": membership.member,
            # Static: a process that is back within the session has its partitions at once, without a rebalance.
            "group.instance.id": membership.member,
            # All members subscribe to one topic, the same, so any assignor would do; range keeps blocks together.
            "partition.assignment.strategy": "range",
            "session.timeout.ms": settings.session_timeout_ms,
            # A member learns of a rebalance by its heartbeat: partitions wait this long for a new owner.
            "heartbeat.interval.ms": min(500, settings.session_timeout_ms // 5),
            **more,
        },
    )


def producer(settings: KafkaSettings, client: str, **more: Any) -> Producer:
    config: Config = {
        "client.id": client,
        "enable.idempotence": True,
        "acks": "all",
        # We always name the partition; without one, the Java client's rule applies.
        "partitioner": "murmur2_random",
        "linger.ms": settings.linger_ms,
        # What is written while a request is under way goes out together with the next: no wait when little is under
        # way, large batches when much is. Measured at 100 runs in flight: 1.27 to 0.86 ms of CPU a step in all.
        "max.in.flight.requests.per.connection": 1,
        "delivery.timeout.ms": settings.delivery_timeout_ms,
        # Below every topic's limit (256 KiB and a payload at least): librdkafka does not split a batch that the broker
        # finds too large, but fails every record in it.
        "batch.size": 200_000,
        "message.max.bytes": MAX_MESSAGE_BYTES,
        # Unacknowledged records; beyond it writers wait. The default of 1 GiB is no bound.
        "queue.buffering.max.kbytes": 65_536,
        "retry.backoff.ms": 50,
        "retry.backoff.max.ms": 500,
        **more,
    }
    return _client(Producer, settings, config)


def flush(producer: Producer, timeout_s: float = -1) -> None:
    """Send the queue and wait. **Raises** RefoldError if the client is broken for good."""
    try:
        producer.flush(timeout_s)
    except KafkaException as error:
        raise translate(error, "write") from None
    except SystemError:  # the same, where a report came with it: confluent-kafka 2.16 loses the error then
        raise translate(KafkaError(KafkaError._FATAL), "write") from None


def admin(settings: KafkaSettings) -> AdminClient:
    return _client(AdminClient, settings, {})


def record(topic: str, message: Message) -> Record:
    """Record of a message without error; headers are read on first access."""
    headers = partial(_headers, message)
    at_ms = message.timestamp()[1]
    return _record((topic, message.partition(), message.offset(), message.key(), message.value(), headers, at_ms))


def produce(
    producer: Producer,
    name: str,
    record: Outgoing,
    reported: Callable[[KafkaError | None, Message], None],
    *,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Queue a record for a topic of the cluster. **Raises** KafkaException, and errors of `check` while it waits."""
    _, partition, key, value, headers, _, _ = record
    while True:
        try:
            # One by one: `produce_batch` drops headers. `reported` is called in a poll or a flush, never in between.
            producer.produce(name, value, key, partition, headers=list(headers), on_delivery=reported)
            return
        except BufferError:
            # As much waits as the client holds: the broker is slower than we are.
            producer.poll(0.1)
            check()


def arrivals(consumer: Consumer, names: Names, *, limit: int, timeout_s: float, action: str) -> list[Record | Reached]:
    """Records and ends of partitions that have come, in order per partition; waits for the first. **Raises** errors
    that waiting cannot cure, UnreachableError for a position outside the log."""
    with translated(action):
        # A poll waits for one message; a consume that waits would wait for all `limit`.
        first = consumer.poll(timeout_s)
        messages = [] if first is None else [first, *consumer.consume(limit, 0)]
    items: list[Record | Reached] = []
    for message in messages:
        name = message.topic() or ""
        if (error := message.error()) is None:
            items.append(record(names.logical(name), message))
        elif error.code() == KafkaError._PARTITION_EOF:
            items.append(Reached(names.logical(name), message.partition() or 0, message.offset() or 0))
        elif error.code() in OUT_OF_RANGE:
            raise UnreachableError(f"{name} does not contain the position any more: {error.str()}")
        elif is_final(error):  # from all others the client recovers by itself
            raise translate(error, f"read {name}")
    return items


def delivery(token: int, error: KafkaError | None, message: Message) -> Delivery:
    """Outcome of an outgoing record, from the report of librdkafka."""
    if error is not None:
        return Delivery(token, NEVER if error.code() in REFUSED else None)
    offset = message.offset()
    # Negative: the broker knew the record from a try whose answer was lost, and does not tell where it lies.
    stored = offset is not None and offset >= 0
    return Delivery(token, offset, message.timestamp()[1]) if stored else Delivery(token, None)


def _headers(message: Message) -> Any:
    try:
        # Called directly, Python 3.12 and newer would see the error of that list only when we have returned.
        return methodcaller("headers")(message)
    except SystemError:
        # A name that is not UTF-8: confluent-kafka returns a broken list, whose iteration ends the process.
        message.set_headers([])
        _log.warning(
            "kafka.headers_unreadable", topic=message.topic(), partition=message.partition(), offset=message.offset()
        )
        return []


def _client(kind: type[_T], settings: KafkaSettings, config: Config) -> _T:
    for name in settings.options:
        if name in _FIXED:
            raise UsageError(f"the Kafka option {name} is not free", hint="take it out of REFOLD_KAFKA__OPTIONS")
    if settings.light:
        return cast(_T, LightClient(settings, config.get("group.id", "")))
    merged = {
        "bootstrap.servers": settings.bootstrap,
        # After a broker's restart: the default backs off to 10 s, three times as long as the restart itself.
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 500,
        "log.connection.close": False,
        **config,
        **settings.options,
    }
    if STATISTICS in merged:
        merged["stats_cb"] = SENT_REQUESTS.add
    with translated("set up a Kafka client"):
        return kind(merged, logger=_Log())
