"""A generation of a projection and its place in the log: it is fed batch by batch, up to where it is told to stop."""

from __future__ import annotations

import time
from collections.abc import Mapping

from refold.core.errors import ConflictError, UsageError
from refold.core.topics import RUN_SNAPSHOT
from refold.ports.log import LogFeed, LogSource, Place, Record
from refold.ports.tables import ViewStore
from refold.projections.projector import Projector
from refold.projections.whole import LoggedRuns
from refold.sdk.projection import Projection

MOST_RECORDS = 5_000
MOST_BYTES = 64 << 20
PACE_S = 0.1
"""How far commits are apart at least: a transaction costs as much as a hundred records. What comes alone is not held
up; in a steady stream readers see it so much later."""
OLDEST_S = 0.2
"""How long a batch waits for more records at most."""


class Follower:
    """See the module. `store` is that of the generation. Used by one thread. **Raises** as its log and its store."""

    def __init__(self, projection: Projection, store: ViewStore, source: LogSource) -> None:
        self.projection, self.store = projection, store
        self.projector = Projector(projection, store, LoggedRuns(source.reader))
        bounds = source.bounds()
        self.positions = dict.fromkeys(bounds, 0) | store.positions()
        self._source = source
        self._feed: LogFeed | None = None
        self._committed = 0.0
        if reason := misplaced(store.notes(), self.positions, source.identity(), bounds):
            ways_out = (
                f"`refold projection rebuild {projection.name}` reads this log from its start; or name another database"
            )
            raise UsageError(f"the views of {projection.name} stand still: {reason}", hint=ways_out)

    def advance(self, timeout_s: float, until: Mapping[Place, int] | None = None) -> int:
        """Apply the next batch and return how many records it had. Records at `until` or behind stay unread."""
        feed = self._feed = self._feed or self._source.feed(self._wanted())
        records = self._take(feed, timeout_s)
        taken = [
            record
            for record in records
            if until is None or record.offset < until.get((record.topic, record.partition), 0)
        ]
        moves: dict[Place, tuple[int, int]] = {}
        reached = {
            place: end if until is None else min(end, until.get(place, 0)) for place, end in feed.reached.items()
        }
        reached |= {(record.topic, record.partition): record.offset + 1 for record in taken}
        for place, after in reached.items():
            if after > self.positions[place]:
                moves[place] = self.positions[place], after
        if len(taken) < len(records):
            self.close()  # another feed begins at the positions
        if moves:
            # A marker is written before the tombstones that follow it, so markers of a batch come first.
            taken.sort(key=_markers_first)
            self.projector.apply(taken, moves)
            self.positions.update({place: after for place, (_, after) in moves.items()})
            self._committed = time.monotonic()
        if self._marking and not self._behind_in(RUN_SNAPSHOT):
            self.close()
        return len(taken)

    def reach(self, until: Mapping[Place, int], timeout_s: float = 60.0) -> None:
        """Go on to these positions, and no further. **Raises** ConflictError where records of them do not come."""
        heard = time.monotonic()
        while any(self.positions[place] < end for place, end in until.items()):
            if self.advance(0.1, until):
                heard = time.monotonic()
            elif time.monotonic() - heard > timeout_s:
                raise ConflictError(f"the log is at {self.positions}, and does not come to {dict(until)}")

    def close(self) -> None:
        """Read no more. The next `advance` begins at the positions."""
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()

    def _wanted(self) -> dict[Place, int]:
        """Where to read. Markers are read to their end first: a tombstone without a marker costs a look at its run."""
        bounds = self._source.bounds()
        self._ends = {place: end for place, (_, end) in bounds.items()}
        self._marking = self._behind_in(RUN_SNAPSHOT)
        return {place: at for place, at in self.positions.items() if not self._marking or place[0] == RUN_SNAPSHOT}

    def _behind_in(self, topic: str) -> bool:
        return any(self.positions[place] < end for place, end in self._ends.items() if place[0] == topic)

    def _take(self, feed: LogFeed, timeout_s: float) -> list[Record]:
        """A batch: what has come, for as long as there is more of it, or the last commit was just now."""
        records = feed.take(timeout_s)
        begun, size = time.monotonic(), sum(len(record.value or b"") for record in records)
        if records and (left := self._committed + PACE_S - begun) > 0 and len(records) < MOST_RECORDS:
            time.sleep(left)
        while records and len(records) < MOST_RECORDS and size < MOST_BYTES and time.monotonic() - begun < OLDEST_S:
            if not (more := feed.take(0)):
                break
            size += sum(len(record.value or b"") for record in more)
            records += more
        return records


def _markers_first(record: Record) -> bool:
    return record.topic != RUN_SNAPSHOT


def misplaced(
    notes: Mapping[str, str], positions: Mapping[Place, int], log: str, bounds: Mapping[Place, tuple[int, int]]
) -> str:
    """Return why positions mean nothing in a log, or nothing: it is another one, or it has lost what comes next."""
    if (of := notes.get("log", "")) != log:
        return f"they are of the log {of}, and this one is {log}"
    for place, (start, end) in bounds.items():
        at = positions.get(place, 0)
        cut = f"{place[0]}/{place[1]} has the records {start} to {end}, and they go on at {at}"
        if at > end:
            return f"the log has lost its end: {cut}"
        if at and place[0] != RUN_SNAPSHOT and start > at:
            return f"the log has lost its beginning: {cut}"
    return ""


def lags(positions: Mapping[Place, int], bounds: Mapping[Place, tuple[int, int]]) -> dict[Place, int]:
    """Return how many offsets each position is behind the high watermark."""
    return {place: max(0, end - positions.get(place, 0)) for place, (_, end) in bounds.items()}
