"""All scenarios: what is asked of the platform, without and with people."""

from __future__ import annotations

from refold.simulator.workload.calls import CALLS
from refold.simulator.workload.inputs import Scenario
from refold.simulator.workload.questions import QUESTIONS

SCENARIOS: dict[str, Scenario] = {**CALLS, **QUESTIONS}
"""By name."""

SMALLEST = ("pure", "keyed", "probed", "once")
"""What pairs of faults are tried on."""
