"""Faults planted into the projector and the shipped tables: each is seen by a comparison with other readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from refold.console.projections import projector
from refold.console.projections.batch import Batch
from refold.console.projections.projector import Projector
from refold.core.events import Entry, StatusSet
from refold.core.ids import log_key
from refold.core.wire import codec
from tests.projections.histories import begun, entries, log_of, long, mixed
from tests.projections.judges import differences
from tests.projections.test_disorder import MIXED, again, bury, mark, names, spoilt
from tests.projections.viewed import Viewed


def loser_counts(patch: pytest.MonkeyPatch) -> None:
    """An entry that has lost the race counts too."""
    patch.setattr(projector, "_counts", lambda head, entry: entry.seq <= head.last.seq + 1 and bool(entry.prev))


def loser_is_shown(patch: pytest.MonkeyPatch) -> None:
    """A value is shown of an entry that has lost the race."""
    counts = projector._counts

    def shown(head: Any, entry: Entry) -> bool:
        return counts(head, entry) or any(isinstance(event, StatusSet) and event.name for event in entry.events)

    patch.setattr(projector, "_counts", shown)


def raced_values() -> list[str]:
    """What differs for a log in which two entries expose other values behind one."""
    won = entries("r-1", begun(), [StatusSet("1", "cart")])
    entry = codec.decode(Entry, won[-1][1] or b"")
    name, value = codec.encode_entry(replace(entry, events=[StatusSet("2", "cart")], nonce=b"other"))
    return differences(Viewed.of(log_of([*won, (log_key(entry.run_id, entry.seq, name), value)]), 1))


def jump_passes(patch: pytest.MonkeyPatch) -> None:
    """An entry that does not follow is passed over."""

    def read(self: Any, batch: Any, runs: Any, ends: Any) -> None:
        pass

    patch.setattr(Projector, "_read_whole", read)


def orphans_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks again for entries that waited for their predecessor."""
    stand = Projector._stand
    patch.setattr(Projector, "_stand", lambda self, batch, head: stand(self, batch, head._replace(orphans=False)))


def adds_twice(patch: pytest.MonkeyPatch) -> None:
    """What is added once counts twice."""
    changed = Batch.changed

    def twice(self: Batch) -> Any:
        for added in self._added.values():
            for sums in added.values():
                for amounts in sums.values():
                    amounts[:] = [2 * amount for amount in amounts]
        return changed(self)

    patch.setattr(Batch, "changed", twice)


def erased_comes_back(patch: pytest.MonkeyPatch) -> None:
    """Nobody remembers that a run was erased."""
    stand = Projector._stand
    forgetful: Callable[..., None] = lambda self, batch, head: stand(  # noqa: E731
        self, batch, head._replace(status="" if head.status == "erased" else head.status)
    )
    patch.setattr(Projector, "_stand", forgetful)


def in_disorder(seed: int, *kinds: str) -> list[str]:
    """What differs for a log with these things in it."""
    return differences(Viewed.of(log_of(spoilt(MIXED, seed, kinds)), 7))


def comes_back() -> list[str]:
    """Where a run is named that was erased, and of which records come late."""
    viewed = Viewed.of(log_of(mixed([long("r-3"), long("r-4")], 1)))
    mark(viewed, "r-3")
    bury(viewed, "r-3")
    again(viewed, long("r-3"))
    return [name for name in names(viewed, "r-3") if name != "heads"]


CHECKS: dict[Callable[[pytest.MonkeyPatch], None], Callable[[], list[str]]] = {
    loser_counts: lambda: in_disorder(1, "loser"),
    loser_is_shown: raced_values,
    jump_passes: lambda: in_disorder(1, "jump"),
    orphans_are_forgotten: lambda: in_disorder(1, "jump"),
    adds_twice: lambda: differences(Viewed.of(log_of(MIXED))),
    erased_comes_back: comes_back,
}


@pytest.mark.parametrize("plant", CHECKS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_seen(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    assert CHECKS[plant]() == []

    plant(monkeypatch)

    assert CHECKS[plant]() != []
