"""All scenarios: what is asked of the platform, without and with people."""

from __future__ import annotations

from refold.testing.sim.calls import CALLS
from refold.testing.sim.inputs import Scenario
from refold.testing.sim.questions import QUESTIONS

SCENARIOS: dict[str, Scenario] = {**CALLS, **QUESTIONS}
"""By name."""

SMALLEST = ("pure", "keyed", "probed", "once")
"""What pairs of faults are tried on."""
