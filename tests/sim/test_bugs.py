"""Proof that the checker can fail: every planted bug is found, and without it the same case is clean."""

from __future__ import annotations

import pytest

from tests.sim.bugs.bugs import BUGS
from tests.sim.bugs.hunt import KEPT, NotShown, find, read, write
from tests.sim.bugs.places import PLACES
from tests.sim.bugs.planting import applied, located
from tests.sim.bugs.rules import RULES
from tests.sim.bugs.unreached import UNREACHED
from tests.sim.cases import parse

_KEPT = read(KEPT.read_text())


@pytest.mark.parametrize("name", BUGS)
def test_the_checker_finds_the_planted_bug(name: str) -> None:
    found = find(name, _KEPT.get(name))

    assert found is not None, "the checker is blind to this bug, or needs too many cases, or the bug only crashes"
    case, outcome = found
    assert outcome.wrong
    assert not case.run().wrong, "the case is clean without the bug, so it was the bug that was found"


@pytest.mark.parametrize("name", UNREACHED)
def test_a_test_fails_of_a_planted_bug_that_no_case_shows(name: str) -> None:
    bug = UNREACHED[name]
    bug.run()

    with applied(bug.patches), pytest.raises((AssertionError, pytest.fail.Exception)):
        bug.run()


@pytest.mark.parametrize("name", PLACES)
def test_what_bugs_patch_is_where_the_table_says(name: str) -> None:
    holder, attribute = located(name)

    assert hasattr(holder, attribute)


def test_the_table_names_what_bugs_patch_and_nothing_else() -> None:
    patches = [bug.patches for bug in BUGS.values()] + [bug.patches for bug in UNREACHED.values()]

    assert {name for each in patches for name, _ in each} == PLACES.keys()


def test_every_planted_bug_breaks_a_rule_of_the_design() -> None:
    named = [name for names in RULES.values() for name in names]

    assert sorted(named) == sorted([*BUGS, *UNREACHED])
    assert len(RULES) >= 40


@pytest.mark.parametrize("kept", ["--scenario unknown-agent", "# nothing kept"])
def test_a_bug_that_its_kept_case_does_not_show_is_hunted_and_said_so(kept: str) -> None:
    with pytest.warns(NotShown, match="skip-the-claim"):
        found = find("skip-the-claim", parse(kept))

    assert found is not None
    assert found[0].scenario == "keyed"


def test_kept_cases_are_read_as_they_are_written() -> None:
    assert write(_KEPT) == KEPT.read_text()
    assert _KEPT.keys() <= BUGS.keys(), "a bug that is gone leaves no case behind"
