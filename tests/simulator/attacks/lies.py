"""What a hijacked planner makes of a true order: each lie changes what a decision binds, or the decision."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from refold.core.approval import signature
from refold.core.wire import canonical
from refold.core.wire.canonical import idempotency_key
from tests.simulator.app import DANGEROUS
from tests.simulator.attacks.foothold import Order
from tests.simulator.reading.tokens import payload_of
from tests.simulator.settings import PARTITIONS
from tests.simulator.world.crew import ENVIRONMENT
from tests.simulator.world.law import FIRST, FORGED, LEADS, STRANGER


@dataclass(frozen=True, slots=True)
class Means:
    """What a liar has: chance, and decisions that were made for other calls."""

    rng: Random
    decisions: list[str]


Lie = Callable[[Order, Means], Order]
"""**Raises** ValueError when an earlier lie has left no decision to lie about."""


def _with(order: Order, **changes: Any) -> Order:
    return replace(order, request=replace(order.request, **changes))


def _rekeyed(order: Order, **changes: Any) -> Order:
    """A change that brings its own idempotency key along, as a careful liar would."""
    ask = replace(order.request, **changes)
    key = idempotency_key(environment=ENVIRONMENT, run=ask.run_id, step=ask.step, tool=ask.tool, args=ask.args)
    return replace(order, request=replace(ask, key=key))


def _moved(order: Order, means: Means) -> Order:
    run = f"z-{means.rng.randrange(100, 999)}"
    return _rekeyed(order, run_id=run, call_id=f"{run}/{order.request.call_id.partition('/')[2]}")


def _next_call(order: Order, means: Means) -> Order:
    run, _, seq = order.request.call_id.partition("/")
    return _with(order, call_id=f"{run}/{int(seq) + means.rng.choice((1, 2, 7))}")


def _twin(order: Order, means: Means) -> Order:
    """The next call of the same run, equal in all but its number."""
    step = order.request.step + 1
    run, _, seq = order.request.call_id.partition("/")
    return _rekeyed(order, call_id=f"{run}/{int(seq) + 2}", step=step)


def _tampered(order: Order, means: Means) -> Order:
    """The payload is changed and the signature kept."""
    payload = payload_of(order.request.decision)
    head, _, seal = order.request.decision.split(".")
    payload |= means.rng.choice(({"covers": 99}, {"expires": 1 << 50}, {"version": "2"}))
    forged = urlsafe_b64encode(canonical.dumps(payload).encode()).rstrip(b"=").decode()
    attempt = order.request.attempt + 5 * (payload.get("covers") == 99)
    return _with(order, decision=f"{head}.{forged}.{seal}", attempt=attempt)


def _unsigned(order: Order, means: Means) -> Order:
    head = urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    _, body, _ = order.request.decision.split(".")
    return _with(order, decision=f"{head}.{body}.")


def _signed(key: signature.SigningKey) -> Lie:
    def lie(order: Order, means: Means) -> Order:
        changes = {"covers": 99, "expires": order.request.at_ms + 1_000_000, "nonce": "mine"}
        decision = signature.sign(payload_of(order.request.decision) | changes, key)
        return _with(order, decision=decision, attempt=order.request.attempt + 1)

    return lie


def _accomplice(order: Order, means: Means) -> Order:
    """The approval service's own host is in league: what it signs is well signed, and nobody has said it."""
    payload = payload_of(order.request.decision)
    if not payload["votes"]:
        raise ValueError("nobody is left to be named")
    name = means.rng.choice(LEADS)
    payload["votes"] = [{**payload["votes"][0], "actor": name, "vote": "never-cast"}]
    return _with(order, decision=signature.sign({**payload, "tokens": [], "nonce": "mine"}, FIRST))


def _other_tool(order: Order, means: Means) -> Order:
    return _rekeyed(order, tool=means.rng.choice([name for name in DANGEROUS if name != order.request.tool]))


def _other_effect(order: Order, means: Means) -> Order:
    effects = [name for name in ("pure", "pure", "keyed", "probed", "once") if name != order.request.effect]
    return _with(order, effect=means.rng.choice(effects))


LIES: Mapping[str, Lie] = {
    "no decision": lambda order, means: _with(order, decision=""),
    "a flag": lambda order, means: _with(order, decision=means.rng.choice(("true", "approved", '{"approved":true}'))),
    "unsigned": _unsigned,
    "a stranger's key": _signed(STRANGER),
    "a forged key": _signed(FORGED),
    "tampered": _tampered,
    "an accomplice's key": _accomplice,
    "another's decision": lambda order, means: _with(order, decision=means.rng.choice(means.decisions)),
    "other arguments": lambda order, means: _rekeyed(order, args='{"n":666}'),
    "other arguments, old key": lambda order, means: _with(order, args='{"n":666}'),
    "spaced arguments": lambda order, means: _with(order, args=order.request.args.replace(":", ": ")),
    "another run": _moved,
    "another call": _next_call,
    "a twin": _twin,
    "another step": lambda order, means: _rekeyed(order, step=order.request.step + 1),
    "another tool": _other_tool,
    "an unknown tool": lambda order, means: _with(order, tool="wipe_all"),
    "another class": _other_effect,
    "another key": lambda order, means: _with(order, key="0" * 64),
    "another policy": lambda order, means: _with(order, policy=""),
    "a higher attempt": lambda order, means: _with(order, attempt=order.request.attempt + means.rng.choice((1, 3, 90))),
    "a lower attempt": lambda order, means: _with(order, attempt=order.request.attempt - 1),
    "another partition": lambda order, means: replace(order, partition=(order.partition + 1) % PARTITIONS),
    "an old time": lambda order, means: _with(order, at_ms=means.rng.choice((0, order.request.at_ms - 60_000))),
    "another key window": lambda order, means: _with(order, key_expires_ms=1 << 50),
}
"""By what is told. The last two may be told of an order that is good otherwise."""

HARMLESS = ("an old time", "another key window")
