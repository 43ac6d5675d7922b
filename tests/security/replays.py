"""Attacks with real decisions: each made by real votes on what the attacker asked, and used for something else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from refold.core.ids import home
from refold.core.wire import canonical
from tests.kafka.secured import PARTITIONS
from tests.security.hijack import Call, Hijack, Outcome, ask_for, payload
from tests.security.plays import Play
from tests.security.stage import ENVIRONMENT, ROLES, STRICT
from tests.waiting import eventually


def plays() -> Iterator[Play]:
    """The attacks; the last one changes for a while what is in force."""
    yield Play("a decision for another call with equal arguments", lambda h: elsewhere(h, seq=5))
    yield Play("for another step", lambda h: elsewhere(h, step=2))
    yield Play("for another run", another_run)
    yield Play("for a child of the run", lambda h: elsewhere(h, child=True))
    yield Play("in another partition", another_partition)
    yield Play("for a second attempt of a once call", lambda h: changed(h, attempt=2))
    yield Play("with edited arguments", partial(edited_args, honest_key=False))
    yield Play("with edited arguments and their key", partial(edited_args, honest_key=True))
    yield Play("with arguments in another spelling", spelled)
    yield Play("with another key", lambda h: changed(h, key="0" * 64))
    yield Play("with the class pure", lambda h: changed(h, effect="pure"))
    yield Play("asked as pure, ordered as once", lambda h: asked_as(h, effect="pure"))
    yield Play("asked and ordered as pure", lambda h: asked_as(h, order={"effect": "pure"}, effect="pure"))
    yield Play("an innocent tool's decision for a dangerous one", innocent)
    yield Play("a dangerous tool under an innocent one's name", renamed)
    yield Play("under another policy's name", lambda h: changed(h, policy=STRICT.digest))
    yield Play("with a newer version of the tool", lambda h: changed(h, pool="newer"))
    yield Play("in another environment", lambda h: changed(h, pool="elsewhere"))
    yield Play("in another environment, with its key", in_staging)
    yield Play("a decision that says reject", lambda h: verdict(h, "reject"))
    yield Play("a decision that answers", lambda h: verdict(h, "answer", result='"done"'))
    yield Play("the arguments from before the edit", before_edit)
    yield Play("after its expiry", lambda h: expired(h, at_ms=None))
    yield Play("after its expiry, the order dated back", lambda h: expired(h, at_ms=0))
    yield Play("in time, the order dated forward", lambda h: changed(h, at_ms=now_ms() + 86_400_000))
    yield Play("after the approver was revoked", revoked_approver)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def approved(hijack: Hijack, call: Call, **changes: Any) -> str:
    """The real decision on a call."""
    return hijack.decision(ask_for(call, **changes))


def changed(hijack: Hijack, **order: Any) -> Outcome:
    """The call that was approved, ordered otherwise."""
    call = hijack.call()
    return hijack.refused(call, approved(hijack, call), **order)


def asked_as(hijack: Hijack, *, order: dict[str, Any] | None = None, **asked: Any) -> Outcome:
    """A call that was asked for otherwise."""
    call = hijack.call()
    return hijack.refused(call, approved(hijack, call, **asked), **(order or {}))


def elsewhere(hijack: Hijack, *, seq: int = 3, step: int = 1, child: bool = False) -> Outcome:
    """Another call of the same run; with its own key, as only that would be right for it."""
    call = hijack.call()
    other = replace(call, seq=seq, step=step, run=f"{call.run}.2" if child else call.run)
    return hijack.refused(other, approved(hijack, call))


def another_run(hijack: Hijack) -> Outcome:
    return hijack.refused(hijack.call(), approved(hijack, hijack.call()))


def another_partition(hijack: Hijack) -> Outcome:
    call = hijack.call()
    away = (home(call.run, PARTITIONS) + 1) % PARTITIONS
    return hijack.refused(call, approved(hijack, call), at=away)


def edited_args(hijack: Hijack, *, honest_key: bool) -> Outcome:
    call = hijack.call()
    other = replace(call, args=canonical.dumps({"how": "slow", "label": hijack.label}))
    key = other.key() if honest_key else call.key()
    return hijack.refused(other, approved(hijack, call), key=key)


def spelled(hijack: Hijack) -> Outcome:
    """The same JSON with a space."""
    call = hijack.call()
    return hijack.refused(call, approved(hijack, call), args=call.args.replace(",", ", "))


def innocent(hijack: Hijack) -> Outcome:
    """People let a note pass."""
    call = hijack.call("note")
    token = approved(hijack, call, rule="open")
    dangerous = replace(call, tool="wipe")
    return hijack.refused(dangerous, token)


def renamed(hijack: Hijack) -> Outcome:
    """People are asked about a note with all that a wipe has; the order says wipe."""
    call = hijack.call("note")
    facts = replace(call, tool="wipe").facts
    asked = {"version": facts.version, "schema": facts.schema, "effect": facts.effect}
    token = approved(hijack, call, rule="open", **asked)
    return hijack.refused(call, token, tool="wipe")


def in_staging(hijack: Hijack) -> Outcome:
    call = hijack.call()
    assert call.key("staging") != call.key(ENVIRONMENT)
    return hijack.refused(call, approved(hijack, call), pool="elsewhere", key=call.key("staging"))


def verdict(hijack: Hijack, action: str, **more: Any) -> Outcome:
    call = hijack.call()
    return hijack.refused(call, hijack.decision(ask_for(call), action=action, **more))


def before_edit(hijack: Hijack) -> Outcome:
    """An approver takes the sting out of the arguments; the planner sends what it had proposed."""
    call = hijack.call()
    blunt = canonical.dumps({"how": "slow", "label": "blunt"})
    return hijack.refused(call, hijack.decision(ask_for(call), action="edit", args=blunt))


def expired(hijack: Hijack, *, at_ms: int | None) -> Outcome:
    call = hijack.call(how="brief")
    token = approved(hijack, call, rule="brief")
    until = payload(token)["expires"]
    eventually(lambda: now_ms() >= until, what="the decision to expire")
    return hijack.refused(call, token, **({} if at_ms is None else {"at_ms": at_ms}))


def revoked_approver(hijack: Hijack) -> Outcome:
    """And the role is given back for what comes after."""
    call = hijack.call()
    token = approved(hijack, call)
    hijack.stage.publish("roles", "roles", {**ROLES, "revoked": ["ada"]})
    try:
        return hijack.refused(call, token)
    finally:
        hijack.stage.publish("roles", "roles", ROLES)
