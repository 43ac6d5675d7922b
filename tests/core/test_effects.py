"""The effect matrix: against what it was before it was a table, and against the README's table."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.core.planning.matrix import COURSES, course
from tests.core import effects
from tests.core.histories import EFFECTS, NOW, calling

README = Path(__file__).parents[2] / "README.md"


def promised() -> dict[str, tuple[str, str]]:
    """The table "What is guaranteed": what is done when the outcome is unknown, and effects per call."""
    section = README.read_text().split("## What is guaranteed")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    columns = rows[0].index("when the outcome is unknown"), rows[0].index("effects per call")
    return {row[0].split('"')[1]: (row[columns[0]], row[columns[1]]) for row in rows[2:]}


def test_every_word_of_an_executor_means_what_it_meant() -> None:
    assert list(effects.lines()) == effects.PATH.read_text().splitlines()


def test_the_readme_has_a_row_for_each_effect_class() -> None:
    assert tuple(promised()) == EFFECTS == tuple(COURSES)


@pytest.mark.parametrize("effect", EFFECTS)
def test_what_the_readme_says_of_an_unknown_outcome_is_done(effect: str) -> None:
    words, count = promised()[effect]
    again, last = course(effect, "unknown", sent_before=False)

    assert (again == "doubt") is ("never runs again" in words and "in doubt" in words)
    assert (again == "retry") is ("runs again" in words and "never" not in words)
    assert (last == "fail") is (count == "none"), "where there is no effect nobody has to be asked about it"


@pytest.mark.parametrize("effect", EFFECTS)
def test_the_probe_of_which_the_readme_speaks_can_end_it_either_way(effect: str) -> None:
    words, _ = promised()[effect]
    probed = {course(effect, status, sent_before=True).last for status in ("failed", "unknown")}

    assert ("the probe is asked" in words) is (effect == "probed")
    assert (probed == {"fail", "doubt"}) is (effect in ("probed", "once")), "only a claim chain can tell"


@pytest.mark.parametrize("effect", EFFECTS)
def test_past_the_key_window_of_which_the_readme_speaks_a_human_is_asked(effect: str) -> None:
    log = calling(effect, window_ms=60_000)
    log.feed(log.result(status="failed", retry_after_ms=60_001))
    log.now = NOW + 60_001

    (event,) = log.feed(log.due())  # type: ignore[misc]

    assert (type(event).__name__ == "CallDoubted") is ("past `key_window`, a human is asked" in promised()[effect][0])


def test_a_class_that_nobody_knows_is_treated_as_the_strictest() -> None:
    assert course("of a later version", "unknown", sent_before=False) == COURSES["once"]["unknown"]
