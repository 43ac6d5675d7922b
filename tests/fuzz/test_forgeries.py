"""A decision allows one call: whatever else it is held against, and whatever is made of it, nothing may run.

The gate here is what an executor asks before it acts, put together from the core alone. Ten thousand forgeries are held
against it, and against gates with a hole each, which have to let something through.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest

from refold.core.approval import decision
from refold.core.approval.decision import SKEW_MS, Decision, Grant
from refold.core.approval.policy_check import unasked, unfounded
from refold.core.approval.requester import signed
from refold.core.approval.signature import verified
from refold.core.errors import MalformedError, UnauthorisedError
from refold.core.events import Earlier, Requirement
from refold.core.messages import ApprovalRequest, RunRequest, ToolRequest
from refold.core.wire import canonical
from tests.core.decisions import made, votes_of
from tests.fuzz.forgeries import (
    ASKER,
    FAMILIES,
    by_two,
    of_a_hijacked_service,
    of_fields,
    of_orders,
    of_other_decisions,
    of_worlds,
)
from tests.fuzz.ordering import (
    ARGS,
    DECISION,
    KEYS,
    NOW,
    PARTITIONS,
    REQUEST,
    ROLES,
    TOKEN,
    TOOL,
    VALID_MS,
    Attempt,
    World,
    asked,
    catalog_of,
    gate,
    holding,
    key_of,
)


def test_the_decision_allows_the_call_that_it_is_for() -> None:
    assert gate(REQUEST, World()) == ""
    assert Decision.parse(verified(TOKEN, KEYS, use="decision")) == DECISION


def test_two_people_are_enough_where_a_key_vouches_for_who_asked() -> None:
    token = signed(RunRequest("run-1", "payer", "null", "rita"), ASKER, NOW).token
    known = World(roles=replace(ROLES, askers={ASKER.kid: ASKER.public(actors=("rita",))}))

    assert gate(by_two(requester="rita", token=token), known) == ""


def test_of_more_than_ten_thousand_forgeries_none_is_let_through() -> None:
    tried: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    through: list[str] = []

    for family in FAMILIES:
        for what, request, world in family():
            tried[family.__name__] += 1
            reason = gate(request, world)
            reasons[reason.partition(", not ")[0]] += 1
            if not reason:
                through.append(what)

    assert through == []
    assert tried.total() >= 10_000, tried
    assert min(tried.values()) >= 11, tried
    assert {f"token: {why}" for why in ("malformed", "signature", "unknown_key", "revoked", "retired", "use")} <= set(
        reasons
    )
    assert {f"the decision is for another {what}" for what in EXPECTED} <= set(reasons)
    assert set(reasons) >= REFUSALS


EXPECTED = {
    *("environment", "run", "call", "step", "tool", "tool's name", "effect class"),
    *("class", "arguments' text", "arguments", "decided key", "key", "policy"),
    *("version of the tool", "schema of the tool"),
}
REFUSALS = {
    *("the call is not at home in this partition", "the decision has expired", "the decision was issued in the future"),
    *("ann may not decide any more", "bob may not decide any more", "the decision says reject"),
    *("the decision says answer", "the decision is for attempts 2 to 4", "the token is not a decision"),
    "the call is not one of its run",
}


def believed(token: str) -> Decision:
    """What a token says, without a look at its signature."""
    return Decision.parse(json.loads(urlsafe_b64decode(token.split(".")[1] + "==")))


def unsigned(request: ToolRequest, world: World) -> bool:
    """A hole: whoever can write a decision has made one."""
    found, tool = believed(request.decision), world.tools[request.tool]
    return not decision.refusal(found, request, tool, environment=world.environment, now_ms=world.now_ms)


def boolean(request: ToolRequest, world: World) -> bool:
    """A hole: a decision is a yes."""
    return bool(verified(request.decision, world.keys, use="decision")["verdict"] == "approve")


def judged(request: ToolRequest, world: World, **blind: Any) -> bool:
    found = Decision.parse(verified(request.decision, world.keys, use="decision"))
    tool = world.tools[request.tool]
    changes = {name: getattr(found, name) for name in blind.get("tool", ())}
    seen = replace(request, **{name: getattr(found, other) for name, other in blind.get("order", {}).items()})
    seen = replace(seen, **blind.get("fixed", {}))
    environment = found.environment if blind.get("environment") else world.environment
    now_ms = blind.get("now_ms", world.now_ms)
    refused = decision.refusal(found, seen, replace(tool, **changes), environment=environment, now_ms=now_ms)
    away = None if blind.get("anywhere") else decision.away(request, world.partition, PARTITIONS)
    catalog = catalog_of(world)
    counted = None if blind.get("uncounted") else unfounded(found, catalog)
    if counted and counted.stale and blind.get("anybody"):
        counted = None
    return not (refused or away or counted or unasked(found, seen, catalog, world.tools))


HOLES: dict[str, Callable[[ToolRequest, World], bool]] = {
    "a decision is believed unsigned": unsigned,
    "a decision is a yes": boolean,
    "the version of the tool is not bound": lambda r, w: judged(r, w, tool=["version"]),
    "the schema of the tool is not bound": lambda r, w: judged(r, w, tool=["schema"]),
    "the policy is not bound": lambda r, w: judged(r, w, order={"policy": "policy"}),
    "the attempt is not bound": lambda r, w: judged(r, w, order={"attempt": "attempt"}),
    "the step is not bound": lambda r, w: judged(r, w, order={"step": "step"}),
    "the arguments are what the decision says": lambda r, w: judged(r, w, fixed={"args": ARGS, "key": key_of()}),
    "the environment is what the decision says": lambda r, w: judged(r, w, environment=True),
    "only the executor's clock counts": lambda r, w: judged(r, w, fixed={"at_ms": 0}),
    "only the log's clock counts": lambda r, w: judged(r, w, now_ms=0),
    "people who were revoked count": lambda r, w: judged(r, w, anybody=True),
    "nobody counts the votes again": lambda r, w: judged(r, w, uncounted=True),
    "a call may run anywhere": lambda r, w: judged(r, w, anywhere=True),
}


@pytest.mark.parametrize("hole", HOLES)
def test_a_gate_with_a_hole_is_found_by_the_same_forgeries(hole: str) -> None:
    assert any(lets_through(HOLES[hole], attempt) for attempt in signal_sent())


@cache
def signal_sent() -> list[Attempt]:
    """The forgeries that take one rule each to refuse, those that are quickly told apart first."""
    return [
        attempt
        for family in (of_a_hijacked_service, of_worlds, of_other_decisions, of_orders, of_fields)
        for attempt in family()
    ]


def lets_through(gate_with_hole: Callable[[ToolRequest, World], bool], attempt: Attempt) -> bool:
    """Whether a gate has nothing against an order; what it cannot read it refuses."""
    try:
        return gate_with_hole(attempt.request, attempt.world)
    except (UnauthorisedError, MalformedError, ValueError, KeyError, IndexError):
        return False


@pytest.mark.parametrize(
    "changes",
    [
        {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        {"issued": 0},
        {"issued": 99_999},
        {"timeout_ms": 1},
        {"key_expires_ms": 1},
        {"at_ms": 0},
        {"at_ms": NOW + VALID_MS - 1},
        {"attempt": 3},
        {"attempt": 4},
    ],
)
def test_what_does_not_make_the_call_another_does_not_matter(changes: dict[str, Any]) -> None:
    assert gate(replace(REQUEST, **changes), World()) == ""


@pytest.mark.parametrize("now_ms", [NOW - SKEW_MS, NOW, NOW + VALID_MS - 1])
def test_a_decision_holds_from_its_issue_to_its_end_by_either_clock(now_ms: int) -> None:
    assert gate(replace(REQUEST, at_ms=0), World(now_ms=now_ms)) == ""
    assert gate(replace(REQUEST, at_ms=now_ms), World(now_ms=NOW - SKEW_MS)) == ""


def test_what_people_edited_themselves_does_not_run_nor_what_was_proposed() -> None:
    edited = canonical.dumps({"amount": 10, "to": "ann"})
    found = made(
        asked(attempt=1), votes_of(asked(attempt=1), "ann", "bob", action="edit", args=edited, at=NOW), ROLES, now=NOW
    )
    order = replace(REQUEST, args=edited, key=key_of(args=edited), decision=holding(found.payload()))

    assert gate(order, World()) == "others than whoever wrote its arguments have to agree to an edit"
    assert gate(replace(order, args=ARGS, key=REQUEST.key), World()) == "the decision is for another arguments"
    assert gate(replace(order, key=REQUEST.key), World()) == "the decision is for another key"
    assert gate(replace(order, decision=TOKEN), World()) == "the decision is for another arguments"


def test_an_edit_that_people_signed_changes_no_context_of_the_call() -> None:
    edited = canonical.dumps({"$run": {"deps": "mallory"}, "amount": 10, "to": "ann"})
    votes = votes_of(asked(attempt=1), "ann", "bob", action="edit", args=edited, at=NOW)
    found = made(asked(attempt=1), votes, ROLES, now=NOW)
    order = replace(REQUEST, args=edited, key=key_of(args=edited), decision=holding(found.payload()))

    assert gate(order, World()) == "the decision is for another context"


def test_an_edit_runs_only_where_the_policy_is_known_and_may_ask_for_it() -> None:
    edited = canonical.dumps({"amount": 10, "to": "eve"})
    votes = votes_of(asked(attempt=1), "ann", "bob", action="edit", args=edited, at=NOW)
    found = made(asked(attempt=1), votes, ROLES, now=NOW)
    order = replace(REQUEST, args=edited, key=key_of(args=edited), decision=holding(found.payload()))
    proposed = holding(replace(found, verdict="amend").payload())

    assert gate(order, World()) == "others than whoever wrote its arguments have to agree to an edit"
    assert gate(order, World(policy=None)) == "the decision's policy is not in the catalog any more"
    assert gate(replace(order, decision=proposed), World()) == "the decision says amend"


@pytest.mark.parametrize(
    "grant", [None, Grant(f"{REQUEST.run_id}/1~{'0' * 32}", "run", NOW + VALID_MS, 3, 1, rule="large")]
)
def test_a_decision_is_read_as_it_was_signed(grant: Grant | None) -> None:
    found = replace(DECISION, grant=grant)

    assert Decision.parse(verified(holding(found.payload()), KEYS, use="decision")) == found


def test_every_field_of_the_question_makes_it_another() -> None:
    """But for its name, which follows from it, and the trace, which nobody is shown."""
    others: dict[str, Any] = {"requirement": Requirement(["*"]), "history": [Earlier(1, "doubt")]}
    others["writers"] = ["zoe"]
    bound = {spec.name for spec in fields(ApprovalRequest)} - {"approval_id", "question", "traceparent"}
    questions = {asked().question}
    for name in bound:
        value = getattr(asked(), name)
        other = others.get(name) or value + ("x" if isinstance(value, str) else 1)
        questions.add(asked(**{name: other}).question)

    assert len(questions) == 1 + len(bound)


def test_a_decision_for_several_attempts_of_a_once_call_is_good_for_none() -> None:
    tool = replace(TOOL, effect="once")
    wide = replace(DECISION, effect="once")
    narrow = replace(wide, covers=wide.attempt)
    request = replace(REQUEST, effect="once")

    refused = [
        decision.refusal(found, request, tool, environment=found.environment, now_ms=found.issued)
        for found in (wide, narrow)
    ]

    assert [found and found.code for found in refused] == ["unauthorised", None]
