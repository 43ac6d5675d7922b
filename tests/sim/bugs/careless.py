"""Bugs that break a rule of the design each, most of them where the rule is written down as a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from refold.core.events import Event, RunResumed, RunSuspended
from refold.core.messages import ToolResult
from refold.core.planning import matrix
from refold.core.planning.verdict import Ignore, Ruling, Start
from refold.core.run.state import RunState
from refold.engine.adapters.memory.ledger import MemoryLedger
from refold.engine.executor.chained import ChainedAttempt
from refold.engine.planner.intake.inbox import Inbox
from refold.engine.ports import ledger
from refold.engine.ports.log import Record
from refold.engine.runtime.lanes import Outstanding
from tests.sim.bugs.planting import Bug, Patch, wrapped

EARLY_MS = 5_000


class Impatient(ChainedAttempt):
    """Does not wait for the lease of whoever has claimed last."""

    def _over(self, claim: str, seen_ms: int) -> bool:
        """See `ChainedAttempt`."""
        return True


class Sure(ChainedAttempt):
    """Acts as soon as its claim is written, whoever was first."""

    def appended(self, offset: int | None) -> None:
        """See `ChainedAttempt`."""
        if offset is not None and self.claim and not self.claim.doubt and self.phase == "chaining":
            self._run()
        else:
            super().appended(offset)


class Incurious(ChainedAttempt):
    """Does not ask whether it has happened before."""

    _maybe_sent = False


class Shut(ChainedAttempt):
    """Takes what is not known of an attempt for a failure."""

    def _finish(self, result: Any) -> None:
        if result.status == "unknown":
            self._not_done(replace(result, status="failed"))
        else:
            super()._finish(result)


def _nothing(*_: object, **__: object) -> None:
    return None


def _no(*_: object, **__: object) -> bool:
    return False


def _as_read(self: Outstanding) -> int | None:
    return self._inputs[-1][0] + 1 if self._inputs else self.position


def _failed_for_good(original: Callable[..., Any]) -> Callable[..., Any]:
    def claim(self: MemoryLedger, operation: ledger.Claim, now: int) -> ledger.Reply:
        entry = self._find(operation.home, operation.pool, operation.key, now)
        done = entry is not None and entry.state == "done"
        reply: ledger.Reply = original(self, operation._replace(attempt=entry.attempt) if done else operation, now)  # type: ignore[union-attr]
        return reply

    return claim


def _without_deadline(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **more: replace(original(*args, **more), deadline_ms=0)


def _before_its_time(original: Callable[..., Ruling]) -> Callable[..., Ruling]:
    return lambda state, what, now, rules: original(state, what, now + EARLY_MS, rules)


def _looks_ahead(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, now: original(self, now + EARLY_MS)


def _same_whatever_it_says(original: Callable[..., Ruling]) -> Callable[..., Ruling]:
    def start(state: RunState | None, what: Start, now: int, rules: Any, *more: Any) -> Ruling:
        return Ignore("the run exists") if state else original(state, what, now, rules, *more)

    return start


def _another_run(original: Callable[..., Ruling]) -> Callable[..., Ruling]:
    def start(state: RunState | None, what: Start, now: int, rules: Any, *more: Any) -> Ruling:
        return original(None, what, now, rules, *more)

    return start


def _last_attempt_only(original: Callable[..., Ruling]) -> Callable[..., Ruling]:
    def result(state: RunState, what: Any, now: int, rules: Any) -> Ruling:
        if any(opened.seq == int(what.call_id.partition("/")[2]) for opened in state.open.values()):
            (current,) = (o.attempt for o in state.open.values() if o.seq == int(what.call_id.partition("/")[2]))
            if what.attempt < current:
                return Ignore("another attempt is under way")
        return original(state, what, now, rules)

    return result


def _deaf_while_waiting(original: Callable[..., Ruling]) -> Callable[..., Ruling]:
    def signal(state: RunState, what: Any, *args: Any, **more: Any) -> Ruling:
        return Ignore("it waits") if what.kind == "cancel" else original(state, what, *args, **more)

    return signal


def _without_tombstones(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    return lambda *args: [order for order in original(*args) if order.message is not None]


def _without_outcomes(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    return lambda *args: [order for order in original(*args) if order.topic != "run-completed"]


def _of_its_own(original: Callable[..., Any]) -> Callable[..., Any]:
    def take(self: Inbox, record: Record) -> Any:
        item = original(self, record)
        item.done = True
        return item

    return take


def _attempt(cls: type[ChainedAttempt]) -> tuple[Patch, ...]:
    return (("executor.service.ChainedAttempt", cls),)


def _only_what_wakes(told: Callable[..., list[Event]]) -> object:
    """Does not say that a run waits for time alone."""
    return lambda *about: [event for event in told(*about) if not isinstance(event, RunSuspended)]


def _only_what_waits(told: Callable[..., list[Event]]) -> object:
    """Does not say that a run goes on."""
    return lambda *about: [event for event in told(*about) if not isinstance(event, RunResumed)]


def _from_elsewhere(how: str) -> Callable[[Any], object]:
    """Names the ledger or the status hook as the source of a result that the tool itself has given."""

    def wrap(original: Callable[..., ToolResult]) -> object:
        return lambda *given: replace(original(*given), how=how)

    return wrap


_COURSES = {**matrix.COURSES, "once": matrix.COURSES["pure"]}

CARELESS: dict[str, Bug] = {
    "lease-not-waited-for": Bug(("once-blinks",), _attempt(Impatient), ("freeze", "wipe")),
    "acts-unread": Bug(("once-blinks",), _attempt(Sure), ("freeze", "wipe")),
    "probe-not-asked": Bug(("probed", "probed-retried"), _attempt(Incurious)),
    "unknown-is-failure": Bug(("once-raises",), _attempt(Shut)),
    "late-result-dropped": Bug(("once-late", "keyed-late"), (("Relay.late", _nothing),)),
    "commits-what-was-read": Bug(("keyed-eager", "two-runs-eager"), (("Outstanding.low_water", _as_read),)),
    "input-done-when-read": Bug(
        ("keyed-eager", "two-runs-eager"), (wrapped("Inbox.take", _of_its_own),), ("lost", "die")
    ),
    "stray-decided-where-it-fell": Bug(("stray",), (("DecideLoop._forward", _no),)),
    "contradiction-swallowed": Bug(("conflict",), (wrapped("decide._start", _same_whatever_it_says),)),
    "second-start-taken": Bug(("repeated",), (wrapped("decide._start", _another_run),)),
    "early-signal-buried": Bug(("early-signal",), (("Inbox.park", _no),)),
    "cancel-ignored": Bug(("cancel-doubt", "cancel-keyed"), (wrapped("decide._signal", _deaf_while_waiting),)),
    "anybody-cancels": Bug(("cancel-foreign",), (("saying.is_same", lambda *_: True),)),
    "call-without-deadline": Bug(
        ("keyed-eager",),
        (wrapped("agent_host.dispatch", _without_deadline),),
    ),
    "timers-early": Bug(("sleep",), (wrapped("decide._due", _before_its_time), wrapped("Timers.due", _looks_ahead))),
    "older-attempts-unheard": Bug(
        ("keyed-late", "probed-late", "once-wrongly-not"),
        (wrapped("decide._result", _last_attempt_only),),
        ("rollback-die",),
    ),
    "calls-never-closed": Bug(("keyed",), (wrapped("planner.outbox.commands", _without_tombstones),)),
    "outcome-untold": Bug(("keyed",), (wrapped("planner.outbox.commands", _without_outcomes),)),
    "waiting-untold": Bug(("sleep",), (wrapped("suspension.status_change", _only_what_wakes),)),
    "waking-untold": Bug(("keyed-retried",), (wrapped("suspension.status_change", _only_what_waits),)),
    "once-is-repeated": Bug(("once-raises", "once-late"), (("matrix.COURSES", _COURSES),), ("delayed",)),
    "failure-for-good": Bug(
        ("keyed-retried", "once-not-done"), (wrapped("MemoryLedger._claim", _failed_for_good),), ("cut",)
    ),
    "executed-is-stored": Bug(("keyed",), (wrapped("outcome.outcome_of", _from_elsewhere("stored")),)),
    "executed-is-probed": Bug(("probed",), (wrapped("outcome.outcome_of", _from_elsewhere("probed")),)),
}
"""By name."""
