"""A slice of the agents with erring models that `make sim` runs, and proof that the checker sees what they may not."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.bugs.bugs import planted
from tests.simulator.campaign import NEEDED_MINDS, minds
from tests.simulator.case import run_minds
from tests.simulator.minds.models import HARMFUL, MINDS, answer
from tests.simulator.workload.minds import mind_schedule

CASES = 40
"""About 4 s of one core. `make sim` runs 20,000 of them."""


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    """What happened in the cases of this file."""
    return Counter()


def test_whatever_models_say_no_harm_is_done_without_a_decision_and_every_run_ends(seen: Counter[str]) -> None:
    for case in minds(CASES, seed=7_000_640):
        outcome = case.run()
        assert not outcome.wrong, f"run it again: {case.command}\n{outcome.report}"
        seen.update(outcome.counts)

    assert seen["minds"] >= CASES


@pytest.mark.parametrize("what", [what for what in NEEDED_MINDS if what.startswith("mind: ")])
def test_models_have_made_agents_meet(what: str, seen: Counter[str]) -> None:
    assert seen[what] > 0, "models that never did this prove nothing"


@pytest.mark.parametrize(
    ("bug", "seed", "objection"),
    [
        ("harm-as-wanted", 11, "forbidden: call"),
        ("limits-unread", 1, "endless: run"),
        ("deadline-unseen", 13, "endless: run"),
        ("tokens-unbounded", 2, "overspent: "),
        ("goes-on-unasked", 28, "unasked: "),
        ("never-cheaper", 15, "dear: "),
        ("repeats-as-wanted", 36, "repeated: "),
        ("asks-once-more", 1, "paid twice: "),
        ("spent-child-succeeds", 5, "lie: "),
    ],
)
def test_the_checker_names_what_a_model_was_let_do(bug: str, seed: int, objection: str) -> None:
    """`seed` is the first case that shows it: a hunt from the first seed of all costs many times as much."""
    with planted(bug):
        wrong = (what for case in minds(200, seed=seed) for what in case.run().wrong)

        assert next((what for what in wrong if what.startswith(objection)), None)


def test_the_same_seed_has_the_same_trace() -> None:
    assert run_minds(4).trace == run_minds(4).trace != run_minds(5).trace


def test_schedules_have_models_of_every_kind_and_harm_is_wanted_in_many_of_them() -> None:
    drawn = str([mind_schedule(seed)[0].inputs for seed in range(100)])

    assert [mind for mind in MINDS if f'"{mind}"' not in drawn] == []
    said = [
        answer(f'{{"name":"m","mind":"fickle","turn":{turn}}}', number) for turn in range(40) for number in range(5)
    ]
    assert all(any(f'"{tool}"' in each for each in said) for tool in HARMFUL)
    assert len(set(said)) > len(said) / 4
