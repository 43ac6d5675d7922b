"""No size of batches and no order of partitions or runs changes a row."""

from __future__ import annotations

from random import Random

import pytest

from refold.core.run.erased import erased_run
from refold.core.topics import RUN_LOG
from refold.projections.shipped import tables
from tests.projections.logs import recorded, recovered, simulated
from tests.projections.viewed import Log, Viewed

SEEDS = [seed for seed in range(20) if all(record.value for record in simulated(seed) if erased_run(record.key))]
"""Worlds without markers that were taken back: their logs are cleaned before that, and these are not."""

LOGS = {
    "everything": recorded()["everything"],
    **{f"world {seed}": simulated(seed) for seed in SEEDS[:10]},
    "retried": max(recovered("retried").values(), key=len),
}


def interleaved(log: Log, seed: int) -> Log:
    """The same records in another order of topics, partitions and runs; each run keeps its own, and its place."""
    places: dict[tuple[str, int], list[int]] = {}
    for number, record in enumerate(log):
        places.setdefault((record.topic, record.partition), []).append(number)
    rng, found = Random(seed), Log([], log.number)
    while places:
        place = rng.choice(sorted(places))
        for _ in range(rng.randint(1, 9)):
            if queue := places.get(place):
                found.append(log[queue.pop(0)])
        if not places[place]:
            del places[place]
    return found


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("size", [1, 7])
def test_batches_of_any_size_give_equal_rows(name: str, size: int) -> None:
    assert Viewed.of(LOGS[name], size).digests() == Viewed.of(LOGS[name]).digests()


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("seed", range(3))
def test_partitions_in_any_order_give_equal_rows(name: str, seed: int) -> None:
    whole = Viewed.of(LOGS[name])
    other = Viewed(LOGS[name])

    other.apply(interleaved(LOGS[name], seed), size=Random(seed).randint(1, 40))

    assert other.digests() == whole.digests()


def test_runs_that_are_mixed_otherwise_within_a_partition_give_equal_rows() -> None:
    """As a mirror that copies the runs of a log one after the other would have them; places are others then."""
    log = Log([record for record in LOGS["everything"] if record.topic == RUN_LOG], LOGS["everything"].number)
    by_run = sorted(log, key=lambda record: (record.key or b"").partition(b"/")[0])
    offsets = dict.fromkeys(range(log.number), 0)
    copied = Log([], log.number)
    for record in by_run:
        copied.append(record._replace(offset=offsets[record.partition]))
        offsets[record.partition] += 1
    placed = {tables.ENTRIES.name}

    one, other = Viewed.of(log).digests(), Viewed.of(copied).digests()

    assert {name: one[name] for name in one if name not in placed} == {
        name: other[name] for name in other if name not in placed
    }
