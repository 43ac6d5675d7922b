"""Bugs of projectors: rows and positions apart, records that count and should not, generations switched too early."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from refold.core.errors import UnreachableError
from refold.core.events import Entry
from refold.ports.log import Place, Record
from refold.ports.tables import ViewChanges
from refold.projections.batch import Batch
from refold.projections.projector import Projector, RunHead
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


SHORTSIGHTED: dict[str, Bug] = {
    "position-apart": Bug((), (wrapped("Projector.apply", _apart),), schedules=300),
    "batch-sent-again": Bug((), (wrapped("Projector.apply", _sent_again),), schedules=300),
    "loser-in-a-view": Bug((), (("projections.projector._counts", _loser_counts),), schedules=600),
    "jump-passed-over": Bug((), (("Projector._read_whole", _passed_over),), schedules=600),
    "erased-comes-back": Bug(("viewed-erased",), (wrapped("Projector._stand", _forgetting),), schedules=600),
    "switched-too-early": Bug((), (("projections.service.lags", _nothing_behind),), schedules=300),
    "erased-sums-lost": Bug((), (("projections.service.carried", _nothing_carried),), schedules=900),
}
"""By name."""
