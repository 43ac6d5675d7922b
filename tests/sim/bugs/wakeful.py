"""Bugs of the code that waits: what it lets go of is not let go of, and its order is that of addresses."""

from __future__ import annotations

from random import Random
from typing import Any

from refold.core.run.intents import GiveUp
from refold.engine.planner.agents.agent_host import Agents
from refold.sdk import loop
from tests.sim.bugs.planting import Bug

_record, _ADDRESSES = Agents._record, Random(0)


def _gives_up_nothing(self: Agents, state: Any, intent: Any, frontier: Any, **more: Any) -> Any:
    """What the code waits for no longer is not in the log."""
    return [] if isinstance(intent, GiveUp) else _record(self, state, intent, frontier, **more)


def _address(self: Any) -> int:
    """A place in memory: kept by the object, and another for its like in another process."""
    if not hasattr(self, "address"):
        self.address = _ADDRESSES.getrandbits(60)
    place: int = self.address
    return place


WAKEFUL: dict[str, Bug] = {
    "give-up-lost": Bug(("race", "hurried"), (("Agents._record", _gives_up_nothing),)),
    "loser-left-open": Bug((), (("StepFuture.cancel", loop.Future.cancel),), programs=100),
    "address-hashes": Bug((), (("Task.__hash__", _address), ("Future.__hash__", _address)), programs=400),
}
"""By name."""
