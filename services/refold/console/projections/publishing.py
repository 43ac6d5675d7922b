"""Publishes changed rows of runs to `run-view`, at least once, after the transaction that changed them."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from refold.console.projections.shipped.tables import ENTRIES, RUNS
from refold.core.errors import ConflictError
from refold.core.ids import RunId
from refold.core.messages import RunView
from refold.core.tables import ViewRow, ViewTable
from refold.core.topics import RUN_LOG
from refold.core.wire import codec
from refold.engine.ports.log import Place
from refold.engine.ports.tables import Query, ViewChanges, ViewReader, ViewStore, Where, fenced

SendRows = Callable[[Mapping[RunId, bytes | None]], None]
"""Writes values by run, None for a tombstone, and waits for Kafka. **Raises** UnreachableError."""

RUN_IDS = ViewTable(RUNS.name, {"run_id": str}, 1)
"""Key of `RUNS`, the same in any version."""

PUBLISHED, REPLACED = "published", "replaced"
"""Notes: positions up to which rows are published; runs whose rows were removed last."""
MANY_RUNS = 500
NOTED_EACH = 50
"""Batches between two notes of the position; a start publishes their rows once more."""


class RunRows:
    """Publisher of rows. `in_use` opens the generation that replaced `store`. **Raises** UnreachableError and
    ConflictError: begin again with another publisher."""

    def __init__(self, store: ViewStore, send: SendRows, in_use: Callable[[], ViewReader] | None = None) -> None:
        self._store, self._send, self._in_use = store, send, in_use or (lambda: store)
        self._batches, self._positions = 0, dict[Place, int]()

    def begin(self) -> None:
        """Publish the rows since the noted position, or all."""
        # Before the notes: a batch in between refuses the next note.
        self._positions = dict(self._store.positions())
        notes = self._store.notes()
        published = json.loads(notes.get(PUBLISHED, "null"))
        runs = (RunId(str(row[0])) for row in self._store.scan(RUNS)) if published is None else self._since(published)
        for some in _portions([*runs, *map(RunId, notes.get(REPLACED, "").split())]):
            self._write(some)
        self._note_positions()

    def publish(self, changes: ViewChanges) -> None:
        runs = {RunId(str(key[0])) for key in changes.rows.get(RUNS, ())} | changes.runs
        self._positions |= {place: after for place, (_, after) in changes.moves.items()}
        for some in _portions(runs):
            self._write(some)
        self._batches += 1
        if changes.runs or self._batches >= NOTED_EACH:  # the note may name runs that were erased
            self._note_positions()

    def _since(self, published: Mapping[str, int]) -> Iterator[RunId]:
        for partition in (number for topic, number in self._store.positions() if topic == RUN_LOG):
            where = (Where("partition", "=", partition), Where("since_offset", ">=", published.get(str(partition), 0)))
            query = Query(ENTRIES, where, order="since_offset")
            while page := self._store.query(query):
                yield from (RunId(str(row[0])) for row in page)
                query = replace(query, after=query.place(page[-1]))

    def _write(self, runs: Collection[RunId]) -> None:
        keys = [(run,) for run in runs]
        rows: dict[RunId, ViewRow | None] = {}
        # Read again after Kafka has the rows: a process that lost the lock meanwhile overwrites its stale row.
        while (now := self._rows(keys)) != rows:
            self._send({run: _encoded_row(row) for run, row in now.items() if run not in rows or rows[run] != row})
            rows = now

    def _rows(self, keys: Collection[tuple[RunId]]) -> dict[RunId, ViewRow | None]:
        try:
            stored = self._store.rows(RUNS, keys)
        # Another process has gone on while this one was paused: its last row may be stale.
        except ConflictError:
            stored = self._in_use().rows(RUNS, keys)
        return {key[0]: stored.get(key) for key in keys}

    def _note_positions(self) -> None:
        # Noted after the rows are published, so that the next start writes all rows that a crash left unwritten.
        ends = {str(place[1]): at for place, at in self._positions.items() if place[0] == RUN_LOG}
        # A process that lost the lock must not clear what a batch of its successor has left to publish.
        notes = {PUBLISHED: json.dumps(ends), REPLACED: ""}
        self._store.commit(ViewChanges((), moves=fenced(self._positions), notes=notes))
        self._batches = 0


def _encoded_row(row: ViewRow | None) -> bytes | None:
    return None if row is None else codec.encode(RunView(*row))  # type: ignore[arg-type]


def _portions(runs: Iterable[RunId]) -> Iterator[list[RunId]]:
    left = list(dict.fromkeys(runs))
    return (left[first : first + MANY_RUNS] for first in range(0, len(left), MANY_RUNS))
