"""Every case that ever failed stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.simulator.campaign import Named
from refold.simulator.world.faults import parse_fault

_FILE = Path(__file__).parent / "regressions" / "cases.txt"


def read() -> list[Named]:
    """The cases of the file."""
    found = []
    for line in _FILE.read_text().splitlines():
        words = line.partition("#")[0].split()
        values = list(zip(words[::2], words[1::2], strict=True))
        if values:
            options = dict(values)
            faults = tuple(parse_fault(value) for name, value in values if name == "--fault")
            lies, programs, minds = (options.get("--mode") == mode for mode in ("byzantine", "programs", "minds"))
            seed = int(options.get("--seed", 0))
            found.append(Named(options.get("--scenario", ""), faults, seed, lies, programs=programs, minds=minds))
    return found


@pytest.mark.parametrize("case", read(), ids=lambda case: case.command.removeprefix("refold sim "))
def test_what_once_failed_holds(case: Named) -> None:
    outcome = case.run(traced=True)

    assert not outcome.wrong, outcome.report
