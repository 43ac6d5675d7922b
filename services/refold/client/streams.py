"""Live output of a run's calls, from `run-stream`: for display, and lossy."""

import time
from collections import defaultdict, deque
from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from refold.client.operations.runs import Runs, run_named
from refold.client.reading.history import Run, feed
from refold.core.errors import FoldError, MalformedError
from refold.core.events import CallProposed
from refold.core.ids import CallId, RunId, call_id, home, parse_call_id
from refold.core.messages import StreamPart
from refold.core.run.log import LogFold
from refold.core.topics import RUN_LOG, RUN_STREAM, pool_of
from refold.core.wire import canonical, codec
from refold.engine.ports.log import Record

OVER_S = 1.0
"""Seconds of silence after which a finished run's output is complete: other topics lag."""
MOST_WAITING_BYTES = 1 << 20
"""Bytes of a pool's parts that wait for their calls."""


@dataclass(frozen=True, slots=True)
class LivePart:
    """A part of a call's output. `n` numbers the parts of a try from 1; a missing number was lost. `supersedes`: it is
    the first of a new try, and earlier output of the call is void. `data` has `text`, or `tool` and `args`, by `kind`:
    text, thinking, tool_call."""

    run_id: str
    call_id: str
    attempt: int
    n: int
    kind: str
    data: Any
    supersedes: bool = False


class Tries:
    """Filter of live output: `read` returns None for parts of earlier tries of a call."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}

    def read(self, part: StreamPart) -> LivePart | None:
        tried, last = (part.attempt, part.began_ms), self._last.get(part.call_id)
        if last is not None and tried < last:
            return None
        self._last[part.call_id] = tried
        data, new = canonical.parse(part.data), last is not None and tried > last
        return LivePart(part.run_id, part.call_id, part.attempt, part.n, part.kind, data, new)


class Vouched:
    """Filter for parts of a run whose calls belong to the topic's pool. Parts before their call wait."""

    def __init__(self, run: RunId) -> None:
        self.run, self._fold, self._pools = Run.empty(run), LogFold(), dict[CallId, str]()
        self._waiting: dict[str, deque[StreamPart]] = defaultdict(deque)
        self._bytes: dict[str, int] = defaultdict(int)

    def read(self, record: Record) -> list[StreamPart]:
        """Parts that a record releases: its own if its call is known, or those that waited for calls of an entry."""
        run = self.run.state.run_id
        if record.topic == RUN_LOG:
            return self._take_entry(record) if run_named(record) == run.encode() else []
        part, pool = part_in(record), pool_of(record.topic)
        if part is None or part.run_id != run:
            return []
        if part.call_id in self._pools:
            # An executor can write only its own pool's topic, so it cannot forge other pools' parts.
            return [part] if self._pools[part.call_id] == pool else []
        waiting = self._waiting[pool]
        waiting.append(part)
        self._bytes[pool] += len(part.data)
        # By pool: an executor that makes up calls displaces no parts of other pools.
        while self._bytes[pool] > MOST_WAITING_BYTES:
            self._bytes[pool] -= len(waiting.popleft().data)
        return []

    def _take_entry(self, record: Record) -> list[StreamPart]:
        judged = feed(self._fold, record)
        self.run.take(judged, self._fold)
        ordered: dict[CallId, str] = {}
        refolded = judged.linked or judged.mended
        if refolded:
            self._pools.clear()
        for added in self.run.records if refolded else self.run.records[-1:]:
            for seq, event in enumerate(added.entry.events, added.entry.seq) if added.entry else ():
                if isinstance(event, CallProposed):
                    ordered[call_id(self.run.state.run_id, seq)] = event.pool
        self._pools.update(ordered)
        return [part for call, pool in ordered.items() for part in self._release(call, pool)]

    def _release(self, call: CallId, pool: str) -> list[StreamPart]:
        released = [part for part in self._waiting[pool] if part.call_id == call]
        for parts in self._waiting.values():
            remaining = [part for part in parts if part.call_id != call]
            parts.clear()
            parts.extend(remaining)
        self._bytes = defaultdict(int, {name: sum(len(p.data) for p in parts) for name, parts in self._waiting.items()})
        return released


def live_parts(runs: Runs, run: RunId, timeout: timedelta | None) -> Generator[LivePart | None]:
    """Yield a run's parts, None when idle, until a `timeout` without parts or the run's end."""
    tries, vouched, last_part = Tries(), Vouched(run), time.monotonic()
    read = last_part
    for record in runs.reader.tail_kinds((RUN_LOG, RUN_STREAM), home(run, runs.partitions)):
        read = read if record is None else time.monotonic()
        for part in vouched.read(record) if record is not None else ():
            if (live := tries.read(part)) is not None:
                yield live
                last_part = time.monotonic()
        if timeout is not None and time.monotonic() - last_part > timeout.total_seconds():
            return
        if record is None and vouched.run.state.over and time.monotonic() - read > OVER_S:
            return
        if record is None:
            yield None


def part_in(record: Record) -> StreamPart | None:
    """Decode the part of a call's live output in a record; None if it is unreadable or of another run's call."""
    try:
        part = codec.decode(StreamPart, record.value or b"")
        canonical.parse(part.data)
        owner = parse_call_id(part.call_id)[0]
    # A part may be of a newer version: without it, the others still count.
    except (FoldError, MalformedError):
        return None
    return part if part.run_id == owner else None
