"""Publisher of inputs: to the home of the run, with CloudEvents headers and an ack."""

from __future__ import annotations

import time

from confluent_kafka import KafkaError, KafkaException, Message

from refold.adapters.kafka import clients
from refold.adapters.kafka.errors import REFUSED, of, translate
from refold.core.errors import MalformedError, RefoldError, UnreachableError, UsageError
from refold.core.ids import home
from refold.core.messages import ApprovalVote, RunOperation, RunRequest, RunSignal
from refold.core.wire import codec, sizes
from refold.core.wire.headers import cloud_event
from refold.ports.log import Headers
from refold.runtime import defaults
from refold.runtime.clock import clock_ms
from refold.runtime.settings import KafkaSettings

_SEND_LESS = "send less, or raise REFOLD_MAX_PAYLOAD_BYTES everywhere and run `refold topics apply`"
_LOOK_S = 0.01
"""Interval at which a thread checks for its report, which another thread may have polled."""


class KafkaPublisher:
    """Producer of the command line and the client; thread-safe. `partitions` is the count of every topic. **Units**:
    `payload_bytes` is the services' limit, in bytes of JSON text."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        partitions: int,
        source: str = "refold",
        payload_bytes: int = defaults.PAYLOAD_BYTES,
    ) -> None:
        self._prefix, self._partitions, self._source = settings.prefix, partitions, source
        self._payload_bytes = payload_bytes
        self._producer = clients.producer(settings, source)

    def send(
        self,
        message: RunRequest | RunSignal | RunOperation | ApprovalVote,
        *,
        timeout_s: float = 10.0,
        trace: str = "",
    ) -> tuple[int, int]:
        """Publish an input; return its partition and offset. **Raises** UnreachableError without an ack (it may have
        arrived; another send is harmless); UsageError if it is too large or the topic is missing."""
        topic = codec.SUBJECTS[type(message)]
        if isinstance(message, ApprovalVote):
            key = f"{message.approval_id}/{message.vote_id}"
        else:
            try:
                sizes.check_input(message, self._payload_bytes)
            except MalformedError as error:
                hint = _SEND_LESS if "limit" in error.fields else error.hint
                raise UsageError(error.message, hint=hint) from None
            key = message.run_id if isinstance(message, RunRequest) else f"{message.run_id}/{message.signal_id}"
        headers = cloud_event(topic, message.run_id, id=key, source=self._source, at_ms=clock_ms(), trace=trace)
        number = home(message.run_id, self._partitions)
        value = codec.encode(message)
        return self.send_raw(topic, number, key=key.encode(), value=value, headers=headers, timeout_s=timeout_s)

    def send_raw(
        self,
        topic: str,
        partition: int,
        *,
        key: bytes,
        value: bytes | None,
        headers: Headers,
        timeout_s: float = 10.0,
    ) -> tuple[int, int]:
        """Publish bytes unchanged, such as a dead letter again. **Raises** as `send`."""
        answers: list[tuple[KafkaError | None, Message]] = []
        name = self._prefix + topic

        def answered(error: KafkaError | None, message: Message) -> None:
            answers.append((error, message))

        deadline = time.monotonic() + timeout_s
        try:
            self._producer.produce(
                name, value=value, key=key, partition=partition, headers=list(headers), on_delivery=answered
            )
            # No flush: it waits for records of other threads, too, and another thread may poll our report.
            while not answers and time.monotonic() < deadline:
                self._producer.poll(_LOOK_S)
        except KafkaException as error:
            raise _failure(of(error), name) from None
        if not answers:
            hint = (
                "`refold doctor` checks REFOLD_KAFKA__BOOTSTRAP. The record may have arrived all the same; "
                "send it again, a second one with the same id is harmless"
            )
            raise UnreachableError(f"no answer to a write to {name} in {timeout_s:g} s", hint=hint)
        failure, message = answers[0]
        if failure:
            raise _failure(failure, name)
        offset = message.offset()
        return partition, -1 if offset is None else offset


def _failure(error: KafkaError, name: str) -> RefoldError:
    if error.code() in REFUSED:
        return UsageError(f"the record is too large for {name}", hint=_SEND_LESS)
    return translate(error, f"write to {name}")
