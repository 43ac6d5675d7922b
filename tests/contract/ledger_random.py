"""Random operations over few homes, calls and tokens, and how two ledgers are held against each other on them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import strategies as st

from refold.engine.ports.ledger import (
    Busy,
    Claim,
    Close,
    Complete,
    HandOver,
    Lapsed,
    Operation,
    Release,
    Renew,
    Reply,
    Sent,
    SetAside,
    Unlist,
    Unpublished,
    outbox_field,
)
from tests.contract.ledger_benches import HOUR_MS, Bench

_homes = st.sampled_from([0, 7])
_pools = st.just("default")
_keys = st.sampled_from(["k1", "k2"])
_calls = st.sampled_from(["r-1/2", "r-1.3/2"])
_attempts = st.integers(1, 3)
_tokens = st.sampled_from(["ann", "bob", "eve"])
_owners = st.sampled_from(["", "i1/e-1", "i2/e-1", "i1/e/1", "i1"])
_leases = st.sampled_from([0, HOUR_MS])
_bytes = st.binary(max_size=80)
_some_keys = st.lists(_keys, max_size=2).map(tuple)
_fields = st.lists(st.builds(outbox_field, _calls, _attempts), max_size=3).map(tuple)

operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Claim, _homes, _pools, _keys, _calls, _attempts, _tokens, _leases, _bytes, _owners),
    st.builds(Claim, st.just(7), _pools, st.just("k1"), st.just("r-1/2"), _attempts, _tokens, _leases, _bytes, _owners),
    st.builds(Renew, _homes, _pools, _keys, _calls, _attempts, _tokens, _leases, _bytes, _owners),
    st.builds(Release, _homes, _pools, _keys, _tokens),
    st.builds(HandOver, _homes, _pools, _keys, _tokens, st.booleans()),
    st.builds(Complete, _homes, _pools, _keys, _calls, _attempts, _tokens, st.booleans(), _bytes),
    st.builds(Close, _homes, _pools, st.lists(st.tuples(_keys, _calls, st.integers(0, 3)), max_size=2).map(tuple)),
    st.builds(Lapsed, _homes, _pools, st.just(100)),
    st.builds(Lapsed, _homes, _pools, st.just(100), _owners),
    st.builds(Unpublished, _homes, _pools, st.just(100)),
    st.builds(Sent, _homes, _pools, _fields),
    st.builds(Unlist, _homes, _pools, st.lists(_keys, min_size=1, max_size=2).map(tuple)),
    st.builds(SetAside, _homes, _pools, _some_keys, _fields, _some_keys),
)
batches = st.lists(st.lists(operations, min_size=1, max_size=12), min_size=1, max_size=8)


def difference(one: Bench, other: Bench, sent: Sequence[Sequence[Operation]]) -> str | None:
    """The first thing in which two ledgers differ after the same batches, or None."""
    for batch in sent:
        for operation, left, right in zip(batch, one.ledger.run(batch), other.ledger.run(batch), strict=True):
            if _comparable(left) != _comparable(right):
                return f"{operation}: {left} against {right}"
    if (one.state(), one.aside()) != (other.state(), other.aside()):
        return f"{one.state()}, {one.aside()} against {other.state()}, {other.aside()}"
    return None


def _comparable(reply: Reply) -> object:
    if isinstance(reply, Busy):
        assert 0 < reply.wait_ms <= HOUR_MS
        return Busy
    return (type(reply), sorted(reply) if isinstance(reply, list) else reply)


def seeded(seed: int) -> list[list[Operation]]:
    """Batches from a seed: the same words as `batches`, quicker to draw and the same on every machine."""
    draw = random.Random(seed)
    return [[_any(draw) for _ in range(draw.randint(1, 12))] for _ in range(draw.randint(1, 8))]


def _any(draw: random.Random) -> Operation:
    home, key, attempt = 7, "k1", draw.randint(1, 3)
    call = "r-1/2" if draw.random() < 0.8 else "r-1/4"
    token, lease_ms = draw.choice(["ann", "bob", "eve"]), draw.choice([0, HOUR_MS])
    owner = draw.choice(["", "i1/e-1", "i2/e-1"])
    text = str(draw.randint(0, 99)).encode()
    choices: list[Operation] = [
        Claim(home, "default", key, call, attempt, token, lease_ms, text, owner),
        Claim(home, "default", key, call, attempt, token, lease_ms, text, owner),
        Renew(home, "default", key, call, attempt, token, lease_ms, text, owner),
        Release(home, "default", key, token),
        HandOver(home, "default", key, token, draw.random() < 0.5),
        Complete(home, "default", key, call, attempt, token, draw.random() < 0.5, text),
        Close(home, "default", ((key, call, 0),)),
        Close(home, "default", ((key, call, attempt),)),
        Lapsed(home, "default", 100),
        Lapsed(home, "default", 100, draw.choice(["i1/e-1", "i2/e-1", "i1/e-2"])),
        Unpublished(home, "default", 100),
        Sent(home, "default", (outbox_field(call, attempt),)),
        SetAside(home, "default", leases=(key,), fields=(outbox_field(call, attempt),)),
    ]
    return draw.choice(choices)
