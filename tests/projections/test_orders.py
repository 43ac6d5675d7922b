"""No size of batches and no order of partitions or runs changes a row."""

from __future__ import annotations

from random import Random

import pytest

from refold.console.projections.shipped import tables
from refold.core.run.erased import erased_run
from refold.core.topics import RUN_LOG
from tests.projections.logs import recorded, recovered, simulated
from tests.projections.viewed import Log, Viewed

WORLDS = (0, 3, 4, 5, 6, 7, 8, 9, 10, 11)
"""Worlds without markers that were taken back: their logs are cleaned before that, and these are not."""

NAMES = ("everything", "retried", *(f"world {seed}" for seed in WORLDS))


def log_of(name: str) -> Log:
    """The records of one of the names, read or simulated when it is asked for."""
    if name == "everything":
        return recorded()[name]
    if name == "retried":
        return max(recovered(name).values(), key=len)
    log = simulated(int(name.removeprefix("world ")))
    assert all(record.value for record in log if erased_run(record.key)), "a marker was taken back"
    return log


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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 7])
def test_batches_of_any_size_give_equal_rows(name: str, size: int) -> None:
    assert Viewed.of(log_of(name), size).digests() == Viewed.of(log_of(name)).digests()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_partitions_in_any_order_give_equal_rows(name: str, seed: int) -> None:
    log = log_of(name)
    whole, other = Viewed.of(log), Viewed(log)

    other.apply(interleaved(log, seed), size=Random(seed).randint(1, 40))

    assert other.digests() == whole.digests()


def test_runs_that_are_mixed_otherwise_within_a_partition_give_equal_rows() -> None:
    """As a mirror that copies the runs of a log one after the other would have them; places are others then."""
    everything = log_of("everything")
    log = Log([record for record in everything if record.topic == RUN_LOG], everything.number)
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
