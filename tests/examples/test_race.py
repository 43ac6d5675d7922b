"""`examples/race.py`: who answers first wins, the others are given up, and one courier is booked."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold import App, TerminalError
from refold.testing import attempts, crash_matrix, run, start

app = App.load(str(Path(__file__).parents[2] / "examples/race.py"))
AT_ONCE = {"price": lambda courier: courier}


@pytest.fixture(autouse=True)
def bookings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder that bookings are made in."""
    monkeypatch.setenv("BOOKINGS", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(("last", "winner"), [(1, "snail"), (2, "horse"), (3, "falcon")])
def test_the_first_answer_wins_and_the_others_are_given_up(last: int, winner: str) -> None:
    raced = start(app, "race", tools=AT_ONCE, parcel="p-1")

    raced.settle(last)
    raced.finish()

    assert raced.value.startswith(winner)
    assert raced.history.count("StepGivenUp") == 2
    assert raced.ran == {"price": 1, "book": 1}


def test_a_courier_that_is_out_of_order_does_not_win() -> None:
    down = TerminalError("no answer")

    raced = run(app, "race", tools={"price": attempts(down, "horse")}, parcel="p-1")
    all_down = run(app, "race", tools={"price": down}, parcel="p-1")

    assert raced.value.startswith("horse")
    assert all_down.failure is not None
    assert all_down.failure.message == "no courier has named a price"


def test_one_courier_is_booked_whatever_is_killed(bookings: Path) -> None:
    report = crash_matrix(app, "race", {"parcel": "p-1"}, tools=AT_ONCE, effects=lambda: len(list(bookings.iterdir())))

    assert (report.effects, report.doubts) == ({"price": 0, "book": 1}, {})
