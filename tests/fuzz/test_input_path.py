"""The input path under fire: every input gives a message or one documented error, quickly and in bounded memory."""

from __future__ import annotations

import multiprocessing
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest

from refold.core.errors import MalformedError
from tests.fuzz import doors
from tests.fuzz.inputs import Inputs

INPUTS = 210_000
PROCESSES = 2


def test_no_input_does_more_than_be_read_or_refused() -> None:
    seed = random.SystemRandom().randrange(2**32)
    answers: Counter[tuple[str, str]] = Counter()
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(doors.campaign, seed + n, INPUTS // PROCESSES) for n in range(PROCESSES)]
        for future in running:
            found, wrong = future.result()
            assert not wrong, f"seed {seed}: {wrong}"
            answers += found

    assert answers.total() >= 200_000
    for door in doors.DOORS:
        assert answers[door, "read"] > 100, f"{door} is hardly ever passed: {answers}"
        assert answers[door, "refused"] > 3_000, f"{door} hardly refuses: {answers}"


def test_a_door_that_raises_something_else_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(value: bytes, inputs: Inputs, rng: random.Random) -> object:
        raise KeyError(value)

    monkeypatch.setitem(doors.DOORS, "request", (broken, (MalformedError,)))

    assert "raised KeyError" in doors.judge("request", b"x", Inputs(1), random.Random(1))


def test_a_door_that_takes_long_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "SLOW_S", 0.0)

    assert "json took" in doors.judge("json", b"[" + b"1," * 10_000 + b"1]", Inputs(1), random.Random(1))
