"""Collects the content of evidence bundles, and reads runs out of bundles."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from refold.client.platform import Platform
from refold.client.reading.history import JudgedRecord, Run, extend
from refold.client.reading.why import Find, Why, entry_with
from refold.core.approval.catalog import Catalog
from refold.core.approval.signature import Trust
from refold.core.errors import MalformedError, NotFoundError, UsageError
from refold.core.events import CallProposed, Entry
from refold.core.ids import EntryId, RunId, home, parse_call_id, parse_log_key
from refold.core.messages import CatalogEntry, ToolClaim
from refold.core.run import chain
from refold.core.run.chain import LogRecord
from refold.core.run.state import CHAINED
from refold.core.topics import CATALOG, RUN_LOG, tool_claimed
from refold.core.wire import codec
from refold.engine.executor.claim_chain import ClaimChain
from refold.engine.ports.log import LogReader, Record
from refold.lab.evidence import bundle, redaction


def run_of_key(reader: LogReader, key: str, find: Find) -> tuple[str, int]:
    """Find the run and event of a call by its idempotency key, in the whole log. **Raises** NotFoundError."""
    key_bytes = key.encode()
    for record in reader.scan(RUN_LOG):
        if record.value and key_bytes in record.value and (entry := codec.decode_known(Entry, record.value)):
            for seq, event in enumerate(entry.events, entry.seq):
                if getattr(event, "key", "") == key and (run := find(entry.run_id)) is not None:
                    with suppress(NotFoundError):
                        _, counts = entry_with(run, seq)
                        # A record that does not count may have the key of another call.
                        if counts.events[seq - counts.seq] == event:
                            return entry.run_id, seq
    hint = "name the call: RUN/SEQ, as `refold run show` prints it"
    raise NotFoundError(f"no call has the key {key[:80]}", hint=hint)


def claims_of(reader: LogReader, runs: Collection[Run], call: str = "") -> list[Record]:
    """Return the valid claims of the chained calls of runs, or of one `call`."""
    by_topic = defaultdict[str, dict[bytes, RunId]](dict)
    for run in runs:
        for number, step in enumerate(run.state.steps, 1):
            if isinstance(step, CallProposed) and step.effect in CHAINED:
                names = step.key, run.state.call(number).key, run.state.call_id(number)
                if call in ("", names[-1]):
                    by_topic[tool_claimed(step.pool)] |= {name.encode(): run.state.run_id for name in names}
    claims = list[Record]()
    for topic, chains in sorted(by_topic.items()):
        with suppress(NotFoundError):  # a pool that is in memory has no topic
            many = reader.partitions(topic)
            for partition in sorted({home(run, many) for run in chains.values()}):
                claims += _valid_claims(reader.scan(topic, partition), chains)
    return claims


def _valid_claims(records: Iterable[Record], chains: Mapping[bytes, RunId]) -> list[Record]:
    links, claims = defaultdict[bytes, ClaimChain](ClaimChain), dict[tuple[bytes, str], Record]()
    for record in records:
        name = (record.key or b"").rpartition(b"/")[0]
        if (run := chains.get(name)) is None or (claim := codec.decode_known(ToolClaim, record.value)) is None:
            continue
        if claim.call_id.startswith(f"{run}/") and record.key == f"{claim.chain}/{claim.claim_id}".encode():
            links[name].add(claim, 0, record.at_ms)
            claims.setdefault((name, claim.claim_id), record)
    return [record for (name, claim_id), record in claims.items() if claim_id in links[name].links]


def published_entries(reader: LogReader, trust: Trust) -> list[Record]:
    """Return the authority's entries in order of their numbers, each once."""
    records: dict[tuple[bytes | None, CatalogEntry], Record] = {}
    with suppress(NotFoundError):
        for record in reader.scan(CATALOG):
            if entry := codec.decode_known(CatalogEntry, record.value):
                # By content: a copied signature must not push out the true entry.
                records.setdefault((record.key, entry), record)
    catalog, published = Catalog(trust), list[Record]()
    for _, entry in sorted(records, key=lambda pair: pair[1].counter):
        record = records[_, entry]
        if not trust or not catalog.follow(catalog.position, record.key, record.value):
            published.append(record)
    return published


def bundle_of(
    about: str, runs: Mapping[RunId, tuple[Run, int]], platform: Platform, rules: Sequence[str] = ()
) -> bundle.Bundle:
    """Bundle of runs, each up to the entry with an event, or whole (0). **Raises** UnreachableError."""
    hidden, parts, reader = set[bytes](), list[bundle.BundledRun](), platform.runs.reader
    trust: Trust = {}
    with suppress(UsageError):  # where no root key is pinned the catalog goes along as it is
        trust = platform.trust
    claims: dict[RunId, list[Record]] = {}
    for record in claims_of(reader, [run for run, _ in runs.values()]):
        claim = codec.decode(ToolClaim, record.value or b"")
        claims.setdefault(parse_call_id(claim.call_id)[0], []).append(record)
    for name, (run, until) in sorted(runs.items()):
        whole = [*_records_until(run, until)]
        records = [redaction.without_values(record, rules) for record in whole] if rules else whole
        hidden |= {record.key or b"" for record, before in zip(records, whole, strict=True) if record is not before}
        parts.append(bundle.BundledRun(name, records, claims.get(name, ())))
    catalog = published_entries(reader, trust)
    return bundle.Bundle(about, parts, catalog, sorted(trust), list(rules), redacted=frozenset(hidden))


def _records_until(run: Run, until: int) -> Iterator[Record]:
    for judged in run.records:
        if judged.entry is None or 0 < until < judged.entry.seq:
            return
        yield bundle.as_record(judged.record)


def linked_runs(because: Why, find: Callable[[str], Run | None]) -> dict[RunId, tuple[Run, int]]:
    """Return the runs of a causal chain, each with its last event in the chain."""
    last: dict[str, int] = {}
    for link in because.links:
        for run, seq in ((link.run_id, link.seq), *([link.other] if link.other else [])):
            last[run] = max(seq, last.get(run, 0))
    return {RunId(run): (linked, last[run]) for run in sorted(last) if (linked := find(run)) is not None}


@contextmanager
def open_bundle(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        hint = "`refold why ID --bundle FILE` writes one"
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=hint) from None


def bundled_runs(path: Path, run: str) -> dict[str, Run]:
    """Fold the runs of a bundle file. **Raises** as `runs_in`; UsageError; NotFoundError without `run`."""
    with open_bundle(path) as file:
        runs = runs_in(file)
    if run not in runs:
        raise NotFoundError(f"the bundle has no run {run}", hint=f"it has {', '.join(runs)}"[:200])
    return runs


_VERIFY = "`refold verify` names all holes"


def runs_in(file: BinaryIO) -> dict[str, Run]:
    """Fold the runs of a bundle. **Raises** MalformedError for a hole."""
    runs, lines = dict[str, Run](), 0
    for line in bundle.read(file):
        if isinstance(line, bundle.Hole):
            raise MalformedError(f"line {line.record} of the bundle: {line.what}", hint=_VERIFY)
        if line.kind == bundle.ENTRY:
            _append_entry(runs, line)
        elif line.kind == bundle.HEADER:
            lines = bundle.contents_of(line).first[-1]
        elif line.kind == bundle.END and line.n != lines:
            raise MalformedError(f"the bundle has {line.n} lines, and not {lines}", hint=_VERIFY)
    return runs


def _append_entry(runs: dict[str, Run], line: bundle.Line) -> None:
    record = bundle.bundled_record(line)
    parts, entry = parse_log_key(record.key), codec.decode(Entry, record.value or b"")
    hidden = line.content.get("redacted") is True
    run = runs.setdefault(entry.run_id, Run.empty(entry.run_id))
    whole = hidden or isinstance(chain.read(record.key, record.value), LogRecord)
    if parts is None or not whole or not chain.extends(run.state.head, entry):
        raise MalformedError(f"line {line.n} of the bundle is not the next entry of its run", hint=_VERIFY)
    try:
        extend(run, JudgedRecord(parts[0], EntryId(parts[2]), entry, "", record=record), entry)
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError):
        raise MalformedError(f"line {line.n} of the bundle says what cannot be", hint=_VERIFY) from None
