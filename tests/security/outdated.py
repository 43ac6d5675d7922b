"""Attacks with what was in force once: an older, softer policy, and a key that was revoked.

Everything here changes what is in force, and the last of it for good.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.security.hijack import Hijack, Outcome, ask_for, asks
from tests.security.plays import Play
from tests.security.stage import OLD, STRICT


def plays() -> Iterator[Play]:
    """The attacks, what the design does not stop, and that it does not stop too much."""
    yield Play("LIMIT an older policy that is softer, and still in the catalog", softer, "limit", allowed=1)
    yield Play("the same, while a policy is in force that rechecks", strict_from_here)
    yield Play("ordered under the strict policy's name", lambda h: softer(h, ordered=STRICT.digest))
    yield Play("asked before, while a policy is in force that rechecks", rechecked)
    yield Play("what was asked by the policy that rechecks", honest, "control", allowed=1)
    yield Play("an older policy that was taken out of the catalog", retired)
    yield Play("after the key was revoked", revoked_key)


def softer(hijack: Hijack, *, ordered: str = OLD.digest) -> Outcome:
    """The old policy lets anybody say yes, and eve does."""
    call = hijack.call()
    request = ask_for(call, policy=OLD.digest, requirement=asks("one", OLD))
    return hijack.refused(call, hijack.decision(request, "eve"), policy=ordered)


def strict_from_here(hijack: Hijack) -> Outcome:
    hijack.stage.put_in_force(STRICT)
    return softer(hijack)


def rechecked(hijack: Hijack) -> Outcome:
    call = hijack.call()
    return hijack.refused(call, hijack.decision(ask_for(call)))


def honest(hijack: Hijack) -> Outcome:
    call = hijack.call()
    found = hijack.order(call, hijack.decision(ask_for(call, policy=STRICT.digest)), policy=STRICT.digest)
    return Outcome(found.status == "completed", f"executor: {found.status}")


def retired(hijack: Hijack) -> Outcome:
    hijack.stage.retire(OLD)
    call = hijack.call()
    request = ask_for(call, policy=OLD.digest, requirement=asks("one", OLD))
    hijack.ask(request)
    hijack.stage.vote(request, "eve")
    return hijack.use(call, request, by="held")


def revoked_key(hijack: Hijack) -> Outcome:
    call = hijack.call()
    token = hijack.decision(ask_for(call, policy=STRICT.digest))
    hijack.stage.revoke(hijack.stage.service)
    return hijack.refused(call, token, policy=STRICT.digest)
