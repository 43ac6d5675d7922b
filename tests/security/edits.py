"""Attacks by an edit: somebody who may approve of a call makes of it what the policy denies, or asks more people for.

Ada is a lead, and in league with the attacker. One of these needs the approval service's key as well.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from refold.core.approval import decision, signature
from refold.core.approval.decision import Cast, Decision
from refold.core.messages import ApprovalRequest
from refold.core.wire import canonical
from tests.security import unsigned
from tests.security.hijack import Call, Hijack, Outcome, ask_for
from tests.security.plays import Play


def plays() -> Iterator[Play]:
    """The attacks, and the edit that is allowed."""
    yield Play("ada edits a call into one that a rule denies", denied)
    yield Play("ada edits a call into one for which two are needed", alone)
    yield Play("an edit into what a rule denies, signed by the approval service", signed)
    yield Play(
        "ada edits a call into another that a lead may allow, and nobody else agrees", lambda h: alone(h, "slow")
    )
    yield Play("the same, signed by the approval service", forged)
    yield Play("ada approves of what she has edited herself", herself)
    yield Play("a planner says nothing of who has edited a call, and ada approves of it", unnamed)
    yield Play("ada edits a call into another that a lead may allow, and bob does", allowed, "control", allowed=1)
    yield Play("ada gives a call other arguments by a retry or fork, and approves of it", herself_by_retry)
    yield Play("the same, signed by the approval service", by_retry)
    yield Play("ada gives a call other arguments by a retry or fork, and bob approves", retried, "control", allowed=1)
    yield Play("a planner says that the agent asked for what ada wrote", as_own, "limit", allowed=1)


def edited(hijack: Hijack, call: Call, how: str) -> Call:
    """The call with other arguments."""
    return replace(call, args=canonical.dumps({"how": how, "label": hijack.label}))


def denied(hijack: Hijack) -> Outcome:
    call = hijack.call()
    request, other = ask_for(call), edited(hijack, call, "never")
    hijack.ask(request)
    hijack.stage.vote(request, "ada", "edit", args=other.args)
    return hijack.use(other, request, by="edit_denied")


def alone(hijack: Hijack, how: str = "two") -> Outcome:
    """What comes of it proposes another call, and lets nothing out."""
    call = hijack.call()
    other = edited(hijack, call, how)
    return hijack.refused(other, hijack.decision(ask_for(call), action="edit", args=other.args))


def signed(hijack: Hijack) -> Outcome:
    call = hijack.call()
    other, now = edited(hijack, call, "never"), time.time_ns() // 1_000_000
    by, nonce = (Cast("ada", "role:lead", "key", "edit", now),), secrets.token_hex(16)
    found = decision.build(ask_for(call), "edit", votes=by, issued_ms=now, nonce=nonce, edited=other.args)
    return hijack.refused(other, signature.sign(found.payload(), hijack.stage.service))


def forged(hijack: Hijack) -> Outcome:
    """The vote is ada's, and who has the service's key says that it was enough."""
    call = hijack.call()
    other = edited(hijack, call, "slow")
    token = hijack.decision(ask_for(call), action="edit", args=other.args)
    found = replace(Decision.parse(signature.content_of(token)), verdict="edit")
    return hijack.refused(other, signature.sign(found.payload(), hijack.stage.service))


def changed(hijack: Hijack, **more: Any) -> tuple[Call, ApprovalRequest]:
    """An edited call, and the question about it."""
    call = hijack.call()
    other = edited(hijack, call, "slow")
    return other, ask_for(other, **{"proposed_args": call.args, "writers": ["ada"], **more})


def herself(hijack: Hijack, **more: Any) -> Outcome:
    other, request = changed(hijack, **more)
    hijack.ask(request)
    hijack.stage.vote(request, "ada", "approve")
    return hijack.use(other, request, by="requester")


def herself_by_retry(hijack: Hijack) -> Outcome:
    """After a retry or fork a call is proposed with the operator's arguments."""
    return herself(hijack, proposed_args="")


def by_retry(hijack: Hijack) -> Outcome:
    other, request = changed(hijack, proposed_args="")
    tokens = (hijack.stage.ballot(request, "ada"),)
    return hijack.refused(other, unsigned.forged(other, hijack.stage.service, request=request, tokens=tokens))


def unnamed(hijack: Hijack) -> Outcome:
    other, request = changed(hijack, writers=[])
    return hijack.refused(other, hijack.decision(request))


def as_own(hijack: Hijack) -> Outcome:
    other, request = changed(hijack, writers=[], proposed_args="")
    found = hijack.order(other, hijack.decision(request))
    return Outcome(found.status != "completed", f"executor: {found.status}")


def retried(hijack: Hijack) -> Outcome:
    return allowed(hijack, proposed_args="")


def allowed(hijack: Hijack, **more: Any) -> Outcome:
    other, request = changed(hijack, **more)
    found = hijack.order(other, hijack.decision(request, "bob"))
    return Outcome(found.status == "completed", f"executor: {found.status}")
