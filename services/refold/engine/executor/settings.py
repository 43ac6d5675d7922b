"""Settings of an executor, and the topics that it reads."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from refold.core import defaults
from refold.core.approval.signature import NOBODY, Trust
from refold.core.run.state import CHAINED
from refold.core.topics import CATALOG, executors, tool_claimed, tool_requested
from refold.core.wire.seal import Seal
from refold.engine.executor.gate import Gate
from refold.engine.ports.ledger import DEFAULT_RETENTION
from refold.engine.ports.log import Membership


@dataclass(frozen=True, slots=True)
class Times:
    """Lease times. **Units**: milliseconds. `margin` is the part of a lease in which an effect may begin."""

    # A take-over costs only a repeated call here, but a human or a status query for a chained class.
    lease_ms: int = defaults.LEASE_MS
    chained_lease_ms: int = defaults.CHAINED_LEASE_MS
    # The rest covers a stall between the last look at the clock and the receiver.
    margin: float = 0.5

    by_tool: Mapping[str, int] = field(default_factory=dict)

    def lease(self, tool: str, effect: str) -> int:
        return self.by_tool.get(tool) or (self.chained_lease_ms if effect in CHAINED else self.lease_ms)


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """Settings of an executor. `slots` limits the calls at once, `acting_bytes` the large requests among them (with its
    result a call may take ten times that), `backlog_bytes` the requests waiting here. Earlier calls of conversations
    are kept from `conversation_least` bytes on, and `conversation_bytes` in all. `remember` calls can be closed by a
    tombstone without a key. Intervals: `clock_probe_ms` of clock probes, `fill_ms` of queries of the ledger's memory,
    `look_ms` of the catalog's end; behind that end for `blind_ms`, nothing that needs a decision begins. `tools` are
    the app's (None: all); a call of another waits `aside_ms` for another owner. Settled calls are closed in the ledger
    within `close_ms`, or at once if there are `close_most`. At the end running tools have `grace_ms`. Leases pass
    between processes of one `lock_id`. `beside`: a planner runs in this process, and hands its requests over."""

    pool: str = "default"
    member: str = "executor-1"
    lock_id: str = ""
    slots: int = defaults.SLOTS
    acting_bytes: int = 16 << 20
    conversation_bytes: int = defaults.CONVERSATION_BYTES
    conversation_least: int = 4_096
    backlog_bytes: int = 8 << 20
    tend_ms: int = 20
    close_ms: int = 200
    close_most: int = 100
    reap_ms: int = 200
    clock_probe_ms: int = 60_000
    clock_probe_again_ms: int = 1_000
    fill_ms: int = 3_000
    aside_ms: int = 30_000
    grace_ms: int = defaults.GRACE_MS
    look_ms: int = 10_000
    blind_ms: int = defaults.BLIND_MS
    # Older requests are not acted upon, because the ledger may have forgotten their outcome.
    stale_ms: int = DEFAULT_RETENTION // timedelta(milliseconds=2)
    tools: Container[str] | None = None
    seal: Seal = field(default_factory=Seal)
    commit_ms: int = defaults.COMMIT_MS
    resend_ms: int = 100
    remember: int = 20_000
    times: Times = field(default_factory=Times)
    gate: Gate = field(default_factory=Gate)
    trust: Trust = field(default_factory=lambda: NOBODY)
    beside: bool = False

    @property
    def topic(self) -> str:
        return tool_requested(self.pool)

    @property
    def chains(self) -> str:
        return tool_claimed(self.pool)

    @property
    def membership(self) -> Membership:
        topics = (self.topic, CATALOG, self.chains)
        lazy = frozenset({self.topic, self.chains}) if self.beside else frozenset[str]()
        return Membership(executors(self.pool), self.member, topics, frozenset({CATALOG}), lazy)
