"""Topics of other systems, read by groups of their own: their records become inputs of runs, at least once. The ids of
the inputs make a repetition harmless, so offsets follow the acknowledgements."""

import time
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime

import structlog
from confluent_kafka import KafkaException, TopicPartition

from refold.core.errors import UnreachableError, UsageError, text_of
from refold.core.topics import DEAD_LETTER_SOURCE, PLANNERS, RUN_REQUESTED, RUN_SIGNALLED
from refold.core.wire.headers import traceparent
from refold.engine.adapters.kafka import clients, offsets
from refold.engine.adapters.kafka.clients import REQUEST_TIMEOUT_S, Names
from refold.engine.adapters.kafka.errors import UNKNOWN_TOPIC, UNLED, translate, translated
from refold.engine.adapters.kafka.publisher import input_record
from refold.engine.adapters.kafka.writer import KafkaWriter
from refold.engine.ports.log import NEVER, Membership, Outgoing, Place, Reached, Record
from refold.engine.runtime import letters
from refold.engine.runtime.clock import clock_ms
from refold.engine.runtime.gauges import Vitals
from refold.engine.runtime.lanes import record_bytes
from refold.engine.runtime.outages import OUTAGES
from refold.engine.runtime.settings import Settings
from refold.sdk.records import RecordSource, SourceRecord

MOST_UNTAKEN = 10_000
"""Requests that no planner has taken; beyond it a source waits."""
MAPPED, MAPPED_BYTES, MAPPED_S = 1_000, 4 << 20, 1.0
"""Records and bytes that a turn maps, and its time for that: a member that does not poll for 5 min loses its place."""

_log = structlog.get_logger()


def inputs_of(source: RecordSource, record: Record, settings: Settings, writer: str) -> list[Outgoing]:
    """Inputs of a record, for their topics. **Raises** as `RecordSource.inputs`; UsageError for a large one."""
    found = record.read_headers() or ()
    at = datetime.fromtimestamp(max(0, record.at_ms) / 1000, UTC)
    inputs = source.inputs(SourceRecord(*record[:3], record.key or b"", record.value, found, at))
    partitions, most, trace = settings.kafka.partitions, settings.max_payload_bytes, traceparent(found)
    return [input_record(i, partitions=partitions, source=writer, payload_bytes=most, trace=trace) for i in inputs]


class ForeignTopic:
    """The topic of a source: a member of its group, and a writer of inputs and dead letters, as `member`."""

    def __init__(self, settings: Settings, source: RecordSource, member: str, vitals: Vitals) -> None:
        self.source, self._settings, self._member, self._vitals = source, settings, member, vitals
        kafka = settings.kafka
        # Topic and group have the names of others, without our prefix.
        joining = Membership(source.group, member, (source.topic,))
        self._consumer, self._subscribed = clients.member(kafka.model_copy(update={"prefix": ""}), joining), False
        self._read, self._bytes, self._held = deque[Record | Reached](), 0, set[int]()
        self._writer, self._names = KafkaWriter(kafka, member), Names(kafka.prefix)
        self._asker, self._room = clients.consumer(kafka, PLANNERS), 0  # never joins
        # The batch under way: requests and dead letters, signals, the ends of `run-requested` before these, positions.
        self._first, self._signals = list[Outgoing](), list[Outgoing]()
        self._ends: Mapping[Place, int] = {}
        self._next: dict[int, int] = {}

    def turn(self, wait_s: float) -> str:
        """Read, waiting up to `wait_s`; map, write and commit. Returns the reason to wait, or "". **Raises**
        UnreachableError: the next turn repeats what is not acknowledged."""
        if not (self._subscribed or self._subscribe()):
            return f"there is no topic {self.source.topic}"
        if self._room <= 0:
            self._room = MOST_UNTAKEN - self._untaken(self._requested())
        self._poll(wait_s, hold=self._room <= 0 or self._bytes > MAPPED_BYTES)
        if not (self._first or self._signals):
            if self._room <= 0:
                return f"planners have not taken {MOST_UNTAKEN:,} requests"
            self._map()
        if self._first:
            self._write(self._first)
            self._room -= len(self._first)
            self._first = []
        if lacks := self._write_signals():
            return lacks
        self._commit()
        return ""

    def _write_signals(self) -> str:
        if not self._signals:
            return ""
        self._ends = self._ends or self._requested()
        # A planner has 4 MiB for signals of runs that it has not begun; it refuses others.
        if left := self._untaken(self._ends):
            return f"planners have to take {left:,} requests before signals"
        self._write(self._signals)
        self._signals, self._ends = [], {}
        return ""

    def close(self) -> None:
        if not self._settings.kafka.keep_place:
            # Closing a static member does not leave (KIP-345), the end of its subscription does.
            self._consumer.unsubscribe()
            self._consumer.poll(0.1)  # time for it to reach the group
        self._consumer.close()

    def _subscribe(self) -> bool:
        name = self.source.topic
        with translated(f"read {name}"):
            error = self._consumer.list_topics(name, REQUEST_TIMEOUT_S).topics[name].error
        if error is None:
            self._consumer.subscribe([name])
        elif error.code() not in UNKNOWN_TOPIC | UNLED:
            raise translate(error, f"read {name}")
        self._subscribed = error is None
        return self._subscribed

    def _poll(self, wait_s: float, *, hold: bool) -> None:
        """Read. A member polls while it holds, too, or its group takes it for dead."""
        places = {place.partition for place in self._consumer.assignment()}
        # Only changes, as each drops what is fetched. A pause outlives the assignment that it was meant for.
        if changed := places - self._held if hold else places & self._held:
            (self._consumer.pause if hold else self._consumer.resume)(self._at(dict.fromkeys(changed, 0)))
            self._held ^= changed
        if self._read and not hold:
            wait_s = 0
        action = f"read {self.source.topic}"
        found = clients.arrivals(self._consumer, Names(""), limit=MAPPED, timeout_s=wait_s, action=action)
        self._read += found
        self._bytes += sum(record_bytes(item) for item in found if isinstance(item, Record))

    def _map(self) -> None:
        until, size, count, most = time.monotonic() + MAPPED_S, 0, 0, min(MAPPED, self._room)
        self._vitals.begin_turn(until - MAPPED_S)
        while self._read and count < most and size < MAPPED_BYTES and time.monotonic() < until:
            item = self._read.popleft()
            self._next[item.partition] = item.offset
            if isinstance(item, Reached):  # behind aborted records and marks of transactions
                continue
            self._next[item.partition] += 1
            for outgoing in self._outgoing(item):
                (self._signals if outgoing.topic == RUN_SIGNALLED else self._first).append(outgoing)
            size, count = size + record_bytes(item), count + 1
        self._bytes -= size
        self._vitals.end_turn(time.monotonic())
        self._vitals.read(count)

    def _outgoing(self, record: Record) -> list[Outgoing]:
        try:
            return inputs_of(self.source, record, self._settings, self._member)
        except Exception as error:  # noqa: BLE001 - a user's function raises anything, and other records follow
            why = "unmapped", f"{type(error).__name__}: {text_of(error)}"
        _log.warning("input.dead", **letters.place(record), code=why[0], reason=why[1])
        self._vitals.report("input.dead", alarm=True)
        into, limit = DEAD_LETTER_SOURCE, self._settings.max_payload_bytes
        letter = letters.letter(record, why, service=self._member, at_ms=clock_ms(), into=into, limit=limit)
        return [letter._replace(partition=record.partition % self._settings.kafka.partitions)]

    def _write(self, records: list[Outgoing]) -> None:
        answers, begun = self._writer.append(records), time.monotonic()
        if any(answer.offset == NEVER for answer in answers):
            raise UsageError("a topic is too small for a record", hint="run `refold topics apply`")
        if any(answer.offset is None for answer in answers):
            # After a gap in its records, an idempotent producer is unusable.
            self._writer = KafkaWriter(self._settings.kafka, self._member)
            raise UnreachableError(f"no acknowledgement of {len(records)} inputs", hint="they are sent again")
        self._vitals.wrote(len(records), begun)

    def _requested(self) -> Mapping[Place, int]:
        """Ends of `run-requested`."""
        self._asker.poll(0)  # else events of its client pile up
        places = [(RUN_REQUESTED, number) for number in range(self._settings.kafka.partitions)]
        return offsets.bounds(self._asker, self._names, places)

    def _untaken(self, ends: Mapping[Place, int]) -> int:
        """Requests before these ends that planners have not taken."""
        with translated("ask how far planners have read"):
            taken = offsets.committed(self._asker, self._names, ends.keys(), REQUEST_TIMEOUT_S)
        return sum(max(0, end - taken.get(place, 0)) for place, end in ends.items())

    def _commit(self) -> None:
        # A commit for a partition that went to another member would take that one back.
        own = {place.partition for place in self._consumer.assignment()}
        self._next = {number: at for number, at in self._next.items() if number in own}
        if not self._next:
            return
        if failure := self._why_uncommitted():  # repeated in the next turn: perhaps no record follows
            OUTAGES.failed("kafka.commit_late", self.source.topic, error=failure)
            return
        self._vitals.move({(self.source.topic, number): at for number, at in self._next.items()})
        self._next = {}

    def _why_uncommitted(self) -> str:
        """Commit the positions; return the reason of a failure."""
        try:
            answers = self._consumer.commit(offsets=self._at(self._next), asynchronous=False) or []
        except KafkaException as error:
            return str(error)
        return next((str(answer.error) for answer in answers if answer.error), "")

    def _at(self, positions: Mapping[int, int]) -> list[TopicPartition]:
        return [TopicPartition(self.source.topic, number, at) for number, at in positions.items()]
