"""The times and sizes of a simulated platform: as in production in their order, shorter so that a case is cheap."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from refold.core.approval.signature import SigningKey
from refold.core.defaults import ACTIVE_RUNS, RUN_BYTES, RUN_CHILDREN, RUN_DEPTH, RUN_STEPS, SLOTS
from refold.core.planning.verdict import Rules
from refold.core.topics import tool_claimed, tool_completed, tool_requested
from refold.engine.planner.settings import PlannerSettings

PARTITIONS = 2
POOL, OTHER = "default", "other"
"""The pool of all tools, and one that has none of them."""

ORDERS, CLAIMS, ANSWERS = tool_requested(POOL), tool_claimed(POOL), tool_completed(POOL)
"""Where planners send what executors do, where those say that they are about to, and what came of it."""

INPUTS = PlannerSettings(PARTITIONS, pools=(POOL,)).inputs

ROOT = SigningKey("root-1", "root", bytes([7] * 32))
"""Whose word the catalog is."""

Role = Literal["planner", "executor", "approval", "other", "archivist"]
SIM_ROLES: tuple[Role, ...] = ("planner", "executor", "approval", "other", "archivist")
WINDOWS = {"pushed_briefly": 2_400}
"""How long receivers remember keys, in milliseconds: what the tool declares, and what clocks and stalls may cost."""


@dataclass(frozen=True, slots=True)
class SimSettings:
    """How a simulated platform is set up.

    **Units**: milliseconds of virtual time. `session_ms` is how long a silent process keeps its partitions,
    `zombie_ms` how long a frozen one stays away, `ignorance_ms` how long it then goes on before it learns of it,
    `pause_ms` a stall that is shorter than what is left of any lease after its margin, `executor_skew_ms` how far the
    executors' clocks are ahead, `visit_ms` how long somebody stays who joins a group for a while, `away_ms` how long
    nobody is there, which is longer than receivers remember keys, `retention_ms` how long the ledger remembers what is
    done, `outage_ms` more than half of that. Approval services are there where a scenario has people, `others` are
    executors of the pool `OTHER`. Beyond `backlog` inputs, `slots` calls at once and `active` runs a service takes no
    more, and a run may have so many `run_steps`, `run_bytes` and `run_children`, and runs above it.
    `limited`: tenants may spend so much a day, of whom a lane counts `singly` so many by themselves (0: all). Where
    members are `uneven` every other one takes less at a time, and an executor with longer leases. A snapshot is
    written every `snapshot_ms` (0: every `commit_ms`). A process that is told to end lets tools go on for
    `grace_ms`, and ends `last_ms` after that at the latest.
    An archivist makes a pass every `pass_ms` and keeps runs for `keep_ms` after their end, by the clock of the broker
    of `run-snapshot` (0: for ever, it erases on demand alone); erased ones stay known for
    `horizon_ms` after it. `rots`: when it dies in a pass, files of runs that are not marked yet are damaged,
    but for those that another pass has in hand.
    `projectors`: views are kept beside it all, by one process at a time.
    """

    partitions: int = PARTITIONS
    planners: int = 1
    executors: int = 1
    approvals: int = 0
    others: int = 0
    archivists: int = 0
    projectors: int = 0
    sharing: bool = False
    epoch_ms: int = 1_700_000_000_000
    idle_ms: int = 500
    lease_ms: int = 300
    chained_lease_ms: int = 900
    tend_ms: int = 60
    reap_ms: int = 200
    commit_ms: int = 150
    snapshot_ms: int = 0
    resend_ms: int = 50
    sweep_ms: int = 400
    payload_bytes: int = 8_000
    backlog: int = 2_000
    slots: int = SLOTS
    active: int = ACTIVE_RUNS
    run_steps: int = RUN_STEPS
    run_bytes: int = RUN_BYTES
    run_children: int = RUN_CHILDREN
    run_depth: int = RUN_DEPTH
    session_ms: int = 250
    zombie_ms: int = 2_500
    ignorance_ms: int = 200
    pause_ms: int = 120
    restart_ms: int = 40
    grace_ms: int = 300
    last_ms: int = 200
    visit_ms: int = 400
    away_ms: int = 2_500
    retention_ms: int = 20_000
    outage_ms: int = 11_000
    delay_ms: int = 400
    pass_ms: int = 600
    keep_ms: int = 0
    horizon_ms: int = 0
    rots: bool = False
    limited: bool = False
    singly: int = 0
    uneven: bool = False
    executor_skew_ms: int = 0
    rules: Rules = field(default_factory=lambda: Rules(redispatch_ms=1_200, redispatch_cap_ms=6_000))

    def members(self, role: Role) -> int:
        """How many processes a role has at first."""
        members: dict[Role, int] = {
            "planner": self.planners,
            "executor": self.executors,
            "approval": self.approvals,
            "other": self.others,
            "archivist": self.archivists,
        }
        return members[role]
