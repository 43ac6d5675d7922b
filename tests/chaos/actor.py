"""Those who take part in a campaign besides the services: each works in a thread until told to stop."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Actor(ABC):
    """A thread that does `_work`, which ends itself once `_stopped` is set."""

    def __init__(self, name: str) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Goes to work."""
        self._thread.start()

    def stop(self) -> None:
        """Goes home, once what was begun is done."""
        self._stopped.set()
        self._thread.join()

    @abstractmethod
    def _work(self) -> None:
        """What is done."""
