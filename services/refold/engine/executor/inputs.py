"""Calls of an executor that wait for a slot."""

import sys
from collections import OrderedDict
from dataclasses import dataclass, replace

from refold.core.ids import RunId
from refold.core.messages import EarlierCall, ShortRequest, ToolRequest
from refold.core.run.building import Base
from refold.core.wire.seal import OrderPlace
from refold.engine.runtime.lanes import Owed

HEAVY_BYTES = 65_536
"""Requests up to this size have no weight in a slot."""


@dataclass(slots=True, eq=False)
class Requested(Owed):
    """A call to be made, finished when its claim is answered, or none will come. `base` identifies the held calls on
    which it builds. **Units**: `bytes` in memory; `at_ms` by the log, 0 for a call found through the ledger."""

    request: ToolRequest
    offset: int
    bytes: int
    at_ms: int = 0
    base: str = ""

    @property
    def weight(self) -> int:
        return self.bytes if self.bytes > HEAVY_BYTES else 0

    @property
    def place(self) -> OrderPlace:
        return OrderPlace(self.request.call_id, self.request.attempt, self.offset)


class SeenCalls:
    """Earlier calls by digest, each for its run alone, on which short orders build. **Units**: bytes."""

    def __init__(self, limit: int, least: int) -> None:
        self._limit, self._least = limit, least
        self._bases: OrderedDict[str, tuple[RunId, Base, list[EarlierCall]]] = OrderedDict()
        self._bytes = 0

    def whole(self, request: ToolRequest) -> tuple[ToolRequest, Base | None] | None:
        """An order with all earlier calls, and their base; None: the base of a short order is not here."""
        run, calls = request.run_id, request.earlier
        if isinstance(request, ShortRequest):
            if (earlier := self._bases.get(request.base)) is None or earlier[0] != run:
                return None
            self._forget(request.base)  # the next order goes on from this one
            base, calls = earlier[1].followed_by(calls), earlier[2] + calls
            request = replace(request, earlier=calls)
        elif not calls or not self._limit:
            return request, None
        else:
            base = Base.of(run).followed_by(calls)
        if base.bytes < self._least:
            return request, None
        self._forget(base.digest)
        self._bases[base.digest] = run, base, calls
        self._bytes += base.bytes
        while self._bytes > self._limit:
            self._forget(next(iter(self._bases)))
        return request, base if base.digest in self._bases else None

    def _forget(self, digest: str) -> None:
        if digest in self._bases:
            self._bytes -= self._bases.pop(digest)[1].bytes


class CallQueue:
    """Calls of a partition that wait for a slot, in order, and those put aside. **Units**: bytes; monotonic ms."""

    def __init__(self) -> None:
        self._queue: OrderedDict[str, Requested] = OrderedDict()
        self._aside: OrderedDict[str, tuple[int, Requested]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._queue) + len(self._aside)

    def __contains__(self, call: str) -> bool:
        return call in self._queue or call in self._aside

    @property
    def ready(self) -> bool:
        return bool(self._queue)

    def add(self, requested: Requested) -> None:
        """Add a call; of two requests, the one for the higher attempt stays, else the later."""
        call = requested.request.call_id
        before = self._queue.get(call)
        if before is not None and before.request.attempt > requested.request.attempt:
            requested.done = True
            return
        if before is not None or call in self._aside:
            self.withdraw(call, requested.request.attempt)
        self._queue[call] = requested
        self.bytes += requested.bytes

    def take(self) -> Requested:
        requested = self._queue.popitem(last=False)[1]
        self.bytes -= requested.bytes
        return requested

    def put_aside(self, requested: Requested, until_ms: int) -> None:
        """Keep a call, which cannot begin now, aside until this time."""
        self._aside[requested.request.call_id] = until_ms, requested
        self.bytes += requested.bytes

    def bring_back(self) -> None:
        while self._aside:
            _, requested = self._aside.popitem(last=False)[1]
            self.bytes -= requested.bytes
            self.add(requested)

    def give_up(self, now_ms: int) -> None:
        """Drop calls aside for long enough: the planner sends them again."""
        while self._aside and (first := next(iter(self._aside.values())))[0] <= now_ms:
            self._drop(first[1])
            self._aside.popitem(last=False)

    def withdraw(self, call: str, upto: int = sys.maxsize) -> None:
        # A claim would come after the `Close` and find nothing.
        if (requested := self._queue.get(call)) and requested.request.attempt <= upto:
            self._drop(self._queue.pop(call))
        if call in self._aside and self._aside[call][1].request.attempt <= upto:
            self._drop(self._aside.pop(call)[1])

    def clear(self) -> None:
        self._queue.clear()
        self._aside.clear()
        self.bytes = 0

    def _drop(self, requested: Requested) -> None:
        requested.done = True
        self.bytes -= requested.bytes
