"""The two ledgers against each other on random operations, and what it takes to make them differ."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from refold.dev.valkey import EmbeddedValkey
from refold.engine.adapters.redis import ledger as redis_ledger
from refold.engine.ports.ledger import Operation
from tests.contract.ledger_benches import MemoryBench, RedisBench
from tests.contract.ledger_random import batches, difference, seeded

SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=250, deadline=None, suppress_health_check=SHARED)
@given(sent=batches)
def test_memory_and_redis_give_the_same_replies_and_hold_the_same(
    valkey: EmbeddedValkey, sent: list[list[Operation]]
) -> None:
    assert _difference(valkey, sent) is None


PLANTED = [
    pytest.param(*bug, id=bug[0] + ": " + bug[1])
    for bug in [
        ("claim", "success == '1' or ", ""),
        ("claim", "or own and tonumber(on_record) == attempt", ""),
        ("claim", "own and tonumber(on_record) == attempt", "tonumber(on_record) == attempt"),
        ("claim", "own = call == ARGV[2]", "own = true"),
        ("claim", "own and closed", "false"),
        ("claim", "own and closed", "closed"),
        ("claim", "own and attempt <", "attempt <"),
        ("claim", "own and attempt < tonumber(on_record)", "false"),
        ("claim", "token == ARGV[4]", "false"),
        ("claim", "{'claimed', takeover or ''}", "{'claimed', ''}"),
        ("claim", "attempt <= tonumber(back)", "false"),
        ("claim", "tonumber(lease) > now", "false"),
        ("claim", "state == 'started' or state and not own", "state"),
        ("claim", "state == 'started' or state and not own", "state == 'started'"),
        ("claim", "token ~= '' and token or takeover or ''", "token"),
        ("claim", "  redis.call('DEL', KEYS[1])\n", ""),
        ("claim", "redis.call('ZADD', KEYS[2], now + ARGV[5], ARGV[1])", ""),
        ("renew", "state and token ~= ARGV[4]", "false"),
        ("renew", "state == 'done' or closed", "state == 'done'"),
        ("renew", "state == 'done' or closed", "closed"),
        ("renew", "if not state then", "if false then"),
        ("renew", "redis.call('ZADD', KEYS[2], now + ARGV[5], ARGV[1])", ""),
        ("release", "state == 'started' and token == ARGV[2]", "state == 'started'"),
        ("release", "state == 'started' and token == ARGV[2]", "token == ARGV[2]"),
        ("release", "takeover and takeover ~= ''", "false"),
        ("release", "redis.call('ZREM', KEYS[2], ARGV[1])", ""),
        ("complete", "state and token ~= ARGV[4]", "false"),
        ("complete", "state == 'done' and not closed", "false"),
        ("complete", "if not closed then", "if true then"),
        ("complete", "'order', 'owner', 'takeover'", "'owner', 'takeover'"),
        ("complete", "redis.call('ZREM', KEYS[2], ARGV[1])", ""),
        ("complete", "redis.call('HSET', KEYS[3], ARGV[2] .. '#' .. ARGV[3], ARGV[6])", ""),
        ("close", "back > 0", "false"),
        ("close", "(tonumber(attempt) or back + 1) <= back", "true"),
        ("close", "on_record == call", "on_record"),
        ("close", "redis.call('ZREM', KEYS[1], key)", ""),
        ("close", "redis.call('DEL', KEYS[i])", ""),
        ("close", "'token', token)", "'token', '')"),
        ("lapsed", "order ~= '' and not back", "order ~= ''"),
        ("lapsed", "'-inf', now", "'-inf', '+inf'"),
    ]
]


@pytest.mark.parametrize(("script", "right", "wrong"), PLANTED)
def test_a_rule_that_is_broken_is_noticed(
    valkey: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch, script: str, right: str, wrong: str
) -> None:
    source = redis_ledger.SCRIPTS[script]
    assert source.count(right) == 1
    monkeypatch.setitem(redis_ledger.SCRIPTS, script, source.replace(right, wrong))

    assert any(_difference(valkey, seeded(seed)) for seed in range(200))


def test_the_seeded_operations_find_no_difference_when_no_rule_is_broken(valkey: EmbeddedValkey) -> None:
    assert [_difference(valkey, seeded(seed)) for seed in range(200)] == [None] * 200


def _difference(valkey: EmbeddedValkey, sent: list[list[Operation]]) -> str | None:
    real = RedisBench(valkey.url)
    try:
        return difference(MemoryBench(), real, sent)
    finally:
        real.close()
