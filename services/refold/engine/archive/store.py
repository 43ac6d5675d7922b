"""Files of an archive, and the lookup of runs in them. `YYYY/MM/DD/<partition>-<n>.avro` has runs that ended on that
day (UTC), and never changes; `index/` has a file beside each, with a line per run, made again if missing."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError

from refold.core.errors import ConflictError, MalformedError, NotFoundError
from refold.core.events import LAST_MS
from refold.core.ids import RunId
from refold.engine.archive.container import ArchivedRun, flaws, pack_runs, unpack_runs
from refold.engine.runtime.objects import ObjectStore

_INDEX = "index/"


@dataclass(frozen=True, slots=True)
class IndexedRun:
    """A line of an index; `file` has the run."""

    run_id: RunId
    agent: str
    status: str
    ended_ms: int
    head: str
    digest: str
    records: int
    bytes: int
    file: str


_KINDS = [str, str, str, int, str, str, int, int, str]


class ArchiveStore:
    """An archive: `file:///folder` (made if missing), `s3://bucket/path` or another address of obstore. **Raises**
    UsageError for an invalid address; its methods UnreachableError when the store does not answer."""

    def __init__(self, url: str) -> None:
        self._objects = ObjectStore(url, "an archive")
        self.url = self._objects.url

    def keep(self, runs: Sequence[ArchivedRun]) -> dict[RunId, str]:
        """Write missing runs by day; return the verified file of each. **Raises** ConflictError if one differs."""
        files: dict[RunId, str] = {}
        days: dict[str, list[ArchivedRun]] = {}
        for run in runs:
            day = datetime.fromtimestamp(run.ended_ms / 1000, UTC)
            days.setdefault(f"{day:%Y/%m/%d}/{run.partition}", []).append(run)
        for place, group in sorted(days.items()):
            files |= self._verified(place, group)
            missing = sorted((run for run in group if run.run_id not in files), key=lambda run: run.run_id)
            if missing:
                file = self._write_file(place, missing)
                files |= dict.fromkeys((run.run_id for run in missing), file)
        return files

    def _verified(self, place: str, group: Sequence[ArchivedRun]) -> dict[RunId, str]:
        """Files with copies of these runs from an earlier pass, each read again and verified."""
        expected, verified = {(run.run_id, run.digest) for run in group}, dict[RunId, str]()
        for file in self._files_of(place):
            with suppress(MalformedError):  # a file whose index is damaged, or that cannot be read to its end, has none
                if expected.isdisjoint((line.run_id, line.digest) for line in self.index(file, mend=True)):
                    continue
                for run in list(self.runs(file)):
                    if (run.run_id, run.digest) in expected and not flaws(run):
                        verified[run.run_id] = file
        return verified

    def lines(self, unread: list[MalformedError] | None = None) -> Iterator[IndexedRun]:
        """Every archived run, newest days first; `unread` gets the files that cannot be read."""
        for file in reversed(self.files()):
            try:
                yield from self.index(file)
            except MalformedError as error:
                (unread if unread is not None else []).append(error)

    def find(self, run: str) -> IndexedRun:
        """Newest copy of a run. **Raises** NotFoundError."""
        return self._copies(run)[0]

    def _copies(self, run: str) -> list[IndexedRun]:
        unread: list[MalformedError] = []
        copies = [line for line in self.lines(unread) if line.run_id == run]
        if not copies:
            hint = f"it may be in a file of those that cannot be read: {unread[0].message}" if unread else ""
            raise NotFoundError(f"{self.url} has no run {run}", hint=hint or "`refold archive list` shows what it has")
        return sorted(copies, key=lambda line: (line.records, line.file), reverse=True)

    def get(self, run: str) -> ArchivedRun:
        """Newest readable copy of a run. **Raises** as `find`, and MalformedError when none can be read."""
        failed: list[MalformedError] = []
        for line in self._copies(run):
            try:
                for archived in self.runs(line.file):
                    if archived.run_id == run:
                        return archived
                text = f"{line.file} does not have the run {run}, though its index says so"
                raise MalformedError(text, hint="delete the index")
            except MalformedError as error:
                failed.append(error)
        raise failed[0]

    def files(self) -> list[str]:
        return sorted(path for path in self._paths("") if path.endswith(".avro"))

    def runs(self, file: str) -> Iterator[ArchivedRun]:
        yield from unpack_runs(self._get(file), file)

    def index(self, file: str, *, mend: bool = False) -> list[IndexedRun]:
        """Index lines of a file; `mend` writes a missing index."""
        path = f"{_INDEX}{file.removesuffix('.avro')}.json"
        try:
            return [_indexed(row, file) for row in json.loads(self._get(path))]
        except NotFoundError:
            lines = [_line(run, file) for run in self.runs(file)]
        except (ValueError, TypeError, RecursionError):
            raise MalformedError(f"{path} cannot be read", hint="delete it: it can be made from its file") from None
        if mend:
            rows = [{name: value for name, value in asdict(line).items() if name != "file"} for line in lines]
            with suppress(AlreadyExistsError):
                self._objects.put(path, json.dumps(rows, ensure_ascii=False).encode())
        return lines

    def _write_file(self, place: str, runs: list[ArchivedRun]) -> str:
        content = pack_runs(runs)
        number = len(self._files_of(place))
        while True:
            file = f"{place}-{number}.avro"
            try:
                # Never overwrite: an existing file may have the only copy of its runs.
                self._objects.put(file, content)
                break
            except AlreadyExistsError:
                number += 1
        read_back = list(self.runs(file))
        if read_back != runs or any(flaws(run) for run in read_back):
            hint = "check the archive store; nothing was erased"
            raise ConflictError(f"{file} does not hold what was written", hint=hint)
        with suppress(MalformedError):
            self.index(file, mend=True)
        return file

    def _files_of(self, place: str) -> list[str]:
        """Archive files of a `place`, a day and a partition: `2026/11/29/3`, written as `2026/11/29/3-0.avro`."""
        day, _, partition = place.rpartition("/")
        return sorted(file for file in self._paths(day) if file.removeprefix(f"{day}/").startswith(f"{partition}-"))

    def _paths(self, prefix: str) -> list[str]:
        with self._objects.requests():
            return [meta["path"] for batch in obstore.list(self._objects.store, prefix or None) for meta in batch]

    def _get(self, path: str) -> bytes:
        try:
            with self._objects.requests(FileNotFoundError):
                return bytes(obstore.get(self._objects.store, path).bytes())
        except FileNotFoundError:
            raise NotFoundError(f"{self.url} has no file {path}") from None


def _line(run: ArchivedRun, file: str) -> IndexedRun:
    names = (run.run_id, run.agent, run.status, run.ended_ms, run.head, run.digest)
    return IndexedRun(*names, records=len(run.records), bytes=run.size, file=file)


def _indexed(row: Any, file: str) -> IndexedRun:
    line = IndexedRun(**row, file=file)
    if list(map(type, astuple(line))) != _KINDS or not 0 < line.ended_ms <= LAST_MS:
        raise ValueError(f"a line of the index of {file} is none")
    return line
