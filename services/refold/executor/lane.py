"""One partition of an executor: what waits for a slot, the claim chains, the catalog, what may be committed."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping

from refold.core.approval.catalog import Catalog
from refold.core.errors import FoldError, MalformedError
from refold.core.messages import ToolRequest
from refold.core.topics import CATALOG, TOOL_CLAIMED
from refold.core.wire import codec
from refold.executor.attempt import Attempt
from refold.executor.claim_chain import Claims
from refold.executor.inputs import Requested
from refold.executor.outbox import ExecutorOutbox
from refold.ports.log import Assigned, End, Reached, Record
from refold.runtime.lanes import CatchUp, Outstanding, Owed, Positions, resumed


class ExecutorLane:
    """What serves one partition. The service feeds it, and takes attempts of it while there are free slots."""

    def __init__(self, assigned: Assigned, outbox: ExecutorOutbox[Attempt]) -> None:
        self.partition, self._outbox = assigned.partition, outbox
        self.claims, self.catalog = Claims(), Catalog()
        self.reaped_ms = self.waiting = 0
        self._queue: OrderedDict[str, deque[Requested]] = OrderedDict()
        self.wake(assigned)

    def reads(self) -> Mapping[str, int]:
        return {**self._requests_from, TOOL_CLAIMED: self.claims.position, CATALOG: self.catalog.position}

    def sleep(self) -> bool:
        self.clear()
        return True

    def wake(self, assigned: Assigned) -> bool:
        self.claims.fold_to = assigned.ends[TOOL_CLAIMED]
        self._requests_from = resumed(assigned, (self._outbox.settings.topic,))
        self._catch_up = CatchUp(assigned, (CATALOG,))
        self._catch_up.reached(CATALOG, self.catalog.position)
        self._outstanding = Outstanding()
        return True

    @property
    def ready(self) -> bool:
        """Whether a call may be claimed: one waits, and the catalog is read, which may have revoked a key."""
        return self.waiting > 0 and self._catch_up.done

    def feed(self, item: Record | Reached | End) -> None:
        if item.topic == CATALOG:
            if isinstance(item, Record):
                self.catalog.follow(item.offset, item.key, item.value)
            else:
                self.catalog.reached(item.offset)
            self._catch_up.reached(CATALOG, self.catalog.position)
        elif item.topic == TOOL_CLAIMED:
            if isinstance(item, Record):
                self.claims.follow(item, self._outbox.now.mono_ms)
            else:
                self.claims.reached(item.offset)
        elif isinstance(item, Record):
            self._read(item)

    def enqueue(self, requested: Requested) -> None:
        """A call to be made when there is a free slot."""
        self._queue.setdefault(requested.request.call_id, deque()).append(requested)
        self.waiting += 1

    def withdraw(self, call: str) -> None:
        """Forgets requests that still wait for a slot: their claim would come after the `Close` and find nothing."""
        for requested in self._queue.pop(call, ()):
            self.waiting -= 1
            requested.done = True

    def clear(self) -> None:
        """Forgets what waits: another member takes it from the last offset that was committed."""
        self._queue.clear()
        self.waiting = 0

    def next(self) -> Requested:
        """The call that is to be claimed next."""
        call, waiting = self._queue.popitem(last=False)
        requested = waiting.popleft()
        if waiting:
            self._queue[call] = waiting
        self.waiting -= 1
        return requested

    def low_water(self) -> Positions:
        position = self._outstanding.low_water()
        return {} if position is None else {(self._outbox.settings.topic, self.partition): position}

    def _read(self, record: Record) -> None:
        owed = Owed(done=record.value is None)
        if record.value is not None:
            try:
                request = codec.decode(ToolRequest, record.value)
            except (MalformedError, FoldError) as error:
                self._outbox.bury(record, error, owed)
            else:
                owed = requested = Requested(request, record.value)
                self.enqueue(requested)
        self._outstanding.add(record.offset, owed)
