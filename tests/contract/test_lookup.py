"""One record by its place, in memory as in the executor's rig, and here on a broker."""

from __future__ import annotations

import uuid

import pytest

from refold.core.errors import RefoldError
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLookup
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.executor.settings import ExecutorSettings
from refold.engine.runtime.settings import KafkaSettings

ORDERS = "tool-requested.default"


@pytest.mark.long
def test_a_record_is_found_at_its_place_and_nowhere_else(kafka: EmbeddedKafka) -> None:
    settings = KafkaSettings(bootstrap=kafka.bootstrap, prefix=f"look-{uuid.uuid4().hex[:8]}.", partitions=2)
    Topics(settings).apply()
    publisher = KafkaPublisher(settings, partitions=2)
    for name in (b"a", b"b", b"c"):
        publisher.send_raw(ORDERS, 1, key=name, value=b"of " + name, headers=[])
    look = KafkaLookup(settings, ExecutorSettings().membership)

    found = [look(ORDERS, 1, offset) for offset in (2, 0, 1)]

    assert [record and (record.offset, record.key, record.value) for record in found] == [
        (2, b"c", b"of c"),
        (0, b"a", b"of a"),
        (1, b"b", b"of b"),
    ]
    assert [look(ORDERS, 1, 3), look(ORDERS, 1, 1_000), look(ORDERS, 0, 0)] == [None, None, None]
    with pytest.raises(RefoldError):
        look("tool-requested.nobody", 0, 0)
