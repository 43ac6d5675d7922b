"""What a hijacked planner makes of a true order: each lie changes what a decision binds, or the decision."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from refold.core.approval import signature
from refold.core.messages import ToolRequest
from refold.core.wire import canonical
from refold.core.wire.canonical import idempotency_key
from refold.simulator.reading.tokens import payload_of
from refold.simulator.world.crew import ENVIRONMENT
from refold.simulator.world.law import FORGED, STRANGER


@dataclass(frozen=True, slots=True)
class Order:
    """An order and the partition that it is written into."""

    request: ToolRequest
    partition: int


@dataclass(frozen=True, slots=True)
class Means:
    """What a liar has: chance, decisions that were made for other calls, and how many partitions there are."""

    rng: Random
    decisions: list[str]
    partitions: int


Lie = Callable[[Order, Means], Order]
"""**Raises** ValueError when an earlier lie has left no decision to lie about."""


def _with(order: Order, **changes: Any) -> Order:
    return replace(order, request=replace(order.request, **changes))


def _rekeyed(order: Order, **changes: Any) -> Order:
    """A change that brings its own idempotency key along, as a careful liar would."""
    found = replace(order.request, **changes)
    args, step, tool = found.args, found.step, found.tool
    key = idempotency_key(environment=ENVIRONMENT, run=found.run_id, step=step, tool=tool, args=args)
    return replace(order, request=replace(found, key=key))


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
    changed = {**payload, **means.rng.choice(({"covers": 99}, {"expires": 1 << 50}, {"version": "2"}))}
    forged = urlsafe_b64encode(canonical.dumps(changed).encode()).rstrip(b"=").decode()
    attempt = order.request.attempt + 5 * ("covers" in changed and changed["covers"] == 99)
    return _with(order, decision=f"{head}.{forged}.{seal}", attempt=attempt)


def _unsigned(order: Order, means: Means) -> Order:
    head = urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    parts = order.request.decision.split(".")
    if len(parts) != 3:
        raise ValueError("no token")
    return _with(order, decision=f"{head}.{parts[1]}.")


def _signed(key: signature.SigningKey) -> Lie:
    def lie(order: Order, means: Means) -> Order:
        payload = payload_of(order.request.decision) | {
            "covers": 99,
            "expires": order.request.at_ms + 1_000_000,
            "nonce": "mine",
        }
        attempt = order.request.attempt + 1
        return _with(order, decision=signature.sign(payload, key), attempt=attempt)

    return lie


def _other_tool(order: Order, means: Means) -> Order:
    tool = means.rng.choice([name for name in ("wipe_push", "wipe_book", "wipe_pay") if name != order.request.tool])
    return _rekeyed(order, tool=tool)


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
    "another partition": lambda order, means: replace(order, partition=(order.partition + 1) % means.partitions),
    "an old time": lambda order, means: _with(order, at_ms=means.rng.choice((0, order.request.at_ms - 60_000))),
    "another key window": lambda order, means: _with(order, key_expires_ms=1 << 50),
}
"""By what is told. The last two may be told of an order that is good otherwise."""

HARMLESS = ("an old time", "another key window")
