"""Attacks on who has asked for the run: a requester whom nobody vouches for is nobody, and asks for one person more."""

from __future__ import annotations

from collections.abc import Iterator

from refold.engine.runtime import keys
from tests.security.hijack import Call, Hijack, Outcome, ask_for, started_by
from tests.security.plays import Play
from tests.security.stage import ASKER

OWN = keys.new("request", "mallory")
"""The attacker's; the catalog does not have it."""


def plays() -> Iterator[Play]:
    """The attacks, each with one person who agrees; and what is verified."""
    yield Play("a run of rita's, by her own word", lambda h: vouched(h, h.call()), "control", allowed=1)
    yield Play("a requester without a token", lambda h: said(h, h.call(), ""))
    yield Play("a requester with a token of the attacker's", made_up)
    yield Play("a requester with the token of another run", other_run)
    yield Play("a requester with the token of another agent", other_agent)
    yield Play("another requester with rita's token", other_name)
    yield Play("another requester with a token that rita's key has signed", other_actor)


def said(hijack: Hijack, call: Call, token: str, **changes: str) -> Outcome:
    request = ask_for(call, token=token, **changes)
    hijack.ask(request)
    hijack.stage.vote(request, "ada")
    return hijack.use(call, request)


def vouched(hijack: Hijack, call: Call) -> Outcome:
    found = hijack.order(call, hijack.decision(ask_for(call)))
    return Outcome(found.status == "completed", f"executor: {found.status}")


def made_up(hijack: Hijack) -> Outcome:
    call = hijack.call()
    return said(hijack, call, started_by(OWN, call.run).token)


def other_run(hijack: Hijack) -> Outcome:
    return said(hijack, hijack.call(), started_by(ASKER, hijack.call().run).token)


def other_agent(hijack: Hijack) -> Outcome:
    call = hijack.call()
    return said(hijack, call, started_by(ASKER, call.run, agent="harmless").token)


def other_name(hijack: Hijack) -> Outcome:
    call = hijack.call()
    return said(hijack, call, started_by(ASKER, call.run).token, requester="mallory")


def other_actor(hijack: Hijack) -> Outcome:
    """The key speaks for rita alone."""
    call = hijack.call()
    return said(hijack, call, started_by(ASKER, call.run, requester="mallory").token, requester="mallory")
