"""A slice of `make bench`, so that it does not rot; what it says of effects is true at any size."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from benchmarks.crash import RUNS, crash
from benchmarks.engine import Engine
from benchmarks.floor import floor
from benchmarks.peers.load import STEPS
from benchmarks.rounds import Turn

from benchmarks import fold, gaps, growth, policy, requests, sizing, table, years
from refold.dev.kafka import EmbeddedKafka
from refold.dev.valkey import EmbeddedValkey


@pytest.mark.long
def test_a_killed_planner_is_back_and_nothing_happens_twice(
    kafka: EmbeddedKafka, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    with closing(Engine(kafka.bootstrap, valkey.url, tmp_path, sync=False)) as engine:
        found = crash(engine, "planner", "ten_keyed")
        folded = fold.rate_from_broker(engine.settings)

        between = gaps.measure(engine, short=2, long=(40,))

    assert (found["effects"], found["effects_twice"]) == (RUNS * STEPS, 0)
    assert found["all_done_s"] > 0
    assert folded["events"] > RUNS * STEPS
    assert min(between.values()) > 0


@pytest.mark.long
def test_refold_does_the_work_of_its_peers_and_its_requests_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "RUNS", {1: 3, 10: 10, 100: 100})
    monkeypatch.setenv("REFOLD_KAFKA__OPTIONS", "{}")  # and back to what it was
    sizes = {"in_flight": [1, 10], "scale": 0.1}

    done = Turn("Refold", "benchmarks.peers.on_refold", sizes).take()
    once = Turn("Refold, once", "benchmarks.peers.on_refold", {**sizes, "effect": "once"}).take()
    elsewhere = Turn("Refold", "benchmarks.peers.on_refold", {**sizes, "checkout": "/nowhere"}).take()
    counted = table.requests_a_step({})

    assert [(each["in_flight"], each["runs"]) for each in done["figures"]] == [(1, 5), (10, 20)]
    assert min(each["cpu_us"] for each in (*done["figures"], *once["figures"])) > 0
    assert elsewhere["failed"].endswith("not of /nowhere")
    assert counted["apart requests 1"] > counted["apart requests 100"] > 0


@pytest.mark.long
def test_the_floor_takes_as_many_steps(kafka: EmbeddedKafka, valkey: EmbeddedValkey) -> None:
    bare = floor(kafka.bootstrap, valkey.port, sync=False, runs=2, load=20, repeat=1)

    assert bare["steps_per_s"][0] > 0


@pytest.mark.long
def test_years_of_work_are_written_in_seconds_and_taken_over(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(years, "SETTLE_S", 0.2)

    long = years.long_log(kafka.bootstrap, tmp_path, 33 * 20, rounds=1)
    asleep = years.sleeping(kafka.bootstrap, tmp_path, 20, rounds=1)

    assert long["events"] == 33 * 20
    assert min(long["back_s"][0], asleep["back_s"][0]) > 0
    assert long["stay_s"][0] >= 0
    assert years.figures({"finished": long, "asleep": asleep}).keys() < years.GOALS.keys()


@pytest.mark.long
def test_requests_without_executors_and_what_redis_keeps_are_counted(
    kafka: EmbeddedKafka, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    flood = years.requests_at_once(kafka.bootstrap, tmp_path, 40, 3.0)
    left = years.forgotten(kafka, valkey, tmp_path, 20)

    assert flood["entries_per_request"] >= 1
    assert left["calls"] == 20


@pytest.mark.long
def test_a_platform_is_sized_by_what_its_services_and_topics_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "SETTLE_S", 0.2)

    found = sizing.measure(20, 5, [5])

    [driven] = found["driven"]
    assert min(driven["cpu_us_a_step"].values()) > 0
    assert {"run-log", "tool-requested.default", "Redis, memory", "view"} <= driven["bytes_a_run"].keys()
    assert found["kib_a_waiting_run"].keys() == {"planner", "executor", "projections"}


def test_what_grows_is_measured_without_servers() -> None:
    grown = growth.measure(calls=100, at_once=100, children=100, runs=4_200, ended=20_000)

    assert grown["step"]["ratio"] > 0
    of_sixty = grown["step_by_partitions"]
    assert of_sixty["planner"] < 1.3
    assert max(of_sixty["executor"], of_sixty["relay"]) < 4.5  # they look at all of their lanes in each turn
    assert grown["gather"]["cpu_s"] > 0
    assert grown["fan_out"]["ratio"] > 0
    assert 0 < grown["finished_run_bytes"] < 100


def test_the_figures_without_servers_are_measured() -> None:
    assert fold.main(20)["fold_events_per_s"] > 0
    assert policy.main()["ten_rules_us"] > 0
