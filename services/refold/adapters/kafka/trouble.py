"""What goes wrong in the Kafka clients of a process: one end for all of them, and no flood of lines."""

from __future__ import annotations

import structlog
from confluent_kafka import KafkaError, KafkaException

from refold.adapters.kafka.clients import Throttle
from refold.adapters.kafka.errors import is_final, translate
from refold.core.errors import RefoldError

_log = structlog.get_logger()


class Trouble:
    """Keeps the first error that waiting cannot help against; librdkafka's callbacks garble what they raise."""

    def __init__(self) -> None:
        self._fatal: RefoldError | None = None
        self._throttle = Throttle()

    def ends_with(self, error: RefoldError | KafkaError | KafkaException, what: str = "go on") -> None:
        """The process has to end."""
        if self._fatal is None:
            self._fatal = error if isinstance(error, RefoldError) else translate(error, what)

    def check(self) -> None:
        """**Raises** the error that ends this process."""
        if self._fatal:
            raise self._fatal

    def on_error(self, error: KafkaError) -> None:
        """What a client says of itself."""
        self.hear("kafka.error", error, "go on")

    def hear(self, event: str, error: KafkaError, what: str, **fields: object) -> None:
        """An error that ends the process, or a line in its log."""
        if is_final(error):
            self.ends_with(error, what)
        else:
            self.warn(event, f"{event} {error.name()}", error=str(error), **fields)

    def warn(self, event: str, kind: str, **fields: object) -> None:
        """A line, at most one of its kind a second."""
        if self._throttle.lets(kind):
            _log.warning(event, **fields)
