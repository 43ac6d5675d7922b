"""A run with its records: which of them count, and the steps that they make."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Protocol

from refold.core.ids import EntryId, RunId
from refold.core.messages import Hold
from refold.core.run.log import Judged, LogFold
from refold.core.run.state import RunState
from refold.views.steps import Timeline


class ReadRecord(Protocol):
    """A record of the run log, as any reader has it."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def at_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class JudgedRecord(Judged):
    """A record of the run log with its judgement."""

    record: ReadRecord = field(kw_only=True)

    @property
    def place(self) -> str:
        """Where it lies, for people."""
        return f"{self.record.topic}/{self.record.partition}/{self.record.offset}"


@dataclass(slots=True)
class Run:
    """A run as the log has it. `records` holds its entries in order, `void` the records that do not count."""

    state: RunState
    timeline: Timeline
    records: list[JudgedRecord] = field(default_factory=list)
    void: list[JudgedRecord] = field(default_factory=list)
    hold: Hold | None = None

    @classmethod
    def empty(cls, run: RunId) -> Run:
        """A run of which nothing was read so far."""
        return cls(RunState(run), Timeline(run))

    @property
    def status(self) -> str:
        """The status of the run; `stalled` while its code is not run."""
        return "stalled" if self.hold and not self.state.over else self.state.status


def feed(fold: LogFold, record: ReadRecord) -> JudgedRecord:
    """Judges a record and folds it if it counts."""
    judged = fold.feed(record.key, record.value, offset=record.offset, at_ms=record.at_ms)
    return JudgedRecord(**{spec.name: getattr(judged, spec.name) for spec in fields(Judged)}, record=record)


def take(run: Run, judged: JudgedRecord, fold: LogFold) -> None:
    """Adds a judged record to its run."""
    counts = not judged.void and judged.entry is not None
    (run.records if counts else run.void).append(judged)
    if counts or judged.mended:
        run.state = fold.states[judged.run_id]
    if judged.linked or judged.mended:
        _put_in_order(run)
    elif counts and judged.entry is not None:
        run.timeline.feed(judged.entry)


def _put_in_order(run: Run) -> None:
    """Records that were out of order count by now: the history is what its head goes back to."""
    read = {judged.id: judged for judged in (*run.void, *run.records) if judged.entry is not None}
    run.records.clear()
    name = run.state.head.id
    while (judged := read.pop(name, None)) is not None and judged.entry is not None:
        run.records.append(judged)
        name = EntryId(judged.entry.prev)
    run.records.reverse()
    counting = {judged.id for judged in run.records}
    run.void = [judged for judged in run.void if judged.id not in counting or judged.void == "copy"]
    run.timeline = Timeline(run.state.run_id)
    for judged in run.records:
        if judged.entry is not None:
            run.timeline.feed(judged.entry)
