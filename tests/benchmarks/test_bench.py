"""A slice of `make bench`: every figure is measured, with few runs; what it says of effects is true at any size."""

from __future__ import annotations

import json
import subprocess
import sys

FEW = ("--runs", "2", "--load", "20", "--repeat", "1", "--crashes", "1", "--waiting", "20")
RUNS_WITH_KILLS = [
    *(("executor", "ten_keyed"), ("planner", "ten_keyed"), ("executor", "ten_probed"), ("planner", "ten_probed")),
    ("broker", "ten_keyed"),
]


def test_the_benchmark_measures_everything_and_sees_nothing_happen_twice() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "refold", "bench", *FEW], capture_output=True, text=True, check=False, timeout=170
    )

    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert [(crash["victim"], crash["agent"]) for crash in report["crashes"]] == RUNS_WITH_KILLS
    assert {(crash["effects"], crash["effects_twice"]) for crash in report["crashes"]} == {(500, 0)}
    assert report["flush_on"]["engine"]["steps_per_s"][0] > 0
    assert report["fold"]["events"] > 0
    assert set(report["policy"]["shares"]) == {"none", "allows all", "ten rules"}
    assert report["waiting"]["runs"] == 20
    assert "effects twice" in done.stderr
