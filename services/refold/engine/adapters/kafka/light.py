"""Client of a `refold dev --light`, in place of librdkafka's: the methods that readers, writers and commands use."""

import marshal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from io import BufferedRWPair
from types import SimpleNamespace
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from refold.core.errors import UsageError
from refold.engine.ports.log import NEVER, Place
from refold.engine.runtime.settings import LIGHT, KafkaSettings

_HOST = "127.0.0.1"
_AWAY_S = 0.1

Report = Callable[[KafkaError | None, Message], object]


def connected(path: str) -> BufferedRWPair:
    """Connection to a `refold dev --light`. **Raises** OSError if none listens at the path."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        return connection.makefile("rwb")


class LightClient:
    """Consumer, producer and admin in one; reads by position, in no group. Its connection opens with the first
    request, and again after a failure."""

    def __init__(self, settings: KafkaSettings, group: str) -> None:
        self._path, self._prefix, self._group = settings.bootstrap.removeprefix(LIGHT), settings.prefix, group
        self._link: BufferedRWPair | None = None
        self._asking, self._sending = threading.Lock(), threading.Lock()
        self._positions, self._ended = dict[Place, int](), dict[Place, int]()
        self._messages: deque[Message] = deque()
        self._outgoing: list[tuple[tuple[Any, ...], Report]] = []

    def __getattr__(self, name: str) -> Any:
        hint = "`refold dev` without --light has a Kafka"
        raise UsageError(f"`refold dev --light` runs its services itself, and has no {name}", hint=hint)

    def _ask(self, request: str, *arguments: Any) -> Any:
        """**Raises** KafkaException if the process is away, or a topic unknown."""
        with self._asking:
            try:
                self._link = link = self._link or connected(self._path)
                link.write(marshal.dumps((request, arguments)))
                link.flush()
                problem, answer = marshal.load(link)
            except (OSError, EOFError, ValueError) as error:
                self._link = None
                raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN, f"{self._path}: {error}")) from None
        if problem:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, problem))
        return answer

    def _place(self, at: TopicPartition) -> Place:
        return at.topic.removeprefix(self._prefix), at.partition

    def _message(self, place: Place, offset: int, **content: Any) -> Message:
        return Message(topic=self._prefix + place[0], partition=place[1], offset=offset, **content)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    # Consumer

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self.unassign()
        self._positions = {self._place(at): 0 if at.offset == OFFSET_BEGINNING else at.offset for at in places}

    def unassign(self) -> None:
        self._positions, self._ended = {}, {}
        self._messages.clear()

    def consume(self, num_messages: int, timeout: float) -> list[Message]:
        return [self._messages.popleft() for _ in range(min(num_messages, len(self._messages)))]

    def _fetch(self, wait_s: float) -> None:
        places = [(*place, position) for place, position in self._positions.items()]
        # An end that is reached for the first time is news, too.
        rows, positions = self._ask("read", places, wait_s if len(self._ended) == len(places) else 0.0)
        for topic, partition, offset, key, value, headers, at_ms in rows:
            content = {"key": key, "value": value, "headers": headers, "timestamp": (TIMESTAMP_LOG_APPEND_TIME, at_ms)}
            self._messages.append(self._message((topic, partition), offset, **content))
        for place, (position, end) in zip([*self._positions], positions, strict=True):
            self._positions[place] = position
            if position >= end and self._ended.get(place) != end:
                self._ended[place] = end
                # A position beyond the end is one of another file.
                code = KafkaError._PARTITION_EOF if position == end else KafkaError._AUTO_OFFSET_RESET
                self._messages.append(self._message(place, end, error=KafkaError(code)))

    def offsets_for_times(self, places: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        offsets = self._ask("offsets", [(*self._place(at), at.offset) for at in places])
        return [TopicPartition(at.topic, at.partition, offset) for at, offset in zip(places, offsets, strict=True)]

    def committed(self, places: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        committed = dict(self._ask("group", self._group.removeprefix(self._prefix))[1])
        return [TopicPartition(at.topic, at.partition, committed.get(self._place(at), OFFSET_INVALID)) for at in places]

    # Producer: records leave with the next poll or flush

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        *,
        headers: Iterable[tuple[str, bytes]] = (),
        on_delivery: Report = lambda *_: None,
    ) -> None:
        row = topic.removeprefix(self._prefix), partition, key or b"", value, [(name, text) for name, text in headers]
        with self._sending:
            self._outgoing.append((row, on_delivery))

    def poll(self, timeout: float) -> Message | None:
        if self._outgoing:
            self.flush()
        if self._positions and not self._messages:
            try:
                self._fetch(timeout)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._ALL_BROKERS_DOWN:
                    raise
                time.sleep(min(timeout, _AWAY_S))  # as Kafka's readers, it waits for a restart
        return self._messages.popleft() if self._messages else None

    def flush(self, timeout: float = -1) -> int:
        with self._sending:
            outgoing, self._outgoing = self._outgoing, []
        answers = [(OFFSET_INVALID, 0)] * len(outgoing)
        error = None
        try:
            answers = self._ask("write", [row for row, _ in outgoing])
        except KafkaException as raised:
            error = raised.args[0]
        for ((topic, partition, _, value, _), report), (offset, at_ms) in zip(outgoing, answers, strict=True):
            failure = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE) if offset == NEVER else error
            stamp = TIMESTAMP_LOG_APPEND_TIME, at_ms
            report(failure, self._message((topic, partition), offset, value=value, timestamp=stamp))
        return 0

    def purge(self) -> None: ...

    def __len__(self) -> int:
        return len(self._outgoing)

    # Admin

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        unknown = SimpleNamespace(partitions={}, error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        topics: dict[str, Any] = {topic: unknown} if topic else {}
        for name, count in self._ask("topics").items():
            numbers = dict.fromkeys(range(count), SimpleNamespace(replicas=[0]))
            topics[self._prefix + name] = SimpleNamespace(partitions=numbers, error=None)
        return SimpleNamespace(topics=topics, brokers={0: SimpleNamespace(host=_HOST)})

    def describe_cluster(self, **_: object) -> Future[Any]:
        return _answered(SimpleNamespace(cluster_id=self._ask("identity")))

    def describe_topics(self, topics: Any, **_: object) -> dict[str, Future[Any]]:
        return {name: _answered(SimpleNamespace(topic_id="light")) for name in topics.topic_names}

    def describe_consumer_groups(self, names: Sequence[str], **_: object) -> dict[str, Future[Any]]:
        states = {}
        for name in names:
            members = []
            for member, numbers in self._ask("group", name.removeprefix(self._prefix))[0].items():
                places = [SimpleNamespace(partition=number) for number in numbers]
                assignment = SimpleNamespace(topic_partitions=places)
                members.append(SimpleNamespace(client_id=member, host=_HOST, assignment=assignment))
            states[name] = _answered(SimpleNamespace(members=members))
        return states


def _answered(answer: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(answer)
    return future
