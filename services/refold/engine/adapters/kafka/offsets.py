"""Starts and ends of partitions, from the broker."""

import time
from collections.abc import Collection
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException

from refold.engine.adapters.kafka.clients import REQUEST_TIMEOUT_S, Names
from refold.engine.adapters.kafka.errors import UNKNOWN_TOPIC, UNLED, kafka_error, meaning, translated
from refold.engine.ports.log import Place

LATEST, EARLIEST = -1, -2


def query(
    asker: Consumer, names: Names, places: Collection[Place], which: int = LATEST, *, give_up_s: float
) -> dict[Place, int]:
    """High watermarks, or first offsets, of partitions. **Raises** KafkaException without an answer in time."""
    begun = time.monotonic()
    probes = [names.at(place, which) for place in places]
    while probes:
        try:
            answers = asker.offsets_for_times(probes, timeout=give_up_s)
            if not (failed := [(answer.topic, answer.error) for answer in answers if answer.error]):
                return names.offsets(answers)
            topic, cause = failed[0]
            error = KafkaError(cause.code(), f"{topic}: {cause.str()}")
        except KafkaException as raised:
            error = kafka_error(raised)
        # Asked too early (fresh topic, election) the broker sends us on; librdkafka learns where to only by the answer.
        waited = time.monotonic() - begun
        if waited >= min(meaning(error).start_s, give_up_s):
            raise KafkaException(error)
        if error.code() in UNKNOWN_TOPIC | UNLED:
            _refresh_metadata(asker, {names[topic] for topic, _ in places}, give_up_s)
        time.sleep(0.02)
    return {}


def _refresh_metadata(asker: Consumer, topics: set[str], timeout_s: float) -> None:
    with suppress(KafkaException):
        # Without a request, a client keeps an answer without a leader for minutes.
        for topic in sorted(topics):
            asker.list_topics(topic, timeout_s)


def committed(asker: Consumer, names: Names, places: Collection[Place], timeout_s: float) -> dict[Place, int]:
    """Committed offsets of the asker's group, without the places that have none. **Raises** KafkaException."""
    answers = asker.committed([names.at(place) for place in places], timeout=timeout_s)
    return names.offsets([answer for answer in answers if not answer.error and answer.offset >= 0])


def bounds(asker: Consumer, names: Names, places: Collection[Place], which: int = LATEST) -> dict[Place, int]:
    """Ends, or starts, of partitions. **Raises** UsageError for a missing topic, UnreachableError without an answer."""
    with translated("ask where topics end"):
        return query(asker, names, places, which, give_up_s=REQUEST_TIMEOUT_S)
