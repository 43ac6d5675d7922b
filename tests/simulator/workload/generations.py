"""Scenarios of runs that go on with a new history: signals between, pauses, cancels, repeated starts, erasure."""

from __future__ import annotations

from typing import Any

from tests.simulator.workload.inputs import ClientInput, Scenario, operation, pause, signal, start_run, word
from tests.simulator.world.broker import AHEAD_MS

_START = start_run("r-1", "living", {"seen": [], "left": 2})
_WORDS = tuple(word("r-1", f"w-{n}", {"n": n}, at_ms=60 * n) for n in range(1, 5))


def _living(name: str, *inputs: ClientInput, push: tuple[str, ...] = (), **changes: Any) -> Scenario:
    return Scenario(name, (_START, *inputs), {"push": push}, changes=changes)


GENERATIONS = {
    scenario.name: scenario
    for scenario in (
        _living("generations", *_WORDS),
        _living("generations-eager", *_WORDS, commit_ms=1),
        _living("generations-shared", *_WORDS, planners=2, sharing=True),
        _living("generations-early", *(word("r-1", f"w-{n}", {"n": n}) for n in range(1, 6))),
        _living("generations-again", *_WORDS, *(word("r-1", f"w-{n}", {"n": n}, at_ms=200 + n) for n in (1, 2, 3))),
        _living(
            "generations-asked-again",
            *_WORDS,
            *(start_run("r-1", "living", {"seen": [], "left": 2}, at_ms=at, kind="repeat") for at in (90, 150, 1_000)),
        ),
        _living("generations-paused", *_WORDS, pause("r-1", "p", at_ms=100)),
        _living("generations-cancelled", *_WORDS[:2], signal("r-1", "c", "cancel", {"reason": "enough"}, at_ms=160)),
        _living("generations-operated", *_WORDS[:2], operation("r-1", "c", "cancel", at_ms=130)),
        _living("generations-erased", *(word("r-1", f"w-{n}", {"n": n}, at_ms=700 * n) for n in (1, 2, 3)),
                archivists=1, keep_ms=AHEAD_MS + 100),
    )
}  # fmt: skip
"""By name."""
