"""Decisions that come again: some of them late, when their question has expired, or their run was cancelled."""

from __future__ import annotations

import heapq
import random
import time

from refold.engine.runtime.settings import KafkaSettings
from tests.chaos import raw
from tests.chaos.actor import Actor, producer
from tests.chaos.raw import Raw

DECIDED = "approval-decided"
SHARE = 0.2


class Echo(Actor):
    """A thread that publishes one decision in five once more, up to 6 s later and so in another order.

    The same bytes under the same key: what a service does whose write was acknowledged to nobody.
    """

    def __init__(self, settings: KafkaSettings, *, seed: int) -> None:
        super().__init__(f"echo-{settings.prefix}")
        self._settings, self._random = settings, random.Random(seed)
        self.count = 0
        self._due: list[tuple[float, Raw]] = []
        self._known: set[tuple[int, bytes]] = set()

    def _work(self) -> None:
        topic = f"{self._settings.prefix}{DECIDED}"
        sender = producer(self._settings.bootstrap)
        for record in raw.tail(self._settings.bootstrap, topic):
            if record is not None:
                self._hear(record)
            elif self._stopped.is_set():
                sender.flush(10)
                return
            while self._due and self._due[0][0] <= time.monotonic():
                _, again = heapq.heappop(self._due)
                self.count += 1
                sender.produce(topic, again.value, again.key, again.partition)
            sender.poll(0)

    def _hear(self, record: Raw) -> None:
        name = record.partition, record.value or b""
        if name not in self._known and self._random.random() < SHARE:
            heapq.heappush(self._due, (time.monotonic() + self._random.uniform(0, 6), record))
        self._known.add(name)
