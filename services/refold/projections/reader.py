"""Reads a run from the rows of its entries as if it still lay in the log."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from refold.core.errors import NotFoundError
from refold.core.ids import EntryId, RunId, log_key
from refold.core.topics import RUN_LOG
from refold.ports.log import Record
from refold.ports.tables import ViewReader, ViewTable


class EntriesReader:
    """A `LogReader` of the run log with one run in it, and of that the records that count.

    `entries` is the table of the shipped projection with this name.
    """

    def __init__(self, store: ViewReader, entries: ViewTable, run: RunId) -> None:
        self._store, self._entries, self._run = store, entries, run

    def partitions(self, topic: str) -> int:
        """One: whoever looks for the run's home finds it."""
        if topic != RUN_LOG:
            raise NotFoundError(f"a view holds records of {RUN_LOG} alone, not of {topic}")
        return 1

    def scan(self, topic: str, partition: int | None = None) -> Iterator[Record]:
        self.partitions(topic)
        for row in self._store.rows_of(self._entries, self._run):
            found: dict[str, Any] = dict(zip(self._entries.names, row, strict=True))
            key = log_key(self._run, found["seq"], EntryId(found["id"]))
            place = RUN_LOG, found["partition"], found["offset"]
            yield Record(*place, key, found["value"], list, found["logged_ms"])

    def tail_kinds(self, kinds: Collection[str], partition: int) -> Iterator[Record | None]:
        return self.tail(RUN_LOG)

    def tail(self, topic: str, partition: int | None = None) -> Iterator[Record | None]:
        yield from self.scan(topic)
        while True:
            yield None
