"""A tool that mirrors topics and delivers at least once, and forgeries that lie in wait for it."""

from __future__ import annotations

import dataclasses
import random

from refold.core.events import Entry
from refold.core.ids import log_key
from refold.core.run.chain import anchor_name
from refold.core.topics import RUN_LOG, RUN_SNAPSHOT
from refold.core.wire import codec
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.ports.log import Outgoing, Record
from tests.planner.rig import TOPICS, Rig


def mirrored(
    source: MemoryBroker, rng: random.Random, *, repeats: float = 0.01, clean: bool = True, kept: bool = True
) -> MemoryBroker:
    """All topics once more, in order, with some records repeated later; the broker then keeps the last of each key.

    Unless `kept` the snapshot is left out.
    """
    target = MemoryBroker(TOPICS, source.partitions)
    for topic in TOPICS:
        if topic == RUN_SNAPSHOT and not kept:
            continue
        for number in range(source.partitions):
            records = list(source.log(topic, number).records)
            copies: dict[int, list[Record]] = {}
            for at, record in enumerate(records):
                if rng.random() < repeats:
                    copies.setdefault(rng.randrange(at, len(records)), []).append(record)
            for at, record in enumerate(records):
                for each in (record, *copies.get(at, ())):
                    target.write(again(each))
            if clean:
                target.compact(topic, number)
    return target


def again(record: Record) -> Outgoing:
    """The very same record, once more."""
    return Outgoing(record.topic, record.partition, record.key or b"", record.value, record.read_headers() or (), 0)


def fork(rig: Rig, rng: random.Random, count: int) -> None:
    """What zombies write: entries that extend a head which has another successor."""
    for number in range(rig.broker.partitions):
        log = rig.broker.log(RUN_LOG, number)
        real = [record for record in log.records if record.value and anchor_name(record.key) is None]
        for record in rng.sample(real, min(count, len(real))):
            entry = dataclasses.replace(codec.decode(Entry, record.value or b""), nonce=rng.randbytes(16))
            name, value = codec.encode_entry(entry)
            key = log_key(entry.run_id, entry.seq, name)
            rig.broker.write(Outgoing(RUN_LOG, number, key, value, (), 0))
