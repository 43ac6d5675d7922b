"""Proof that the checker can fail: every planted bug is found, and without it the same case is clean."""

from __future__ import annotations

import pytest

from tests.sim.bugs.bugs import BUGS
from tests.sim.bugs.hunt import hunt
from tests.sim.bugs.rules import RULES


@pytest.mark.parametrize("name", BUGS)
def test_the_checker_finds_the_planted_bug(name: str) -> None:
    found = hunt(name)

    assert found is not None, "the checker is blind to this bug, or needs too many cases, or the bug only crashes"
    case, outcome = found
    assert outcome.wrong
    assert not case.run().wrong, "the case is clean without the bug, so it was the bug that was found"


def test_every_planted_bug_breaks_a_rule_of_the_design() -> None:
    named = [name for names in RULES.values() for name in names]

    assert sorted(named) == sorted(BUGS)
    assert len(RULES) >= 40
