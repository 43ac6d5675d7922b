"""A slice of `make bench`, so that it does not rot; what it says of effects is true at any size."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from benchmarks.crash import RUNS, crash
from benchmarks.engine import Engine
from benchmarks.floor import floor
from benchmarks.measure import STEPS

from benchmarks import fold, policy
from refold.embedded.kafka import EmbeddedKafka
from refold.embedded.valkey import EmbeddedValkey


def test_a_killed_planner_is_back_and_nothing_happens_twice(
    kafka: EmbeddedKafka, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    with closing(Engine(kafka.bootstrap, valkey.url, tmp_path, sync=False)) as engine:
        found = crash(engine, "planner", "ten_keyed")
        folded = fold.rate_from_broker(engine.settings)

    assert (found["effects"], found["effects_twice"]) == (RUNS * STEPS, 0)
    assert found["all_done_s"] > 0
    assert folded["events"] > RUNS * STEPS


def test_the_floor_takes_as_many_steps(kafka: EmbeddedKafka, valkey: EmbeddedValkey) -> None:
    bare = floor(kafka.bootstrap, valkey.port, sync=False, runs=2, load=20, repeat=1)

    assert bare["steps_per_s"][0] > 0


def test_the_figures_without_servers_are_measured() -> None:
    assert fold.main(20)["fold_events_per_s"] > 0
    assert policy.main()["ten_rules_us"] > 0
