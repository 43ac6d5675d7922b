"""Bugs on purpose in what guards dangerous calls: somebody believes what should have been checked."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from refold.core.approval import ballot, decision
from refold.core.approval.authority import Authority
from refold.core.approval.ballot import BallotResult, Objection, Vote
from refold.core.approval.decision import Decision, Refusal, ToolFacts
from refold.core.events import ApprovalDecided, ApprovalRequested, Event
from refold.core.messages import ApprovalRequest, ToolRequest
from refold.core.planning import budgets
from refold.core.planning.verdict import Decided, Rules, Ruling
from refold.core.run.intents import Intent
from refold.core.run.state import RunState
from refold.engine.executor.gate import Gate
from refold.engine.planner.agents.agent_host import Agents
from refold.engine.planner.deciding.decide_loop import DecideLoop
from refold.engine.planner.intake.inbox import Pending, WaitsFor
from refold.engine.planner.lane import Lane
from refold.engine.ports.log import End
from tests.sim.bugs.planting import Bug

Check = Callable[..., Refusal | None]


class NeverVerifies(Authority):
    """Reads a decision without looking at its signature."""

    def open(self, token: str) -> Decision:
        """See `Authority`."""
        parts = token.split(".")
        if len(parts) != 3:
            return super().open(token)
        return Decision.parse(json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))))


class NeverRechecks(Authority):
    """Takes the policy that judged a call for the one in force."""

    def changed(self, policy: str) -> bool:
        """See `Authority`."""
        return False


def _believing(original: Check, change: Callable[[Decision, ToolRequest, ToolFacts], tuple[Any, Any, Any]]) -> Check:
    """A check that makes alike first what it should compare."""

    def refusal(found: Decision, request: ToolRequest, tool: ToolFacts, **how: Any) -> Refusal | None:
        return original(*change(found, request, tool), **how)

    return refusal


def _flag(original: Check) -> Check:
    def refusal(self: Gate, request: ToolRequest, *args: Any, **how: Any) -> Refusal | None:
        return None if request.decision else original(self, request, *args, **how)

    return refusal


def _any_equal_call(found: Decision, request: ToolRequest, tool: ToolFacts) -> tuple[Any, Any, Any]:
    return replace(found, call=request.call_id, step=request.step, key=request.key), request, tool


def _any_attempt(found: Decision, request: ToolRequest, tool: ToolFacts) -> tuple[Any, Any, Any]:
    """What is sent once is treated as what may be tried again."""
    if {found.effect, request.effect, tool.effect} != {"once"}:
        return found, request, tool
    return replace(found, effect="any"), replace(request, effect="any"), replace(tool, effect="any")


def _any_class(found: Decision, request: ToolRequest, tool: ToolFacts) -> tuple[Any, Any, Any]:
    return replace(found, effect=request.effect), request, replace(tool, effect=request.effect)


def _own_clock(found: Decision, request: ToolRequest, tool: ToolFacts) -> tuple[Any, Any, Any]:
    return found, replace(request, at_ms=0), tool


_WALL = property(lambda attempt: attempt.outbox.now.wall_ms)


def _generous(original: Callable[..., Decision]) -> Callable[..., Decision]:
    """Signs for more attempts than were asked for."""

    def build(request: ApprovalRequest, *args: Any, **how: Any) -> Decision:
        found = original(request, *args, **how)
        return replace(found, covers=found.attempt + 3)

    return build


def _requester_too(original: Callable[..., Objection | None]) -> Callable[..., Objection | None]:
    def objection(request: ApprovalRequest, vote: Vote, now: int) -> Objection | None:
        return original(replace(request, requester=""), vote, now)

    return objection


def _hands_on_again(original: Callable[..., str]) -> Callable[..., str]:
    """Whoever was put on the list hands on as if the policy named them."""

    def own(self: Any, vote: Vote) -> str:
        return original(self, vote) or self._roles.entitled(self._listed, vote.actor, vote.roles)

    return own


def _sends_at_once(original: Callable[..., list[Event]]) -> Callable[..., list[Event]]:
    def propose(self: Agents, state: RunState, intent: Intent, *place: Any, now: int, **rest: Any) -> list[Event]:
        events = original(self, state, intent, *place, now=now, **rest)
        if isinstance(events[-1], ApprovalRequested):
            events.append(budgets.dispatch(events[0], 1, now, self._rules))  # type: ignore[arg-type]
        return events

    return propose


def _permits_for_ever(state: RunState, step: int, attempt: int, authority: Authority, now: int) -> bool:
    return not authority.changed(state.open[step].policy)


def _as_said(request: ApprovalRequest, settled: BallotResult, *_: object) -> BallotResult:
    return settled


def _edited_as_said(state: RunState, taken: ApprovalDecided, now: int, rules: Rules) -> list[Event]:
    return [taken, budgets.dispatch(state.call(taken.step), 1, now, rules)]


def _never(*_: object) -> None:
    return None


def _read_late(original: Callable[[Lane, Any], None]) -> Callable[[Lane, Any], None]:
    """Not the bug, but the weather that shows it: what was published arrives when somebody asks for the end."""
    late: WeakKeyDictionary[Lane, list[Any]] = WeakKeyDictionary()

    def read(self: Lane, item: Any) -> None:
        if self.log.live and not isinstance(item, End):
            late.setdefault(self, []).append(item)
            return
        for each in (*late.pop(self, ()), item):
            original(self, each)

    return read


def _by_what_was_read(original: Callable[..., Ruling]) -> Callable[..., Ruling]:
    def decide(self: DecideLoop, state: RunState | None, item: Pending, now: int) -> Ruling:
        if isinstance(item.input, Decided):
            item.has_waited(WaitsFor.CATALOG)
        return original(self, state, item, now)

    return decide


def _refusal(change: Callable[[Decision, ToolRequest, ToolFacts], tuple[Any, Any, Any]]) -> tuple[Any, ...]:
    return (("decision.refusal", _believing(decision.refusal, change)),)


CREDULOUS: dict[str, Bug] = {
    "unsigned-decision": Bug((), (("gate.Authority", NeverVerifies),), seeds=60),
    "boolean-approval": Bug((), (("Gate.refusal", _flag(Gate.refusal)),), seeds=30),
    "decision-for-equal-calls": Bug((), _refusal(_any_equal_call), seeds=60),
    "decision-for-any-attempt": Bug(
        ("retried-once",),
        (
            ("decision.build", _generous(decision.build)),
            *((f"{place}.unfounded", _never) for place in ("signing", "granting", "gate")),
            *_refusal(_any_attempt),
        ),
    ),
    "order-says-its-class": Bug((), _refusal(_any_class), seeds=60),
    "not-at-home": Bug((), (("decision.away", _never),), seeds=60),
    "requester-counted": Bug(("requester-votes",), (("ballot.objection", _requester_too(ballot.objection)),)),
    "handed-on-again": Bug(("handed-on-twice",), (("_Deciders._own", _hands_on_again(ballot._Deciders._own)),)),
    "expiry-by-own-clock": Bug(("slow-clock",), (*_refusal(_own_clock), ("Attempt.log_ms", _WALL))),
    "revoked-people-decide": Bug(("ada-revoked",), (("decision.disowned", _never), ("gate.unfounded", _never))),
    "nobody-counts-again": Bug((), (("gate.unfounded", _never),), seeds=60),
    "policy-never-rechecked": Bug(("recheck-sent",), (("gate.Authority", NeverRechecks),)),
    "edit-not-judged": Bug(
        ("edit-beyond",), (("approval.lane.as_judged", _as_said), ("asking._edited", _edited_as_said))
    ),
    "decides-again": Bug(("granted",), (("ApprovalLane._decided", _never),), ("outage",)),
    "sent-before-decided": Bug(("approve-keyed",), (("Agents._propose", _sends_at_once(Agents._propose)),), ("lost",)),
    "decided-by-an-old-catalog": Bug(
        ("ada-revoked",),
        (
            ("DecideLoop._decide", _by_what_was_read(DecideLoop._decide)),
            ("Lane._read_catalog", _read_late(Lane._read_catalog)),
        ),
    ),
    "expiry-ignored": Bug(("brief-once",), (("asking.permitted", _permits_for_ever),)),
}
"""By name: what an executor, an approval service or a planner could get wrong."""
