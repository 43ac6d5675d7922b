"""A second reading of markers and of the archive: what is erased, and what may be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from io import BytesIO
from typing import Any

import fastavro

from refold.core.errors import MalformedError
from refold.core.ids import parse_callback_token, parse_log_key
from refold.core.topics import (
    DEAD_LETTERS,
    RUN_COMPLETED,
    RUN_LOG,
    RUN_OPERATED,
    RUN_REQUESTED,
    RUN_SIGNALLED,
    RUN_SNAPSHOT,
)
from refold.engine.ports.log import Record
from tests.simulator.reading.logged import LoggedRun
from tests.simulator.reading.values import Datum, read_value
from tests.simulator.reading.witness import Witness
from tests.simulator.world.broker import AHEAD_MS

_MARKER, _ROWS, _HORIZON = b"erased/", b"over/", b"erased"

READ_MS = 20
"""How long it takes, without any fault, until a planner has read a marker."""


_OF_PEOPLE = (RUN_REQUESTED, RUN_SIGNALLED, RUN_OPERATED, *DEAD_LETTERS)


class Erasures:
    """Markers as they are written. `ever` are the runs that had one, `marked` those that have one, by marker;
    `files` those of the archive that markers name, `known` the runs of which a row was kept before, so that their ids
    stay known, `since` when the first marker was written (by the clock of its broker); `wrong` what may not be,
    `dazed` that who writes now stood still before, `unread` the runs that went on before their marker could be read.

    `archive` has the files of the archive by path, `lying` gives all that lies in any topic.
    """

    def __init__(self, witness: Witness, archive: Mapping[str, bytes], lying: Callable[[], Iterable[Record]]) -> None:
        self._witness, self._archive, self._lying = witness, archive, lying
        self.ever = witness.history.erased
        self.marked: dict[str, Datum] = {}
        self.files: set[str] = set()
        self.known: set[str] = set()
        self.wrong: list[str] = []
        self.gone = 0
        self.since: dict[str, int] = {}
        self._filed: dict[str, str] = {}
        self.dazed = False
        self._begun: set[tuple[str, str]] = set()
        self._overtaken: set[str] = set()
        self.unread: set[str] = set()

    def follow(self, record: Record) -> None:
        """A record is about to be taken by the witness."""
        key = record.key or b""
        if record.topic == RUN_LOG and record.value:
            self._follow_entry(record)
        elif record.topic == RUN_LOG and (parts := parse_log_key(key)) and parts[0] in self._overtaken:
            self.wrong.append(f"erased: run {parts[0]} went on before it was marked, and is erased")
        if record.topic == RUN_SNAPSHOT:
            self._follow_kept(record, key)

    def _follow_kept(self, record: Record, key: bytes) -> None:
        if key == _HORIZON and record.value:
            self._follow_horizon(record.partition, read_value(record.value)["at_ms"])
        if not key.startswith(_MARKER):
            return
        run = key.removeprefix(_MARKER).decode()
        if record.value is not None:
            self._mark(run, record)
        elif run in self._overtaken:
            self._overtaken.discard(run)
        else:
            self._unmark(run)

    def _mark(self, run: str, record: Record) -> None:
        marker = read_value(record.value or b"")
        if run not in self.ever and self._goes_on(run, marker["head"]):
            self._overtaken.add(run)
            return
        self.marked[run] = marker
        self.files.add(marker["file"])
        self._filed[run] = marker["file"]
        if run not in self.ever:
            digest = blake2b(run.encode(), digest_size=16).digest()
            if any(digest in (other.value or b"") for other in self._lying() if (other.key or b"").startswith(_ROWS)):
                self.known.add(run)
            self.wrong += [f"erased: run {run} is marked, and {why}" for why in self._kept_back(run, marker)]
            self.since[run] = record.at_ms
        self.ever.add(run)

    def _goes_on(self, run: str, head: str) -> bool:
        """True if a run was over where an archivist looked, and was retried before its marker came."""
        known = self._witness.history.runs.get(run)
        return known is not None and not known.over and any(head == key.hex() for key in known.heads)

    def _follow_horizon(self, partition: int, at_ms: int) -> None:
        """Rows that ended before it go: of none of their runs may anything lie in the log."""
        ended = {
            run.id for run in self._witness.history.runs.values() if run.over and run.at_ms // 1000 < at_ms // 1000
        }
        log = (r for r in self._lying() if r.topic == RUN_LOG and r.partition == partition and r.value)
        there = {parts[0] for parts in map(parse_log_key, (r.key for r in log)) if parts}
        self.wrong += [f"horizon: {run} ended before {at_ms}, and lies in the log" for run in ended & there]
        self.known -= ended

    def _kept_back(self, run: str, marker: Datum) -> Iterator[str]:
        """Why a run may not be erased."""
        known = self._witness.history.runs.get(run)
        if known is None or not known.over:
            yield f"it is {known.status}" if known else "nobody knows it"
            return
        if marker["head"] != known.head.hex():
            yield f"its marker is of another end ({marker['head']})"
        told = any(r.key == run.encode() and r.value for r in self._witness.written.get(RUN_COMPLETED, ()))
        if not told and known.status != "continued":
            yield "nobody was told its outcome"
        if above := next((each for each in _above(run) if each not in self.ever), ""):
            yield f"{above}, which has started it, is not"
        yield from self.unarchived(known, marker["file"])

    def unarchived_by_now(self, run: LoggedRun) -> Iterator[str]:
        """The same of a run that was erased."""
        yield from self.unarchived(run, self._filed.get(run.id, ""))

    def unarchived(self, run: LoggedRun, file: str) -> Iterator[str]:
        """What the archive lacks of a run: each of its entries has to lie there as it lay in the log."""
        rows: list[Any] = []
        with suppress(ValueError, EOFError, KeyError, TypeError, IndexError, OSError):
            rows += fastavro.reader(BytesIO(self._archive.get(file, b"")))
        kept = {each["key"]: each["value"] for row in rows if row["run_id"] == run.id for each in row["records"]}
        heads = {head.hex().encode() for head in run.heads}
        written = self._witness.written.get(RUN_LOG, ())
        for record in written:
            if record.value and (record.key or b"")[-32:] in heads and kept.get(record.key) != record.value:
                yield f"its entry {record.key!r} is not in {file or 'any file'}"
                return

    def _follow_entry(self, record: Record) -> None:
        """Nothing follows what is written of a run after its erasure: neither its history nor a beginning goes on."""
        try:
            entry = read_value(record.value or b"")
        except (ValueError, KeyError, IndexError, EOFError):
            return
        run, name = entry["run_id"], (record.key or b"")[-32:].decode(errors="replace")
        if run not in self.ever:
            return
        known = self._witness.history.runs.get(run)
        goes_on = (run, entry["prev"].hex()) in self._begun or (known and known.head == entry["prev"])
        # Who stood still meanwhile, or writes in that moment, has not read the marker so far: nobody else counts that.
        if goes_on and (self.dazed or record.at_ms <= self.since[run] - AHEAD_MS + READ_MS):
            self.unread.add(run)
        elif goes_on:
            self.wrong.append(f"risen: run {run} goes on after its erasure (seq {entry['seq']})")
        if not entry["prev"] or goes_on:  # what extends neither is void, whatever follows it
            self._begun.add((run, name))

    def _unmark(self, run: str) -> None:
        if self.marked.pop(run, None) is None:
            return
        self.gone += 1
        for record in [record for record in self.lies(run) if not self._stays(run, record)]:
            self.wrong.append(f"marker: it goes, and {record.key!r} of run {run} lies in {record.topic}")

    def _stays(self, run: str, record: Record) -> bool:
        """What people have sent to a run that lives goes with its last generation."""
        known = self._witness.history.runs.get(run)
        return known is not None and known.status == "continued" and record.topic in _OF_PEOPLE

    def lies(self, run: str) -> list[Record]:
        """All that lies of a run, tombstones too, but for its marker."""
        return [each for each in self._lying() if of_run(each, run) and not (each.key or b"").startswith(_MARKER)]

    def left(self) -> Iterator[str]:
        """What lies of erased runs when nothing more is done."""
        last: dict[tuple[str, int, bytes | None], Record] = {}
        for record in self._lying():
            last[record.topic, record.partition, record.key] = record
        valued = [record for record in last.values() if record.value is not None]
        for run in sorted(self.ever):
            named = re.compile(rb"(?<![\w.\-])" + re.escape(run.encode()) + rb"(?![\w.\-+])")
            for record in valued:
                if (record.key or b"").startswith(_MARKER) or self._stays(run, record):
                    continue
                if of_run(record, run) or (named.search(record.value or b"") and not self._forks(record, run)):
                    yield f"left: {record.key!r} in {record.topic} is of run {run}, which is erased"

    def _forks(self, record: Record, run: str) -> bool:
        """True if a record is of a fork of a run, or of one above it, which is a run of its own and says so."""
        if b'"fork"' in (record.value or b""):
            return True
        parts = (record.key or b"").split(b"/")
        return self.forked(run, parts[record.topic == RUN_SNAPSHOT and len(parts) > 1].decode(errors="replace"))

    def forked(self, run: str, fork: str) -> bool:
        """True if a run has the history of another one, in which the runs below that are named, too."""
        known = self._witness.history.runs.get(fork)
        return bool(known and known.fork and {*_above(run), run} & {*known.fork.lineage})


def of_run(record: Record, run: str) -> bool:
    """True if the key of a record, or a claim itself, names a run."""
    key = record.key or b""
    if key.startswith(b"cb_"):
        with suppress(MalformedError, UnicodeDecodeError):
            return parse_callback_token(key.decode()) == run
    return run.encode() in key.split(b"/")


def _above(run: str) -> list[str]:
    parts = run.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]
