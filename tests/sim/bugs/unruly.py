"""Bugs of those who go by what was in force once: an order that was taken back, a lease that others have, any claim."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from refold.core.messages import ToolRequest
from refold.core.wire import codec
from refold.engine.adapters.memory.ledger import MemoryLedger
from refold.engine.executor.attempt import Attempt
from refold.engine.executor.chained import ChainedAttempt
from refold.engine.executor.outbox import ExecutorOutbox
from refold.engine.planner.log.outbox import Outbox, is_request
from refold.engine.ports.effects import Effect, StartTool
from refold.engine.ports.ledger import Release
from tests.sim.bugs.planting import Bug, wrapped


def _none(*_: object, **__: object) -> list[Any]:
    return []


def _as_it_was(original: Callable[..., Any]) -> Callable[..., Any]:
    """Sends an order of which nobody knows whether it has arrived again, whatever has become of its call."""

    def again(self: Outbox, ordered: Any, states: Any) -> Any:
        if not is_request(ordered.record):
            return original(self, ordered, states)
        message = dataclasses.replace(codec.decode(ToolRequest, ordered.record.value), again=True)
        return ordered.record._replace(value=codec.encode(message))

    return again


def _impatient(self: ChainedAttempt, claim: str, seen_ms: int) -> bool:
    return claim in self.outbox.ended or self.now - seen_ms >= self.lease_ms // 2


def _all_of_it(original: Callable[[Attempt], None]) -> Callable[[Attempt], None]:
    """Begins up to the very end of its lease."""

    def run(self: Attempt) -> None:
        self.right_ms += self.lease_ms // 2
        original(self)

    return run


def _by_any_head(self: ChainedAttempt) -> bool:
    return self.known.erased or (self.takeover and not self.known.head)


def _forgets_who_was_before(self: MemoryLedger, operation: Release, now: int) -> None:
    """Deletes with a claim what that had taken over."""
    home, pool, key, token = operation
    entry = self._find(home, pool, key, now)
    if entry is not None and entry.state == "started" and entry.token == token:
        del self._entries[home, pool, key]
        self._unlease(home, pool, key)


class StartsToolsLast(ExecutorOutbox[Attempt]):
    """Asks its ledger before it starts what it has looked at the clock for."""

    def collect(self) -> list[Effect]:
        """See `ExecutorOutbox`."""
        return sorted(super().collect(), key=lambda effect: isinstance(effect, StartTool))


UNRULY: dict[str, Bug] = {
    "taken-back-by-nobody": Bug(
        ("taken-back",), (("commands.take_back", _none), ("planner.outbox.recall", _none)), ("amnesia",)
    ),
    "sent-again-while-people-are-asked": Bug(("taken-back",), (wrapped("Outbox._again", _as_it_was),), ("overdue",)),
    "half-a-lease-waited-for": Bug(
        ("probed-slower", "once-late"), (("ChainedAttempt._over", _impatient),), ("amnesia",)
    ),
    "margin-of-a-whole-lease": Bug(("once-hesitates",), (wrapped("Attempt._run", _all_of_it),), ("freeze-read",)),
    "tools-start-last": Bug(("keyed", "two-runs"), (("executor.service.ExecutorOutbox", StartsToolsLast),)),
    "release-forgets-who-was-before": Bug(
        ("once-retried",),
        (("MemoryLedger._release", _forgets_who_was_before),),
        ("truncate-claims", "die", "lost"),
        after="truncated",
    ),
    "any-claim-is-this-claim": Bug(
        ("once-retried",),
        (("ChainedAttempt._unheard", property(_by_any_head)),),
        ("truncate-claims", "die"),
        after="truncated",
    ),
}
"""By name."""
