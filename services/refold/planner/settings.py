"""How a planner works, and how it reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from refold.core.planning.verdict import Rules
from refold.core.topics import (
    APPROVAL_DECIDED,
    CATALOG,
    RUN_LOG,
    RUN_REQUESTED,
    RUN_SIGNALLED,
    RUN_SNAPSHOT,
    TOOL_COMPLETED,
)
from refold.ports.log import Membership
from refold.runtime import defaults


@dataclass(frozen=True, slots=True)
class Limits:
    """What a lane holds at most.

    **Units**: bytes, entries per turn, inputs parked per lane, milliseconds. An input for a run that is not known
    is parked because its request may be under way in another topic; a minute is ages for that.
    """

    payload_bytes: int = defaults.PAYLOAD_BYTES
    turn_entries: int = 500
    parked: int = 10_000
    park_ms: int = defaults.PARK_MS


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """How a planner works.

    **Units**: milliseconds; inputs for `backlog`, beyond which a lane's inputs are no longer taken (twice what
    a turn decides, so that a turn never starves).
    """

    partitions: int
    member: str = "planner-1"
    environment: str = "dev"
    commit_ms: int = defaults.COMMIT_MS
    backlog: int = 5_000
    rules: Rules = field(default_factory=Rules)
    limits: Limits = field(default_factory=Limits)

    @property
    def membership(self) -> Membership:
        """What a planner reads."""
        topics = (RUN_REQUESTED, RUN_SIGNALLED, TOOL_COMPLETED, APPROVAL_DECIDED, CATALOG, RUN_SNAPSHOT, RUN_LOG)
        return Membership("refold-planner", self.member, topics)
