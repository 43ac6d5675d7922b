"""The selection of a stream, a client's place in it, and its next page from the view.

The stream of a run numbers its events; others count by partition of the log. An entry counts since an offset that is
the same in every view and never within a run: a client can continue from any place, through any gateway.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple

from refold.client.streams import LivePart
from refold.core.errors import MalformedError
from refold.core.ids import is_below
from refold.core.tables import ViewRow
from refold.core.topics import RUN_LOG
from refold.gateway.reading import events_in, number_of
from refold.ports.tables import Query, RunsWith, ViewReader, Where
from refold.projections.shipped.tables import ENTRIES, RUN_SESSIONS
from refold.views.model import plain
from refold.views.run import RunEvent

PAGE_ENTRIES = 20
"""Entries that a listener reads from the view at a time."""
LOOK_ENTRIES = 500
"""Entries of a partition that are read at a time for all listeners."""
WINDOW = 20_000
"""Offsets of a partition that are searched at a time for entries of some runs."""
ENDS = ("RunCompleted", "RunFailed", "RunCancelled")
ASKS = (
    "ApprovalRequested", "ApprovalEscalated", "ApprovalDecided", "DoubtResolved", "CallRenewed", "RunFailed",
    "RunCancelled",
)  # fmt: skip
"""Events by which questions to people are asked, decided and closed."""

Places = Mapping[int, tuple[int, int]]
"""A client's place by partition: it has everything before an offset, and a number of events at it."""
Cursor = int | Places
NOWHERE = (0, 0)

_SINCE = ENTRIES.places["since_offset"]
SelectionKind = Literal["run", "family", "session", "all", "inbox"]


class SentEvent(NamedTuple):
    """An event as sent, and the place behind it. `ends`: its run is over."""

    at: Cursor
    data: bytes
    seq: int
    ends: bool


class Page(NamedTuple):
    """Events from the view, and the place behind them. `whole`: they reach the bound."""

    events: list[SentEvent]
    at: Cursor
    whole: bool


class ToldEvent(NamedTuple):
    """An event, its data in JSON, and the place behind it in its partition."""

    event: RunEvent
    data: bytes
    place: tuple[int, int]


@dataclass(frozen=True)
class Selection:
    """Selected events of a stream. `tag` begins its ids, distinct for each stream and log."""

    kind: SelectionKind
    name: str = ""
    home: int | None = None
    parts: bool = False
    tag: str = field(default="", compare=False)

    def tagged(self, log: str) -> Selection:
        return replace(self, tag=blake2b(f"{log} {self.kind} {self.name}".encode(), digest_size=4).hexdigest())

    def opened(self, text: str) -> Cursor:
        """Parse an id. **Raises** MalformedError for an invalid id or another stream's."""
        tag, _, rest = text.partition("/")
        if self.kind == "run" and (number := number_of(text)) is not None:
            return number
        places = dict(map(_place, rest.split(","))) if tag == self.tag and self.kind != "run" and rest else {}
        if None in places or (not places and text != f"{self.tag}/"):
            raise MalformedError(
                f"Last-Event-ID {text[:40]!r} is of another stream, or of none", hint="leave it out to begin anew"
            )
        return {number: place for number, place in places.items() if number is not None and place > NOWHERE}

    def sealed(self, at: Cursor) -> str:
        if isinstance(at, int):
            return str(at)
        mine = sorted((number, *at[number]) for number in at if self.home in (None, number))
        places = (f"{number}:{offset}+{given}" if given else f"{number}:{offset}" for number, offset, given in mine)
        return f"{self.tag}/{','.join(places)}"

    def sent(self, told: ToldEvent, at: Places) -> SentEvent | None:
        """Return an event as a message, None if it is not selected."""
        event, data, _ = told
        if self.kind == "inbox" and event.type not in ASKS:
            return None
        place: Cursor = at
        if self.kind == "run":
            place = event.seq
        else:
            data = b'{"run_id":%s,%s' % (json.dumps(event.run_id).encode(), data[1:])
        message = b"id: %s\nevent: %s\ndata: %s\n\n" % (self.sealed(place).encode(), event.type.encode(), data)
        return SentEvent(place, message, event.seq, event.type in ENDS)

    def page(self, store: ViewReader, at: Cursor, until: Places | None) -> Page:
        """Return the next events behind a place, up to another, if any."""
        if isinstance(at, int):
            return self._page_of_run(store, at, until)
        mine = {number: end for number, (end, _) in (until or {}).items() if self.home in (None, number)}
        behind = (number for number, end in mine.items() if at.get(number, NOWHERE)[0] < end)
        if (number := next(behind, None)) is None:
            return Page([], at, whole=all(at.get(number, NOWHERE) == (end, 0) for number, end in mine.items()))
        before, end = at.get(number, NOWHERE), min(mine[number], at.get(number, NOWHERE)[0] + WINDOW)
        rows, reached = _counting(store, number, before[0], end, self._conditions())
        found = []
        for told in told_of(filter(self._has, rows)):
            at = {**at, number: told.place}
            if told.place > before and (sent := self.sent(told, at)):
                found.append(sent)
        return Page(found, {**at, number: (reached, 0)}, whole=False)

    def _page_of_run(self, store: ViewReader, seq: int, until: Places | None) -> Page:
        where = [Where("run_id", "=", self.name), Where("last_seq", ">", seq)]
        if until is not None and self.home is not None:
            where.append(Where("since_offset", "<", until.get(self.home, NOWHERE)[0]))
        rows = store.query(Query(ENTRIES, tuple(where), order="seq", limit=PAGE_ENTRIES))
        found = (self.sent(told, {}) for told in told_of(rows) if told.event.seq > seq)
        events = [sent for sent in found if sent]
        return Page(events, events[-1].at if events else seq, whole=len(rows) < PAGE_ENTRIES)

    def _has(self, row: ViewRow) -> bool:
        return self.kind != "family" or is_below(str(row[0]), self.name)

    def _conditions(self) -> Query:
        if self.kind == "family":
            named = Where("run_id", ">=", self.name), Where("run_id", "<", f"{self.name}/")
            return Query(ENTRIES, named, limit=PAGE_ENTRIES)
        if self.kind == "session":
            within = RunsWith(RUN_SESSIONS, (Where("session", "=", self.name),))
            return Query(ENTRIES, within=(within,), limit=PAGE_ENTRIES)
        return Query(ENTRIES, limit=LOOK_ENTRIES if self.kind == "inbox" else PAGE_ENTRIES)


LIVE = 1 << 62
"""Number of an event that has none."""


def part_message(part: LivePart, at: Places, *, of_run: bool) -> SentEvent:
    """Return a live part as a message without an id."""
    data = json.dumps(asdict(part), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return SentEvent(0 if of_run else at, b"event: part\ndata: %s\n\n" % data, LIVE, ends=False)


def _place(text: str) -> tuple[int | None, tuple[int, int]]:
    partition, _, rest = text.partition(":")
    offset, plus, given = rest.partition("+")
    numbers = [number_of(part) for part in (partition, offset, given if plus else "0")]
    return (None, NOWHERE) if None in numbers else (numbers[0], (numbers[1] or 0, numbers[2] or 0))


def looked_through(store: ViewReader, partition: int, start: int, end: int) -> tuple[list[ViewRow], int]:
    """Return entries between two offsets, and the offset up to which they are complete."""
    return _counting(store, partition, start, end, Query(ENTRIES, limit=LOOK_ENTRIES))


def _counting(store: ViewReader, partition: int, start: int, end: int, wanted: Query) -> tuple[list[ViewRow], int]:
    between = Where("partition", "=", partition), Where("since_offset", ">=", start), Where("since_offset", "<", end)
    query = replace(wanted, where=(*between, *wanted.where), order="since_offset")
    rows = store.query(query)
    if len(rows) < query.limit:
        return rows, end
    last = int(rows[-1][_SINCE])
    if rows[0][_SINCE] != last:
        return [row for row in rows if row[_SINCE] != last], last
    # A history that was out of order counts by one record, however long it is.
    return store.query(replace(query, where=(*query.where, Where("since_offset", "=", last)), limit=1 << 30)), last + 1


def told_of(rows: Iterable[ViewRow]) -> Iterator[ToldEvent]:
    for since, group in groupby(rows, key=itemgetter(_SINCE)):
        events = [event for row in group for event in events_in(row)]
        for number, event in enumerate(events, start=1):
            data = json.dumps(plain(event), ensure_ascii=False, separators=(",", ":"))
            place = (int(since), number) if number < len(events) else (int(since) + 1, 0)
            # The log may contain lone surrogates, which have no form in UTF-8.
            yield ToldEvent(event, data.encode("utf-8", "replace"), place)


def positions_in(store: ViewReader) -> Places:
    return {number: (offset, 0) for (topic, number), offset in store.positions().items() if topic == RUN_LOG}
