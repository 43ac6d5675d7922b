"""What lies between the steps of one run, early and late: by the clock of a tool, on the real platform.

`python -m benchmarks.gaps` prints JSON. *TTFS*: from the request to the first step's code. *STSO*: from the end of a
step's code to the beginning of the next one's. *WO*: all of a run's time that was not spent in its steps.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.engine import Engine, alone
from benchmarks.peers.load import gaps

GOALS = {
    "step gap at step 1,000 of step 10": ("<=", 1.05, 1.1),
    "step gap at step 10,000 of step 10": ("<=", 1.05, 1.1),
}
"""Figure, direction, goal, must."""


def measure(engine: Engine, *, short: int = 20, long: tuple[int, ...] = (1_000, 10_000)) -> dict[str, Any]:
    """See `peers.load.gaps`; a run that takes much longer than any should is given up. **Raises** TimeoutError."""

    def drive(runs: int, steps: int, in_flight: int) -> list[float]:
        asked = engine.client.start("stepped", runs, {"effect": "keyed", "steps": steps})
        return [engine.client.finish(asked, timeout_s=60 + steps * 0.1)]

    return gaps(drive, engine.effects, short=short, long=long)


def figures(found: dict[str, Any]) -> dict[str, float]:
    """What of it has a goal."""
    at = {"1,000": "ratio_at_1000", "10,000": "ratio_at_10000"}
    return {f"step gap at step {step} of step 10": found[name] for step, name in at.items() if name in found}


def main() -> None:
    """Prints it, of a broker and a Valkey of its own."""
    with alone("gaps") as engine:
        print(json.dumps(measure(engine), indent=2))


if __name__ == "__main__":
    main()
