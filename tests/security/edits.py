"""Attacks by an edit: somebody who may approve of a call makes of it what the policy denies, or asks more people for.

Ada is a lead, and in league with the attacker. One of these needs the approval service's key as well.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import replace

from refold.core.approval import decision, signature
from refold.core.approval.decision import Cast
from refold.core.wire import canonical
from tests.security.hijack import Call, Hijack, Outcome, ask_for
from tests.security.plays import Play


def plays() -> Iterator[Play]:
    """The attacks, and the edit that is allowed."""
    yield Play("ada edits a call into one that a rule denies", denied)
    yield Play("ada edits a call into one for which two are needed", alone)
    yield Play("an edit into what a rule denies, signed by the approval service", signed)
    yield Play("ada edits a call into another that a lead may allow", allowed, "control", allowed=1)


def edited(hijack: Hijack, call: Call, how: str) -> Call:
    """The call with other arguments."""
    return replace(call, args=canonical.dumps({"how": how, "label": hijack.label}))


def denied(hijack: Hijack) -> Outcome:
    call = hijack.call()
    request, other = ask_for(call), edited(hijack, call, "never")
    hijack.ask(request)
    hijack.stage.vote(request, "ada", "edit", args=other.args)
    return hijack.use(other, request, by="edit_denied")


def alone(hijack: Hijack) -> Outcome:
    """What comes of it proposes another call, and lets nothing out."""
    call = hijack.call()
    other = edited(hijack, call, "two")
    return hijack.refused(other, hijack.decision(ask_for(call), action="edit", args=other.args))


def signed(hijack: Hijack) -> Outcome:
    call = hijack.call()
    other, now = edited(hijack, call, "never"), time.time_ns() // 1_000_000
    by, nonce = (Cast("ada", "role:lead", "key", "edit", now),), secrets.token_hex(16)
    found = decision.build(ask_for(call), "edit", votes=by, issued_ms=now, nonce=nonce, edited=other.args)
    return hijack.refused(other, signature.sign(found.payload(), hijack.stage.service))


def allowed(hijack: Hijack) -> Outcome:
    call = hijack.call()
    other = edited(hijack, call, "slow")
    found = hijack.order(other, hijack.decision(ask_for(call), action="edit", args=other.args))
    return Outcome(found.status == "completed", f"executor: {found.status}")
