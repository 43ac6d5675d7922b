"""Large values on a real platform: services are killed, values are lost, the store is away for a while."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from refold.core.ids import RunId
from refold.core.wire.blobs import folder_of, is_pointer
from tests.cli.terminal import Dev
from tests.waiting import eventually

HUGE = 200_000_000


def blobs(dev: Dev, run: str) -> list[Path]:
    """The files that lie below a run."""
    return sorted((dev.data / "blobs" / folder_of(RunId(run))).glob("*"))


def start(dev: Dev, run: str, *words: str, **given: Any) -> Any:
    return dev.read("run", "start", "scans", "--id", run, "--input", json.dumps(given), *words)


@contextmanager
def away(dev: Dev) -> Iterator[None]:
    """The store does not answer within."""
    store, aside = dev.data / "blobs", dev.data / "aside"
    store.rename(aside)
    store.touch()
    try:
        yield
    finally:
        store.unlink()
        aside.rename(store)


def test_a_result_of_200_mb_reaches_its_agent_and_the_log_stays_small(dev: Dev) -> None:
    ended = start(dev, "huge-1", "--wait", count=1, size=HUGE)

    assert (ended["status"], ended["result"]) == ("completed", [HUGE, 0])
    assert sum(row["bytes"] for row in dev.lines("run", "events", "huge-1", "--raw")) < 4_000
    assert [path.stat().st_size for path in blobs(dev, "huge-1")] == [HUGE + 2]


def test_kills_of_both_services_lose_no_large_value_and_double_no_effect(dev: Dev) -> None:
    start(dev, "kills-1", count=12, size=1_000_000)
    for n in range(4):
        eventually(lambda n=n: len(dev.effects("kills-1")) > 2 * n)  # type: ignore[misc]
        dev.kill("planner" if n % 2 else "executor")

    ended = start(dev, "kills-1", "--wait", count=12, size=1_000_000)

    assert (ended["status"], ended["result"]) == ("completed", [1_000_000] * 12 + [0])
    assert [line.split()[1] for line in dev.effects("kills-1")] == [str(n) for n in range(12)]


def test_while_the_store_is_away_others_go_on_and_after_it_all_do(dev: Dev) -> None:
    with away(dev):
        start(dev, "away-1", count=2, size=100_000)
        eventually(lambda: dev.effects("away-1"))
        other = dev.read("run", "start", "marks", "--id", "away-2", "--input", '{"count": 20}', "--wait")
        told = dev.read("run", "show", "away-1")

    ended = start(dev, "away-1", "--wait", count=2, size=100_000)

    assert (other["result"], told["status"]) == (20, "running")
    assert ended["result"] == [100_000, 100_000, 0]
    assert len(dev.effects("away-1")) == 2


@pytest.mark.long
def test_a_value_that_was_deleted_or_altered_stalls_its_run_until_it_is_back(dev: Dev) -> None:
    start(dev, "lost-1", count=2, size=100_000, note="wait")
    eventually(lambda: dev.read("run", "show", "lost-1").get("waiting"))
    [path] = blobs(dev, "lost-1")
    kept = path.read_bytes()

    path.write_bytes(kept.replace(b"0", b"1", 1))
    dev.kill("planner")
    dev.refold("run", "signal", "lost-1", "go")

    hold = eventually(lambda: dev.read("run", "show", "lost-1")["hold"])
    assert hold["reason"] == "blob_altered"
    path.write_bytes(kept)
    dev.refold("run", "retry", "lost-1")
    ended = start(dev, "lost-1", "--wait", count=2, size=100_000, note="wait")
    assert ended["result"] == [100_000, 100_000, 4]


@pytest.mark.long
def test_a_large_input_goes_to_the_store_and_is_erased_with_its_run(dev: Dev, tmp_path: Path) -> None:
    note = "n" * 300_000

    ended = start(dev, "input-1", "--wait", count=1, size=100, note=note)

    assert ended["result"] == [100, 300_000]
    assert is_pointer(dev.read("run", "show", "input-1")["input"])
    assert dev.read("run", "show", "input-1", "--full")["input"]["note"] == note
    assert len(blobs(dev, "input-1")) == 1
    dev.refold("run", "erase", "input-1", "--archive", tmp_path.as_uri(), "--yes")
    assert blobs(dev, "input-1") == []
    copy = dev.read("run", "show", "input-1", "--full", "--archive", tmp_path.as_uri())
    assert copy["input"]["note"] == note


def test_the_doctor_tries_the_store(dev: Dev) -> None:
    def said() -> Any:
        return next(each for each in dev.read("doctor", code=code)["findings"] if each["check"] == "blobs")

    code = 0
    assert said()["verdict"] == "ok"
    with away(dev):
        code = 1
        assert said()["verdict"] == "problem"
