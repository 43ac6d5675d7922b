"""Run log and related topics as the source of views, read by position."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import cached_property

from confluent_kafka import KafkaException, TopicCollection

from refold.core.topics import APPROVAL_VOTED, BUDGET_SPENT, DEAD_LETTERS, RUN_LOG, RUN_SNAPSHOT
from refold.engine.adapters.kafka import clients, offsets
from refold.engine.adapters.kafka.clients import REQUEST_TIMEOUT_S, Names
from refold.engine.adapters.kafka.errors import translated
from refold.engine.adapters.kafka.reader import KafkaLogReader, KafkaNews
from refold.engine.ports.log import Place
from refold.engine.runtime.settings import KafkaSettings

TOPICS = (RUN_SNAPSHOT, RUN_LOG, APPROVAL_VOTED, BUDGET_SPENT, *DEAD_LETTERS)
"""Markers of erased runs first: they are written before the tombstones that follow them."""


class KafkaLogSource:
    def __init__(self, settings: KafkaSettings) -> None:
        self._settings, self._names = settings, Names(settings.prefix)
        self.reader = KafkaLogReader(settings)

    @cached_property
    def partitions(self) -> int:
        return self.reader.partitions(RUN_LOG)

    def identity(self) -> str:
        """Ids of the cluster and of the run log's topic."""
        admin, name = clients.admin(self._settings), self._names[RUN_LOG]
        with translated(f"ask which log {name} is"):
            cluster = admin.describe_cluster(request_timeout=REQUEST_TIMEOUT_S).result()
            topic = admin.describe_topics(TopicCollection([name]), request_timeout=REQUEST_TIMEOUT_S)[name].result()
        return f"{cluster.cluster_id}/{name}/{topic.topic_id}"

    def bounds(self, topics: Sequence[str] = TOPICS) -> dict[Place, tuple[int, int]]:
        places = [(topic, number) for topic in topics for number in range(self.partitions)]
        with closing(clients.consumer(self._settings, "reader")) as consumer:
            starts = offsets.bounds(consumer, self._names, places, offsets.EARLIEST)
            ends = offsets.bounds(consumer, self._names, places)
        return {place: (starts[place], end) for place, end in ends.items()}

    def end(self, place: Place) -> int:
        """High watermark of a partition. **Raises** UsageError for a missing topic."""
        with closing(clients.consumer(self._settings, "reader")) as consumer:
            return offsets.bounds(consumer, self._names, [place])[place]

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """High watermarks; empty without an answer within a second."""
        if not (asked := list(places)):
            return {}
        with closing(clients.consumer(self._settings, "reader")) as consumer, suppress(KafkaException):
            return offsets.query(consumer, self._names, asked, give_up_s=1.0)
        return {}

    def feed(self, positions: Mapping[Place, int]) -> KafkaNews:
        return KafkaNews(self._settings, TOPICS, self.partitions, starts=positions)
