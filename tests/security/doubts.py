"""Attacks on the second attempt of a `once` call: what came of the first, nobody knows, and a planner says it does.

Each begins with an attempt whose answer is lost. That one has its effect, with or without people, as the tool wants it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from refold.core.approval.signature import SigningKey
from refold.core.events import DOUBT, Earlier, Requirement
from refold.core.ids import home
from refold.core.messages import ApprovalRequest, ToolClaim, ToolResult
from refold.core.wire import codec
from tests.embedded.wiping import wipe
from tests.kafka.secured import PARTITIONS
from tests.security.hijack import Call, Hijack, Outcome, ask_for
from tests.security.plays import Play
from tests.security.stage import OLD, POLICY, ROLES
from tests.security.unsigned import forged

OWN = SigningKey("attacker-3", "decision", b"d" * 32)
LEADS = ("ada", "bob")


def plays() -> Iterator[Play]:
    """The attacks, each after one effect that nobody objects to; and what is allowed."""
    for what, play in {
        "order it again, as if nothing had come of the first attempt": lambda h: again(h),
        "the same, after Valkey has lost everything": lambda h: again(h, wiped=True),
        "the same, said to be pure": lambda h: again(h, effect="pure"),
        "the same, in another partition": elsewhere,
        "take the first attempt back, in its chain": take_back,
        "with words of one's own": lambda h: again(h, settled="nothing came of it"),
        "with a word that is signed with a key of one's own": made_up,
        "with what was said of another call": another_call,
        "with what was said of a later attempt": lambda h: with_word(h, asked=3, history=[doubted(2)]),
        "with an approval of the call": approval,
        "with the word that it did happen": lambda h: with_word(h, action="answer", result='"done"'),
        "with the word to give up": lambda h: with_word(h, action="reject"),
        "a word of one where two are needed": lambda h: unsaid(h, "ada"),
        "asked of anybody": lambda h: unsaid(h, "eve", by="held", requirement=Requirement(["*"])),
        "asked by a policy that names nobody": lambda h: unsaid(h, *LEADS, by="held", policy=OLD.digest),
        "with what was said before the first attempt went out": beforehand,
        "asked before anything was in doubt": lambda h: unsaid(h, *LEADS, by="malformed", history=[]),
        "after one of two was revoked": revoked,
    }.items():
        yield Play(f"DOUBT {what}", play, allowed=1)
    yield Play("DOUBT a call that was approved again, and of which nothing was said", unsettled, allowed=1)
    yield Play("DOUBT a word that is used twice", twice, allowed=2)
    yield Play("DOUBT two people say that nothing came of it", said, "control", allowed=2)
    yield Play("DOUBT the same of a call that needs an approval", partial(said, tool="wipe"), "control", allowed=2)
    yield Play("DOUBT a tool says that nothing came of it, and nobody is asked", refused_once, "control", allowed=1)


def doubted(attempt: int = 1) -> Earlier:
    """What people are told of an attempt."""
    return Earlier(attempt, "doubt", "no answer", "", 1)


def question(call: Call, attempt: int = 2, **changes: Any) -> ApprovalRequest:
    """What an honest planner would ask of people before an attempt, with the attacker's changes."""
    given = {"requirement": POLICY.doubt, "about": DOUBT, "history": [doubted(attempt - 1)], **changes}
    return ask_for(call, rule=DOUBT, attempt=attempt, covers=attempt, **given)


def tried(hijack: Hijack, tool: str = "note", how: str = "drops") -> Call:
    """A call whose first attempt had its effect, and no answer."""
    call = hijack.call(tool, how=how)
    token = hijack.decision(ask_for(call)) if tool == "wipe" else ""
    found = hijack.order(call, token)
    assert found.status == "unknown", f"the answer was lost, and the executor says {found}"
    return call


def stopped(found: ToolResult) -> Outcome:
    """Whether nothing of it went out."""
    why = f"{found.failure.code}: {found.failure.message}" if found.failure else ""
    return Outcome(found.status in ("doubt", "unauthorised"), f"executor: {found.status}, {why}")


def again(hijack: Hijack, *, wiped: bool = False, **order: Any) -> Outcome:
    call = tried(hijack)
    if wiped:
        wipe(hijack.stage.valkey)
    return stopped(hijack.order(call, attempt=2, **order))


def elsewhere(hijack: Hijack) -> Outcome:
    call = tried(hijack)
    return stopped(hijack.order(call, attempt=2, at=(home(call.run, PARTITIONS) + 1) % PARTITIONS))


def take_back(hijack: Hijack) -> Outcome:
    """Then it would be nobody's affair any more."""
    call = tried(hijack)
    link = ToolClaim(call.id, "c2", "c1", 1, False, "executor-default", call.key(), undone=True)
    broker = hijack.forbidden("tool-claimed.default", key=f"{link.chain}/{link.claim_id}", value=codec.encode(link))
    found = stopped(hijack.order(call, attempt=2))
    return broker if found.stopped else found


def made_up(hijack: Hijack) -> Outcome:
    call = tried(hijack)
    return stopped(hijack.order(call, attempt=2, settled=forged(call, OWN, request=question(call))))


def another_call(hijack: Hijack) -> Outcome:
    """Of the same run, with the same arguments."""
    call = tried(hijack)
    word = hijack.decision(question(replace(call, seq=5, step=2)), *LEADS)
    return stopped(hijack.order(call, attempt=2, settled=word))


def with_word(hijack: Hijack, *, asked: int = 2, action: str = "approve", result: str = "", **changes: Any) -> Outcome:
    """What people have said of something else, or otherwise."""
    call = tried(hijack)
    more = {"result": result} if result else {}
    word = hijack.decision(question(call, asked, **changes), *LEADS, action=action, **more)
    return stopped(hijack.order(call, attempt=2, settled=word))


def beforehand(hijack: Hijack) -> Outcome:
    """People are told of a doubt that is made up, and truly find nothing."""
    call = hijack.call("note", how="drops")
    word = hijack.decision(question(call), *LEADS)
    hijack.order(call)
    return stopped(hijack.order(call, attempt=2, settled=word))


def approval(hijack: Hijack) -> Outcome:
    call = tried(hijack)
    word = hijack.decision(ask_for(call, rule="open", attempt=2, covers=2))
    return stopped(hijack.order(call, attempt=2, settled=word))


def unsaid(hijack: Hijack, *actors: str, by: str = "", **changes: Any) -> Outcome:
    """What the approval service does not decide."""
    call = tried(hijack)
    request = question(call, **changes)
    hijack.ask(request)
    for actor in actors:
        hijack.stage.vote(request, actor)
    if hijack.undecided(request):
        found = stopped(hijack.order(call, attempt=2))
        put_away = hijack.stage.put_away(request.approval_id)
        right = found.stopped and (by in put_away if by else not put_away)
        return Outcome(right, f"approval: {put_away or 'waits for more'}; {found.where}")
    return stopped(hijack.order(call, attempt=2, settled=hijack.token(request.approval_id)))


def revoked(hijack: Hijack) -> Outcome:
    """And the role is given back for what comes after."""
    call = tried(hijack)
    word = hijack.decision(question(call), *LEADS)
    hijack.stage.publish("roles", "roles", {**ROLES, "revoked": ["bob"]})
    try:
        return stopped(hijack.order(call, attempt=2, settled=word))
    finally:
        hijack.stage.publish("roles", "roles", ROLES)


def unsettled(hijack: Hijack) -> Outcome:
    call = tried(hijack, "wipe")
    token = hijack.decision(ask_for(call, attempt=2, covers=2, history=[doubted()]))
    return stopped(hijack.order(call, token, attempt=2))


def twice(hijack: Hijack) -> Outcome:
    """Of the same attempt and of the next one, once the ledger has forgotten everything."""
    call = tried(hijack)
    word = hijack.decision(question(call), *LEADS)
    second = hijack.order(call, attempt=2, settled=word)
    wipe(hijack.stage.valkey)
    found = []
    for attempt in (2, 3):
        again = hijack.ordering(call, attempt=attempt, settled=word)
        found.append(stopped(hijack.insist(again, len(hijack.results(call.id)))))
    right = second.status == "unknown" and all(each.stopped for each in found)
    return Outcome(right, "; ".join(each.where for each in found))


def said(hijack: Hijack, *, tool: str = "note") -> Outcome:
    """The planner is as good as its word for once."""
    call = tried(hijack, tool, "drops once")
    word = hijack.decision(question(call), *LEADS)
    token = hijack.decision(ask_for(call, attempt=2, covers=2, history=[doubted()])) if tool == "wipe" else ""
    found = hijack.order(call, token, attempt=2, settled=word)
    return Outcome(found.status == "completed", f"executor: {found.status}")


def refused_once(hijack: Hijack) -> Outcome:
    call = hijack.call("note", how="refuses once")
    first = hijack.order(call)
    second = hijack.order(call, attempt=2)
    return Outcome(
        (first.status, second.status) == ("failed", "completed"), f"executor: {first.status}, {second.status}"
    )
