"""A client with its own rights alone writes as much as its topics take: planners live, and others' runs go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from benchmarks.flood import KINDS, Flood, write
from benchmarks.measure import ends

from refold.core.topics import RUN_REQUESTED, RUN_SIGNALLED
from refold.dev.kafka import EmbeddedKafka
from tests.waiting import eventually, under_load

MOST_MIB = 200
SLICE_MIB = 128
INPUTS = (RUN_REQUESTED, RUN_SIGNALLED)


@pytest.fixture
def flood(kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[Flood]:
    with closing(Flood(kafka.bootstrap, tmp_path)) as flooded:
        yield flooded


@pytest.mark.parametrize(
    "kinds",
    [["signals", "nonsense"], pytest.param(["names", "unknown", "later", "runs"], marks=pytest.mark.long)],
)
def test_a_flood_leaves_a_planner_small_and_is_answered(flood: Flood, kinds: list[str]) -> None:
    found = flood.measure(kinds, SLICE_MIB, give_up_s=under_load(60))

    assert found["memory_mib"]["most"] < MOST_MIB


@pytest.mark.long
def test_a_successor_does_not_read_again_what_was_answered(flood: Flood) -> None:
    write(flood.settings, ["signals", "later"], SLICE_MIB << 20, lambda: 0.0)
    places = [place for topic in INPUTS for place in ends(flood.settings, topic)]
    eventually(lambda: sum(flood.planners.answered(places)) > 0, within=under_load(60))
    flood.planners.kill("flooded")
    flood.planners.start("flooded")
    eventually(lambda: flood.planners.passed(places), within=under_load(60))

    assert flood.planners.rss("flooded") < MOST_MIB


def test_every_kind_of_flood_is_one_record_as_large_as_a_topic_takes_it() -> None:
    for name, made in KINDS.items():
        topic, key, value = made(f"r-{time.monotonic_ns()}")
        assert topic in INPUTS
        assert key
        assert len(value) > 900_000 or name == "naps"
