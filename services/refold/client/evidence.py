"""Collects what goes into a bundle of evidence, and reads runs back out of one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from refold.client.platform import Platform
from refold.core.approval.catalog import Catalog
from refold.core.approval.signature import Trust
from refold.core.errors import FoldError, MalformedError, NotFoundError, UsageError
from refold.core.events import CallProposed, Entry
from refold.core.ids import EntryId, RunId, home, parse_call_id, parse_log_key
from refold.core.messages import CatalogEntry, ToolClaim
from refold.core.run import chain
from refold.core.run.chain import LogRecord
from refold.core.run.state import CHAINED
from refold.core.topics import CATALOG, RUN_LOG, tool_claimed
from refold.core.wire import codec
from refold.evidence import bundle, redaction
from refold.evidence.bundle import END, ENTRY, HEADER, Bundle, BundledRun, Hole, bundled_record, contents_of, read
from refold.ports.log import LogReader, Record
from refold.views.history import JudgedRecord, Run, extend
from refold.views.why import Why


def run_of_key(reader: LogReader, key: str) -> tuple[str, int]:
    """The run and the event of the call with an idempotency key. Reads the whole run log. **Raises** NotFoundError."""
    wanted = key.encode()
    for record in reader.scan(RUN_LOG):
        if record.value and wanted in record.value:
            with suppress(MalformedError, FoldError):
                entry = codec.decode(Entry, record.value)
                for seq, event in enumerate(entry.events, entry.seq):
                    if getattr(event, "key", "") == key:
                        return entry.run_id, seq
    raise NotFoundError(
        f"no call has the key {key[:80]}", hint="name the call: RUN/SEQ, as `refold run show` prints it"
    )


def claims_of(reader: LogReader, runs: Collection[Run], call: str = "") -> list[Record]:
    """The claims of the chained calls of runs, or of one call, as they lie in the topics of their pools."""
    places, chains = set[tuple[str, str]](), set[bytes]()
    for run in runs:
        for number, step in enumerate(run.state.steps, 1):
            if isinstance(step, CallProposed) and step.effect in CHAINED:
                names = step.key, run.state.call(number).key, run.state.call_id(number)
                if call not in ("", names[-1]):
                    continue
                chains |= {name.encode() for name in names}
                places.add((run.state.run_id, step.pool))
    found = dict[tuple[str, int, int], Record]()
    for run_id, pool in sorted(places):
        with suppress(NotFoundError):  # a pool that is in memory has no topic
            topic = tool_claimed(pool)
            for record in reader.scan(topic, home(run_id, reader.partitions(topic))):
                if record.value and (record.key or b"").rpartition(b"/")[0] in chains:
                    found[topic, record.partition, record.offset] = record
    return [found[place] for place in sorted(found)]


def published_entries(reader: LogReader, trust: Trust) -> list[Record]:
    """Entries that the authority has published, in order of its numbers: once, whichever partitions have it."""
    found: dict[str, tuple[CatalogEntry, Record]] = {}
    with suppress(NotFoundError):
        for record in reader.scan(CATALOG):
            with suppress(MalformedError, FoldError):
                entry = codec.decode(CatalogEntry, record.value or b"")
                found.setdefault(entry.token, (entry, record))
    known, kept = Catalog(trust), list[Record]()
    for _, record in sorted(found.values(), key=lambda each: each[0].counter):
        if not trust or not known.follow(known.position, record.key, record.value):
            kept.append(record)
    return kept


def bundle_of(
    about: str, runs: Mapping[RunId, tuple[Run, int]], platform: Platform, rules: Sequence[str] = ()
) -> Bundle:
    """The bundle of runs, each up to the entry that has an event; 0: all of it. **Raises** UnreachableError."""
    hidden, parts, reader = set[bytes](), list[BundledRun](), platform.runs.reader
    trust: Trust = {}
    with suppress(UsageError):  # where no root key is pinned the catalog goes along as it is
        trust = platform.trust
    claims: dict[RunId, list[Record]] = {}
    for record in claims_of(reader, [run for run, _ in runs.values()]):
        claim = codec.decode(ToolClaim, record.value or b"")
        claims.setdefault(parse_call_id(claim.call_id)[0], []).append(record)
    for name, (run, until) in runs.items():
        records = list[Record]()
        for judged in run.records:
            if judged.entry is None or (until and judged.entry.seq > until):
                break
            taken = bundle.in_log(judged.record)
            records.append(redaction.without_values(taken, rules) if rules else taken)
            if records[-1] is not taken:
                hidden.add(taken.key or b"")
        parts.append(BundledRun(name, records, claims.get(name, ())))
    return Bundle(
        about, parts, published_entries(reader, trust), sorted(trust), list(rules), redacted=frozenset(hidden)
    )


def linked_runs(because: Why, find: Callable[[str], Run | None]) -> dict[RunId, tuple[Run, int]]:
    """The runs that a chain goes through, each up to the last event that it names."""
    last: dict[str, int] = {}
    for link in because.links:
        for run, seq in ((link.run_id, link.seq), *([link.other] if link.other else [])):
            last[run] = max(seq, last.get(run, 0))
    return {RunId(run): (found, last[run]) for run in sorted(last) if (found := find(run)) is not None}


def bundled_runs(path: Path, run: str) -> dict[str, Run]:
    """The runs of a bundle, of which one is meant, folded.

    **Raises** UsageError for no file, MalformedError for a bundle with a hole, NotFoundError.
    """
    try:
        with path.open("rb") as file:
            found = runs_in(file)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", hint="`refold why ID --bundle FILE` writes one"
        ) from None
    if run not in found:
        raise NotFoundError(f"the bundle has no run {run}", hint=f"it has {', '.join(found)}"[:200])
    return found


_VERIFY = "`refold verify` names all holes"


def runs_in(file: BinaryIO) -> dict[str, Run]:
    """The runs of a bundle, folded. **Raises** MalformedError for a bundle with a hole."""
    found, lines = dict[str, Run](), 0
    for line in read(file):
        if isinstance(line, Hole):
            raise MalformedError(f"line {line.record} of the bundle: {line.what}", hint=_VERIFY)
        if line.kind == ENTRY:
            record = bundled_record(line)
            parts, entry = parse_log_key(record.key), codec.decode(Entry, record.value or b"")
            hidden = line.content.get("redacted") is True
            run = found.setdefault(entry.run_id, Run.empty(entry.run_id))
            whole = hidden or isinstance(chain.read(record.key, record.value), LogRecord)
            if parts is None or not whole or not chain.extends(run.state.head, entry):
                raise MalformedError(f"line {line.n} of the bundle is not the next entry of its run", hint=_VERIFY)
            extend(run, JudgedRecord(parts[0], EntryId(parts[2]), entry, "", record=record), entry)
        elif line.kind == HEADER:
            lines = contents_of(line).first[-1]
        elif line.kind == END and line.n != lines:
            raise MalformedError(f"the bundle has {line.n} lines, and not {lines}", hint=_VERIFY)
    return found
