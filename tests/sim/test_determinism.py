"""One seed is one story: the same trace every time, in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulator.attacks.byzantine import run_siege
from tests.simulator.case import run_schedule

_PROGRAM = "from tests.simulator.case import run_schedule; print(run_schedule({seed}).trace)"


@pytest.mark.parametrize("seed", [3, 77, 2_024])
def test_the_same_seed_has_the_same_trace(seed: int) -> None:
    first, second = run_schedule(seed), run_schedule(seed)

    assert first.trace == second.trace


def test_another_process_with_another_hash_seed_has_the_same_trace() -> None:
    program = _PROGRAM.format(seed=77)
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }

    assert traces == {run_schedule(77).trace + "\n"}


def test_the_same_liar_tells_the_same_lies() -> None:
    first, second = run_siege(5), run_siege(5)

    assert first.trace == second.trace
    assert first.trace != run_siege(7).trace


def test_another_seed_has_another_trace() -> None:
    assert run_schedule(1).trace != run_schedule(2).trace
