"""Attacks on an agent of pydantic-ai: which of its functions acts, and on what, is to be said by more than the order.

Ada is a lead. In some of these she is in league with the attacker; in one the approval service's key is the attacker's.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

from refold.core.approval import decision, signature
from refold.core.approval.decision import Cast
from refold.core.messages import EarlierCall, ToolRequest, ToolResult
from refold.core.wire import canonical
from refold.testing import run
from tests.security.app import app
from tests.security.hijack import Call, Hijack, Outcome, ask_for
from tests.security.plays import Play
from tests.security.swapped import Desk

OWN, LATE = "desk__function_toolset__<agent>.call_tool:", "desk__dynamic_toolset__late.call_tool"
FAR = "vault__mcp_server__far.call_tool"
PAYOUT, PRICE, BONUS = OWN + "payout", OWN + "price", "desk__function_toolset__owed.call_tool:bonus"
NAMED = {"tool_name": "payout"}
ACME, MALLORY = {"account": "acme"}, {"account": "mallory"}
AS_DECIDED = "completed"

Change = Callable[[ToolRequest], Any]
FIELDS: dict[str, tuple[Change, str]] = {
    "call_id": (lambda order: order.call_id, "unauthorised"),
    "run_id": (lambda order: f"{order.run_id}x", "unauthorised"),
    "step": (lambda order: 2, "unauthorised"),
    "attempt": (lambda order: 2, "unauthorised"),
    "issued": (lambda order: 8, AS_DECIDED),
    "tool": (lambda order: BONUS, "unauthorised"),
    "args": (lambda order: order.args.replace("acme", "mallory"), "unauthorised"),
    "key": (lambda order: "0" * 64, "unauthorised"),
    "effect": (lambda order: "pure", "unauthorised"),
    "timeout_ms": (lambda order: 19_000, AS_DECIDED),
    "key_expires_ms": (lambda order: order.at_ms + 3_600_000, AS_DECIDED),
    "traceparent": (lambda order: "00-" + "1" * 32 + "-" + "2" * 16 + "-01", AS_DECIDED),
    "policy": (lambda order: "0" * 64, "unauthorised"),
    "decision": (lambda order: "", "unauthorised"),
    "at_ms": (lambda order: order.at_ms - 1, AS_DECIDED),
    "again": (lambda order: True, AS_DECIDED),
    "agent": (lambda order: "archived_values", AS_DECIDED),
    "requester": (lambda order: "mallory", AS_DECIDED),
    "settled": (lambda order: "e30.e30.e30", "unauthorised"),
    "above": (lambda order: ["archived_values"], AS_DECIDED),
    "earlier": (lambda order: [made_up()], AS_DECIDED),
}
"""Each field of an order that people have let out, another value for it, and what comes of the order: it is refused, or
acts as was decided. Which agents and people are named matters to halts alone."""


def plays() -> Iterator[Play]:
    """The attacks, and what is allowed."""
    assert FIELDS.keys() == {each.name for each in dataclasses.fields(ToolRequest)}, "a new field wants a play"
    yield Play("order a function that needs an approval without one", lambda h: stopped(h, function(h)))
    yield Play("order another function, and name this one beside its arguments", lambda h: named(h, NAMED))
    yield Play(
        "the same, as one that a prepare function has made",
        lambda h: named(h, {"tool": {"name": "payout", "as": {"name": "payout"}}}),
    )
    yield Play("order a tool of a dynamic toolset that needs an approval", lambda h: stopped(h, gift(h)))
    yield Play(
        "order one that needs none, and name this one in its definition",
        lambda h: stopped(h, gift(h, "hint", **naming("hint", "gift"))),
    )
    yield Play("the same, named beside it, too", lambda h: stopped(h, gift(h, "hint", **naming("gift", "gift"))))
    yield Play(
        "order the toolset, as earlier releases did, with two names",
        lambda h: stopped(h, bare(h, LATE, naming("hint", "gift"))),
    )
    yield Play("a tool of a dynamic toolset that needs none acts", hinted, "control", allowed=1)
    yield Play("order a tool of an MCP toolset that needs an approval", lambda h: stopped(h, burn(h)))
    yield Play("a decision on a tool of an MCP toolset, and another one named beside it", swapped_far)
    yield Play(
        "the same, ordered as earlier releases did",
        lambda h: decided(h, bare(h, FAR, naming("look", "burn"))),
    )
    yield Play("a decision on one tool of an MCP toolset, another ordered", other_far)
    yield Play("a decided tool of an MCP toolset acts", burnt, "control", allowed=1)
    yield Play("order a tool below approval_required()", lambda h: stopped(h, function(h, BONUS)))
    yield Play("a decision on a payout to acme, with mallory in its deps", other_deps)
    yield Play("a decision on deps that are named and not shown", hidden)
    yield Play("ada edits the deps of a payout", edited)
    yield Play(
        "ada edits a tool of a dynamic toolset into another one of it",
        lambda h: into(h, gift(h), gift(h, **naming("estate", "estate"))),
    )
    yield Play(
        "the same, signed by the approval service, on a tool of a dynamic toolset",
        lambda h: signed(h, gift(h), gift(h, **naming("estate", "estate")).args),
    )
    yield Play("the same, signed by the approval service", signed)
    yield Play(
        "ada edits the name of the function into the context",
        lambda h: edited(h, deps=ACME, beside=NAMED),
    )
    yield Play("deps of 5,000 characters are shown to ada whole", shown, "control", allowed=1)
    for field, (_, expected) in FIELDS.items():
        kind, effects = ("control", 1) if expected == AS_DECIDED else ("attack", 0)
        what = f"a decided payout, with another {field} in its order"
        yield Play(what, partial(changed, field=field), kind, allowed=effects)  # type: ignore[arg-type]


@cache
def context() -> dict[str, Any]:
    """What an honest planner sends of a run beside the arguments of a function, without its deps."""
    refused = dict.fromkeys([PAYOUT, BONUS, f"{LATE}:gift", f"{LATE}:estate"], "reject")
    double = {f"{LATE}:hint": "seen"}
    asked = run(app, "desk", prompt="look", deps=ACME, decisions=refused, tools=double)
    found: dict[str, Any] = next(call.args["$run"] for call in asked.calls if call.tool == PRICE)
    return {name: value for name, value in found.items() if name != "deps"}


def function(hijack: Hijack, tool: str = PAYOUT, *, deps: Any = ACME, beside: Any = None) -> Call:
    """A call of a function, as an honest planner proposes it, but for what is `beside` its arguments."""
    how = {"how": "plain"} if tool == PAYOUT else {}
    args = {"label": hijack.label, **how, "$run": {**context(), "deps": deps, **(beside or {})}}
    return replace(hijack.call(), tool=tool, args=canonical.dumps(args))


def gift(hijack: Hijack, name: str = "gift", **beside: Any) -> Call:
    """A call of a tool that a toolset has come up with, with what is `beside` its arguments."""
    args = {"label": hijack.label, "$run": {**context(), "deps": ACME}, **beside}
    return replace(hijack.call(), tool=f"{LATE}:{name}", args=canonical.dumps(args))


def burn(hijack: Hijack, name: str = "burn", **beside: Any) -> Call:
    """A call of a tool of a server."""
    args = {"label": hijack.label, "how": "plain", "$run": context(), **beside}
    return replace(hijack.call(), tool=f"{FAR}:{name}", args=canonical.dumps(args))


def naming(name: str, defined: str) -> dict[str, Any]:
    """What named the function in orders of earlier releases, twice."""
    schema = {"type": "object", "properties": {"label": {"type": "string"}}}
    return {"$name": name, "$tool": {"name": defined, "kind": "function", "parameters_json_schema": schema}}


def bare(hijack: Hijack, unit: str, named: dict[str, Any]) -> Call:
    """A call of a toolset, which names one of its functions in its arguments."""
    args = {"args": {"label": hijack.label}, "how": "plain", "$run": {**context(), "deps": ACME}, **named}
    return replace(hijack.call(), tool=unit, args=canonical.dumps(args))


def decided(hijack: Hijack, call: Call, ordered: Call | None = None) -> Outcome:
    """Orders a call, or another one, with a decision on the first."""
    return stopped(hijack, ordered or call, hijack.decision(ask_for(call)))


def swapped_far(hijack: Hijack) -> Outcome:
    return decided(hijack, burn(hijack, "look", **naming("burn", "burn")))


def other_far(hijack: Hijack) -> Outcome:
    return decided(hijack, burn(hijack, "look"), burn(hijack))


def hinted(hijack: Hijack) -> Outcome:
    return _outcome(hijack.order(gift(hijack, "hint"), ""), AS_DECIDED)


def burnt(hijack: Hijack) -> Outcome:
    call = burn(hijack)
    return _outcome(hijack.order(call, hijack.decision(ask_for(call))), AS_DECIDED)


def made_up() -> EarlierCall:
    """An earlier call that has mallory's context, and never was."""
    asked = canonical.dumps({"$run": {**context(), **NAMED, "deps": MALLORY}})
    return EarlierCall(1, asked, "{}")


def stopped(hijack: Hijack, call: Call, token: str = "", **changes: Any) -> Outcome:
    """Orders a call that the gate, or the executor of the function behind it, should refuse."""
    return _outcome(hijack.order(call, token, **changes), "unauthorised")


def _outcome(found: ToolResult, expected: str) -> Outcome:
    code = found.failure.code if found.failure else ""
    return Outcome(expected in (found.status, code), f"executor: {found.status} {code}")


def named(hijack: Hijack, beside: dict[str, Any]) -> Outcome:
    return stopped(hijack, function(hijack, PRICE, beside=beside))


def other_deps(hijack: Hijack) -> Outcome:
    call = function(hijack)
    token = hijack.decision(ask_for(call))
    return stopped(hijack, replace(call, args=call.args.replace("acme", "mallory")), token)


def hidden(hijack: Hijack) -> Outcome:
    """Ada says yes to a reference; what it stands for comes with the order. No function acts on it."""
    call = function(hijack)
    call = replace(call, args=canonical.dumps({"label": hijack.label, "how": "plain", "$run": {"as": 1}}))
    found = hijack.order(call, hijack.decision(ask_for(call)), earlier=[made_up()])
    return Outcome(found.status != "completed", f"executor: {found.status}")


def edited(hijack: Hijack, *, deps: Any = MALLORY, beside: Any = None) -> Outcome:
    return into(hijack, function(hijack), function(hijack, deps=deps, beside=beside))


def into(hijack: Hijack, call: Call, wanted: Call) -> Outcome:
    """Ada edits a call into another one."""
    request, other = ask_for(call), replace(call, args=wanted.args)
    hijack.ask(request)
    hijack.stage.vote(request, "ada", "edit", args=other.args)
    return hijack.use(other, request, by="edit_not_possible")


def signed(hijack: Hijack, call: Call | None = None, args: str = "") -> Outcome:
    call, now = call or function(hijack), time.time_ns() // 1_000_000
    other = replace(call, args=args or call.args.replace("acme", "mallory"))
    by, nonce = (Cast("ada", "role:lead", "key", "edit", now),), secrets.token_hex(16)
    found = decision.build(ask_for(call), "edit", votes=by, issued_ms=now, nonce=nonce, edited=other.args)
    return stopped(hijack, other, signature.sign(found.payload(), hijack.stage.service))


def shown(hijack: Hijack) -> Outcome:
    call, desk = function(hijack, deps={"account": "acme", "notes": "x" * 5_000}), Desk(hijack)
    hijack.ask(ask_for(call))
    seen = desk.look(call.id)
    if canonical.parse(seen.args)["$run"]["deps"]["account"] != "acme":
        return Outcome(False, "the client left the account out")
    desk.approve(seen)
    return _outcome(hijack.order(call, hijack.token(seen.approval_id)), AS_DECIDED)


def changed(hijack: Hijack, *, field: str) -> Outcome:
    """Orders what was decided on with another value of one field."""
    change, expected = FIELDS[field]
    call = function(hijack)
    order = hijack.ordering(call, hijack.decision(ask_for(call)))
    if field == "call_id":
        call = replace(call, seq=4)
        order = replace(order, call_id=call.id)
    else:
        order = replace(order, **{field: change(order)})
    hijack.send(order)
    outcome = _outcome(hijack.result(call.id), expected)
    paid = [line.split()[2] for line in hijack.stage.lines("effects") if line.split()[1] == hijack.label]
    wanted = ["acme"] if expected == AS_DECIDED else []
    return outcome if paid == wanted else Outcome(False, f"paid to {paid}")
