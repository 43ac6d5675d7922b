"""Errors of a process's Kafka clients: a single fatal one, and few log lines."""

import time

import structlog
from confluent_kafka import KafkaError, KafkaException

from refold.core.errors import RefoldError
from refold.engine.adapters.kafka.errors import UNKNOWN_TOPIC, is_final, kafka_error, meaning, translate
from refold.engine.runtime.outages import OUTAGES

_log = structlog.get_logger()

ONE_ANSWER_S = 2.0
"""Longest wait of a service for one answer; its other work waits too, so it retries."""

LONG_S = 10.0
"""Longest election of a leader in a healthy cluster."""


class Overdue:
    """Overdue answer of the cluster, logged when first late, when long, and when it arrives."""

    def __init__(self, action: str) -> None:
        self._action, self._since_s, self._logged = action, 0.0, 0

    def late(self, error: KafkaException) -> None:
        """Report that there is no answer so far. **Raises** our error if waiting cannot help."""
        now, cause = time.monotonic(), kafka_error(error)
        if not self._logged:
            self._since_s, self._logged = now, 1
            _log.warning("kafka.waiting", what=self._action, error=str(cause))
        waited = now - self._since_s
        # While no broker answers, librdkafka forgets its metadata and calls each partition unknown, by a code of its
        # own. An outage of a minute then ended executors. Only a broker's answer proves that a topic is gone.
        proves = cause.code() >= 0 or cause.code() not in UNKNOWN_TOPIC
        if proves and waited >= meaning(cause).later_s:
            raise translate(cause, self._action)
        if self._logged == 1 and waited > LONG_S:
            self._logged = 2
            _log.error("kafka.waiting_long", what=self._action, seconds=round(waited), error=str(cause))

    def over(self) -> None:
        if self._logged:
            _log.info("kafka.answered", what=self._action, seconds=round(time.monotonic() - self._since_s, 1))
        self._logged = 0


class Trouble:
    """Keeps the first fatal error: exceptions raised in librdkafka's callbacks are garbled."""

    def __init__(self) -> None:
        self._fatal: RefoldError | None = None
        self.unknown: dict[str, float] = {}
        """Topics that a broker did not know, with the time (monotonic); a fresh answer clears or confirms them."""

    def end_with(self, error: RefoldError | KafkaError | KafkaException, action: str = "go on") -> None:
        if self._fatal is None:
            self._fatal = error if isinstance(error, RefoldError) else translate(error, action)

    def check(self) -> None:
        if self._fatal:
            raise self._fatal

    def on_error(self, error: KafkaError) -> None:
        self.report("kafka.error", error, "go on")

    def report(self, event: str, error: KafkaError, action: str, **fields: object) -> None:
        """Keep a fatal error, log any other."""
        if is_final(error):
            self.end_with(error, action)
        else:
            if error.code() in UNKNOWN_TOPIC and (topic := fields.get("topic")):
                self.unknown.setdefault(str(topic), time.monotonic())
            OUTAGES.failed(event, f"{event} {error.name()}", error=str(error), **fields)
