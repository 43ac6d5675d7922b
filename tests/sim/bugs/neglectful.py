"""Bugs that somebody who is there all the time never sees: what is lost, late, full or resumed is not looked after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from refold.core.approval.catalog import Catalog
from refold.core.ids import RunId
from refold.core.messages import ToolClaim, ToolRequest
from refold.core.run.log import NOTHING_LOST
from refold.core.run.snapshot import PartitionSnapshot
from refold.core.run.state import RunState
from refold.engine.executor.attempt import Attempt
from refold.engine.executor.chained import ChainedAttempt
from refold.engine.executor.claim_chain import ClaimChain
from refold.engine.executor.gate import Gate
from refold.engine.planner.lane import Lane
from refold.engine.planner.log.acceptance import Acceptance
from refold.engine.planner.log.outbox import Ordered, Outbox
from refold.engine.planner.recovery import TakeOver
from refold.engine.planner.service import Planner
from refold.engine.ports.effects import Effect, Flow
from refold.engine.ports.log import Assigned, Delivery, Reached, Record
from refold.engine.relay.service import Relay
from refold.engine.runtime.lanes import Awake
from tests.sim.bugs.planting import Bug, wrapped


def _nothing(*_: object, **__: object) -> None:
    return None


def _no(*_: object, **__: object) -> bool:
    return False


def _by_its_beginning(original: Callable[..., bool]) -> Callable[..., bool]:
    def forgotten(self: Gate, request: ToolRequest, catalog: Catalog, now_ms: int) -> bool:
        return original(self, replace(request, timeout_ms=0), catalog, now_ms)

    return forgotten


def _as_it_was(self: Outbox, ordered: Ordered, states: dict[RunId, RunState]) -> Any:
    return ordered.record


def _in_no_hurry(original: Callable[[Attempt], None]) -> Callable[[Attempt], None]:
    def run(self: Attempt) -> None:
        self.right_ms = self.now
        original(self)

    return run


def _for_good(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    """What is paused is never resumed."""

    def flow(self: Any, *args: Any, **more: Any) -> list[Effect]:
        effects = original(self, *args, **more)
        return [each for each in effects if not isinstance(each, Flow) or each.action == "pause"]

    return flow


def _undriven(original: Callable[[TakeOver, int], None]) -> Callable[[TakeOver, int], None]:
    """What runs wait for is told, and whoever could go on is left alone."""

    def resume(self: TakeOver, count: int) -> None:
        asked = self._inbox.push
        self._inbox.push = _nothing  # type: ignore[method-assign]
        original(self, count)
        self._inbox.push = asked  # type: ignore[method-assign]

    return resume


def _proud(original: Callable[..., Lane]) -> Callable[..., Lane]:
    """Takes nothing back of what it has written on a beginning that is lost."""

    def opened(self: Planner, assigned: Assigned) -> Lane:
        lane = original(self, assigned)
        lane.log.fold.lost = NOTHING_LOST
        return lane

    return opened


def _unread(original: Callable[[Acceptance, Record], Any]) -> Callable[[Acceptance, Record], Any]:
    """What it has taken for accepted by its offset is not compared with what it reads there."""

    def follow(self: Acceptance, record: Record) -> Any:
        self._placed.clear()
        return original(self, record)

    return follow


def _hasty(original: Callable[[TakeOver, dict[str, int]], None]) -> Callable[[TakeOver, dict[str, int]], None]:
    """Goes on where the group has left off, whatever has become of the log since."""

    def read_inputs(self: TakeOver, positions: dict[str, int]) -> None:
        committed = self._assigned.committed
        original(self, {topic: max(at, committed.get(topic, 0)) for topic, at in positions.items()})

    return read_inputs


def _none(*_: object, **__: object) -> list[Any]:
    return []


def _by_offset(original: Callable[..., None]) -> Callable[..., None]:
    """A claim that does not name the one that lies before it is void for good."""

    def add(self: ClaimChain, claim: ToolClaim, mono_ms: int, at_ms: int) -> None:
        if claim.prev == self.last:
            original(self, claim, mono_ms, at_ms)

    return add


def _of_any_log(self: TakeOver, item: Record | Reached) -> bool:
    """Takes what comes of the run log, whichever that is, and goes on where the marks say."""
    if not self._anchored:
        self._anchored = True
        self._read_inputs(self._positions)
    return True


def _yes(*_: object) -> bool:
    return True


def _told_anyway(original: Callable[[Relay, Delivery], None]) -> Callable[[Relay, Delivery], None]:
    """What may have arrived has arrived."""

    def delivered(self: Relay, delivery: Delivery) -> None:
        original(self, delivery._replace(offset=delivery.offset or 0))

    return delivered


def _by_the_chain(self: ChainedAttempt) -> bool:
    """Takes the chain for all that is known."""
    return bool(self.known.seen_ms) or self._unclaimed


def _by_chain_and_ledger(self: ChainedAttempt) -> bool:
    """Takes the order for the first, whatever its number."""
    return _by_the_chain(self) or self.takeover


def _patient(original: Callable[[ChainedAttempt, ToolClaim], None]) -> Callable[..., None]:
    def append(self: ChainedAttempt, link: ToolClaim) -> None:
        original(self, link)
        self.linked_ms = 1 << 60

    return append


def _timeless(self: Awake[Any], next_due_ms: Callable[[Any], int | None]) -> None:
    """Lanes work when something comes, and at no other time."""
    self._awake.clear()


def _untouched(self: Awake[Any], partition: int) -> Any:
    """Something came for a lane, which does not work for that."""
    return self._lanes.get(partition)


def _uncounted(original: Callable[[PartitionSnapshot, bytes | None], None]) -> Callable[..., None]:
    def mark(self: PartitionSnapshot, value: bytes | None) -> None:
        original(self, value)
        self.whole = True

    return mark


NEGLECTFUL: dict[str, Bug] = {
    "keeps-what-it-lost": Bug(
        ("once",), (("Executor._leave", _nothing), wrapped("ChainedAttempt._append", _patient)), ("move",)
    ),
    "second-answer-left-open": Bug(("keyed",), (("Outbox.close_again", _nothing),), ("delayed",)),
    "unknown-sent-as-it-was": Bug(("keyed",), (("Outbox._again", _as_it_was),), ("overdue", "wipe")),
    "key-window-unseen": Bug(("keyed-window",), (("Gate.key_forgotten", _no),), ("away",)),
    "key-window-at-start": Bug(("keyed-forgets",), (wrapped("Gate.key_forgotten", _by_its_beginning),), ("away",)),
    "executors-pause-for-good": Bug(("crowd",), (wrapped("Lanes.throttle", _for_good),), ("pause",)),
    "planners-pause-for-good": Bug(("crowd",), (wrapped("Planner._flow", _for_good),), ("pause",)),
    "nobody-driven": Bug(("keyed",), (wrapped("TakeOver.resume", _undriven),), ("deploy-none", "die")),
    "shorter-log-unnoticed": Bug(("keyed", "fan"), (("Lanes.restart_lane", _none),), ("truncate-log",)),
    "own-loss-unnoticed": Bug(
        ("two-runs",), (wrapped("Acceptance.follow", _unread),), ("freeze-after", "truncate-log")
    ),
    "own-mistake-kept": Bug(
        ("two-runs", "keyed-eager", "three", "fan", "once"), (wrapped("Planner._open", _proud),), ("truncate-log",)
    ),
    "committed-is-answered": Bug(
        ("two-runs-apart",), (wrapped("TakeOver._read_inputs", _hasty),), ("die", "truncate-log")
    ),
    "lost-request-waited-for": Bug(("once",), (("Unanswered._lost", _none),), ("truncate-orders",)),
    "claims-in-offset-order": Bug(("once-undone",), (wrapped("ClaimChain.add", _by_offset),), ("mirror",)),
    "ledger-alone-unheard": Bug(
        ("three",), (("ChainedAttempt._maybe_sent", property(_by_the_chain)),), ("forget", "truncate-claims")
    ),
    "order-alone-unheard": Bug(
        ("probed-retried", "probed-hangs"),
        (("ChainedAttempt._maybe_sent", property(_by_chain_and_ledger)),),
        ("truncate-claims",),
    ),
    "lost-claim-never-made": Bug(
        ("once-late", "once-crawls"), (("ChainedAttempt._unheard", property(_no)),), ("truncate-claims", "die-after")
    ),
    "holed-snapshot-believed": Bug(
        ("two-runs", "keyed"), (wrapped("PartitionSnapshot._mark", _uncounted),), ("snapshot-holed",)
    ),
    "marks-of-another-log": Bug(("keyed", "three", "two-runs"), (("TakeOver.admits", _of_any_log),), ("mirror",)),
    "ends-not-compared": Bug(
        ("keyed", "two-runs", "once", "fan"), (("TakeOver._has_all", _yes),), ("truncate-log", "die")
    ),
    "unknown-is-published": Bug(("once", "keyed"), (wrapped("Relay._delivered", _told_anyway),), ("lost",)),
    "old-request-believed": Bug(("keyed",), (("ExecutorLane.late", _no),), ("outage",)),
    "refused-comes-alive": Bug(
        ("refused-before",), (("Outbox.close", lambda _, item: item.finish()),), ("mirror-plain",)
    ),
    "lease-of-another-ended": Bug(
        ("keyed-shared", "keyed-slow"),
        (("ledger.inherits", lambda heir, owner: bool(owner) and heir != owner),),
        ("freeze", "die", "die-after"),
    ),
    "waited-for-lease-ended": Bug(
        ("once-shared", "probed-slower", "once-late"),
        (("ChainedAttempt._owner", Attempt._owner),),
        ("die", "die-after", "freeze"),
    ),
    "future-lease-believed": Bug(("probed-slower",), (("ledger._LONGEST_MS", 1 << 60),), ("ledger-ahead", "die-after")),
    "lane-forgets-its-time": Bug(("keyed", "sleep"), (("Awake.rest", _timeless),)),
    "record-touches-nobody": Bug(("keyed", "two-runs"), (("Awake.touch", _untouched),)),
    "margin-ignored": Bug(("once-creeps",), (wrapped("Attempt._run", _in_no_hurry),), ("freeze-read",)),
}
"""By name."""
