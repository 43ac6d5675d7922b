"""Records of tools in a team's own topics, each with the idempotency key of its call.

**Consumes** a configuration of confluent-kafka. **Produces** records that all replicas have, with the attributes of
CloudEvents as headers. **Guarantees**: all records of a call have its key as `ce_id`, by which a consumer drops
repeats. **Fails** with TerminalError for a record that the broker refuses.
"""

import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from refold.core.errors import TerminalError
from refold.core.wire import canonical

_REFUSED = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_RECORD})
_POLL_S = 0.05


class RecordWriter:
    """Writer of a `keyed` tool, for all threads of an executor. It connects with the first record.

    **Example**

        writer = RecordWriter({"bootstrap.servers": "kafka:9092"})

        @app.tool(effect="keyed")
        def announce(order: str, *, idempotency_key: str) -> str:
            return writer.send("orders", {"order": order}, key=order, idempotency_key=idempotency_key)
    """

    def __init__(self, config: Mapping[str, Any], *, timeout: timedelta = timedelta(seconds=10)) -> None:
        self._config = {**config, "acks": "all", "enable.idempotence": True}
        self._timeout_s, self._lock = timeout.total_seconds(), threading.Lock()
        self._producer: Producer | None = None

    def send(self, topic: str, value: Any, *, idempotency_key: str, key: str = "") -> str:
        """Write a value, bytes or JSON data, and wait for its acknowledgement. Returns the idempotency key, so that all
        attempts of a call have one result.

        **Raises** TerminalError if the broker refuses the record; TimeoutError without an acknowledgement in time, and
        KafkaException: then the record may be there, and the next attempt writes it again under the same key.
        """
        answers: list[tuple[KafkaError | None, Message]] = []
        attributes = {"ce_specversion": "1.0", "ce_id": idempotency_key, "ce_type": topic, "ce_source": "/refold"}
        with self._lock:
            producer = self._producer = self._producer or Producer(self._config)
        producer.produce(
            topic,
            value if isinstance(value, bytes) else canonical.dumps(value).encode(),
            key.encode() or None,
            headers=[(name, text.encode()) for name, text in attributes.items()],
            on_delivery=lambda error, message: answers.append((error, message)),
        )
        deadline = time.monotonic() + self._timeout_s
        while not answers and time.monotonic() < deadline:
            producer.poll(_POLL_S)  # another thread may poll our answer
        if not answers:
            raise TimeoutError(f"no acknowledgement of a record for {topic} in {self._timeout_s:g} s")
        error, _ = answers[0]
        if error is None:
            return idempotency_key
        if error.code() in _REFUSED:
            raise TerminalError(f"{topic} refuses the record: {error.str()}")
        raise KafkaException(error)
