"""Publisher of inputs: to the home of the run, with CloudEvents headers and an ack."""

import threading
import time
from functools import partial

import structlog
from confluent_kafka import KafkaError, KafkaException, Message

from refold.core import defaults
from refold.core.errors import ConflictError, MalformedError, RefoldError, UnreachableError, UsageError
from refold.core.ids import home
from refold.core.messages import ApprovalVote, RunOperation, RunRequest, RunSignal
from refold.core.wire import codec, sizes
from refold.core.wire.headers import cloud_event
from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.errors import REFUSED, is_final, kafka_error, translate
from refold.engine.ports.log import Headers, Outgoing
from refold.engine.runtime.clock import clock_ms
from refold.engine.runtime.settings import KafkaSettings

SentInput = RunRequest | RunSignal | RunOperation | ApprovalVote

_log = structlog.get_logger()

_SEND_LESS = "send less, or raise REFOLD_MAX_PAYLOAD_BYTES everywhere and run `refold topics apply`"
_AGAIN = "send it again in some seconds; a second one with the same id is harmless"
REPLACED_S = 1.0
"""Seconds from a client's fatal error to its replacement: an error that comes again makes one client a second."""
_LOOK_S = 0.01
"""Interval at which a thread checks for its report, which another thread may have polled."""


def input_record(message: SentInput, *, partitions: int, source: str, payload_bytes: int, trace: str = "") -> Outgoing:
    """Record of an input, for the home of its run. **Raises** UsageError if it is too large."""
    topic = codec.SUBJECTS[type(message)]
    if isinstance(message, ApprovalVote):
        key = f"{message.approval_id}/{message.vote_id}"
    else:
        try:
            sizes.check_input(message, payload_bytes)
        except MalformedError as error:
            hint = _SEND_LESS if "limit" in error.fields else error.hint
            raise UsageError(error.message, hint=hint) from None
        key = message.run_id if isinstance(message, RunRequest) else f"{message.run_id}/{message.signal_id}"
    headers = cloud_event(topic, message.run_id, id=key, source=source, at_ms=clock_ms(), trace=trace)
    return Outgoing(topic, home(message.run_id, partitions), key.encode(), codec.encode(message), headers, 0)


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
        self._make, self._lock = partial(_Client, settings, source), threading.Lock()
        self._client = self._make()

    def send(self, message: SentInput, *, timeout_s: float = 10.0, trace: str = "") -> tuple[int, int]:
        """Publish an input; return its partition and offset. **Raises** UnreachableError without an ack (it may have
        arrived; another send is harmless); UsageError if it is too large or the topic is missing."""
        count, most = self._partitions, self._payload_bytes
        record = input_record(message, partitions=count, source=self._source, payload_bytes=most, trace=trace)
        topic, number, key, value, headers, *_ = record
        return self.send_raw(topic, number, key=key, value=value, headers=headers, timeout_s=timeout_s)

    def send_raw(
        self, topic: str, partition: int, *, key: bytes, value: bytes | None, headers: Headers, timeout_s: float = 10.0
    ) -> tuple[int, int]:
        """Publish bytes unchanged, such as a dead letter again. **Raises** as `send`."""
        answers: list[tuple[KafkaError | None, Message | None]] = []
        name, reported = self._prefix + topic, lambda *report: answers.append(report)
        deadline = time.monotonic() + timeout_s
        if (client := self._current()).error:
            raise _failure(client.error, name)
        try:
            client.producer.produce(
                name, value=value, key=key, partition=partition, headers=list(headers), on_delivery=reported
            )
            # No flush: it waits for records of other threads, too, and another thread may poll our report.
            while not answers and not client.error and time.monotonic() < deadline:
                client.poll(_LOOK_S)
        except KafkaException as error:
            answers.append((kafka_error(error), None))
        client.poll(0)  # a broken client purges its records, and reports the reason by itself
        if client.error and not answers:
            answers.append((client.error, None))
        if not answers:
            hint = (
                "`refold doctor` checks REFOLD_KAFKA__BOOTSTRAP. The record may have arrived all the same; "
                "send it again, a second one with the same id is harmless"
            )
            raise UnreachableError(f"no answer to a write to {name} in {timeout_s:g} s", hint=hint)
        failure, message = answers[0]
        if failure:
            client.on_error(failure)
            raise _failure(client.error or failure, name)
        offset = message.offset() if message else None
        return partition, -1 if offset is None else offset

    @property
    def broken(self) -> str:
        """Fatal error of the client; empty if it can write."""
        error = self._current().error
        return error.str() if error else ""

    def _current(self) -> "_Client":
        client = self._client
        client.poll(0)  # else an error between two writes is noticed by the next write alone
        with self._lock:
            if client.error and client is self._client and time.monotonic() - client.broken_s > REPLACED_S:
                _log.warning("kafka.client_replaced", client=self._source, error=client.error.str())
                self._client = self._make()  # threads that wait for reports of the old one still hold it
        return self._client


class _Client:
    """Producer, and the fatal error after which it writes nothing more."""

    def __init__(self, settings: KafkaSettings, source: str) -> None:
        self.error: KafkaError | None = None
        self.broken_s = 0.0
        self.producer = clients.producer(settings, source, error_cb=self.on_error)

    def poll(self, timeout_s: float) -> None:
        try:
            self.producer.poll(timeout_s)
        except KafkaException as error:
            self.on_error(kafka_error(error))
        except SystemError:  # the same, where a report came with it: confluent-kafka 2.16 loses the error then
            self.on_error(KafkaError(KafkaError._FATAL))

    def on_error(self, error: KafkaError) -> None:
        if self.error is None and (error.fatal() or error.code() == KafkaError._FATAL):
            self.error, self.broken_s = error, time.monotonic()


def _failure(error: KafkaError, name: str) -> RefoldError:
    if error.code() in REFUSED:
        return UsageError(f"the record is too large for {name}", hint=_SEND_LESS)
    failure = translate(error, f"write to {name}")
    if is_final(error) and not isinstance(failure, UsageError | ConflictError):
        return UnreachableError(failure.message, hint=_AGAIN)
    return failure
