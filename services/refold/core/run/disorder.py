"""Records of one run whose order in the log is unreliable. Tools that repeat records destroy Kafka's order: cleaning
keeps the last copy, behind the successors of the original. Each record names its predecessor, so a history can be
rebuilt without order, unless two records extend the same one."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from refold.core.errors import FoldError
from refold.core.ids import EntryId
from refold.core.run import chain
from refold.core.run.chain import LogRecord
from refold.core.run.fold import apply
from refold.core.run.state import RunState


@dataclass(slots=True)
class Aside:
    """Record held aside until its predecessor is read."""

    record: LogRecord
    offset: int
    value: bytes


@dataclass(slots=True)
class Disorder:
    """Records of a run that do not extend its head in log order, and its history rebuilt from copies."""

    aside: dict[EntryId, list[Aside]] = field(default_factory=dict)  # held, by the id of their predecessor
    passed: set[EntryId] = field(default_factory=set)  # predecessors of records given up
    branches: set[EntryId] = field(default_factory=set)  # records that extend an entry with another successor
    buried: set[EntryId] = field(default_factory=set)  # records that counted, but have a tombstone
    disturbed: bool = False  # only copies and cleaning explain a position, so order proves nothing
    stalled: bool = False
    rebuilt: RunState | None = None  # history from a complete ordered repetition
    copies: dict[EntryId, Aside] = field(default_factory=dict)  # records of `rebuilt`, in order

    @property
    def contested(self) -> bool:
        """True if only the order, which is unreliable here, could decide which history counts."""
        return bool(self.buried) or (self.disturbed and bool(self.branches))

    @property
    def disordered(self) -> bool:
        """True if an ordered repetition of the history, later in the log, could settle something."""
        return self.stalled or bool(self.branches) or bool(self.buried)

    def add(self, aside: Aside) -> None:
        self.aside.setdefault(EntryId(aside.record.entry.prev), []).append(aside)

    def contains(self, name: EntryId) -> bool:
        return any(aside.record.id == name for aside in self.asides())

    def asides(self) -> Iterator[Aside]:
        return (aside for waiting in self.aside.values() for aside in waiting)

    def pass_by(self, seq: int) -> list[Aside]:
        """Give up the records that cannot extend a head at `seq` any more; return them."""
        dropped = [aside for aside in self.asides() if aside.record.entry.seq <= seq]
        for aside in dropped:
            self.passed.add(EntryId(aside.record.entry.prev))
            self.discard(aside.record.id)
        return dropped

    def discard(self, name: EntryId) -> int:
        """Drop a record that is held aside; return its bytes."""
        for prev, waiting in self.aside.items():
            for aside in waiting:
                if aside.record.id == name:
                    waiting.remove(aside)
                    if not waiting:
                        del self.aside[prev]
                    return len(aside.value)
        return 0

    def rebuild(self, aside: Aside) -> None:
        """Follow the copies of a history from its beginning: only a repair writes them in order."""
        entry = aside.record.entry
        if entry.seq == 1 and not entry.prev:
            self.rebuilt, self.copies = RunState(entry.run_id), {}
        elif self.rebuilt is None or self.rebuilt.over or not chain.extends(self.rebuilt.head, entry):
            return
        try:
            self.rebuilt = apply(self.rebuilt, entry, aside.record.id)
            self.copies[aside.record.id] = aside
        except FoldError:  # a copy that contradicts its history settles nothing
            self.rebuilt = None

    def settles(self, entries: set[EntryId]) -> RunState | None:
        """Rebuilt history, if it contains every remaining record of the run."""
        left = (entries | self.branches) - self.buried
        return self.rebuilt if self.rebuilt is not None and left <= self.copies.keys() else None
