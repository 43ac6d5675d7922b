"""Faults planted into the projector and the shipped tables: each is seen by a comparison with other readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from refold.console.projections import projector
from refold.console.projections.batch import Batch
from refold.console.projections.projector import Projector
from tests.projections.histories import log_of, long, mixed
from tests.projections.judges import differences
from tests.projections.test_disorder import MIXED, again, bury, mark, names, spoilt
from tests.projections.viewed import Viewed


def loser_counts(patch: pytest.MonkeyPatch) -> None:
    """An entry that has lost the race counts too."""
    patch.setattr(projector, "_counts", lambda head, entry: entry.seq <= head.last.seq + 1 and bool(entry.prev))


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
