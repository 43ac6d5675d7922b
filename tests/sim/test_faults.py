"""A slice of what `make sim` runs whole: single faults, pairs and random schedules, and what they must have seen."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from rich.console import Console

from tests.simulator.__main__ import tell
from tests.simulator.campaign import (
    NEEDED,
    NEEDED_SINGLES,
    PAIRED,
    SCENARIOS,
    SMALLEST,
    Named,
    Summary,
    sampled,
    schedules,
    singles,
)
from tests.simulator.case import Case, run_case
from tests.simulator.workload.calls import CALLS
from tests.simulator.workload.inputs import backlog
from tests.simulator.workload.questions import QUESTIONS
from tests.simulator.world.faults import Chance, Fault

SINGLES, ASKED, PAIRS, LARGER, SEEDS = 150, 60, 75, 24, 38
"""Cases of each kind: about 20 s of one core in all. `make sim` runs every one of them, and 100,000 seeds."""

OFTEN = 1_000
"""What so many cases of a campaign have to meet, this slice has to meet, too."""

RARE = "once-happened", "refuse"
"""A scenario and a fault that a slice may miss: a log that never takes what a service has to say."""


def run(cases: list[Named]) -> Summary:
    """Runs cases in this process."""
    summary = Summary()
    for case in cases:
        outcome = case.run()
        summary.count(outcome)
        assert not outcome.wrong, f"run it again: {case.command}\n{outcome.report}"
    return summary


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    """What happened in the cases of this file."""
    return Counter()


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_comes_to_rest_without_a_fault(name: str) -> None:
    outcome = run_case(SCENARIOS[name])

    assert not outcome.wrong, outcome.report


def test_no_promise_breaks_at_any_boundary(seen: Counter[str]) -> None:
    scenario, mode = RARE
    refusals = [case for case in singles((scenario,)) if case.faults[0].mode == mode]

    summary = run([*sampled(SINGLES, CALLS, seed=1), *refusals])

    assert summary.struck >= SINGLES * 0.9, "faults have to strike"
    seen.update(summary.counts)


def test_no_promise_breaks_at_any_boundary_while_people_are_asked(seen: Counter[str]) -> None:
    summary = run(list(sampled(ASKED, QUESTIONS, seed=1)))

    assert summary.struck >= ASKED * 0.9, "faults have to strike"
    seen.update(summary.counts)


def test_no_promise_breaks_by_two_faults(seen: Counter[str]) -> None:
    summary = run(list(sampled(PAIRS, SMALLEST, seed=1, faults=2)))

    assert summary.struck >= PAIRS * 1.2, "the second fault has to strike too, unless the first has ended the case"
    seen.update(summary.counts)


def test_no_promise_breaks_by_two_faults_where_one_shows_little(seen: Counter[str]) -> None:
    summary = run(list(sampled(LARGER, PAIRED, seed=1, faults=2)))

    assert summary.struck >= LARGER, "faults have to strike"
    seen.update(summary.counts)


@pytest.mark.parametrize("faults", [(), (Fault(40, "die"), Fault(70, "freeze"), Fault(90, "power"))])
def test_a_cancel_behind_a_backlog_comes_before_the_start_of_its_run(faults: tuple[Fault, ...]) -> None:
    case = Case(backlog(4_000), Chance(Random(0)), faults)

    outcome = case.run()

    assert not outcome.wrong, outcome.report
    assert case.world.witness.history.runs["late"].order == ["RunRequested", "RunCancelled"]
    assert outcome.counts["input.ignored"] > 4_000


def test_no_promise_breaks_in_random_schedules(seen: Counter[str]) -> None:
    summary = run(list(schedules(SEEDS, seed=1_000_182)))

    assert summary.struck >= SEEDS, "faults have to strike"
    seen.update(summary.counts)


@pytest.mark.parametrize("what", [what for what, cases in NEEDED_SINGLES.items() if cases <= OFTEN])
def test_the_faults_have_caused_what_they_were_for(what: str, seen: Counter[str]) -> None:
    assert seen[what] > 0, "a campaign in which this never happened proves nothing"


def test_a_campaign_that_never_met_a_rule_fails_once_it_is_large_enough() -> None:
    counts = Counter(dict.fromkeys(NEEDED, 1))
    assert not Summary(10**6, counts=counts).unmet

    del counts["repairs"]

    assert Summary(10**6, counts=counts).unmet == ["repairs"]
    assert Summary(NEEDED["repairs"] - 1, counts=counts).unmet == []
    assert Summary(NEEDED["repairs"] - 1, counts=counts).missing == ["repairs"]


def test_the_command_says_what_was_reached_and_of_what_it_proves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    console, summary = Console(stderr=True, width=10_000), Summary(40, counts=Counter(takeovers=7))

    assert not tell("random", summary, console)
    small = capsys.readouterr().err
    summary.cases = 10**6
    assert tell("random", summary, console)

    assert "reached: takeovers 7, void_records 0" in small
    assert "proves nothing of: void_records" in small
    assert "FAILED: void_records" in capsys.readouterr().err
