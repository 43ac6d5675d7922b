"""A slice of the sieges: a planner that lies beside honest services, and proof that it did lie."""

from __future__ import annotations

from collections import Counter

import pytest

from refold.simulator.attacks.byzantine import NEEDED_LIES
from refold.simulator.attacks.liar import rights
from refold.simulator.attacks.lies import LIES
from refold.simulator.campaign import sieges
from refold.simulator.settings import ANSWERS, CLAIMS

SIEGES = 150
"""About 7 s of one core. `make sim` runs 20,000 of them."""


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    """What happened in the cases of this file."""
    return Counter()


def test_no_lie_makes_a_dangerous_tool_run(seen: Counter[str]) -> None:
    for case in sieges(SIEGES, seed=3_000_000):
        outcome = case.run()
        assert not outcome.wrong, f"run it again: {case.command}\n{outcome.report}"
        seen.update(outcome.counts)

    assert seen["lies"] > SIEGES * 5


@pytest.mark.parametrize("what", [*NEEDED_LIES, *(f"lie: {name}" for name in LIES)])
def test_every_kind_of_lie_was_told_and_refused(what: str, seen: Counter[str]) -> None:
    assert seen[what] > 0, "a siege in which this never happened proves nothing"


def test_a_liar_writes_only_what_planners_may() -> None:
    assert rights() >= {"run-log", "approval-requested", "tool-requested.default"}
    assert not rights() & {"catalog", "approval-voted", "approval-decided", CLAIMS, ANSWERS}
