"""The simulated broker: the memory broker, with somebody who sees every record; who owns what is for `world` to say."""

from __future__ import annotations

from collections.abc import Callable

from refold.adapters.memory.log import MemoryBroker
from refold.core.topics import (
    APPROVAL_DECIDED,
    APPROVAL_REQUESTED,
    APPROVAL_VOTED,
    CATALOG,
    DEAD_LETTER,
    RUN_COMPLETED,
    RUN_LOG,
    RUN_REQUESTED,
    RUN_SIGNALLED,
    TOOL_CLAIMED,
    TOOL_COMPLETED,
    tool_requested,
)
from refold.ports.log import Outgoing, Record

Place = tuple[str, int]
TOPICS = (
    RUN_REQUESTED,
    RUN_SIGNALLED,
    RUN_LOG,
    tool_requested("default"),
    TOOL_CLAIMED,
    TOOL_COMPLETED,
    APPROVAL_REQUESTED,
    APPROVAL_VOTED,
    APPROVAL_DECIDED,
    RUN_COMPLETED,
    CATALOG,
    DEAD_LETTER,
)

INPUTS = (RUN_REQUESTED, RUN_SIGNALLED, TOOL_COMPLETED, APPROVAL_DECIDED)
"""What planners read on from where they were."""


class Broker(MemoryBroker):
    """`written` is told of every record, so that a checker sees what compaction later removes.

    `committed` has positions by group. The memory broker's own groups are not used: they keep zombies out better than
    the promise may rely on.
    """

    def __init__(self, partitions: int, written: Callable[[Record], None]) -> None:
        super().__init__(TOPICS, partitions)
        self._written = written
        self.committed: dict[str, dict[Place, int]] = {}

    def write(self, record: Outgoing) -> int:
        """See `MemoryBroker`."""
        offset = super().write(record)
        self._written(self.log(record.topic, record.partition).records[-1])
        return offset

    def records(self, topic: str) -> list[Record]:
        """What is left of a topic, partition by partition, in order."""
        return [record for number in range(self.partitions) for record in self.log(topic, number).records]
