"""The simulated broker: the memory broker, with somebody who sees every record; who owns what is for `world` to say."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from refold.core import topics
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.ports.log import Delivery, Outgoing, Place, Record
from tests.simulator.settings import ANSWERS, CLAIMS, ORDERS, OTHER

SIM_TOPICS = (
    *(topics.RUN_REQUESTED, topics.RUN_SIGNALLED, topics.RUN_OPERATED, topics.RUN_LOG, topics.RUN_SNAPSHOT),
    *(ORDERS, CLAIMS, ANSWERS),
    *(topics.tool_requested(OTHER), topics.tool_claimed(OTHER), topics.tool_completed(OTHER)),
    *(topics.APPROVAL_REQUESTED, topics.APPROVAL_VOTED, topics.APPROVAL_DECIDED),
    *(topics.RUN_COMPLETED, topics.RUN_VIEW, topics.CATALOG, *topics.DEAD_LETTERS, topics.BUDGET_SPENT),
)


AHEAD_MS = 30_000
"""How far the clock of the broker of `run-snapshot` is ahead."""


class Broker(MemoryBroker):
    """`written` is told of every record, so that a checker sees what compaction later removes.

    `committed` has positions by group, `repeated` the values of records that were there once more. The memory broker's
    own groups are not used: they keep zombies out better than the promise may rely on. `renumbered` is how often
    everything was copied to another log.
    """

    def __init__(self, partitions: int, written: Callable[[Record], None], clock_ms: Callable[[], int]) -> None:
        super().__init__(SIM_TOPICS, partitions, clock_ms=clock_ms)
        self._written = written
        self.committed: dict[str, dict[Place, int]] = {}
        self.repeated: set[bytes] = set()
        self.renumbered = 0

    def clock_ms(self, topic: str) -> int:
        """Each broker has a clock of its own: what leads the snapshots is ahead of what leads everything else."""
        return super().clock_ms(topic) + (AHEAD_MS if topic == topics.RUN_SNAPSHOT else 0)

    def write(self, record: Outgoing) -> Delivery:
        delivery = super().write(record)
        self._written(self.log(record.topic, record.partition).records[-1])
        return delivery

    def compact(self, topic: str, partition: int, *, below: int | None = None, tombstones: bool = False) -> int:
        """See `MemoryBroker`. No dead letter displaces another one before both go by age, and a tombstone does."""
        if topic not in topics.DEAD_LETTERS:
            return super().compact(topic, partition, below=below, tombstones=tombstones)
        log = self.log(topic, partition)
        buried = {each.key: each.offset for each in log.records if each.value is None}
        kept = [
            each for each in log.records if each.offset >= buried.get(each.key, 0) + (tombstones and each.value is None)
        ]
        gone, log.records = len(log.records) - len(kept), kept
        return gone

    def renumber(self) -> Iterator[Record]:
        """What is left lies densely, as in a log that was written anew, and the run log has its own time of it."""
        self.renumbered += 1
        for topic in SIM_TOPICS:
            for partition in range(self.partitions):
                log = self.log(topic, partition)
                now, own = self.clock_ms(topic), topic == topics.RUN_LOG
                log.records = [
                    each._replace(offset=place, at_ms=now if own else each.at_ms)
                    for place, each in enumerate(log.records)
                ]
                log.start, log.end = 0, len(log.records)
                yield from log.records

    def repeat(self, record: Record) -> None:
        """Writes a record once more, byte for byte, as a mirror does. It is no entry that anybody has sent."""
        self.repeated.add(record.value or b"")
        headers = record.read_headers() or ()
        again = Outgoing(record.topic, record.partition, record.key or b"", record.value, headers, 0)
        if record.topic == topics.RUN_LOG:
            super().write(again)
        else:
            self.write(again)
