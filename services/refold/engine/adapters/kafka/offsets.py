"""Starts and ends of partitions, from the broker."""

from __future__ import annotations

import time
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from refold.engine.adapters.kafka.clients import REQUEST_TIMEOUT_S
from refold.engine.adapters.kafka.errors import UNKNOWN_TOPIC, UNLED, meaning, of, translate

LATEST, EARLIEST = -1, -2


def asked(
    asker: Consumer, partitions: list[TopicPartition], which: int = LATEST, *, give_up_s: float
) -> dict[tuple[str, int], int]:
    """High watermarks (or first offsets) by topic and partition, in one request per broker. **Raises** KafkaException
    without an answer in time: the last error, with its topic."""
    begun = time.monotonic()
    places = [TopicPartition(place.topic, place.partition, which) for place in partitions]
    while places:
        try:
            answers = asker.offsets_for_times(places, timeout=give_up_s)
            if not (failed := [(place.topic, place.error) for place in answers if place.error]):
                return {(place.topic, place.partition): place.offset for place in answers}
            topic, cause = failed[0]
            error = KafkaError(cause.code(), f"{topic}: {cause.str()}")
        except KafkaException as raised:
            error = of(raised)
        # Asked too early (fresh topic, election) the broker sends us on; librdkafka learns where to only by the answer.
        waited = time.monotonic() - begun
        if waited >= min(meaning(error).start_s, give_up_s):
            raise KafkaException(error)
        if error.code() in UNKNOWN_TOPIC | UNLED:
            _look_again(asker, {place.topic for place in places}, give_up_s)
        time.sleep(0.02)
    return {}


def _look_again(asker: Consumer, topics: set[str], timeout_s: float) -> None:
    with suppress(KafkaException):
        # Without a request, a client keeps an answer without a leader for minutes.
        for topic in sorted(topics):
            asker.list_topics(topic, timeout_s)


def latest(asker: Consumer, partitions: list[TopicPartition], which: int = LATEST) -> dict[tuple[str, int], int]:
    """As `asked`, with our errors. **Raises** UsageError for a missing topic, UnreachableError without an answer."""
    try:
        return asked(asker, partitions, which, give_up_s=REQUEST_TIMEOUT_S)
    except KafkaException as error:
        raise translate(error, "ask where topics end") from None
