"""Figures come only from turns that did all of their work, and are compared only within a round."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers import __main__ as peers
from benchmarks.peers import load
from benchmarks.peers.load import MISSING, RESULT, STEPS
from benchmarks.rounds import Result, Sitting, Turn

from benchmarks import rounds, table
from tests.waiting import eventually


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(rounds, "FOLDER", tmp_path / "sittings")
    return tmp_path / "turns"


def turn(name: str, lines: Path, *, limit_s: float = 60.0, shared: bool = False, **more: Any) -> Turn:
    wanted = {"file": str(lines), "name": name, "figures": {"a": 1}, **more}
    return Turn(name, "tests.benchmarks.turning", wanted, limit_s=limit_s, shared=shared)


def test_a_sitting_goes_on_behind_its_last_group_and_a_new_one_begins_again(lines: Path) -> None:
    a, b = turn("A", lines), turn("B", lines)
    Sitting("x", {}, minutes=1, new=False).measure({"0": [a, b]})
    both = Sitting("x", {}, minutes=1, new=False).measure({"0": [a, b], "1": [b, a]})
    other = Sitting("x", {"runs": 2}, minutes=0, new=False).measure({"0": [a, b]})
    again = Sitting("x", {}, minutes=1, new=True).measure({"0": [a]})

    assert lines.read_text().split() == ["A", "B", "B", "A", "A"]
    assert [list(group) for group in both.values()] == [["A", "B"], ["B", "A"]]
    assert other == {}
    assert again["0"]["A"]["figures"] == {"a": 1}


def test_only_a_shared_turn_between_two_groups_is_taken_once(lines: Path) -> None:
    a, b = turn("A", lines, shared=True), turn("B", lines)
    found = Sitting("x", {}, minutes=1, new=False).measure({"0": [b, a], "1": [a, b], "2": [b, a]})

    assert lines.read_text().split() == ["B", "A", "B", "B", "A"]
    assert found["0"]["A"] == found["1"]["A"]


def test_a_turn_that_fails_is_missing_or_takes_too_long_has_no_figures_and_leaves_no_process(lines: Path) -> None:
    failed = turn("A", lines, code=1).take()
    missing = turn("A", lines, code=MISSING).take()
    late = turn("A", lines, hangs=True, limit_s=5).take()

    assert (failed, missing) == ({"failed": "the reason"}, {"missing": "the reason"})
    assert late == {"failed": "not done after 5 s"}
    child = Path(f"/proc/{lines.with_suffix('.pid').read_text()}/stat")
    eventually(lambda: not child.exists() or child.read_text().rsplit(")", 1)[1].split()[0] == "Z")


@pytest.mark.parametrize("lacking", [1, -1])
def test_a_system_that_does_a_step_too_few_or_too_many_has_no_figure(
    lacking: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(load.STEPS_FILE, str(tmp_path / "steps"))

    def drive(runs: int, in_flight: int, steps: int) -> list[float]:
        for number in range(steps):
            load.step(number)
        return [0.001] * runs

    figures = load.measure(lambda runs, n: drive(runs, n, runs * STEPS), (os.getpid(),), in_flight=[1, 10])
    with pytest.raises(ValueError, match="steps instead of 200"):
        load.measure(lambda runs, n: drive(runs, n, runs * STEPS - lacking), (os.getpid(),), in_flight=[1])

    assert [each["runs"] for each in figures] == [load.RUNS[1], load.RUNS[10]]


def test_a_run_with_another_result_ends_the_measurement() -> None:
    loop = asyncio.new_event_loop()

    async def right() -> int:
        return RESULT

    async def wrong() -> int:
        return RESULT - 1

    assert len(load.driven(right, loop)(3, 2)) == 3
    with pytest.raises(ValueError, match="a run returned 44, not 45"):
        load.driven(wrong, loop)(3, 2)
    loop.close()


def test_cpu_of_a_tree_counts_the_children_that_have_ended() -> None:
    before = load.tree_seconds((os.getpid(),))
    os.waitpid(_burn(), 0)

    assert load.tree_seconds((os.getpid(),)) - before > 0.1
    assert load.tree_seconds((2**22 + 1,)) == 0


def _burn() -> int:
    program = "import time\nwhile time.process_time() < 0.2: pass"
    return os.spawnlp(os.P_NOWAIT, "python3", "python3", "-c", program)


def result(steps_per_s: float, ms: float, at: float = 0.0) -> Result:
    figures = {"in_flight": 100, "runs": 5, "steps_per_s": steps_per_s, "others_cores": 0.25}
    return {"at": at, "figures": [figures, {"in_flight": 1, "runs": 5, "ms": ms, "others_cores": 0.0}]}


def test_a_peer_is_compared_with_the_turn_of_refold_in_its_group_and_a_failed_one_is_named() -> None:
    shared = result(2_000, 3.0)
    report = peers._report(
        {
            "0": {"Refold": shared, "DBOS": result(400, 2.0)},
            "1": {"Refold": shared, "LangGraph": {"at": 2.0, "failed": "9 of 10 runs ended"}},
            "2": {"DBOS": result(500, 1.5), "Refold": result(3_000, 3.3, at=1.0)},
        },
        {"Temporal": "no server"},
    )
    settings = {"commit": "abc", "machine": rounds.machine()}
    text = peers.markdown({**report, "settings": settings, "dates": "today"})

    assert "| DBOS | 1.85 (1.50-2.20) | 5.50 (5.00-6.00) |" in text
    assert "| Refold | 3.15 (3.00-3.30) | 2,500 (2,000-3,000) |" in text
    assert "LangGraph, failed: 9 of 10 runs ended" in text
    assert "Temporal, not available: no server" in text
    assert "other work: up to 0.25 cores" in text
    assert "| LangGraph |" not in text


def test_peers_stand_beside_refold_forwards_and_then_backwards() -> None:
    own, *others = (Turn(name, "") for name in ("R", "a", "b", "c"))
    groups = peers._groups(others, own, 1)

    assert "".join(turn.name for group in groups.values() for turn in group) == "RabRRccRRbaR"


def test_a_table_has_the_ratio_of_two_checkouts_in_each_round_and_a_verdict_by_the_last() -> None:
    restate = {"at": 0.0, "figures": [{"in_flight": 100, "steps_per_s": 4_000.0}]}

    def speed(a: float, b: float) -> dict[str, Result]:
        return {
            "A apart": result(a, 3),
            "- restate": restate,
            "B apart": result(b, 3),
            "A together": {"missing": "none"},
        }

    groups = {"speed 0": speed(2_000, 3_000), "speed 1": speed(2_000, 4_000)}
    groups |= {"start 0": {"A start": {"figures": {"start": 2.75}}, "B start": {"figures": {"start": 2.25}}}}
    report = table._report(groups, ["A", "B"])
    settings = {"at": {"A": "abc", "B": "def"}, "machine": rounds.machine()}
    text = table.markdown({**report, "settings": settings, "dates": "today"})

    name = "steps/s, 100 in flight, of Restate's"
    assert report["rows"]["B"][name] == [0.75, 1.0]
    assert f"| {name} | 0.50 (0.50-0.50) | 0.88 (0.75-1.00) | 1.75 (1.50-2.00) | 1.2 | 0.95 | MISSED |" in text
    assert "| first run done after `refold dev`, warm, s | 2.75 | 2.25 | 0.82 | 2.5 | 3 | goal |" in text
    assert "A together, not available: none" in text
    assert "waiting runs" not in text


def test_a_row_has_a_verdict_for_more_and_for_less() -> None:
    rows = {row.name: row for row in table.ROWS}

    assert rows["10,000 waiting runs, share of a core"].verdict(0.02) == "ok"
    assert rows["steps/s, 10 in flight, of Restate's"].verdict(1.0) == "goal"
    assert rows["steps/s, 10 in flight, of Restate's"].verdict(0.7) == "MISSED"
