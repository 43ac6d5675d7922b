"""What only a real server can do to a ledger: forget scripts, restart, hang, refuse, be badly configured."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from refold.core.errors import UnreachableError, UsageError
from refold.core.ids import CallId
from refold.dev.ports import free_port
from refold.dev.valkey import EmbeddedValkey
from refold.engine.adapters.redis import ledger as redis_ledger
from refold.engine.adapters.redis.ledger import RedisLedger
from refold.engine.ports.ledger import (
    Claim,
    Claimed,
    Close,
    Complete,
    Completed,
    Lapsed,
    Operation,
    Release,
    Renew,
    Sent,
    Stored,
    Unpublished,
)
from tests.contract.ledger_benches import HOUR_MS, RedisBench
from tests.embedded.wiping import wipe
from tests.waiting import eventually

CLAIM = Claim(7, "default", "k1", "r-1/2", 1, "ann", HOUR_MS, b"request")
COMPLETE = Complete(7, "default", "k1", "r-1/2", 1, "ann", True, b'"ok"')
BAD = {"appendonly": "no", "appendfsync": "everysec", "maxmemory-policy": "allkeys-lru"}


@pytest.fixture
def bench(valkey: EmbeddedValkey) -> Iterator[RedisBench]:
    """Give an empty ledger on the shared server."""
    made = RedisBench(valkey.url)
    yield made
    made.close()


def test_a_server_that_forgot_its_scripts_is_taught_them_again(bench: RedisBench) -> None:
    bench.ledger.run([CLAIM])
    bench.client.script_flush()

    replies = bench.ledger.run([COMPLETE, Unpublished(7, "default", 9), Lapsed(7, "default", 9)])

    assert replies[0] == Completed("r-1/2#1")


def test_a_script_that_is_missing_alone_repeats_none_of_the_others(bench: RedisBench) -> None:
    bench.ledger.run([Unpublished(7, "default", 9)])
    bench.client.script_flush()
    for name in ("claim", "renew", "release", "close", "lapsed"):
        bench.client.script_load(redis_ledger.SCRIPTS[name])

    assert bench.ledger.run([CLAIM, COMPLETE]) == [Claimed(), Completed("r-1/2#1")]


def test_every_key_of_a_home_shares_its_hash_tag(bench: RedisBench) -> None:
    bench.ledger.run([CLAIM, CLAIM._replace(key="k2", call="r-1.3/4", pool="model"), COMPLETE])

    keys = list(bench.client.scan_iter(match=f"{bench.prefix}:*"))

    assert len(keys) == 4
    assert {key_slot(key) for key in keys} == {key_slot(b"7")}


def test_a_restart_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as server:
        ledger = RedisLedger(server.url)
        ledger.run([CLAIM, COMPLETE])
        server.kill()
        with pytest.raises(UnreachableError):
            ledger.run([CLAIM])

        server.start()

        assert ledger.run([CLAIM]) == [Stored(b'"ok"')]
        wipe(server)
        with pytest.raises(UnreachableError):
            ledger.run([CLAIM])
        assert ledger.run([CLAIM]) == [Claimed()]


def test_a_call_that_was_settled_takes_little_at_once_and_nothing_after_its_marker(tmp_path: Path) -> None:
    keys = [(f"{number:064x}", CallId(f"run-{number:06}/3")) for number in range(200)]
    claims = [
        Claim(7, "default", key, call, 1, f"{number:032x}", 9, b"r" * 400) for number, (key, call) in enumerate(keys)
    ]
    done = [Complete(*claim[:6], True, b"x" * 2_000) for claim in claims]
    with EmbeddedValkey(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        ledger = RedisLedger(server.url, marker=timedelta(milliseconds=1_000))
        ledger.run([*claims, *done, Sent(7, "default", tuple(f"{call}#1" for _, call in keys))])
        stored = _bytes_per_key(client)

        ledger.run([Close(7, "default", tuple((*named, 0) for named in keys))])

        marked = _bytes_per_key(client)
        assert stored > 2_000
        assert marked < 400, marked
        eventually(lambda: client.dbsize() == 0)


def _bytes_per_key(client: Any) -> float:
    keys = client.keys()
    return sum(client.memory_usage(key, samples=0) for key in keys) / len(keys)


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    ledger = RedisLedger(f"redis://ann:hunter2@127.0.0.1:{port}/0?password=hunter2")

    with pytest.raises(UnreachableError, match=f"redis://127.0.0.1:{port}/0 does not answer") as raised:
        ledger.run([CLAIM])

    assert "hunter2" not in str(raised.value) + str(raised.value.fields)
    assert raised.value.hint


def test_a_server_that_hangs_is_given_up_and_its_late_replies_are_never_taken_for_others(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as server:
        ledger = RedisLedger(server.url, timeout=timedelta(milliseconds=300))
        ledger.run([CLAIM])

        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(UnreachableError, match="does not answer"):
                ledger.run([COMPLETE])
        finally:
            os.kill(server.pid, signal.SIGCONT)

        assert ledger.run([Lapsed(7, "default", 9), COMPLETE]) == [[], Completed("r-1/2#1")]


def test_a_url_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="is not the URL of a Redis"):
        RedisLedger("localhost:6379")


def test_a_good_server_has_no_problems(bench: RedisBench) -> None:
    assert bench.ledger.problems() == []


def test_each_forgetful_setting_is_named_with_the_line_that_mends_it(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path, overrides=BAD) as server, redis.Redis.from_url(server.url) as client:
        ledger = RedisLedger(server.url)
        found = ledger.problems()

        assert [sentence.split(" is ")[0] for sentence in found] == list(BAD)
        for sentence in found:
            line = re.search(r"`(CONFIG SET [^`]+)`", sentence)
            assert line
            client.execute_command(*line[1].split())
        assert ledger.problems() == []
        eventually(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0)  # until then it ignores SIGTERM


def test_a_password_is_needed_where_one_is_set_and_taken_from_the_url(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as server:
        with redis.Redis.from_url(server.url) as client:
            client.config_set("requirepass", "hunter2")

        for url in (server.url, server.url.replace("//", "//:wrong@")):
            with pytest.raises(UnreachableError, match="password") as raised:
                RedisLedger(url).run([CLAIM])
            assert "REFOLD_REDIS__URL" in raised.value.hint
        assert RedisLedger(server.url.replace("//", "//:hunter2@")).run([CLAIM]) == [Claimed()]


def test_a_replica_is_a_problem_and_refuses_to_write(tmp_path: Path, valkey: EmbeddedValkey) -> None:
    with EmbeddedValkey(tmp_path) as server:
        with redis.Redis.from_url(server.url) as client:
            client.replicaof("127.0.0.1", valkey.port)
        ledger = RedisLedger(server.url)

        (sentence,) = ledger.problems()

        assert f"replica of 127.0.0.1:{valkey.port}" in sentence
        with pytest.raises(UnreachableError, match="refuses: .*read only replica"):
            ledger.run([CLAIM])


def test_every_operation_keeps_to_one_slot_of_a_cluster(tmp_path: Path) -> None:
    everything: list[Operation] = [
        CLAIM,
        Renew(*CLAIM),
        COMPLETE,
        CLAIM._replace(key="k2", call="r-2/2", lease_ms=0),
        Lapsed(7, "default", 9),
        Close(7, "default", (("k2", "r-2/2", 0), ("k1", "r-1/2", 0))),
        Release(7, "default", "k2", "ann"),
        Unpublished(7, "default", 9),
        Sent(7, "default", ("r-1/2#1",)),
    ]
    # The bus of a cluster listens 10,000 above the port by default, where outgoing connections have theirs.
    cluster = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    with EmbeddedValkey(tmp_path, overrides=cluster) as server:
        with redis.Redis.from_url(server.url) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            eventually(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))
        ledger = RedisLedger(server.url)

        replies = ledger.run(everything)

        assert replies[4] == [("k2", b"request")]
        assert replies[7] == [("r-1/2#1", b'"ok"')]
        assert ledger.problems() == []
