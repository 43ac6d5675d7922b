"""Copies of runs: their file format, Avro object container files with the raw records, and their verification by those
bytes alone. Equal runs make equal bytes, so a repeated pass writes nothing new."""

import io
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import fastavro
from fastavro.schema import to_parsing_canonical_form

from refold.core.errors import MalformedError
from refold.core.events import LAST_MS
from refold.core.ids import RunId
from refold.core.run.log import LogFold

_SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "ArchivedRun",
        "namespace": "refold.archive",
        "doc": "A run that is over, with every record of its run log as it lay there.",
        "fields": [
            {"name": "run_id", "type": "string"},
            {"name": "agent", "type": "string"},
            {"name": "status", "type": "string"},
            {"name": "partition", "type": "int"},
            {"name": "ended_ms", "type": "long", "doc": "When its last entry was appended."},
            {"name": "head", "type": "string", "doc": "The id of its last entry, in hex."},
            {"name": "digest", "type": "string", "doc": "BLAKE2b-256 of the records, in hex."},
            {
                "name": "records",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "ArchivedRecord",
                        "fields": [
                            {"name": "offset", "type": "long"},
                            {"name": "at_ms", "type": "long", "doc": "When the broker appended it."},
                            {"name": "key", "type": "bytes"},
                            {"name": "value", "type": "bytes"},
                        ],
                    },
                },
            },
        ],
    }
)
_CANONICAL = to_parsing_canonical_form(_SCHEMA)
_LENGTHS = struct.Struct(">qqII")


class ArchivedRecord(NamedTuple):
    """A record of the run log."""

    offset: int
    at_ms: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """A finished run; `head` is the id of its last entry, `digest` covers all its records, both in hex."""

    run_id: RunId
    agent: str
    status: str
    partition: int
    ended_ms: int
    head: str
    digest: str
    records: tuple[ArchivedRecord, ...]

    @property
    def size(self) -> int:
        return sum(len(record.key) + len(record.value) for record in self.records)


def digest_of(records: Sequence[ArchivedRecord]) -> str:
    digest = blake2b(digest_size=32)
    for record in records:
        digest.update(_LENGTHS.pack(record.offset, record.at_ms, len(record.key), len(record.value)))
        digest.update(record.key)
        digest.update(record.value)
    return digest.hexdigest()


def pack_runs(runs: Sequence[ArchivedRun]) -> bytes:
    # The marker between blocks is random by default, and then no two files of the same runs would be equal.
    marker = blake2b("".join(run.digest for run in runs).encode(), digest_size=16).digest()
    out = io.BytesIO()
    rows = (asdict(run) | {"records": [record._asdict() for record in run.records]} for run in runs)
    fastavro.writer(out, _SCHEMA, rows, codec="deflate", sync_marker=marker)
    return out.getvalue()


def unpack_runs(content: bytes, place: str) -> Iterator[ArchivedRun]:
    """Runs in a file. **Raises** MalformedError for another or a cut file."""
    try:
        rows = fastavro.reader(io.BytesIO(content))
        # A foreign schema would control the loops of the library, and the objects it builds.
        if to_parsing_canonical_form(rows.writer_schema) != _CANONICAL:
            raise ValueError("it has another schema than archives have")
        for row in rows:
            yield _run(row)
    except Exception as error:  # noqa: BLE001 - of any kind: the library's own, of zlib, of a recursion
        reason = str(error) or type(error).__name__
        raise MalformedError(f"{place} cannot be read: {reason}", hint="fetch it again, or restore a copy") from None


def flaws(run: ArchivedRun) -> list[str]:
    """Faults of a copy, in words; empty if it is the run, from its first entry to its end."""
    fold, problems = LogFold(), []
    for record in run.records:
        judged = fold.feed(record.key, record.value)
        if judged.run_id != run.run_id:
            problems.append(f"the record at offset {record.offset} is of run {judged.run_id or 'nobody'}")
        elif judged.void in ("key", "hash", "body", "time"):
            problems.append(f"the record at offset {record.offset} is not the entry that its key names")
    problems += [f"an entry cannot be read by this version: {reason}" for reason in fold.frozen.values()]
    if digest_of(run.records) != run.digest:
        problems.append("its records have another digest than was noted")
    if (state := fold.states.get(run.run_id)) is None:
        return [*problems, "none of its records counts"]
    if not state.over:
        problems.append(f"its history does not reach its end, it is {state.status}")
    if (state.head.id.hex(), state.status) != (run.head, run.status):
        problems.append(f"its history ends with {state.head.id.hex()} {state.status}, not {run.head} {run.status}")
    return problems


def _run(row: Any) -> ArchivedRun:
    records = tuple(ArchivedRecord(**record) for record in row.pop("records"))
    if not 0 < row["ended_ms"] <= LAST_MS:
        raise ValueError(f"run {row['run_id'][:80]} ended at a time that no log has")
    return ArchivedRun(**row, records=records)
