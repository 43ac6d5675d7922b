"""Format of a bundle: JSON Lines in one order, each sealed by a digest over itself and the line before.

The first line (`bundle`) lists the rest: `schema` lines, `catalog` lines with signed entries, and for each run `entry`
and `claim` lines. A seal locates damage; `verify` checks content, which a liar could seal again."""

import re
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, chain
from typing import Annotated, Any, BinaryIO, NamedTuple

import orjson
from pydantic import Field, ValidationError

from refold.client.reading.history import ReadRecord
from refold.client.reading.model import ReadModel
from refold.core.errors import MalformedError
from refold.core.ids import RunId
from refold.core.topics import CATALOG, RUN_LOG
from refold.core.wire import canonical
from refold.core.wire.codec import FRAME_BYTES
from refold.core.wire.schemas import registered
from refold.engine.ports.log import Record

BUNDLE_VERSION = 1
FORKED_BY = "fork"
"""Actor of entries written by a fork."""
LINE_BYTES = 12 << 20
"""Longest line: a record of 8 MiB, more than any broker takes by default, has 11 MiB in base64."""

HEADER, SCHEMA, CATALOGUED, ENTRY, CLAIMED = "bundle", "schema", "catalog", "entry", "claim"
_SEALED = re.compile(rb',"seal":"([0-9a-f]{32})"\}\n?\Z')
_BEGINS = re.compile(rb'\{"n":([0-9]{1,15}),"kind":"([a-z]{1,20})"')

_Natural = Annotated[int, Field(ge=0)]


class Hole(NamedTuple):
    """Failure of a bundle in the line `record`. `kind` is one of removed, changed, moved, repeated, foreign, cut, more,
    unreadable, version, signature, decision, claim, about, head. Outside of runs `run_id` is empty, and `seq` 0."""

    kind: str
    record: int
    what: str
    run_id: str = ""
    seq: int = 0


class Line(NamedTuple):
    """A line with a valid seal; `content` includes `n` and `kind`."""

    n: int
    kind: str
    content: dict[str, Any]


def as_record(record: ReadRecord) -> Record:
    return Record(record.topic, record.partition, record.offset, record.key, record.value or b"", list, record.at_ms)


@dataclass(frozen=True, slots=True)
class BundledRun:
    """Accepted entries of a run from its first one on, and the claims of its calls."""

    run_id: RunId
    records: Sequence[Record]
    claims: Sequence[Record] = ()


@dataclass(frozen=True, slots=True)
class Bundle:
    """Content of a bundle to write. `about`: its subject (`inc-1/30`); `root`: ids of its catalog's root keys, a hint
    that verifies nothing; `redacted`: keys of redacted entries; `fork`: describes the fork whose entries are in no
    topic (offset -1)."""

    about: str
    runs: Sequence[BundledRun]
    catalog: Sequence[Record] = ()
    root: Sequence[str] = ()
    rules: Sequence[str] = ()
    redacted: frozenset[bytes] = frozenset()
    fork: Mapping[str, Any] = field(default_factory=dict)

    def lines(self) -> Iterator[bytes]:
        seal = b""
        for number, (kind, content) in enumerate(self._contents()):
            body = orjson.dumps({"n": number, "kind": kind, **content})
            seal = _seal(seal, body)
            # Spliced in: `read` checks the bytes that were sealed, and encodes nothing again.
            yield body[:-1] + b',"seal":"' + seal + b'"}\n'

    def _contents(self) -> Iterator[tuple[str, dict[str, Any]]]:
        numbers = sorted({int.from_bytes((record.value or b"")[1:FRAME_BYTES]) for _, record in self._records()})
        runs = [{"run": run.run_id, "records": len(run.records), "claims": len(run.claims)} for run in self.runs]
        counts = {"schemas": len(numbers), "catalog": len(self.catalog)}
        origin = {"root": list(self.root), "redacted": list(self.rules), "fork": dict(self.fork)}
        yield HEADER, {"version": BUNDLE_VERSION, "about": self.about, "runs": runs, **counts, **origin}
        for number in numbers:
            subject, schema = registered()[0][number]
            yield SCHEMA, {"id": number, "subject": subject, "schema": schema}
        for kind, record in self._records():
            yield kind, _record_fields(record, redacted=record.key in self.redacted)

    def _records(self) -> Iterator[tuple[str, Record]]:
        """Yield the records in the order of the lines, each with the kind of its line."""
        yield from ((CATALOGUED, record) for record in self.catalog)
        for run in self.runs:
            yield from ((ENTRY, record) for record in run.records)
            yield from ((CLAIMED, record) for record in run.claims)


def _record_fields(record: Record, *, redacted: bool) -> dict[str, Any]:
    place = {"topic": record.topic, "partition": record.partition, "offset": record.offset, "at_ms": record.at_ms}
    key, value = (record.key or b"").decode(), b64encode(record.value or b"").decode()
    return {**place, "key": key, "value": value, **({"redacted": True} if redacted else {})}


def bundled_record(line: Line) -> Record:
    """Return the record in a line. **Raises** MalformedError if it has none."""
    content, topics = line.content, {CATALOGUED: CATALOG, ENTRY: RUN_LOG}
    hints = {"topic": str, "partition": int, "offset": int, "at_ms": int, "key": str, "value": str}
    if any(type(content.get(name)) is not hint for name, hint in hints.items()):
        raise MalformedError("a field of the record is missing, or of another type")
    if content["topic"] != topics.get(line.kind, content["topic"]):
        raise MalformedError(f"a record of {content['topic'][:80]} is no {line.kind}")
    try:
        value = b64decode(content["value"], validate=True)
    except ValueError:
        raise MalformedError("the value is not base64") from None
    place = content["topic"], content["partition"], content["offset"]
    return Record(*place, content["key"].encode(), value, list, content["at_ms"])


class RunListed(ReadModel):
    """A run in the first line, with counts of lines."""

    run: str
    records: _Natural
    claims: _Natural


class Contents(ReadModel):
    """First line of a bundle; `schemas` and `catalog` are counts of lines."""

    version: Annotated[int, Field(ge=1)]
    about: str
    runs: list[RunListed]
    schemas: _Natural
    catalog: _Natural
    root: list[str]
    redacted: list[str]
    fork: dict[str, Any]

    @cached_property
    def first(self) -> list[int]:
        """Number of the first line of each part, and last the number of all lines."""
        parts = chain.from_iterable((run.records, run.claims) for run in self.runs)
        return list(accumulate((1, self.schemas, self.catalog, *parts), initial=0))

    def place(self, number: int) -> tuple[str, str]:
        """Return the kind and run of a line by its number; empty beyond the end."""
        if not 0 <= number < self.first[-1]:
            return "", ""
        part, before = bisect_right(self.first, number) - 1, (HEADER, SCHEMA, CATALOGUED)
        if part < len(before):
            return before[part], ""
        run, claims = divmod(part - len(before), 2)
        return CLAIMED if claims else ENTRY, self.runs[run].run


def contents_of(line: Line) -> Contents:
    """Parse the first line. **Raises** MalformedError; for a newer version with the field `version`."""
    version = line.content.get("version")
    if type(version) is int and version > BUNDLE_VERSION:
        message = f"the bundle is of version {version}, and this version of refold reads {BUNDLE_VERSION}"
        raise MalformedError(message, version=version)
    try:
        contents = Contents.model_validate(line.content, strict=True)
    except ValidationError:
        raise MalformedError("the first line is not that of a bundle") from None
    names = [run.run for run in contents.runs]
    if names != sorted(set(names)):  # a run is compared with its parent's records, which come first
        raise MalformedError("the runs of the first line are not in the order of their names")
    return contents


def read(file: BinaryIO) -> Iterator[Line | Hole]:
    """Iterate over the lines of a bundle, one in memory, with holes for broken ones, and a last line of kind `END`."""
    due, seal, missing = 0, b"", set[int]()
    for raw in _raw_lines(file):
        begins, sealed = _BEGINS.match(raw), _SEALED.search(raw)
        number = int(begins[1]) if begins and sealed else due
        if begins is None or sealed is None or number > due + MOST_MISSING - len(missing):
            yield Hole("unreadable", due, "the line is none of a bundle: it was changed or cut")
            due, seal = due + 1, _UNKNOWN
        elif number < due:
            kind, seal = "moved" if number in missing else "repeated", _UNKNOWN
            missing.discard(number)
            yield Hole(kind, number, f"the line stands behind line {due - 1}")
        else:
            body, before, seal = raw[: sealed.start()] + b"}", seal, sealed[1]
            missing.update(range(due, number))
            # Behind a hole the seal before is unknown: only the content is checked.
            if number == due and before != _UNKNOWN and _seal(before, body) != seal:
                yield Hole("changed", number, "the line, or the one before it, has other bytes than were sealed")
            else:
                yield _parsed_line(number, begins[2].decode(), body)
            due = number + 1
    yield from (Hole("removed", number, "the line is not there") for number in sorted(missing))
    yield Line(due, END, {})


def _raw_lines(file: BinaryIO) -> Iterator[bytes]:
    """Iterate over the lines of a file, but only over the end of a line that is too long."""
    while raw := file.readline(LINE_BYTES):
        whole = raw
        while len(raw) == LINE_BYTES and not raw.endswith(b"\n"):
            whole = raw = file.readline(LINE_BYTES) or b"\n"
        yield whole


def _parsed_line(number: int, kind: str, body: bytes) -> Line | Hole:
    try:
        return Line(number, kind, canonical.parse(body, containers=canonical.MAX_CONTAINERS))
    except MalformedError as error:
        return Hole("unreadable", number, error.message)


_UNKNOWN = b"?"
"""Seal of a missing or broken line."""
MOST_MISSING = 100_000
"""Missing lines at most: a limit of memory against made-up numbers."""
END = "end"
"""Kind of the last item of `read`, whose number is the number of lines."""


def _seal(before: bytes, body: bytes) -> bytes:
    return blake2b(body, digest_size=16, key=before).hexdigest().encode()
