"""The archivist's passes over the topics: due runs are archived, marked and erased. Progress is read from topics and
archive; the only state is the next due time of each partition, which saves reading it in vain."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from time import sleep
from typing import Protocol

from refold.core.errors import BlobError, ConflictError, MalformedError, NotFoundError, UnreachableError
from refold.core.ids import RunId, depth_of, home, is_below, parse_log_key, root_of, run_id
from refold.core.messages import RunErased, RunOutcome, ToolClaim
from refold.core.run.erased import HORIZON_KEY, Markers, erased_claims_key, erased_key
from refold.core.topics import DEAD_LETTERS, POOLED, RUN_COMPLETED, RUN_LOG, RUN_SNAPSHOT, TOOL_CLAIMED, kind_of
from refold.core.wire import codec
from refold.core.wire.headers import cloud_event
from refold.engine.archive import collecting
from refold.engine.archive.blobs import ArchivedBlobs, values_behind
from refold.engine.archive.collecting import ArchivableRun, RunsOfLog
from refold.engine.archive.container import ArchivedRun, flaws
from refold.engine.archive.erasure import ORDER, RunKey, run_keys, stages
from refold.engine.archive.settings import ArchivistSettings
from refold.engine.archive.store import ArchiveStore
from refold.engine.ports.log import NEVER, Delivery, LogReader, Outgoing, Record

BATCH_BYTES = 64 << 20
"""Bytes of records in memory at once, which become one file."""

WRITES = 10_000
"""Records written before their acknowledgements are awaited."""

LONGEST_MS = 86_400_000
"""Longest pause of a partition: a mirror may bring runs that ended long ago."""

_LIVES = "it has a marker, which no archivist has written, and is not over"
_NO_SUCH_END = (
    "it has a marker, and the archive has no such end of it; `refold run erase --no-archive` if it was erased so"
)

Steps = Callable[[str, int, int], None]


class TopicWriter(Protocol):
    """Writer of records in order; returns once each is acknowledged or unknown."""

    def append(self, records: Sequence[Outgoing]) -> list[Delivery]:
        """**Shape**: one delivery per record, any order."""


@dataclass(slots=True)
class Swept:
    """Result of a pass; `left`: due runs that are left alone, with the reason."""

    now_ms: int
    due: list[str] = field(default_factory=list)
    archived: dict[str, str] = field(default_factory=dict)
    tombstones: int = 0
    erasing: int = 0
    gone: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


class Archivist:
    """Archivist of all partitions. Without an `archive_store`, runs are erased uncopied."""

    def __init__(
        self,
        reader: LogReader,
        writer: TopicWriter,
        archive_store: ArchiveStore | None,
        settings: ArchivistSettings,
        *,
        archived_values: ArchivedBlobs | None = None,
        progress: Steps = lambda action, done, total: None,
    ) -> None:
        self._reader, self._writer, self._archive_store, self._settings = reader, writer, archive_store, settings
        self._archived_values, self._progress = archived_values, progress
        self._partitions = reader.partitions(RUN_LOG)

    def sweep(self, quiet: dict[int, int] | None = None, *, dry_run: bool = False) -> Swept:
        """One pass: archive and erase due runs, and continue an interrupted pass. `dry_run` only reads. `quiet` is kept
        from pass to pass: by partition, the time before which no run is due. **Raises** UnreachableError when the
        outcome of a write is unknown; another pass does the rest."""
        swept = Swept(self._now())
        marked = self._markers()
        quiet = {} if quiet is None else quiet
        for partition in self._partitions_to_read(marked, quiet, swept.now_ms):
            self._progress("look for runs that are due", partition, self._partitions)
            log = collecting.runs_of_log(self._reader, partition, marked)
            again = self._drop_forged(marked, log, swept)
            ended = [run for run in log.ended.values() if run.run_id not in marked]
            quiet[partition] = self._next_due_ms(ended, swept.now_ms)
            due = self._due(ended, partition, marked, swept, again)
            swept.due += [run.run_id for run in due]
            for batch in collecting.batches(due, BATCH_BYTES):
                if dry_run:
                    self._archivable(partition, batch, swept, dry_run=True)
                else:
                    marked |= self._leave(partition, batch, swept)
            if self._settings.horizon_ms and not dry_run:
                self._move_horizon(partition, log, {*log.every, *marked}, swept)
        if not dry_run:
            self._clear(marked, swept)
        return swept

    def _due(
        self,
        ended: list[ArchivableRun],
        partition: int,
        marked: Container[RunId],
        swept: Swept,
        again: Container[RunId],
    ) -> list[ArchivableRun]:
        """Runs past their retention that may leave now, parents first."""
        due = [run for run in ended if swept.now_ms - run.ended_ms >= self._settings.retention_of(run.agent)]
        due = self._settled(_parents_first(due, marked), partition, swept, again)
        return _parents_first(due, marked)[: self._settings.most_runs]

    def _partitions_to_read(self, marked: Iterable[RunId], quiet: Mapping[int, int], now_ms: int) -> list[int]:
        homes = {home(run, self._partitions) for run in marked}
        return [number for number in range(self._partitions) if now_ms >= quiet.get(number, 0) or number in homes]

    def _next_due_ms(self, ended: list[ArchivableRun], now_ms: int) -> int:
        """Time before which no run of a partition is due."""
        soonest = min([self._settings.retention_ms, *self._settings.by_agent.values()])
        due = (run.ended_ms + self._settings.retention_of(run.agent) for run in ended)
        # A horizon moves with every pass.
        return 0 if self._settings.horizon_ms else min([now_ms + soonest, now_ms + LONGEST_MS, *due])

    def erase(self, run: str, *, dry_run: bool = False) -> Swept:
        """Erase one finished run, whenever it ended, and its descendants. **Raises** NotFoundError, ConflictError when
        a run is not over or cannot leave yet, and as `sweep`."""
        root = run_id(run)
        swept, partition = Swept(self._now()), home(root, self._partitions)
        marked = {name: marker for name, marker in self._markers().items() if _is_of(name, root)}
        log = collecting.runs_of_log(self._reader, partition, marked)
        again = self._drop_forged(marked, log, swept)
        ended_runs = log.ended
        self._check_over(root, partition, log, marked)
        # An interrupted pass has marked the parents first: their children are still to be erased.
        rest = [row for name, row in ended_runs.items() if _is_of(name, root) and name not in marked]
        family = _parents_first(rest, marked)
        self._await_settled(family, partition, swept, again)
        swept.due += [row.run_id for row in family]
        if dry_run:
            self._archivable(partition, family, swept, dry_run=True)
        elif family:
            marked |= self._leave(partition, family, swept)
        if swept.left:
            name, why = next(iter(swept.left.items()))
            raise ConflictError(f"run {name} cannot be archived: {why}", hint="nothing of it was erased")
        if not dry_run:
            self._clear(marked, swept)
        return swept

    def _check_over(self, root: RunId, partition: int, log: RunsOfLog, marked: Mapping[RunId, RunErased]) -> None:
        """Refuse a run that is not over, whatever generation lives. **Raises** NotFoundError, ConflictError."""
        generations = {root, *(name for name in log.every if "." not in name and root_of(name) == root)}
        for name in sorted(generations - log.ended.keys() - marked.keys() - {root}):
            raise self._unfinished(name, partition)
        if generations.isdisjoint(marked):
            if not (ended := [log.ended[name] for name in sorted(generations) if name in log.ended]):
                raise self._unfinished(root, partition)
            _check_family(ended[0])

    def _await_settled(
        self, family: list[ArchivableRun], partition: int, swept: Swept, again: Container[RunId]
    ) -> None:
        """Wait `give_up_s` for planners. **Raises** ConflictError."""
        seconds_left = self._settings.give_up_s
        while len(self._settled(family, partition, swept, again)) < len(family):
            if not seconds_left:
                (name, why), hint = next(iter(swept.left.items())), "a planner sees to that: is one running?"
                raise ConflictError(f"run {name} cannot be erased yet: {why}", hint=hint)
            seconds_left -= 1
            swept.left.clear()
            sleep(1)

    def _move_horizon(self, partition: int, log: RunsOfLog, left: set[RunId], swept: Swept) -> None:
        """Publish the time before which no run with remaining records ended: planners may drop older rows."""
        # A row may be written after its run ended, and may exist for a run whose end is unreadable here.
        ends = [run.ended_ms for run in log.ended.values()] + collecting.oldest_ends(self._reader, partition, left)
        horizon = min([swept.now_ms - self._settings.horizon_ms, *ends])
        if horizon > 0:
            self._write([_marker(partition, HORIZON_KEY, RunErased(RunId(""), at_ms=horizon))])

    def _drop_forged(self, marked: dict[RunId, RunErased], log: RunsOfLog, swept: Swept) -> set[RunId]:
        """Drop forged markers; return runs with a fitting marker whose copy is in another archive."""
        # Planners can write the topic. A genuine marker has a copy in the archive, if there is one. (A mirror may bring
        # back the beginning of an erased run, or its failure before a retry.) Runs that are returned met the other
        # conditions then, and the records that prove it may be gone.
        again, copies = set[RunId](), cache(self._copies)
        for run in [name for name in marked if name in log.present]:
            marker, ended = marked[run], log.ended.get(run)
            copied = self._archive_store is None or (run, marker.digest) in copies(marker.file)
            if copied and _fits(marker, ended, log.begun):
                continue
            del marked[run]
            if ended is None:
                swept.left[run] = _LIVES if run in log.begun else _NO_SUCH_END
            elif ended.head == marker.head:
                again.add(run)
        return again

    def _copies(self, file: str) -> set[tuple[str, str]]:
        """Run and digest of each copy in a file of the archive; empty without a name, or if it cannot be read."""
        if file and self._archive_store:
            with suppress(NotFoundError, MalformedError):
                return {(line.run_id, line.digest) for line in self._archive_store.index(file)}
        return set()

    def _leave(self, partition: int, batch: list[ArchivableRun], swept: Swept) -> dict[RunId, RunErased]:
        """Archive a batch of runs, mark them as erased, and erase their large values; return the markers."""
        sound = self._archivable(partition, batch, swept)
        files = self._archive_store.keep(sound) if self._archive_store else {}
        swept.archived |= {str(run): file for run, file in files.items()}
        pools = {run.run_id: list(run.pools) for run in batch}
        markers = {
            run.run_id: RunErased(
                run.run_id, run.head, run.digest, files.get(run.run_id, ""), pools[run.run_id], swept.now_ms
            )
            for run in sound
        }
        # If a parent's marker was lost, its child would be gone while the parent can start it again.
        for depth in sorted({depth_of(run) for run in markers}):
            layer = {run: marker for run, marker in markers.items() if depth_of(run) == depth}
            self._write([_marker(partition, erased_key(run), marker) for run, marker in layer.items()])
        self._take_back(partition, batch, markers, swept)
        if self._archived_values:
            self._archived_values.erase(markers)
        return markers

    def _take_back(
        self, partition: int, batch: list[ArchivableRun], markers: dict[RunId, RunErased], swept: Swept
    ) -> None:
        """Remove the markers of families that changed while they were archived."""
        # Reading a log takes minutes. Writers after this look read the run's marker, but for some milliseconds.
        whole = collecting.whole_runs(self._reader, partition, {run.run_id: run for run in batch}) if markers else ()
        digests = {run.run_id: run.digest for run in whole}
        changed = {root_of(run) for run, marker in markers.items() if digests[run] != marker.digest}
        back = {run: _marker(partition, erased_key(run), markers[run]) for run in markers if root_of(run) in changed}
        for run in back:
            del markers[run]
            swept.archived.pop(run, None)
            swept.left[run] = "it went on while it was archived"
        if back:
            self._write(self._before(partition, [*reversed(back.values())]))

    def _before(self, partition: int, markers: list[Outgoing]) -> list[Outgoing]:
        """Records that undo markers: tombstones, or the markers of an archivist that has erased runs meanwhile."""
        own, others = {marker.key: marker.value for marker in markers}, dict[bytes | None, bytes | None]()
        for record in self._reader.scan(RUN_SNAPSHOT, partition):
            if record.key in own and record.value != own[record.key]:
                others[record.key] = record.value
        previous = [marker._replace(value=others.get(marker.key)) for marker in markers]
        return [marker if marker.value else marker._replace(headers=()) for marker in previous]

    def _archivable(
        self, partition: int, batch: list[ArchivableRun], swept: Swept, *, dry_run: bool = False
    ) -> list[ArchivedRun]:
        """Runs of a batch that can leave, with their large values copied; the others are `left`."""
        whole = collecting.whole_runs(self._reader, partition, {run.run_id: run for run in batch})
        for run in whole:
            if problem := self._obstacle(run, dry_run=dry_run):
                swept.left[run.run_id] = problem
        for run in whole:
            if left := next((name for name in swept.left if root_of(name) == root_of(run.run_id)), ""):
                swept.left.setdefault(run.run_id, f"{left} of its family stays")
        return [run for run in whole if run.run_id not in swept.left]

    def _obstacle(self, run: ArchivedRun, *, dry_run: bool) -> str:
        """Reason why a run cannot leave, or ""; its large values are then copied. **Raises** UnreachableError."""
        if problems := flaws(run):
            return "; ".join(problems)
        if self._archived_values is None:
            return "it has large values, and no blob store is set (REFOLD_BLOBS__URL)" if values_behind(run) else ""
        try:
            self._archived_values.copy(run, dry_run=dry_run)
        except BlobError as error:
            return f"a large value cannot be copied: {error.message}"
        return ""

    def _clear(self, marked: Mapping[RunId, RunErased], swept: Swept) -> None:
        """Write missing tombstones; remove the markers of runs without any record."""
        if not marked:
            return
        keys = self._run_keys(marked)
        self._bury(keys, swept)
        runs = {record.run_id for record in keys}
        gone = [run for run in marked if run not in runs]
        if self._archived_values:
            self._archived_values.erase(gone)  # once more: a pass that was cut short, or a value that came late
        self._write([Outgoing(RUN_SNAPSHOT, home(run, self._partitions), erased_key(run), None, (), 0) for run in gone])
        swept.gone += gone
        swept.erasing = len(marked) - len(gone)

    def _bury(self, keys: list[RunKey], swept: Swept) -> None:
        """Write a tombstone for each valued record."""
        claims = [record for record in keys if record.valued and kind_of(record.topic) == TOOL_CLAIMED]
        places = sorted({(record.topic, record.partition, record.run_id) for record in claims})
        self._write([_erased_claims_record(*place, swept.now_ms) for place in places])
        for stage in stages(keys):
            self._progress(f"erase from {stage[0].topic}", swept.tombstones, swept.tombstones + len(stage))
            self._write([Outgoing(record.topic, record.partition, record.key, None, (), 0) for record in stage])
            swept.tombstones += len(stage)

    def _run_keys(self, marked: Mapping[RunId, RunErased]) -> list[RunKey]:
        """Keys of marked runs in all topics."""
        # Of a run by its plain name: what people have sent goes with its last generation, which may still need it.
        runs = frozenset(marked) | {RunId(root_of(run)) for run in marked if "." not in run}
        living, names = _Living(marked, runs), self._topics_of(marked)
        records: list[RunKey] = []
        for number, topic in enumerate(names):
            self._progress("look for what is left of erased runs", number, len(names))
            try:
                scanned = self._reader.scan(topic)
                records += run_keys(living.follow(scanned) if topic == RUN_LOG else scanned, runs)
            except NotFoundError:
                if kind_of(topic) not in POOLED:
                    raise
                # A topic of a pool that is no more: nothing can lie there.
        return [record for record in records if living.leaves(record)]

    def _topics_of(self, marked: Mapping[RunId, RunErased]) -> list[str]:
        pools = {*self._settings.pools, *(pool for marker in marked.values() for pool in marker.pools)}
        return [name for name in ORDER if name not in POOLED] + [
            f"{kind}.{pool}" for pool in sorted(pools) for kind in POOLED
        ]

    def _settled(
        self, runs: list[ArchivableRun], partition: int, swept: Swept, again: Container[RunId]
    ) -> list[ArchivableRun]:
        """Runs whose outcome is published and whose row is written, or that are `again` to leave."""
        if not runs:
            return []
        # Without an outcome, waiters would get none; without a row, the same id could be requested again.
        rows, reported = collecting.kept_rows(self._reader, partition, runs), self._reported(runs, partition)
        for run in runs:
            if run.run_id in again:
                continue
            if run.run_id.encode() not in reported and run.status != "continued":
                swept.left[run.run_id] = f"its outcome is not in {RUN_COMPLETED} yet"
            elif run.run_id not in rows:
                swept.left[run.run_id] = f"its row is not in {RUN_SNAPSHOT} yet"
        return [run for run in runs if run.run_id not in swept.left]

    def _reported(self, runs: list[ArchivableRun], partition: int) -> set[bytes | None]:
        """Keys of runs whose outcome is published."""
        ends = {run.run_id.encode(): run.seq for run in runs}
        records = (record for record in self._reader.scan(RUN_COMPLETED, partition) if record.key in ends)
        # A run that failed and was retried has an outcome there of its first end.
        return {record.key for record in records if _is_outcome_of(record, ends[record.key or b""])}

    def _markers(self) -> dict[RunId, RunErased]:
        return Markers((record.key, record.value) for record in self._reader.scan(RUN_SNAPSHOT)).runs

    def _now(self) -> int:
        """Write a probe record; return its append time, the log's clock in milliseconds."""
        probe = Outgoing(RUN_SNAPSHOT, 0, b"archivist", None, (), 0)
        return self._write([probe])[0].at_ms

    def _write(self, records: Sequence[Outgoing]) -> list[Delivery]:
        """Write, and wait. **Raises** UnreachableError unless all records are acknowledged."""
        answers: list[Delivery] = []
        for start in range(0, len(records), WRITES):
            part = records[start : start + WRITES]
            answers += self._writer.append(part)
            if any(answer.offset is None or answer.offset == NEVER for answer in answers):
                hint = "nothing is half done: the next pass goes on where this one stopped"
                raise UnreachableError(f"a write to {part[0].topic} was not acknowledged", hint=hint)
        return answers

    def _unfinished(self, run: RunId, partition: int) -> NotFoundError | ConflictError:
        start, records = f"{run}/".encode(), self._reader.scan(RUN_LOG, partition)
        if not any((record.key or b"").startswith(start) for record in records):
            return NotFoundError(f"there is no run {run}", hint="`refold run list` shows all")
        return ConflictError(f"run {run} is not over", hint=f"end it first: refold run cancel {run}")


def _is_of(run: str, name: str) -> bool:
    """True if a run is this one, a later generation of it, or below one of these."""
    return root_of(run) == name or is_below(run, name)


class _Living:
    """Runs by their plain names, of `runs`, of which a generation remains in the log that is not `marked`."""

    def __init__(self, marked: Container[RunId], runs: Container[str]) -> None:
        self._marked, self._runs = marked, runs
        self._last: dict[bytes, tuple[str, bool]] = {}

    def follow(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            run = (parse_log_key(record.key) or (RunId("."),))[0]
            if "." not in run and run not in self._marked and root_of(run) in self._runs:
                self._last[record.key or b""] = root_of(run), record.value is not None
            yield record

    @cached_property
    def _living(self) -> set[str]:
        return {run for run, valued in self._last.values() if valued}

    def leaves(self, record: RunKey) -> bool:
        """True if a record is to be erased."""
        if record.topic not in _OF_PEOPLE:
            return record.run_id in self._marked
        return record.run_id not in self._living


_OF_PEOPLE = frozenset((*ORDER[:3], *DEAD_LETTERS))
"""Topics whose records name a run by its plain name."""


def _parents_first(due: Iterable[ArchivableRun], gone: Container[RunId] = ()) -> list[ArchivableRun]:
    """Runs without a remaining parent, which could start them again."""
    leaving: dict[RunId, ArchivableRun] = {}
    for run in sorted(due, key=lambda one: depth_of(one.run_id)):
        if all(name in leaving or name in gone for name in run.above):
            leaving[run.run_id] = run
    return list(leaving.values())


def _fits(marker: RunErased, ended: ArchivableRun | None, begun: Mapping[RunId, Container[str]]) -> bool:
    """True if the log has the run's end that a marker names, or only a part of the run."""
    if ended is not None and ended.head == marker.head:
        return True
    return marker.head not in begun.get(marker.run_id, ()) and (ended is None or marker.run_id in begun)


def _is_outcome_of(outcome: Record, seq: int) -> bool:
    """True if an outcome is of the run's end at this seq, or unreadable."""
    readable = codec.decode_known(RunOutcome, outcome.value)
    return readable is None or readable.seq >= seq


def _check_family(run: ArchivableRun) -> None:
    """Refuse a run that cannot leave alone. **Raises** ConflictError."""
    if run.above:
        hint = f"erase that one, and all that it has started: {run.above[0]}"
        raise ConflictError(f"run {run.run_id} was started by {run.above[-1]}", hint=hint)
    if run.below:
        hint = f"end it first: refold run cancel {run.below[0]}"
        raise ConflictError(f"run {run.below[0]}, which {run.run_id} has started, is not over", hint=hint)


def _marker(partition: int, key: bytes, marker: RunErased) -> Outgoing:
    name, kind = key.decode(), f"{RUN_SNAPSHOT}.erased"
    headers = cloud_event(kind, marker.run_id, id=name, source="archivist", at_ms=marker.at_ms)
    return Outgoing(RUN_SNAPSHOT, partition, key, codec.encode(marker), headers, 0)


def _erased_claims_record(topic: str, partition: int, run: RunId, at_ms: int) -> Outgoing:
    """Record that replaces the erased claims of a run: executors then count an earlier claim as possible."""
    key, nothing = erased_claims_key(run), ToolClaim.of_none("archivist")
    headers = cloud_event(topic, key.decode(), id=key.decode(), source="archivist", at_ms=at_ms)
    return Outgoing(topic, partition, key, codec.encode(nothing), headers, 0)
