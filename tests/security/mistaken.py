"""Attacks with good signatures on something else: a vote for a decision, a decision for a vote, another one's key."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace

from tests.security.hijack import Hijack, Outcome, ask_for
from tests.security.plays import Play
from tests.security.softened import ANYBODY
from tests.security.unsigned import forged


def plays() -> Iterator[Play]:
    """The attacks. Some need somebody at the gateway who hands on what he is given."""
    yield Play("for a decision, a vote", vote_for_decision)
    yield Play("for a decision, a vote that half of a quorum has given", half_for_decision)
    yield Play("for a decision, one that the gateway's key has signed", gateway_decides)
    yield Play("one that the approval service's own host has signed, without votes", accomplice)
    yield Play("the same, with one vote where two are needed", lambda h: accomplice(h, "ada", rule="two", how="two"))
    yield Play("the same, with the vote of somebody who has no role", lambda h: accomplice(h, "eve"))
    yield Play("the same, of a question that the policy does not ask", lambda h: accomplice(h, "eve", softer=True))
    yield Play("for a vote, a decision", decision_for_vote)
    yield Play("for a vote, one that the approval service's key has signed", service_votes)
    yield Play("a vote on one question, handed on as one on another", vote_elsewhere)
    yield Play("one person's vote under two ids where two are needed", vote_again)


def vote_for_decision(hijack: Hijack) -> Outcome:
    call = hijack.call()
    request = ask_for(call)
    hijack.ask(request)
    return hijack.refused(call, hijack.stage.vote(request, "ada"))


def half_for_decision(hijack: Hijack) -> Outcome:
    call = hijack.call(how="two")
    request = ask_for(call, rule="two")
    hijack.ask(request)
    return hijack.refused(call, hijack.stage.vote(request, "ada"))


def gateway_decides(hijack: Hijack) -> Outcome:
    call = hijack.call()
    return hijack.refused(call, forged(call, replace(hijack.stage.gateway, use="decision")))


def accomplice(hijack: Hijack, *actors: str, rule: str = "one", how: str = "plain", softer: bool = False) -> Outcome:
    """The host of the approval service is in league: it signs ada's name, with such votes as people gave."""
    call = hijack.call(how=how)
    request = ask_for(call, rule=rule, **({"requirement": ANYBODY} if softer else {}))
    tokens = tuple(hijack.stage.ballot(request, actor) for actor in actors)
    return hijack.refused(call, forged(call, hijack.stage.service, request=request, tokens=tokens))


def decision_for_vote(hijack: Hijack) -> Outcome:
    """Of the very question: the decision that one was enough for becomes the vote that is missing."""
    call = hijack.call(how="two")
    token = hijack.decision(ask_for(hijack.call()))
    request = ask_for(call, rule="two")
    hijack.ask(request)
    hijack.stage.vote(request, "ada")
    hijack.stage.cast(request, token, vote=secrets.token_hex(8))
    return hijack.use(call, request, by="unauthorised")


def service_votes(hijack: Hijack) -> Outcome:
    call = hijack.call()
    request = ask_for(call)
    hijack.ask(request)
    key = replace(hijack.stage.service, use="vote")
    hijack.stage.cast(request, hijack.stage.ballot(request, "ada", key=key), vote=secrets.token_hex(8))
    return hijack.use(call, request, by="unauthorised")


def vote_elsewhere(hijack: Hijack) -> Outcome:
    call = hijack.call("note")
    innocent = ask_for(call, rule="open")
    hijack.ask(innocent)
    token = hijack.stage.vote(innocent, "ada")
    dangerous = hijack.call()
    request = ask_for(dangerous)
    hijack.ask(request)
    hijack.stage.cast(request, token, vote=secrets.token_hex(8))
    return hijack.use(dangerous, request, by="wrong_question")


def vote_again(hijack: Hijack) -> Outcome:
    call = hijack.call(how="two")
    request = ask_for(call, rule="two")
    hijack.ask(request)
    token = hijack.stage.vote(request, "ada")
    hijack.stage.cast(request, token, vote=secrets.token_hex(8))
    return hijack.use(call, request)
