"""Attacks on the question: people are asked less than the policy wants, or somebody who may not say yes says it.

Eve has a login and no role. She is in league with the attacker, and votes through the honest gateway under her name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from refold.core.events import Requirement
from refold.core.ids import home
from refold.core.wire import canonical
from tests.kafka.secured import PARTITIONS
from tests.security.hijack import Hijack, Outcome, ask_for, asks
from tests.security.plays import Play

FORMER = Requirement(["*"], expires_ms=86_400_000)
"""Anybody but the requester, within a day: what no policy asks for that does not say so."""

ANYBODY = Requirement(["*"], quorum=1, not_requester=False)


def plays() -> Iterator[Play]:
    """The attacks, and what the design does not stop."""
    yield Play("eve approves, who has no role", lambda h: said_by(h, "eve", by="unentitled"))
    yield Play("ask for anybody's word instead of a lead's", lambda h: eve(h, requirement=ANYBODY))
    yield Play("the same, as what the policy falls back to", lambda h: eve(h, rule="fallback", requirement=FORMER))
    yield Play("by a rule that is about another tool", lambda h: eve(h, rule="open"))
    yield Play("by that tool's rule under the right one's name", lambda h: eve(h, requirement=asks("open")))
    yield Play("by a policy that nobody knows", lambda h: eve(h, policy="0" * 64, rule="", requirement=FORMER))
    yield Play("by no policy at all", lambda h: eve(h, policy="", rule="", requirement=FORMER))
    yield Play("one vote where two are needed", half)
    yield Play("one vote, and arguments so long that the rule for two fails", padded)
    yield Play("the same person twice where two are needed", twice)
    yield Play("a softer question once one vote is there", relaxed)
    yield Play("another question than the request is about", misnamed)
    yield Play("the requester approves", lambda h: said_by(h, "ada", by="requester", requester="ada"))
    yield Play("ask for five attempts of a once call", lambda h: said_by(h, "ada", by="malformed", covers=5))
    yield Play("the same, said to be keyed", many)
    yield Play("ask for a decision that is valid for a century", century)
    yield Play("ask in another environment", lambda h: said_by(h, "ada", by="malformed", environment="staging"))
    yield Play("ask again what a tombstone has closed", closed)
    yield Play("another call in the name of an open approval", overwritten)
    yield Play("cleo approves, to whom it may be escalated later", lambda h: cleo(h, by="unentitled"))
    yield Play(
        "escalated at once by a rule that escalates to nobody", lambda h: said_by(h, "eve", "unentitled", level=1)
    )
    yield Play("LIMIT escalated at once, and cleo approves", lambda h: cleo(h, level=1), "limit", allowed=1)
    yield Play("ada asks, and the planner says that rita did", lambda h: said_by(h, "ada", token=""))
    yield Play("LIMIT a tool that does not declare that it needs approval", undeclared, "limit", allowed=1)


def said_by(hijack: Hijack, actor: str, by: str = "", **changes: Any) -> Outcome:
    """What comes of it when somebody approves of a call that is asked for with changes."""
    call = hijack.call()
    request = ask_for(call, **changes)
    hijack.ask(request)
    hijack.stage.vote(request, actor)
    return hijack.use(call, request, by=by)


def eve(hijack: Hijack, **changes: Any) -> Outcome:
    """The question would let anybody decide, and is a lie."""
    return said_by(hijack, "eve", "held", **changes)


def cleo(hijack: Hijack, *, by: str = "", level: int = 0) -> Outcome:
    call = hijack.call(how="late")
    request = ask_for(call, rule="late", level=level)
    hijack.ask(request)
    hijack.stage.vote(request, "cleo")
    return hijack.use(call, request, by=by)


def half(hijack: Hijack) -> Outcome:
    call = hijack.call(how="two")
    request = ask_for(call, rule="two")
    hijack.ask(request)
    hijack.stage.vote(request, "ada")
    return hijack.use(call, request)


def padded(hijack: Hijack) -> Outcome:
    """Without its rule the next one would be about the call, for which one vote is enough."""
    call = hijack.call(how="two")
    call = replace(call, args=canonical.dumps({"how": "two", "label": hijack.label + "x" * 9_000}))
    request = ask_for(call, rule="one")
    hijack.ask(request)
    hijack.stage.vote(request, "ada")
    return hijack.use(call, request, by="held")


def twice(hijack: Hijack) -> Outcome:
    call = hijack.call(how="two")
    request = ask_for(call, rule="two")
    hijack.ask(request)
    hijack.stage.vote(request, "ada")
    hijack.stage.vote(request, "ada")
    return hijack.use(call, request)


def relaxed(hijack: Hijack) -> Outcome:
    """Ada agrees, if somebody else does; then the question is said to be escalated, by a rule that asks for one."""
    call = hijack.call(how="two")
    request = ask_for(call, rule="two")
    hijack.ask(request)
    hijack.stage.vote(request, "ada")
    softer = ask_for(call, rule="one", level=1)
    hijack.ask(softer)
    if not hijack.undecided(request):
        return Outcome(False, "ada's word alone was enough")
    return hijack.use(call, softer, by="second")


def misnamed(hijack: Hijack) -> Outcome:
    """Bob is shown a note; the digest that his vote names is that of a wipe."""
    call = hijack.call()
    shown = ask_for(hijack.call("note", run=call.run), rule="open", question=ask_for(call).question)
    hijack.ask(shown)
    hijack.stage.vote(shown, "bob")
    return hijack.use(call, shown, by="malformed")


def many(hijack: Hijack) -> Outcome:
    """Ada is shown an approval that is good for five attempts; the attacker makes the first one's outcome unknown."""
    call = hijack.call(how="slow")
    token = hijack.decision(ask_for(call, effect="keyed", covers=5))
    refused = [hijack.refused(call, token, timeout_ms=1, attempt=number) for number in (1, 2)]
    return Outcome(all(each.stopped for each in refused), refused[-1].where)


def century(hijack: Hijack) -> Outcome:
    needed = replace(asks("one"), valid_ms=100 * 365 * 86_400_000)
    return said_by(hijack, "ada", "malformed", requirement=needed)


def closed(hijack: Hijack) -> Outcome:
    call = hijack.call()
    request = ask_for(call)
    hijack.ask(request)
    hijack.undecided(request)
    hijack.write("approval-requested", home(call.run, PARTITIONS), key=request.approval_id, value=None)
    hijack.ask(request)
    hijack.undecided(request)
    hijack.stage.vote(request, "ada")
    return hijack.use(call, request, by="late")


def overwritten(hijack: Hijack) -> Outcome:
    """Ada says yes to a note; by the time that she has, her approval's id is that of a wipe."""
    innocent = hijack.call("note")
    asked = ask_for(innocent, rule="open")
    hijack.ask(asked)
    dangerous = replace(innocent, tool="wipe")
    hijack.ask(replace(ask_for(dangerous), approval_id=asked.approval_id))
    hijack.stage.vote(asked, "ada")
    outcome = hijack.refused(dangerous, hijack.token(asked.approval_id))
    letter = hijack.stage.put_away(asked.approval_id)
    return outcome if "malformed" in letter else Outcome(False, f"the other call was not put away: {letter}")


def undeclared(hijack: Hijack) -> Outcome:
    """The policy wants people for it, but only planners ask policies; an executor asks the tool and its settings."""
    return hijack.refused(hijack.call("note"))
