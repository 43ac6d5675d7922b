"""Topics in memory with runs in them of which every topic holds something, and a broker's clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refold.core import topics
from refold.core.errors import UnreachableError
from refold.core.ids import CallId, RunId
from refold.core.messages import RunRequest, ToolClaim
from refold.core.run.erased import erased_run
from refold.core.wire import codec
from refold.engine.adapters.blobs.store import ObjectBlobs
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.archive.blobs import COPIES, ArchivedBlobs
from refold.engine.archive.erasure import run_of
from refold.engine.archive.service import Archivist
from refold.engine.archive.settings import ArchivistSettings
from refold.engine.archive.store import ArchiveStore
from refold.engine.ports.log import Delivery, Outgoing, Record
from tests.cli.chronicle import Chronicle, completed, ended, proposed, requested

DAY = 86_400_000
NOW = 1_700_000_000_000
ALL = (
    *(
        topics.RUN_REQUESTED,
        topics.RUN_SIGNALLED,
        topics.RUN_OPERATED,
        topics.RUN_LOG,
        topics.tool_claimed("default"),
        topics.tool_completed("default"),
    ),
    *(topics.APPROVAL_REQUESTED, topics.APPROVAL_VOTED, topics.APPROVAL_DECIDED, topics.RUN_COMPLETED, topics.RUN_VIEW),
    *(topics.RUN_SNAPSHOT, topics.CATALOG, *topics.DEAD_LETTERS, topics.tool_requested("default")),
)


class Clocked(MemoryBroker):
    """A broker that notes when it appended a record."""

    now = NOW

    def write(self, record: Outgoing) -> Any:
        answer = super().write(record)
        records = self.log(record.topic, record.partition).records
        records[-1] = records[-1]._replace(at_ms=self.now)
        return answer


@dataclass
class World:
    """The topics, an archive in a folder, and an archivist of them. It dies after so many writes of its `lives`."""

    folder: Path
    broker: Clocked = field(default_factory=lambda: Clocked(ALL, 4))
    lives: int | None = None
    archived_values: ArchivedBlobs | None = None

    def __post_init__(self) -> None:
        self.chronicle = Chronicle(self.broker)
        self.archive_store = ArchiveStore(self.folder.as_uri())

    def append(self, records: Sequence[Outgoing]) -> list[Delivery]:
        """See `TopicWriter`."""
        answers = []
        for record in records:
            if self.lives is not None and record.key != b"archivist":
                if not self.lives:
                    raise UnreachableError("killed")
                self.lives -= 1
            self.broker.write(record)
            answers.append(Delivery(record.token, 0, self.broker.now))
        return answers

    def archivist(self, **changes: Any) -> Archivist:
        """A new one, which knows nothing of what another did."""
        settings = ArchivistSettings(**{"retention_ms": 30 * DAY, **changes})
        return Archivist(
            self.chronicle.reader, self, self.archive_store, settings, archived_values=self.archived_values
        )

    def keep_values(self) -> tuple[ObjectBlobs, ObjectBlobs]:
        """Gives the platform a blob store; returns that, and where the copies go."""
        store = ObjectBlobs((self.folder.parent / "blobs").as_uri(), most=1 << 20)
        copies = ObjectBlobs(f"{self.folder.as_uri()}{COPIES}", most=1 << 20)
        self.archived_values = ArchivedBlobs(store, copies)
        return store, copies

    def run(self, name: str, *, agent: str = "deploy", over: bool = True) -> None:
        """A run that every topic knows of, its request also in a partition that is not its home."""
        run, write = RunId(name), self.chronicle.write
        request = codec.encode(RunRequest(run, agent))
        for partition in (None, 0, 1):
            write(topics.RUN_REQUESTED, run, key=run.encode(), value=request, partition=partition)
        self.chronicle.add(run, requested(agent), proposed(1))
        claim = ToolClaim(CallId(f"{run}/3"), "c1", "", 1, False, "executor")
        write(topics.tool_claimed("default"), run, key=f"{run}-key/c1".encode(), value=codec.encode(claim))
        for topic, key in [
            (topics.RUN_SIGNALLED, f"{run}/s1"),
            (topics.RUN_OPERATED, f"{run}/o1"),
            (topics.tool_completed("default"), f"{run}/3"),
            (topics.APPROVAL_REQUESTED, f"{run}/3"),
            (topics.RUN_VIEW, run),
            (topics.APPROVAL_VOTED, f"{run}/3/v1"),
            (topics.APPROVAL_DECIDED, f"again/{run}/3"),
            *((letters, f"{run}/s0") for letters in topics.DEAD_LETTERS),
            (topics.RUN_SNAPSHOT, f"run/{run}/000001"),
        ]:
            write(topic, run, key=key.encode(), value=b"something")
        self.chronicle.add(run, completed(1), *([ended()] if over else []))

    def records(self) -> list[Record]:
        """Everything, topic by topic."""
        return [record for topic in ALL for record in self.chronicle.reader.scan(topic)]

    def values(self, run: str) -> list[Record]:
        """The records about a run whose key has not been erased."""
        last = {(record.topic, record.partition, record.key): record for record in self.records()}
        return [record for record in last.values() if record.value is not None and run_of(record) == run]

    def marked(self) -> set[str]:
        """The runs that have a marker."""
        last = {record.key: record for record in self.chronicle.reader.scan(topics.RUN_SNAPSHOT)}
        return {str(erased_run(key)) for key, record in last.items() if erased_run(key) and record.value is not None}

    def clean(self) -> None:
        """What the brokers do in the end: erased keys are gone, and their tombstones too."""
        for topic in ALL:
            for partition in range(self.broker.partitions):
                self.broker.compact(topic, partition, tombstones=True)
