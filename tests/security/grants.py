"""Attacks on remembered decisions: a grant is used by calls that it is not for, more often, or for longer.

Every grant here is a real one: ada approves of a call, and that the same call may pass again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from refold.core.approval.ballot import Remember
from refold.core.messages import ApprovalRequest
from refold.core.wire import canonical
from tests.security.hijack import Call, Hijack, Outcome, ask_for
from tests.security.plays import Play
from tests.waiting import eventually

HOUR_MS = 3_600_000
BRIEF_MS = 700


def plays() -> Iterator[Play]:
    """The attacks, and what the design does not stop."""
    yield Play("a grant of a run, by another run of its session", another_run)
    yield Play("by a child of the run", child)
    yield Play("by a call with other arguments", other_args)
    yield Play("by a call of another tool with equal arguments", other_tool)
    yield Play("by a call that another rule is about", other_rule)
    yield Play("one use more than it was given", one_more)
    yield Play("the decision that gave it, for the next call", lambda h: carried(h, used=False))
    yield Play("the decision of a use, for the next call", lambda h: carried(h, used=True))
    yield Play("a grant after its time", outlived)
    yield Play("a grant after its revocation", revoked)
    yield Play("one use more, after the approval service was killed", lambda h: one_more(h, crash=True))
    yield Play("a revoked grant, after the approval service was killed", resurrected)
    yield Play("a grant of a run, by a run of its session that is made up", invented)
    yield Play("ada lets more be remembered than her rule does", too_much)
    yield Play("ada lets be remembered what her rule does not", forgetful)


def granted(hijack: Hijack, call: Call, *, uses: int = 1, for_ms: int = HOUR_MS) -> tuple[ApprovalRequest, str]:
    """What was asked of a call that ada has granted, and her decision."""
    request = ask_for(call, session=hijack.label)
    return request, hijack.decision(request, remember=Remember(for_ms, uses))


def next_call(call: Call, number: int = 1) -> Call:
    """The same call once more in its run."""
    return replace(call, seq=call.seq + 2 * number, step=call.step + number)


def another_run(hijack: Hijack) -> Outcome:
    granted(hijack, hijack.call())
    call = hijack.call()
    return asked(hijack, call)


def asked(hijack: Hijack, call: Call, *, rule: str = "one", by: str = "") -> Outcome:
    """What comes of asking for a call of the session, about which nobody votes."""
    request = ask_for(call, rule=rule, session=hijack.label)
    hijack.ask(request)
    return hijack.use(call, request, by=by)


def child(hijack: Hijack) -> Outcome:
    call = hijack.call()
    granted(hijack, call)
    return asked(hijack, replace(call, run=f"{call.run}.2"))


def other_args(hijack: Hijack) -> Outcome:
    call = hijack.call()
    granted(hijack, call)
    return asked(hijack, replace(next_call(call), args=canonical.dumps({"how": "slow", "label": hijack.label})))


def other_tool(hijack: Hijack) -> Outcome:
    call = hijack.call("refund")
    granted(hijack, call)
    return asked(hijack, replace(next_call(call), tool="wipe"))


def other_rule(hijack: Hijack) -> Outcome:
    """The same call under another rule of the policy would be another question."""
    call = hijack.call()
    granted(hijack, call)
    return asked(hijack, next_call(call), rule="two", by="held")


def one_more(hijack: Hijack, *, crash: bool = False) -> Outcome:
    call = hijack.call()
    granted(hijack, call, uses=2)
    for number in (1, 2):
        request = ask_for(next_call(call, number), session=hijack.label)
        hijack.ask(request)
        hijack.token(request.approval_id)
    if crash:
        hijack.stage.crash("approval")
    return asked(hijack, next_call(call, 3))


def carried(hijack: Hijack, *, used: bool) -> Outcome:
    call = hijack.call()
    _, token = granted(hijack, call, uses=2)
    last = next_call(call)
    if used:
        request = ask_for(last, session=hijack.label)
        hijack.ask(request)
        token, last = hijack.token(request.approval_id), next_call(call, 2)
    return hijack.refused(last, token)


def outlived(hijack: Hijack) -> Outcome:
    """The time of a grant counts from the vote, by the clock of this machine."""
    call = hijack.call()
    granted(hijack, call, for_ms=BRIEF_MS)
    until = time.monotonic() + BRIEF_MS / 1_000
    eventually(lambda: time.monotonic() > until, what="the grant to be over")
    return asked(hijack, next_call(call))


def revoked(hijack: Hijack) -> Outcome:
    call = hijack.call()
    request, _ = granted(hijack, call, uses=5)
    revoke(hijack, request)
    return asked(hijack, next_call(call))


def resurrected(hijack: Hijack) -> Outcome:
    """The second request is there before the grant, which is not for it, because ada is said to have asked.

    When that is taken back the grant is over; whoever reads all of it again meets the request first.
    """
    call = hijack.call()
    other = next_call(call)
    hijack.ask(ask_for(other, session=hijack.label, requester="ada"))
    request, _ = granted(hijack, call, uses=5)
    revoke(hijack, request)
    later = ask_for(other, session=hijack.label, level=1)
    hijack.ask(later)
    outcome = hijack.use(other, later, by="second")
    hijack.stage.crash("approval")
    return hijack.use(other, later, by="second") if outcome.stopped else outcome


def revoke(hijack: Hijack, request: ApprovalRequest) -> None:
    """Bob ends a grant."""
    hijack.stage.vote(request, "bob", "revoke-grant")
    eventually(lambda: request.approval_id in hijack.stage.ended_grants(), what="the revocation")


def invented(hijack: Hijack) -> Outcome:
    """Nobody has started the second run; the planner says that it is one of the session, and asks."""
    call = hijack.call()
    granted(hijack, call)
    return asked(hijack, replace(call, run=f"{call.run}x"))


def too_much(hijack: Hijack) -> Outcome:
    return unremembered(hijack, ask_for(hijack.call()), uses=1_000_000)


def forgetful(hijack: Hijack) -> Outcome:
    return unremembered(hijack, ask_for(hijack.call("note"), rule="open"), uses=1)


def unremembered(hijack: Hijack, request: ApprovalRequest, *, uses: int) -> Outcome:
    """Not even the call that she has seen is let out by such a word."""
    hijack.ask(request)
    hijack.stage.vote(request, "ada", remember=Remember(HOUR_MS, uses))
    why = eventually(lambda: hijack.stage.put_away(request.approval_id).get("not_remembered"), what="its letter")
    return Outcome(hijack.undecided(request), f"approval: not_remembered: {why}")
