"""Bugs of projectors: rows and positions apart, records that count and should not, generations switched too early."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from refold.console.projections.batch import Batch
from refold.console.projections.projector import Projector, RunHead
from refold.console.projections.publishing import RunRows
from refold.console.projections.shipped.tables import DEAD_LETTER_ROWS, VOTES
from refold.core.errors import UnreachableError
from refold.core.events import CallReserved, Entry, RunAnnotated
from refold.core.ids import RunId
from refold.core.topics import APPROVAL_VOTED, RUN_SNAPSHOT
from refold.engine.ports.log import Place, Record
from refold.engine.ports.tables import ViewChanges
from tests.sim.bugs.planting import Bug, wrapped

_Apply = Callable[..., ViewChanges]


def _apart(original: _Apply) -> _Apply:
    """The position moves in a transaction of its own, before that of the rows."""

    def apply(
        self: Projector, records: Sequence[Record], moves: Mapping[Place, tuple[int, int]], notes: Any = None
    ) -> ViewChanges:
        self.store.commit(ViewChanges((), moves=dict(moves)))
        return original(self, records, {}, notes)

    return apply


class _Kept:
    """A store, and what was committed in it last."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.last: ViewChanges | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, changes: ViewChanges) -> None:
        """Note it, and commit it."""
        self.last = changes
        self._store.commit(changes)


def _sent_again(original: _Apply) -> _Apply:
    """A batch whose commit was not answered is sent again, wherever the position is."""

    def apply(self: Projector, *args: Any) -> ViewChanges:
        store: Any = self.store
        self.store = kept = _Kept(store)
        try:
            return original(self, *args)
        except UnreachableError:
            if kept.last is None:
                raise
            store.commit(replace(kept.last, moves={}))
            raise
        finally:
            self.store = store

    return apply


def _loser_counts(head: RunHead, entry: Entry) -> bool:
    return entry.seq <= head.last.seq + 1 and bool(entry.prev or not head.last.seq)


def _passed_over(self: Projector, batch: Batch, runs: Any, ends: Any) -> None:
    """A run that cannot be told from its head is left as it is."""


def _forgetting(original: Callable[..., None]) -> Callable[..., None]:
    def stand(self: Projector, batch: Batch, head: RunHead) -> None:
        original(self, batch, head._replace(status="" if head.status == "erased" else head.status, marked=False))

    return stand


def _nothing_behind(*_: object) -> dict[Place, int]:
    return {}


def _nothing_carried(*_: object) -> ViewChanges:
    return ViewChanges(())


def _without_nothing(original: Callable[..., None]) -> Callable[..., None]:
    """Rows are passed on, and not that there is none any more."""

    def begin(self: RunRows, store: Any, send: Callable[[Any], None], in_use: Any = None) -> None:
        valued = lambda values: send({run: value for run, value in values.items() if value is not None})  # noqa: E731
        original(self, store, valued, in_use)

    return begin


def _written_once(original: Callable[..., dict[RunId, Any]]) -> Callable[..., dict[RunId, Any]]:
    """Nobody reads a row again once it is passed on, to see whether it is still the row."""

    def rows(self: Any, keys: Any) -> dict[RunId, Any]:
        read = getattr(self, "_read_rows", None)
        self._read_rows = None if read and read[0] == keys else (keys, original(self, keys))
        return read[1] if read and self._read_rows is None else dict(self._read_rows[1])

    return rows


def _said(batch: Batch, record: Record) -> list[Any] | None:
    approval, _, vote = (record.key or b"").decode(errors="replace").rpartition("/")
    return batch.edit(VOTES, (batch.run, approval, vote))


def _counted_when_said(original: Mapping[str, Callable[..., None]]) -> object:
    """A vote counts as soon as somebody has given it."""

    def voted(batch: Batch, record: Record, partitions: int) -> None:
        original[APPROVAL_VOTED](batch, record, partitions)
        if (row := _said(batch, record)) is not None:
            row[VOTES.places["counts"]] = 1

    return {**original, APPROVAL_VOTED: voted}


def _never_over(original: Mapping[str, Callable[..., None]]) -> object:
    """A hold stays when the run goes on."""

    def held(batch: Batch, record: Record, partitions: int) -> None:
        if record.value is not None:
            original[RUN_SNAPSHOT](batch, record, partitions)

    return {**original, RUN_SNAPSHOT: held}


def _letters_kept(original: Callable[..., None]) -> Callable[..., None]:
    """The dead letters of a run outlast its erasure."""

    def erase(self: Projector, batch: Batch) -> None:
        kept = batch.rows_of(DEAD_LETTER_ROWS) if DEAD_LETTER_ROWS in batch.tables else []
        original(self, batch)
        for row in kept:
            batch.write(DEAD_LETTER_ROWS, tuple(row[: DEAD_LETTER_ROWS.keys]), row)

    return erase


def _unmetered(original: Mapping[type, Callable[..., None]]) -> object:
    """The usage of a result is priced, whether or not a budget bills the call."""
    return {**original, CallReserved: lambda *_: None}


def _noted_twice(original: Mapping[type, Callable[..., None]]) -> object:
    """A note makes a row by its entry, and another one by its event."""

    def annotated(turn: Any, event: RunAnnotated, seq: int) -> None:
        for number in (seq, -turn.entry.seq):
            original[RunAnnotated](turn, event, number)

    return {**original, RunAnnotated: annotated}


SHORTSIGHTED: dict[str, Bug] = {
    "position-apart": Bug((), (wrapped("Projector.apply", _apart),), schedules=300),
    "batch-sent-again": Bug((), (wrapped("Projector.apply", _sent_again),), schedules=300),
    "loser-in-a-view": Bug((), (("projections.projector._counts", _loser_counts),), schedules=600),
    "jump-passed-over": Bug((), (("Projector._read_whole", _passed_over),), schedules=600),
    "erased-comes-back": Bug(("viewed-erased",), (wrapped("Projector._stand", _forgetting),), ("mirror",)),
    "switched-too-early": Bug((), (("projections.service.lags", _nothing_behind),), schedules=300),
    "erased-sums-lost": Bug((), (("projections.service.carried", _nothing_carried),), schedules=900),
    "run-view-unburied": Bug((), (wrapped("RunRows.__init__", _without_nothing),), schedules=600),
    "run-view-forgets-the-erased": Bug((), (("projector.REPLACED", "nobody reads it"),), schedules=900),
    "older-row-over-newer": Bug((), (wrapped("RunRows._rows", _written_once),), schedules=900),
    "vote-counted-when-said": Bug((), (wrapped("beside._HANDLERS", _counted_when_said),), schedules=600),
    "hold-never-over": Bug((), (wrapped("beside._HANDLERS", _never_over),), schedules=900),
    "letters-outlast-erasure": Bug((), (wrapped("Projector._erase", _letters_kept),), schedules=900),
    "priced-though-billed": Bug((), (wrapped("shipped.projection._EVENTS", _unmetered),), minds=600),
    "noted-twice": Bug((), (wrapped("shipped.projection._EVENTS", _noted_twice),), schedules=300),
}
"""By name."""
