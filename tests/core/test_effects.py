"""The effect matrix: against what it was before it was a table, and against the README's table."""

from __future__ import annotations

from tests.core import effects


def test_every_word_of_an_executor_means_what_it_meant() -> None:
    assert list(effects.lines()) == effects.PATH.read_text().splitlines()
