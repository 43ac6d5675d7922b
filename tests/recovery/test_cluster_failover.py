"""A cluster of three masters with a replica each: slots move, and a master is killed under load."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from refold.core.ids import CallId, home
from refold.core.messages import ToolRequest
from refold.dev.ports import free_port
from refold.dev.valkey import EmbeddedValkey
from refold.engine.adapters.redis.ledger import RedisLedger
from refold.engine.executor.gate import Gate
from refold.engine.executor.settings import ExecutorSettings, Times
from refold.engine.ports.effects import ToolEnded
from refold.engine.ports.ledger import Busy, Claim, Claimed, Unpublished
from tests.recovery.executor_rig import Rig
from tests.waiting import GIVE_UP_S, eventually

HOMES = range(6)
EFFECTS = ("once", "probed", "keyed", "pure")
CALLS = 240
DEADLINE_MS = 2_000


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[EmbeddedValkey]]:
    """Give three masters and then their replicas."""
    with ExitStack() as stack:
        found = []
        for number in range(6):
            settings = {
                "cluster-enabled": "yes",
                "cluster-port": str(free_port()),
                "cluster-node-timeout": "1000",
                "cluster-require-full-coverage": "no",
                "repl-diskless-sync-delay": "0",
            }
            found.append(stack.enter_context(EmbeddedValkey(tmp_path / str(number), overrides=settings)))
        _join(found)
        yield found


def _join(nodes: list[EmbeddedValkey]) -> None:
    clients: list[Any] = [redis.Redis(port=node.port, decode_responses=True) for node in nodes]
    names = [client.execute_command("CLUSTER", "MYID") for client in clients]
    for number, client in enumerate(clients):
        client.config_set("cluster-announce-ip", "127.0.0.1")
        client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
    for number, (first, last) in enumerate([(0, 5_460), (5_461, 10_921), (10_922, 16_383)]):
        clients[number].execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
    for node, client in zip(nodes[1:], clients[1:], strict=True):
        bus = client.config_get("cluster-port")["cluster-port"]
        clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
    eventually(lambda: all("known_nodes:6" in _told(client) for client in clients))
    for number in range(3, 6):
        clients[number].execute_command("CLUSTER", "REPLICATE", names[number - 3])
    eventually(lambda: all(client.info("replication")["master_link_status"] == "up" for client in clients[3:]))
    eventually(lambda: all("cluster_state:ok" in _told(client) for client in clients))
    for client in clients:
        client.close()


def _told(client: Any) -> str:
    return str(client.execute_command("CLUSTER", "INFO"))


class Receiver:
    """Who has the effects: by key, how often."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()

    def serve(self, rig: Rig) -> None:
        """Ends what has begun since the last time."""
        begun, rig.started = rig.started, []
        for order in begun:
            key = order.request.key
            if order.probe:
                status = "happened" if self.done[key] else "did_not_happen"
            else:
                self.done[key] += 1
                status = "completed"
            rig.turn(ToolEnded(order.number, status, '"done"'))


class Load:
    """Calls for a home, asked for again as a planner does when nobody answers."""

    def __init__(self, place: int, url: str) -> None:
        times = Times(lease_ms=500, chained_lease_ms=1_500)
        settings = ExecutorSettings(times=times, gate=Gate(partitions=len(HOMES)))
        self.rig = Rig(settings, home=place, shared=RedisLedger(url, cluster=True))
        self.open: dict[CallId, tuple[ToolRequest, float]] = {}
        self.effects: dict[str, str] = {}
        self._at = time.monotonic()

    def ask(self, number: int) -> None:
        names = (f"r{number}x{each}" for each in count())
        run = next(name for name in names if home(name, len(HOMES)) == self.rig.home)
        effect = EFFECTS[number % len(EFFECTS)]
        request = ToolRequest(CallId(f"{run}/3"), run, 1, 1, 0, "fire", "{}", f"key of {run}", effect, 5_000)
        self.effects[request.key] = effect
        self.open[request.call_id] = request, time.monotonic()
        self.rig.ask(request)

    def step(self, receiver: Receiver) -> None:
        """Lets as much time pass as has."""
        now = time.monotonic()
        self.rig.turn(after_ms=max(1, int((now - self._at) * 1_000)))
        self._at = now
        receiver.serve(self.rig)
        for call in {result.call_id for result in self.rig.results if result.status in ("completed", "doubt")}:
            if call in self.open:
                request, _ = self.open.pop(call)
                self.rig.close(request)
        for call, (request, asked) in list(self.open.items()):
            if now - asked > DEADLINE_MS / 1_000:
                self.open[call] = replace(request, again=True), now
                self.rig.ask(self.open[call][0])


def test_a_master_that_dies_under_load_doubles_no_effect_and_leaves_nothing_stuck(nodes: list[EmbeddedValkey]) -> None:
    url = f"redis://127.0.0.1:{nodes[0].port},127.0.0.1:{nodes[1].port}"
    loads, receiver = [Load(place, url) for place in HOMES], Receiver()

    for number in range(CALLS // len(HOMES)):
        if number == CALLS // len(HOMES) // 2:
            nodes[0].kill()
        for load in loads:
            load.ask(number)
            load.step(receiver)
    until = time.monotonic() + GIVE_UP_S
    while any(load.open for load in loads) and time.monotonic() < until:
        for load in loads:
            load.step(receiver)

    assert [sorted(load.open) for load in loads] == [[]] * len(loads)
    assert sum(load.rig.unreachable for load in loads) > 0
    effects = {key: effect for load in loads for key, effect in load.effects.items()}
    twice = {key for key, times in receiver.done.items() if times > 1 and effects[key] in ("once", "probed")}
    assert twice == set()
    doubted = {result.call_id for load in loads for result in load.rig.results if result.status == "doubt"}
    assert all(receiver.done[f"key of {call.partition('/')[0]}"] <= 1 for call in doubted)
    assert len(doubted) < CALLS // 10


def test_a_slot_that_has_moved_is_followed_to_a_master_that_does_not_know_the_scripts(
    nodes: list[EmbeddedValkey],
) -> None:
    ledger = RedisLedger(f"redis://127.0.0.1:{nodes[0].port}", cluster=True)
    claims = [Claim(home, "default", "k", CallId("r/3"), 1, "ann", 60_000, b"") for home in range(12)]
    ledger.run([Unpublished(claim.home, "default", 9) for claim in claims])
    slot = key_slot(b"7")
    clients: list[Any] = [redis.Redis(port=node.port, decode_responses=True) for node in nodes[:3]]
    owner = min(2, slot // 5_461)
    heir = clients[(owner + 1) % 3]
    for client in [heir, *clients]:
        client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", heir.execute_command("CLUSTER", "MYID"))
    heir.script_flush()

    replies = ledger.run(claims)

    assert replies == [Claimed()] * 12
    assert any("{7}" in key for key in heir.scan_iter())
    assert ledger.run([claims[7]._replace(token="bob")])[0].__class__ is Busy


def test_a_cluster_is_healthy_by_all_its_masters_and_says_how_full_each_is(nodes: list[EmbeddedValkey]) -> None:
    ledger = RedisLedger(f"redis://127.0.0.1:{nodes[1].port}", cluster=True)
    with redis.Redis(port=nodes[2].port) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("maxmemory", 100 << 20)

    (sentence,) = ledger.problems()

    assert sentence.startswith("maxmemory-policy is allkeys-lru")
    assert sorted(filled.limit for filled in ledger.fullness()) == [0, 0, 100 << 20]
