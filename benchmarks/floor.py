"""The floor: what a durable step costs on this broker and this Redis, without any product code.

Two bare processes walk the path of the engine: append two events to the log, wait for the ack, send a command; claim
in Lua, do nothing, complete in Lua (ledger and outbox), send the result, empty the outbox. No schemas, headers, agents,
validation or recovery. The engine's figures are ratios to this one, taken in the same sitting.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from multiprocessing.synchronize import Event
from typing import Any

import orjson
import redis
from benchmarks.measure import latency
from benchmarks.peers.load import STEPS, cpu_seconds
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

PAD = "x" * 120
CLAIM = """
if redis.call('HSETNX', KEYS[1], 's', 'STARTED') == 1 then
  redis.call('HSET', KEYS[1], 'token', ARGV[1])
  return 1
end
return 0
"""
COMPLETE = """
redis.call('HSET', KEYS[1], 's', 'DONE', 'r', ARGV[1])
return redis.call('XADD', KEYS[2], '*', 'r', ARGV[1])
"""


def floor(
    bootstrap: str, redis_port: int, *, sync: bool, runs: int = 100, load: int = 600, repeat: int = 3
) -> dict[str, Any]:
    """Measures the floor. `sync`: every append is on disk before it is acknowledged (`flush.messages=1`)."""
    tag = os.urandom(3).hex()
    topics = {name: f"floor-{name}-{tag}" for name in ("log", "command", "result")}
    config = {"cleanup.policy": "compact", **({"flush.messages": "1"} if sync else {})}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    created = admin.create_topics([NewTopic(name, 4, 1, config=config) for name in topics.values()])
    for future in created.values():
        future.result()
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    worker = context.Process(target=_executor, args=(bootstrap, redis_port, topics, ready), daemon=True)
    worker.start()
    ready.wait(30)
    try:
        return _Driver(bootstrap, topics).measure(runs, load, repeat)
    finally:
        worker.kill()
        worker.join()
        admin.delete_topics(list(topics.values()))


def _clients(bootstrap: str, group: str, topic: str) -> tuple[Producer, Consumer]:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all", "enable.idempotence": True, "log_level": 0}
    )
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    return producer, consumer


def _take(consumer: Consumer) -> list[Message]:
    first = consumer.poll(0.05)
    return [] if first is None else [m for m in (first, *consumer.consume(499, 0)) if m.error() is None]


def _executor(bootstrap: str, redis_port: int, topics: dict[str, str], ready: Event) -> None:
    ledger = redis.Redis(port=redis_port)
    claim, complete = ledger.script_load(CLAIM), ledger.script_load(COMPLETE)
    producer, consumer = _clients(bootstrap, topics["command"], topics["command"])
    committed = time.monotonic()
    ready.set()
    while True:
        commands = [orjson.loads(message.value()) for message in _take(consumer)]
        if not commands:
            continue
        with ledger.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.evalsha(claim, 1, f"floor:{command['id']}", "token")
            pipe.execute()
        results = [orjson.dumps({"run": c["run"], "step": c["step"], "pad": PAD}) for c in commands]
        with ledger.pipeline(transaction=False) as pipe:
            for command, result in zip(commands, results, strict=True):
                pipe.evalsha(complete, 2, f"floor:{command['id']}", "floor:outbox", result)
            ids = pipe.execute()
        for command, result in zip(commands, results, strict=True):
            producer.produce(topics["result"], result, command["run"])
        producer.flush()
        ledger.xdel("floor:outbox", *ids)
        if time.monotonic() - committed > 0.5:
            consumer.commit(asynchronous=True)
            committed = time.monotonic()


class _Driver:
    """The planner's half, which also starts the runs and takes the time."""

    def __init__(self, bootstrap: str, topics: dict[str, str]) -> None:
        self._topics = topics
        self._producer, self._consumer = _clients(bootstrap, topics["result"], topics["result"])
        self._committed = time.monotonic()

    def measure(self, runs: int, load: int, repeat: int) -> dict[str, Any]:
        self._drive(20, in_flight=1)
        found: dict[str, Any] = {"ms_per_step": latency(self._drive(runs, in_flight=1))}
        self._drive(min(100, load), in_flight=100)
        rates, cpu = [], cpu_seconds()
        for _ in range(repeat):
            begun = time.perf_counter()
            self._drive(load, in_flight=100)
            rates.append(round(load * STEPS / (time.perf_counter() - begun)))
        found["steps_per_s"] = sorted(rates)
        found["cpu_ms_per_step"] = round((cpu_seconds() - cpu) * 1000 / (repeat * load * STEPS), 3)
        return found

    def _drive(self, runs: int, *, in_flight: int) -> list[float]:
        tag, begun, spans, started = os.urandom(4).hex(), {}, [], 0  # type: ignore[var-annotated]
        wanted: list[tuple[str, int]] = []
        while len(spans) < runs:
            while started < runs and len(begun) < in_flight:
                run = f"{tag}-{started}"
                begun[run] = time.perf_counter()
                wanted.append((run, 0))
                started += 1
            self._send(wanted)
            for run, step in wanted:
                if step == STEPS:
                    spans.append(time.perf_counter() - begun.pop(run))
            results = [] if len(spans) >= runs else [orjson.loads(m.value()) for m in _take(self._consumer)]
            wanted = [(r["run"], r["step"] + 1) for r in results if r["run"] in begun]
        return spans

    def _send(self, wanted: list[tuple[str, int]]) -> None:
        """The log first and acknowledged, then the commands."""
        for run, step in wanted:
            events = [{"run": run, "seq": 2 * step, "type": "completed", "pad": PAD}] if step else []
            if step < STEPS:
                events.append({"run": run, "seq": 2 * step + 1, "type": "proposed", "pad": PAD})
            for event in events:
                self._producer.produce(self._topics["log"], orjson.dumps(event), run)
        self._producer.flush()
        for run, step in wanted:
            if step < STEPS:
                command = {"id": f"{run}:{step}", "run": run, "step": step, "pad": PAD}
                self._producer.produce(self._topics["command"], orjson.dumps(command), run)
        self._producer.poll(0)
        if time.monotonic() - self._committed > 0.5:
            self._consumer.commit(asynchronous=True)
            self._committed = time.monotonic()


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--redis-port", type=int, required=True)
    parser.add_argument("--sync", action="store_true")
    options = parser.parse_args()
    print(json.dumps(floor(options.kafka, options.redis_port, sync=options.sync)))
