"""Where partitions begin and end, asked of the broker."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaException, TopicPartition

from refold.adapters.kafka.clients import REQUEST_TIMEOUT_S
from refold.adapters.kafka.errors import UNKNOWN_TOPIC, is_final, of, translate

LATEST, EARLIEST = -1, -2

_UNKNOWN_S = 3.0
"""How long a partition may be unknown: a broker that is just back answers before it has its partitions again."""


def latest(asker: Consumer, partitions: list[TopicPartition], which: int = LATEST) -> dict[tuple[str, int], int]:
    """The high watermarks now (or the first offsets), by topic and partition, in one request per broker.

    **Raises** UsageError for a topic that is not there, UnreachableError when there is no answer.
    """
    begun = time.monotonic()
    asked = [TopicPartition(each.topic, each.partition, which) for each in partitions]
    while asked:
        try:
            answers = asker.offsets_for_times(asked, timeout=REQUEST_TIMEOUT_S)
            if not (errors := [each.error for each in answers if each.error]):
                return {(each.topic, each.partition): each.offset for each in answers}
            error = errors[0]
        except KafkaException as raised:
            error = of(raised)
        # Asked too early (fresh topic, election) the broker sends us on; librdkafka learns where to only by the answer.
        waited = time.monotonic() - begun
        patience = _UNKNOWN_S if error.code() in UNKNOWN_TOPIC else 0.0 if is_final(error) else REQUEST_TIMEOUT_S
        if waited >= patience:
            raise translate(error, f"ask for the end of {asked[0].topic}")
        time.sleep(0.02)
    return {}
