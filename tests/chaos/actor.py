"""Those who take part in a campaign besides the services: each works in a thread until told to stop."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from confluent_kafka import Producer


class Actor(ABC):
    """A thread that does `_work`, which ends itself once `_stopped` is set. `trouble` is why it ended before."""

    def __init__(self, name: str) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.trouble = ""

    def start(self) -> None:
        """Goes to work."""
        self._thread.start()

    def dismiss(self) -> None:
        """May go home, once what was begun is done."""
        self._stopped.set()

    def stop(self) -> None:
        """Goes home, and has arrived."""
        self.dismiss()
        # Closing a consumer of librdkafka 2.16 never returned once, after 639 faults: all was read and judged by then.
        self._thread.join(60)

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.trouble = f"{self._thread.name} is gone: {error!r}"
            raise

    @abstractmethod
    def _work(self) -> None:
        """What is done."""


def producer(bootstrap: str) -> Producer:
    """What they send with. It may send twice: one that may not breaks for good now and then when brokers die."""
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "reconnect.backoff.max.ms": 500,
            "message.max.bytes": 4_000_000,
            "log_level": 0,
        }
    )
