"""Selection of a stream's events, ids of places in it, and pages of events from the view.

The stream of a run numbers its events; others count by partition of the run log. An entry has the same offset in every
view, and its run stays in one partition: a client can continue from any place, through any gateway.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple

from refold.client.reading.model import plain
from refold.client.reading.run import RunEvent
from refold.console.gateway.reading import events_in, number_of
from refold.console.projections.shipped.tables import ENTRIES, RUN_SESSIONS
from refold.core.errors import MalformedError
from refold.core.ids import is_below
from refold.core.run.state import END_STATUSES
from refold.core.tables import ViewRow
from refold.core.topics import RUN_LOG
from refold.engine.ports.tables import Query, RunsWith, ViewReader, Where

PAGE_ENTRIES = 20
"""Entries of a page: one may have a mebibyte."""
INBOX_ENTRIES = 500
"""Entries of a page of the inbox, which sends few of them."""
WINDOW = 20_000
"""Offsets of a partition that a page searches for entries of some runs."""
CHUNK_BYTES = 64 << 10
"""Bytes of a chunk: the server buffers one for a slow client."""
ENDS = tuple(kind.__name__ for kind in END_STATUSES)
ASKS = (
    "ApprovalRequested", "ApprovalEscalated", "ApprovalDecided", "DoubtResolved", "CallRenewed", "RunFailed",
    "RunCancelled",
)  # fmt: skip
"""Events by which questions to people are asked, decided and closed."""

Places = Mapping[int, tuple[int, int]]
"""Place of a client by partition: it has everything before an offset, and a number of events at it."""
Cursor = int | Places
NOWHERE = (0, 0)

_SINCE = ENTRIES.places["since_offset"]
SelectionKind = Literal["run", "family", "session", "all", "inbox"]


class Page(NamedTuple):
    """Next chunks of a stream and the place behind them. `complete`: the view has no more; `over`: the stream ends."""

    chunks: list[bytes]
    at: Cursor
    complete: bool
    over: bool = False


@dataclass(frozen=True)
class Selection:
    """Events of a stream, from one partition or all, of the log with this identity. `parts`: with live output;
    `early`: the view lacks its run."""

    kind: SelectionKind
    name: str = ""
    home: int | None = None
    log: str = ""
    parts: bool = field(default=False, compare=False)
    early: bool = field(default=False, compare=False)

    @cached_property
    def tag(self) -> str:
        """Beginning of the ids, distinct for each stream and log."""
        return blake2b(f"{self.log} {self.kind} {self.name}".encode(), digest_size=4).hexdigest()

    def cursor(self, text: str) -> Cursor:
        """Parse an id. **Raises** MalformedError for an invalid id or another stream's."""
        tag, _, rest = text.partition("/")
        if self.kind == "run" and (number := number_of(text)) is not None:
            return number
        own = tag == self.tag and self.kind != "run"
        places = dict(map(_parse_place, rest.split(","))) if own and rest else {}
        if None in places or (not places and text != f"{self.tag}/"):
            hint = "leave it out to begin anew"
            raise MalformedError(f"Last-Event-ID {text[:40]!r} is of another stream, or of none", hint=hint)
        return {number: place for number, place in places.items() if number is not None and place > NOWHERE}

    def id_of(self, at: Cursor) -> str:
        if isinstance(at, int):
            return str(at)
        own = sorted((number, *at[number]) for number in at if self.home in (None, number))
        places = (f"{number}:{offset}+{events}" if events else f"{number}:{offset}" for number, offset, events in own)
        return f"{self.tag}/{','.join(places)}"

    def is_gone(self, log: str, erased: Collection[str]) -> bool:
        """True if the log was replaced by this one, or the run is among erased ones."""
        return self.log not in ("", log) or (self.kind in ("run", "family") and self.name in erased)

    def message(self, event: RunEvent, at: Cursor) -> bytes:
        data = plain(event) if self.kind == "run" else {"run_id": event.run_id, **plain(event)}
        # The id comes first: clients that read by lines know it before the data. `fastapi.sse` writes it last.
        return b"id: %s\nevent: %s\ndata: %s\n\n" % (self.id_of(at).encode(), event.type.encode(), json_bytes(data))

    def page(self, store: ViewReader, at: Cursor) -> Page:
        """Return the next events behind a place, read from one partition."""
        if isinstance(at, int):
            return self._page_of_run(store, at)
        ends = {number: end for number, end in log_ends(store).items() if self.home in (None, number)}
        lags = {number: end - at.get(number, NOWHERE)[0] for number, end in ends.items()}
        # The partition with most to send, so that a busy one does not hold up the others.
        number = max(lags, key=lambda partition: lags[partition], default=0)
        if lags.get(number, 0) <= 0:
            return Page([], at, complete=True)
        begin = at.get(number, NOWHERE)
        rows, reached = self._entries(store, number, begin[0], min(ends[number], begin[0] + WINDOW))
        messages = (
            self.message(event, {**at, number: place})
            for place, event in _events_with_places(filter(self._selects_run, rows))
            if place > begin and (self.kind != "inbox" or event.type in ASKS)
        )
        behind = {**at, number: (reached, 0)}
        complete = all(behind.get(partition, NOWHERE)[0] >= end for partition, end in ends.items())
        return Page(chunks_of(messages), behind, complete)

    def _page_of_run(self, store: ViewReader, seq: int) -> Page:
        where = Where("run_id", "=", self.name), Where("last_seq", ">", seq)
        rows = store.query(Query(ENTRIES, where, order="seq", limit=PAGE_ENTRIES + 1))
        complete = len(rows) <= PAGE_ENTRIES
        events = [event for row in rows[:PAGE_ENTRIES] for event in events_in(row) if event.seq > seq]
        if not events:
            return Page([], seq, complete)
        messages = [self.message(event, event.seq) for event in events]
        # A failed run goes on if somebody retries it.
        return Page(chunks_of(messages), events[-1].seq, complete, over=complete and events[-1].type in ENDS)

    def _selects_run(self, row: ViewRow) -> bool:
        return self.kind != "family" or is_below(str(row[0]), self.name)

    def _entries(self, store: ViewReader, partition: int, begin: int, end: int) -> tuple[list[ViewRow], int]:
        """Return entries between two offsets, and the offset up to which they are complete."""
        query = entries_between(partition, begin, end, INBOX_ENTRIES if self.kind == "inbox" else PAGE_ENTRIES)
        if self.kind == "family":
            # "/" follows ".", which begins a child's suffix.
            names = Where("run_id", ">=", self.name), Where("run_id", "<", f"{self.name}/")
            query = replace(query, where=(*query.where, *names))
        elif self.kind == "session":
            query = replace(query, within=(RunsWith(RUN_SESSIONS, (Where("session", "=", self.name),)),))
        rows = store.query(query)
        if len(rows) < query.limit:
            return rows, end
        last = int(rows[-1][_SINCE])
        if rows[0][_SINCE] != last:
            return [row for row in rows if row[_SINCE] != last], last
        # A history that was out of order counts by one record, however long it is.
        whole = replace(query, where=(*query.where, Where("since_offset", "=", last)), limit=1 << 30)
        return store.query(whole), last + 1


def _events_with_places(rows: Iterable[ViewRow]) -> Iterator[tuple[tuple[int, int], RunEvent]]:
    for since, group in groupby(rows, key=itemgetter(_SINCE)):
        events = [event for row in group for event in events_in(row)]
        for count, event in enumerate(events, start=1):
            yield ((int(since), count) if count < len(events) else (int(since) + 1, 0)), event


def entries_between(partition: int, begin: int, end: int, limit: int) -> Query:
    between = Where("partition", "=", partition), Where("since_offset", ">=", begin), Where("since_offset", "<", end)
    return Query(ENTRIES, between, order="since_offset", limit=limit)


def log_ends(store: ViewReader) -> dict[int, int]:
    """Return the end of the view by partition of the run log: the offset of the first record that it lacks."""
    return {number: offset for (topic, number), offset in store.positions().items() if topic == RUN_LOG}


def json_bytes(data: object) -> bytes:
    # The log may contain lone surrogates, which have no form in UTF-8.
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def chunks_of(messages: Iterable[bytes]) -> list[bytes]:
    """Join messages to chunks: a write costs more than its bytes."""
    chunks: list[bytes] = []
    for message in messages:
        if chunks and len(chunks[-1]) < CHUNK_BYTES:
            chunks[-1] += message
        else:
            chunks.append(message)
    return chunks


def _parse_place(text: str) -> tuple[int | None, tuple[int, int]]:
    """Parse a place as `Selection.id_of` writes it, `partition:offset+events`; None as partition if it is invalid."""
    partition, _, rest = text.partition(":")
    offset, plus, events = rest.partition("+")
    numbers = [number_of(part) for part in (partition, offset, events if plus else "0")]
    return (None, NOWHERE) if None in numbers else (numbers[0], (numbers[1] or 0, numbers[2] or 0))
