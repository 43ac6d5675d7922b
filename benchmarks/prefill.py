"""Years of work in seconds: valid histories, written straight to a run log while no planner is up."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta

from benchmarks.measure import ends
from benchmarks.peers.load import STEPS
from confluent_kafka import Consumer, Producer

from refold.core import topics
from refold.core.events import (
    CallCompleted,
    CallDispatched,
    CallProposed,
    Cause,
    Entry,
    Event,
    RetryPolicy,
    RunCompleted,
    RunRequested,
    RunStarted,
    SleepStarted,
)
from refold.core.ids import NO_ENTRY, RunId, home, log_key
from refold.core.wire import codec
from refold.core.wire.canonical import idempotency_key
from refold.engine.runtime.settings import KafkaSettings

EVENTS = 3 * STEPS + 3
"""Of one finished run: its request, its start, ten calls of three events, its end."""

NAP = timedelta(days=30)
_RESUMED = (
    topics.RUN_LOG,
    topics.RUN_REQUESTED,
    topics.RUN_SIGNALLED,
    topics.RUN_OPERATED,
    topics.tool_completed("default"),
    topics.APPROVAL_DECIDED,
)
"""Where a planner goes on from a position that its group has committed."""

Pair = tuple[bytes, bytes]


def finished(run: RunId, at_ms: int) -> Iterator[Pair]:
    """A run of ten small calls from its request to its end, as its records."""
    asked = _call(run, 1, at_ms)
    answers: list[list[Event]] = [
        [CallCompleted(step, 1, str(step)), *_call(run, step + 1, at_ms)] for step in range(1, STEPS)
    ]
    end: list[Event] = [CallCompleted(STEPS, 1, str(STEPS)), RunCompleted("45")]
    return records(run, at_ms, [[*_begun("ten"), *asked], *answers, end])


def asleep(run: RunId, at_ms: int) -> Iterator[Pair]:
    """A run that sleeps for a month, as its one record."""
    until_ms = at_ms + round(NAP.total_seconds() * 1000)
    return records(run, at_ms, [[*_begun("naps"), SleepStarted(1, until_ms)]])


def records(run: RunId, at_ms: int, entries: Iterable[list[Event]]) -> Iterator[Pair]:
    """Entries as a planner would have written them: chained, with nonces."""
    seq, prev = 1, NO_ENTRY
    for events in entries:
        cause = Cause(topics.RUN_REQUESTED, 0, 0)
        prev, value = codec.encode_entry(Entry(run, seq, prev, at_ms, cause, "planner-0", os.urandom(16), events))
        yield log_key(run, seq, prev), value
        seq += len(events)


def fill(settings: KafkaSettings, kind: str, runs: int) -> int:
    """Writes so many runs that are `finished` or `asleep`; returns how many records that made.

    The planners' group then stands at the ends of all its topics, as if it had decided all of it.
    """
    make = {"finished": finished, "asleep": asleep}[kind]
    producer = Producer({"bootstrap.servers": settings.bootstrap, "linger.ms": 20, "batch.size": 1_000_000})
    topic, written = f"{settings.prefix}{topics.RUN_LOG}", 0
    for number in range(runs):
        run = RunId(f"{kind}-{number:07}")
        place = home(run, settings.partitions)
        for key, value in make(run, time.time_ns() // 1_000_000):
            _produce(producer, topic, place, key=key, value=value)
            written += 1
    producer.flush()
    _commit_ends(settings)
    return written


def _produce(producer: Producer, topic: str, place: int, *, key: bytes, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value, key, place)
            return
        except BufferError:
            producer.poll(0.05)


def _commit_ends(settings: KafkaSettings) -> None:
    group = f"{settings.prefix}refold-planner"
    member = Consumer({"bootstrap.servers": settings.bootstrap, "group.id": group, "enable.auto.commit": False})
    member.commit(offsets=[place for topic in _RESUMED for place in ends(settings, topic)], asynchronous=False)
    member.close()


def _begun(agent: str) -> list[Event]:
    return [RunRequested(agent, "{}", "0" * 32, "0" * 32), RunStarted()]


def _call(run: RunId, step: int, at_ms: int) -> list[Event]:
    args = f'{{"i":{step - 1}}}'
    key = idempotency_key(environment="dev", run=run, step=step, tool="nothing", args=args)
    retry = RetryPolicy()
    call = CallProposed(step, "nothing", args, key, "default", "keyed", 60_000, retry, 86_400_000)
    return [call, CallDispatched(step, 1, at_ms + 70_000)]
