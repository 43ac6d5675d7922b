"""One partition of an executor: its waiting calls, claim chains, catalog, and position."""

from collections.abc import Mapping

from refold.core.approval.catalog import Catalog
from refold.core.errors import FoldError, MalformedError
from refold.core.messages import ToolRequest
from refold.core.topics import CATALOG
from refold.core.wire import codec
from refold.engine.executor.attempt import Attempt
from refold.engine.executor.claim_chain import Claims
from refold.engine.executor.inputs import CallQueue, Requested
from refold.engine.executor.outbox import Closing, ExecutorOutbox
from refold.engine.ports.effects import AskEnd, Read
from refold.engine.ports.log import NEVER, Assigned, Delivery, End, Reached, Record
from refold.engine.runtime.clock import LogClock
from refold.engine.runtime.lanes import CatchUp, Outstanding, Owed, Positions, follow_catalog, resumed

MOST_KEY = 256
"""Longest idempotency key of an order, in characters; planners make 64."""

RESTART_MS = 1_000
"""Time for the second reading of a take-over to begin, before it is requested again."""

_Read = ToolRequest | MalformedError | FoldError | None


class ExecutorLane:
    """Lane of one partition. `clock_probe_due` is the time of its next clock probe, `fill_due` of its next query of the
    ledger's memory; `full`: nothing new is claimed. **Units**: milliseconds, monotonic."""

    def __init__(self, assigned: Assigned, outbox: ExecutorOutbox[Attempt]) -> None:
        self.partition, self._outbox = assigned.partition, outbox
        self.claims, self.catalog, self.clock = Claims(), Catalog(outbox.settings.trust), LogClock()
        self.waiting = CallQueue()
        self.clock_probe_due = self.fill_due = 0
        self.full = False
        self.wake(assigned)

    def reads(self) -> Mapping[str, int]:
        chains = self._outbox.settings.chains
        return {**self._requests_from, chains: self.claims.position, CATALOG: self.catalog.position}

    def wake(self, assigned: Assigned) -> None:
        """Start to serve the partition, perhaps again: accepted records still hold."""
        topic, chains = self._outbox.settings.topic, self._outbox.settings.chains
        self.claims.fold_to = assigned.ends[chains]
        self._requests_from = resumed(assigned, (topic,))
        self._scan = TakeOverScan(self._requests_from[topic], assigned.ends.get(topic, 0))
        self._catch_up = CatchUp(assigned, (CATALOG,))
        self._catch_up.reached(CATALOG, self.catalog.position)
        self._freshness = CatalogFreshness(self._outbox.now.mono_ms)
        self._outstanding = Outstanding()
        self._closing: list[Closing] = []
        self.clock.fresh, self.clock_probe_due = False, 0
        self._heir_until = self._outbox.now.mono_ms + self._outbox.settings.times.lease_ms

    @property
    def caught_up(self) -> bool:
        return self._catch_up.done

    @property
    def ready(self) -> bool:
        """True if a waiting call may be claimed: time and catalog, which may revoke a key, are known."""
        return self.waiting.ready and not self.full and self._catch_up.done and self.clock.fresh

    def feed(self, item: Record | Reached | End) -> None:
        if isinstance(item, Record) and item.at_ms:
            self.clock.read(item.at_ms)
        if item.topic == CATALOG:
            self._follow_catalog(item)
        elif item.topic == self._outbox.settings.chains:
            if isinstance(item, Record):
                self.claims.follow(item, self._outbox.now.mono_ms)
            else:
                self.claims.reached(item.offset)
        elif isinstance(item, Record):
            self._read(item)
        elif isinstance(item, Reached) and not self._scan.complete:
            self._scan.reached(item.offset)
            self._end_first_reading()

    def _follow_catalog(self, item: Record | Reached | End) -> None:
        if isinstance(item, End):
            self._freshness.bounds_read(item.offset, self.catalog.position)
            return
        halts = self.catalog.halts
        follow_catalog(self.catalog, item, self._outbox.journal)
        if self.catalog.halts is not halts:
            self.waiting.bring_back()
        self._freshness.reached(self.catalog.position)
        self._catch_up.reached(CATALOG, self.catalog.position)

    def tend(self) -> None:
        now = self._outbox.now.mono_ms
        self.waiting.give_up(now)
        if self._freshness.is_due(now, self._outbox.settings.look_ms):
            self._outbox.orders.append(AskEnd(CATALOG, self.partition))
        self._request_second_reading()

    def halt_of(self, request: ToolRequest) -> str:
        """Reason why a call may not begin now, in spite of its permission; "" if it may."""
        settings = self._outbox.settings
        if why := settings.gate.halted(request, self.catalog):
            return why
        blind_ms = self._freshness.blind_ms(self._outbox.now.mono_ms)
        if blind_ms > settings.blind_ms and (settings.gate.needs_decision(request) or request.settled):
            return f"nobody could read the end of the catalog for {blind_ms / 1000:.0f} s"
        return ""

    def clock_probed(self, delivery: Delivery, sent_ms: int) -> None:
        mono_ms = self._outbox.now.mono_ms
        if delivery.offset is None or delivery.offset == NEVER:
            self.clock_probe_due = mono_ms + self._outbox.settings.clock_probe_again_ms
        else:
            # Ahead by the round trip, and never behind: an expiry may be early, and must not be late.
            self.clock.delivered(delivery.at_ms + mono_ms - sent_ms)

    def late(self, requested: Requested) -> bool:
        """True if the ledger may have forgotten the outcome of a request this old."""
        return bool(requested.at_ms) and self.clock.now_ms - requested.at_ms > self._outbox.settings.stale_ms

    def enqueue(self, requested: Requested) -> None:
        self.waiting.add(requested)

    @property
    def heir(self) -> str:
        """Name of this process as heir, until the ledger has ended the leases of its earlier incarnations; then ""."""
        # After a lease this process may have an heir itself.
        return self._outbox.owner if self._outbox.now.mono_ms < self._heir_until else ""

    def inherited(self) -> None:
        self._heir_until = 0

    def low_water(self) -> Positions:
        self._closing = [closing for closing in self._closing if not closing.done]
        position = None if self._closing else self._outstanding.low_water()
        return {} if position is None else {(self._outbox.settings.topic, self.partition): position}

    def _read(self, record: Record) -> None:
        request = request_of(record)
        poison = isinstance(request, (MalformedError, FoldError))
        # Committed before the ledger has closed it, a tombstone would be lost with the process: the entry would stay.
        closing = self._outbox.closing(self.partition) if record.value is None else None
        # A tombstone may follow its request, and the marker in the ledger may be gone: acting at the first reading
        # would repeat every call of the past.
        if not self._scan.complete:
            if closing is not None and closing not in self._closing:
                self._closing.append(closing)
            self._scan.follow(record, poison=poison)
            self._end_first_reading()
            return
        if self._scan.passes(record):
            owed = self._queue_or_bury(record, request, poison=poison) or closing or Owed(done=True)
            self._outstanding.add(record.offset, owed)

    def _queue_or_bury(self, record: Record, request: _Read, *, poison: bool) -> Owed | None:
        """Queue an open request, or bury an unreadable one; None for a closed one or a tombstone."""
        if request is None or not self._scan.open(record, poison=poison):
            return None
        if isinstance(request, ToolRequest):
            if requested := self._outbox.requested(self.partition, request, record):
                self.enqueue(requested)
            return requested
        letter = Owed()
        self._outbox.bury(record, request, letter)
        return letter

    def _end_first_reading(self) -> None:
        if self._scan.complete:
            self._outstanding.position = self._scan.low  # everything below is closed
            self._request_second_reading()

    def _request_second_reading(self) -> None:
        if (offset := self._scan.rewinds(self._outbox.now.mono_ms)) is not None:
            self._outbox.orders.append(Read(self._outbox.settings.topic, self.partition, offset))


def request_of(record: Record) -> _Read:
    """Request of a record, the reason why it is unreadable, or None for a tombstone."""
    try:
        request = None if record.value is None else codec.decode(ToolRequest, record.value)
        if request is not None and len(request.key) > MOST_KEY:
            raise MalformedError(f"its idempotency key has {len(request.key):,} characters")
        return request
    except (MalformedError, FoldError) as error:
        return error


class CatalogFreshness:
    """Age of a lane's view of the catalog, by the ends that it requests and reaches. **Units**: ms, monotonic."""

    def __init__(self, now_ms: int) -> None:
        # With a partition: nothing is claimed before the ends captured now are reached.
        self._known_ms = self._requested_ms = now_ms
        self._pending = False
        self._end: int | None = None

    def is_due(self, now_ms: int, every_ms: int) -> bool:
        """True if the end is to be requested now; one request at a time."""
        if self._pending or now_ms - self._requested_ms < every_ms:
            return False
        self._pending, self._requested_ms = True, now_ms
        return True

    def bounds_read(self, end: int, position: int) -> None:
        self._end = end
        self.reached(position)

    def reached(self, position: int) -> None:
        if self._end is not None and position >= self._end:
            self._known_ms, self._pending, self._end = self._requested_ms, False, None

    def blind_ms(self, now_ms: int) -> int:
        return now_ms - self._known_ms


class TakeOverScan:
    """Reading of a partition's requests from `start` to the captured `end`, before any is acted upon; open ones are
    then read again. **Units**: monotonic ms. Each open call takes 126 bytes until its second reading."""

    def __init__(self, start: int, end: int) -> None:
        self._open: dict[bytes, int] = {}
        self._end, self._read_to = end, start - 1
        self.low = start
        self._requested_ms: int | None = None
        self._restarted = self.complete = start >= end

    def follow(self, record: Record, *, poison: bool) -> None:
        """Note a record of the first reading; poison stays open regardless of later records."""
        key = b"\0%d" % record.offset if poison else record.key or b""
        if record.value is None:
            self._open.pop(key, None)
        else:
            self._open[key] = record.offset
        self.reached(record.offset + 1)

    def reached(self, offset: int) -> None:
        self._read_to = max(self._read_to, offset - 1)
        if offset >= self._end and not self.complete:
            self.complete = True
            self.low = min(self._open.values(), default=self._end)
            self._restarted = not self._open

    def rewinds(self, now_ms: int) -> int | None:
        """Offset to read from again now, if that is not under way."""
        if not self.complete or self._restarted:
            return None
        if self._requested_ms is not None and now_ms - self._requested_ms < RESTART_MS:
            return None
        self._requested_ms = now_ms
        return self.low

    def passes(self, record: Record) -> bool:
        """True if a record is of the second reading, or follows it."""
        if not self._restarted and record.offset <= self._read_to:
            self._restarted = True
        self._read_to = max(self._read_to, record.offset)
        return self._restarted

    def open(self, record: Record, *, poison: bool) -> bool:
        """True, once, if a request of the second reading is the last record of its call."""
        if record.offset >= self._end:
            self._open = {}
            return True
        key = b"\0%d" % record.offset if poison else record.key or b""
        if self._open.get(key) != record.offset:
            return False
        del self._open[key]
        return True
