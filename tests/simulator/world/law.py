"""What the operator of a simulated platform publishes: keys, roles and policies, and how they change in a case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from refold.core.approval.policy import policy_digest
from refold.core.approval.signature import PublicKey, SigningKey, Trust, sealed
from refold.core.messages import CatalogEntry
from refold.core.topics import CATALOG
from refold.core.wire import canonical, codec
from refold.engine.ports.log import Outgoing
from tests.simulator.settings import ROOT
from tests.simulator.world.surroundings import Surroundings

FIRST = SigningKey("approval-1", "decision", bytes([1] * 32))
NEXT = SigningKey("approval-2", "decision", bytes([2] * 32))
GATEWAY = SigningKey("gateway-1", "vote", bytes([3] * 32))
BADGE = SigningKey("ada-1", "vote", bytes([4] * 32))
TRUST: Trust = {ROOT.kid: ROOT.public()}
STRANGER = SigningKey("stranger-1", "decision", bytes([5] * 32))
"""Nobody has published it."""

FORGED = SigningKey("approval-1", "decision", bytes([6] * 32))
"""It has the name of a key that is in force."""

PUBLIC: dict[str, PublicKey] = {
    FIRST.kid: FIRST.public(),
    GATEWAY.kid: GATEWAY.public(strength="login"),
    BADGE.kid: BADGE.public(actors=("ada",), strength="key"),
}
"""The keys that are in force at first."""

EDITED = '{"n":2}'
"""The arguments that people give a call."""

DEAR_USD = 0.15
"""What a run may have cost that goes on acting, where the law is thrifty."""

LEADS, HEADS, REQUESTER, OUTSIDER = ("ada", "bob", "cyd"), ("dan",), "eve", "mallory"
_ROLES: Mapping[str, Any] = {"roles": {"lead": list(LEADS), "head": list(HEADS)}, "revoked": []}


_DOUBT = {"approvers": ["role:lead"], "not_requester": False}
"""Who says what came of a call: enough people that somebody is left to."""


def _asks(recheck: bool = False, **needed: Any) -> dict[str, Any]:
    kept = {"for": "1m", "uses": 2}
    requirement = {"approvers": ["role:lead"], "message": "wipe?", "remember": kept, **needed}
    rules = [
        {"name": "asks", "when": 'tool.name.startsWith("wipe_")', "require": requirement},
        {"name": "rest", "when": "true", "allow": True},
    ]
    return {"recheck": True, "doubt": _DOUBT, "rules": rules} if recheck else {"doubt": _DOUBT, "rules": rules}


def _more_for_edits() -> dict[str, Any]:
    """What people make of a call by an edit needs two, where one is asked about the call."""
    edited = {"approvers": ["role:lead"], "quorum": 2, "expires": 6_000}
    when = f"args == {EDITED} && tool.name.startsWith('wipe_')"
    asks = _asks(expires=6_000)
    return {**asks, "rules": [{"name": "edited", "when": when, "require": edited}, *asks["rules"]]}


def _thrifty() -> dict[str, Any]:
    """What acts, and is not harmful, is denied to a run that has cost so much."""
    when = f'run.cost > {DEAR_USD} && tool.name != "model" && !tool.name.startsWith("wipe_")'
    asks = _asks(expires=6_000)
    return {**asks, "rules": [{"name": "dear", "when": when, "deny": "too dear"}, *asks["rules"]]}


def _simple(outcome: str, value: Any, *, recheck: bool = False) -> dict[str, Any]:
    rules = [{"name": outcome, "when": 'tool.effect != "pure"', outcome: value}]
    return {"recheck": recheck, "fallback": {"approvers": ["*"]}, "rules": rules}


STATUTES: Mapping[str, dict[str, Any]] = {
    "ask": _asks(expires=6_000),
    "ask-anybody": _asks(approvers=["*"], not_requester=False),
    "ask-two": _asks(quorum=2, expires=6_000),
    "ask-all": {
        "doubt": _DOUBT,
        "rules": [{"name": "all", "when": "true", "require": {"approvers": ["role:lead", "dan"], "expires": 6_000}}],
    },
    "ask-two-of-edits": _more_for_edits(),
    "thrifty": _thrifty(),
    "brief": _asks(valid=700),
    "rejecting": _asks(expires=600),
    "failing": _asks(expires=600, on_expiry="fail"),
    "escalating": _asks(expires=600, on_expiry="escalate", escalate={"to": ["role:head"]}),
    "escalating-early": _asks(expires=2_000, escalate={"after": 400, "to": ["role:head"]}),
    "allow": {"doubt": _DOUBT, **_simple("allow", True)},
    "deny": _simple("deny", "not in this house"),
    "recheck-ask": _asks(recheck=True, expires=6_000),
    "recheck-two": _asks(recheck=True, quorum=2, expires=6_000),
    "recheck-allow": _simple("allow", True, recheck=True),
    "recheck-deny": _simple("deny", "not any more", recheck=True),
}
"""By the name that scenarios use."""

Change = Literal["policy", "roles", "rotate", "revoke"]


@dataclass(frozen=True, slots=True)
class Decree:
    """What the operator does in the middle of a case: a policy by name, other roles, or the decision key.

    `rotate`: the next key signs, and what the first has signed holds. `revoke`: it does not.
    """

    at_ms: int
    change: Change
    what: Any = None


def enact(world: Surroundings, policy: str) -> None:
    """Publishes everything that is in force at the start of a case."""
    for key in PUBLIC.values():
        _publish(world, f"key/{key.kid}", "key", key.content())
    _publish(world, "roles", "roles", _ROLES)
    _put_in_force(world, policy)


def decree(world: Surroundings, order: Decree) -> None:
    """Publishes a change. A service that signs has to be started again to have a new key."""
    world.counts[f"decree.{order.change}"] += 1
    if order.change == "policy":
        _put_in_force(world, order.what)
    elif order.change == "roles":
        _publish(world, "roles", "roles", order.what)
    else:
        old = PUBLIC[FIRST.kid]
        old = replace(old, retired_ms=world.now_ms) if order.change == "rotate" else replace(old, revoked=True)
        _publish(world, f"key/{NEXT.kid}", "key", NEXT.public().content())
        _publish(world, f"key/{FIRST.kid}", "key", old.content())
        world.decision_key = NEXT


def _put_in_force(world: Surroundings, policy: str) -> None:
    content = STATUTES[policy]
    name = policy_digest(content)
    _publish(world, f"policy/{name}", "policy", content)
    _publish(world, "current", "current", name)


def _publish(world: Surroundings, name: str, kind: str, content: Any) -> None:
    entry = CatalogEntry(name, kind, canonical.dumps(content), actor="operator", at_ms=world.now_ms)
    entry = sealed(entry, ROOT, world.broker.log(CATALOG, 0).end + 1)
    for partition in range(world.settings.partitions):
        world.broker.write(Outgoing(CATALOG, partition, name.encode(), codec.encode(entry), (), 0))
