"""Attacks on the question: people are asked less than the policy wants, or somebody who may not say yes says it.

Eve has a login and no role. She is in league with the attacker, and votes through the honest gateway under her name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

from refold.core.events import Requirement
from refold.core.ids import home
from refold.core.messages import ApprovalRequest
from refold.core.policy import FALLBACK
from tests.kafka.secured import PARTITIONS
from tests.security.hijack import Call, Hijack, Outcome, ask_for
from tests.security.plays import Play
from tests.security.stage import OPEN, POLICY

ANYBODY = Requirement(["*"], quorum=1, not_requester=False)


def plays() -> Iterator[Play]:
    """The attacks, and what the design does not stop."""
    yield Play("eve approves, who has no role", eve)
    yield Play("ask for anybody's word instead of a lead's", lambda h: eve(h, requirement=ANYBODY))
    yield Play("the same, as what the policy falls back to", lambda h: eve(h, rule_="fallback", requirement=FALLBACK))
    yield Play("by a rule that is about another tool", lambda h: eve(h, rule_="open", requirement=softest()))
    yield Play("by a policy that nobody knows", lambda h: eve(h, policy="0" * 64, rule_="", requirement=FALLBACK))
    yield Play("by no policy at all", lambda h: eve(h, policy="", rule_="", requirement=FALLBACK))
    yield Play("one vote where two are needed", half)
    yield Play("the same vote twice where two are needed", twice)
    yield Play("a softer question once one vote is there", relaxed)
    yield Play("the requester approves", lambda h: own_word(h, requester="ada"))
    yield Play("one decision for five attempts of a once call", many)
    yield Play("ask again what a tombstone has closed", closed)
    yield Play("another call in the name of an open approval", overwritten)
    yield Play(
        "LIMIT ada asks, and the planner says that rita did", partial(own_word, requester="rita"), "limit", allowed=1
    )
    yield Play("LIMIT a tool that does not declare that it needs approval", undeclared, "limit", allowed=1)


def softest() -> Requirement:
    """What the open rule asks."""
    found = next(rule.requirement for rule in POLICY.rules if rule.name == "open")
    assert found is not None, "the rule asks for people"
    assert found.approvers == OPEN["approvers"]
    return found


def use(hijack: Hijack, call: Call, request: ApprovalRequest, *, what: str) -> Outcome:
    """Where a request was stopped that was voted on; a decision that comes of it is used."""
    if hijack.undecided(request):
        return Outcome(True, f"approval: {what}")
    return hijack.refused(call, hijack.token(request.approval_id), policy=request.policy)


def eve(hijack: Hijack, *, rule_: str = "one", **changes: Any) -> Outcome:
    call = hijack.call()
    asked = ask_for(call, **changes)
    request = dataclasses.replace(asked, rule=rule_)
    hijack.ask(request)
    hijack.stage.vote(request, "eve")
    return use(hijack, call, request, what=reason(hijack, request))


def reason(hijack: Hijack, request: ApprovalRequest) -> str:
    """What the service said of it, once it is known that it has read it."""
    hijack.undecided(request)
    for line in reversed(hijack.stage.said("approval")):
        if request.approval_id in (line.get("approval_id"), line.get("approval")):
            return f"{line['event']}: {line.get('reason', '')}"
    return "no decision"


def half(hijack: Hijack) -> Outcome:
    call = hijack.call(how="two")
    request = ask_for(call, rule="two")
    hijack.ask(request)
    hijack.stage.vote(request, "ada")
    return use(hijack, call, request, what="no decision: 1 of 2")


def twice(hijack: Hijack) -> Outcome:
    call = hijack.call(how="two")
    request = ask_for(call, rule="two")
    hijack.ask(request)
    hijack.stage.vote(request, "ada")
    hijack.stage.vote(request, "ada")
    return use(hijack, call, request, what="no decision: one vote a person")


def relaxed(hijack: Hijack) -> Outcome:
    """Ada agrees, if somebody else does; then the question is said to be escalated, by a rule that asks for one."""
    call = hijack.call(how="two")
    request = ask_for(call, rule="two")
    hijack.ask(request)
    hijack.stage.vote(request, "ada")
    hijack.ask(ask_for(call, rule="open", level=1))
    return use(hijack, call, request, what="no decision")


def own_word(hijack: Hijack, *, requester: str) -> Outcome:
    """Ada votes on what she has asked for herself."""
    call = hijack.call()
    request = ask_for(call, requester=requester)
    hijack.ask(request)
    hijack.stage.vote(request, "ada")
    return use(hijack, call, request, what="no decision: the requester may not decide")


def many(hijack: Hijack) -> Outcome:
    """Ada is shown an approval that is good for five attempts; the attacker makes the first one's outcome unknown."""
    call = hijack.call(how="slow")
    request = ask_for(call, covers=5)
    hijack.ask(request)
    hijack.stage.vote(request, "ada")
    if hijack.undecided(request):
        return Outcome(True, f"approval: {reason(hijack, request)}")
    token = hijack.token(request.approval_id)
    hijack.order(call, token, timeout_ms=1)
    return hijack.refused(call, token, timeout_ms=1, attempt=2)


def closed(hijack: Hijack) -> Outcome:
    call = hijack.call()
    request = ask_for(call)
    hijack.ask(request)
    hijack.undecided(request)
    hijack.write("approval-requested", home(call.run, PARTITIONS), key=request.approval_id, value=None)
    hijack.ask(request)
    hijack.stage.vote(request, "ada")
    return use(hijack, call, request, what="no decision: the approval is closed")


def overwritten(hijack: Hijack) -> Outcome:
    """Ada says yes to a note; by the time that she has, her approval's id is that of a wipe."""
    innocent = hijack.call("note")
    asked = ask_for(innocent, rule="open")
    hijack.ask(asked)
    dangerous = dataclasses.replace(innocent, tool="wipe")
    hijack.ask(ask_for(dangerous))
    hijack.stage.vote(asked, "ada")
    return hijack.refused(dangerous, hijack.token(asked.approval_id))


def undeclared(hijack: Hijack) -> Outcome:
    """The policy wants people for it, but only planners ask policies; an executor asks the tool and its settings."""
    return hijack.refused(hijack.call("note"))
