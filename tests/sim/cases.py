"""Cases in files, a line each: the options of `python -m tests.simulator` that run one."""

from __future__ import annotations

from tests.simulator.campaign import Named
from tests.simulator.world.faults import parse_fault


def parse(line: str) -> Named | None:
    """The case of a line such as `--scenario keyed --fault 15:lost  # why`; None where there is but a comment."""
    words = line.partition("#")[0].split()
    values = list(zip(words[::2], words[1::2], strict=True))
    if not values:
        return None
    options = dict(values)
    faults = tuple(parse_fault(value) for name, value in values if name == "--fault")
    lies, programs, minds = (options.get("--mode") == mode for mode in ("byzantine", "programs", "minds"))
    seed = int(options.get("--seed", 0))
    less = tuple(value for name, value in values if name == "--less")
    return Named(options.get("--scenario", ""), faults, seed, lies, less, programs=programs, minds=minds)


def written(case: Named) -> str:
    """The line of a case: what `parse` reads."""
    return case.command.removeprefix("python -m tests.simulator ").replace(" --one", "")
