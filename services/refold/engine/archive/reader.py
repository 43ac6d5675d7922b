"""Reads an archived run as if it still lay in the log."""

from collections.abc import Collection, Iterator

from refold.core.errors import NotFoundError
from refold.core.topics import RUN_LOG, RUN_SNAPSHOT
from refold.engine.archive.container import ArchivedRun
from refold.engine.ports.log import Record


class ArchiveReader:
    """A `LogReader` of the run log with one run in it."""

    def __init__(self, run: ArchivedRun) -> None:
        self._run = run

    def partitions(self, topic: str) -> int:
        """One: any run has its home there."""
        if topic != RUN_LOG:
            raise NotFoundError(f"an archive holds records of {RUN_LOG} alone, not of {topic}")
        return 1

    def scan(self, topic: str, partition: int | None = None) -> Iterator[Record]:
        if topic == RUN_SNAPSHOT:  # a fold of the run looks for its marker, and here is none
            return
        self.partitions(topic)
        for offset, at_ms, key, value in self._run.records:
            yield Record(RUN_LOG, self._run.partition, offset, key, value, list, at_ms)

    def tail_kinds(self, kinds: Collection[str], partition: int) -> Iterator[Record | None]:
        return self.tail(RUN_LOG)

    def tail(self, topic: str, partition: int | None = None) -> Iterator[Record | None]:
        yield from self.scan(topic)
        while True:
            yield None
