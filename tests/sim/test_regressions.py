"""Every case that ever failed stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.cases import parse
from tests.simulator.campaign import Named

_FILE = Path(__file__).parent / "regressions" / "cases.txt"


def read() -> list[Named]:
    """The cases of the file."""
    return [case for line in _FILE.read_text().splitlines() if (case := parse(line))]


@pytest.mark.parametrize("case", read(), ids=lambda case: case.command.removeprefix("python -m tests.simulator "))
def test_what_once_failed_holds(case: Named) -> None:
    outcome = case.run(traced=True)

    assert not outcome.wrong, outcome.report
