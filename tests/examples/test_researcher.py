"""`examples/researcher.py`: agents with models, in parallel, under the budget of the one that has started them."""

from __future__ import annotations

from pathlib import Path

from refold import App
from refold.testing import AgentRun, crash_matrix, run

app = App.load(str(Path(__file__).parents[2] / "examples/researcher.py"))
QUESTION = "Why do stars twinkle?"
LIMIT, EACH = 40, 3


def made(done: AgentRun) -> int:
    """How many attempts there were in the whole family."""
    return sum(call.attempts for child in done.children for call in child.calls)


def test_every_side_is_looked_into_by_a_run_of_its_own() -> None:
    done = run(app, "researcher", question=QUESTION, sides=["air", "moon"])

    assert done.value == {"air": "Air bends light.", "moon": "nothing"}
    assert [len(child.calls) for child in done.children] == [EACH, EACH]


def test_no_more_is_taken_than_the_budget_of_the_family_and_what_was_done_by_then_counts() -> None:
    done = run(app, "researcher", question=QUESTION, sides=[f"side-{number}" for number in range(20)])

    left_out = [side for side, said in done.value.items() if said == "left out: budget_calls"]
    assert made(done) <= LIMIT
    assert 20 - len(left_out) >= LIMIT // EACH - 2
    assert left_out


def test_whatever_is_killed_it_ends_alike() -> None:
    report = crash_matrix(app, "researcher", {"question": QUESTION, "sides": ["air"]})

    assert report.cases > 2 * EACH
