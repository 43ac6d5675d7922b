"""What the parts of a lane work with: each other, and the means that a lane decides by."""

from __future__ import annotations

from dataclasses import dataclass

from refold.core.approval.catalog import Catalog
from refold.core.planning.verdict import Rules
from refold.planner.acceptance import Acceptance
from refold.planner.holds import Holds
from refold.planner.hosting import Agents
from refold.planner.inbox import Inbox
from refold.planner.outbox import Outbox
from refold.planner.takeover import TakeOver
from refold.planner.timers import Timers
from refold.planner.windows import Windows
from refold.runtime.clock import LogClock


@dataclass(frozen=True, slots=True)
class Means:
    """By what one lane decides: the code of agents, rules, limits per window, and the catalog as it has read that."""

    agents: Agents
    rules: Rules
    windows: Windows
    catalog: Catalog


@dataclass(frozen=True, slots=True)
class LaneParts:
    """The parts of one lane that several others need."""

    partition: int
    clock: LogClock
    inbox: Inbox
    log: Acceptance
    outbox: Outbox
    timers: Timers
    holds: Holds
    start: TakeOver
