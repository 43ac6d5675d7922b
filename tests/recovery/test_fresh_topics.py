"""Topics that have just been made, as a service sees them that starts right after."""

from __future__ import annotations

from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.runtime.settings import KafkaSettings


def test_topics_are_there_for_services_as_soon_as_apply_is_done(kafka: EmbeddedKafka) -> None:
    for number in range(4):  # the first are quick, and a broker that is busy with them is slow to show the next
        settings = KafkaSettings(bootstrap=kafka.bootstrap, prefix=f"fresh{number}.", partitions=8)

        Topics(settings).apply()

        Topics(settings).check()
