"""Verifies a bundle in one pass by its bytes alone. Memory grows with the largest run, not the bundle."""

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

from refold.client.reading.words import with_ellipsis
from refold.core import events
from refold.core.approval.signature import Trust, kid_of
from refold.core.errors import FoldError, MalformedError
from refold.core.events import Entry
from refold.core.ids import EntryId, RunId, approval_id, child_id, parse_call_id, parse_log_key
from refold.core.messages import CatalogEntry, ToolClaim, ToolRequest
from refold.core.planning import commands
from refold.core.run import chain
from refold.core.run.chain import Head, LogRecord, Unreadable
from refold.core.run.fold import evolve
from refold.core.run.state import CHAINED, RunState
from refold.core.wire import codec
from refold.core.wire.blobs import is_pointer
from refold.core.wire.schemas import registered
from refold.engine.ports.log import Record
from refold.lab.evidence import bundle
from refold.lab.evidence.bundle import CATALOGUED, CLAIMED, END, ENTRY, SCHEMA, Hole, Line, read
from refold.lab.evidence.decisions import Authorities, PeopleDecided, not_let_out, recounted, text_digest
from refold.lab.evidence.redaction import is_hidden, is_redacted

MOST_HOLES = 1_000
MOST_PASSED = 1_000
"""Missing lines of one gap that are attributed to a run."""
HOLE_CHARS = 1_000


class BundleRun(NamedTuple):
    """A run of a bundle: its last event `seq`, last entry `head`, and first events of `redacted` entries."""

    run_id: RunId
    entries: int
    seq: int
    head: str
    redacted: list[int]
    agent: str
    requester: str
    status: str


class VerifiedBundle(NamedTuple):
    """Content of a bundle and its holes; `notes` are the things that it does not prove. `unchecked` counts signatures
    that are redacted, or lack a root key of the reader or a complete, recent catalog. `catalog` is the number and time
    (ms) of its last entry."""

    about: str
    records: int
    fork: dict[str, Any]
    root: list[str]
    platform: str
    catalog: tuple[int, int]
    runs: list[BundleRun]
    decisions: list[PeopleDecided]
    holes: list[Hole]
    unchecked: int
    notes: list[str]

    @property
    def verdict(self) -> str:
        """`broken` by a hole, `unproven` by an unchecked signature, `redacted` by missing values, or `holds`."""
        redacted = any(run.redacted for run in self.runs)
        return "broken" if self.holes else "unproven" if self.unchecked else "redacted" if redacted else "holds"


def verify_bundle(file: BinaryIO, trust: Trust, *, heads: Collection[str] = (), catalog: int = 0) -> VerifiedBundle:
    """Check a bundle; without root keys in `trust`, not its signatures. `heads` of runs and `catalog`, the number of
    its last entry, are known from another source. **Raises** MalformedError for a file that is no bundle."""
    checking = _BundleCheck(Authorities(trust), heads, catalog)
    all_holes = (hole for line in read(file) for hole in checking.take(line))
    holes = [hole._replace(what=with_ellipsis(hole.what, HOLE_CHARS)) for hole in islice(all_holes, MOST_HOLES)]
    if not checking.records:
        raise MalformedError("this is no bundle of evidence", hint="`refold why ID --bundle FILE` writes one")
    holes = holes or list(checking.unmet())
    contents = checking.contents
    return VerifiedBundle(
        contents.about if contents else "",
        checking.records,
        contents.fork if contents else {},
        sorted(trust),
        checking.authorities.platform,
        checking.last,
        checking.runs,
        checking.decisions,
        holes,
        sum(checking.counts[name] for name in ("unchecked", "unsigned", "hidden", "older")),
        list(checking.notes()),
    )


class _BundleCheck:
    """Check of a bundle, fed with its lines in order."""

    def __init__(self, authorities: Authorities, heads: Collection[str], catalog: int) -> None:
        self.contents: bundle.Contents | None = None
        self.last, self._expected, self._expected_heads, self._concerned = (0, 0), catalog, heads, False
        self.records, self.runs, self.decisions = 0, list[BundleRun](), list[PeopleDecided]()
        self.counts = Counter[str]()
        self.authorities, self._newer, self._forked = authorities, False, False
        self._schemas, self._counter, self._next = set[int](), 0, 0
        self._torn, self._broken = set[str](), set[str]()
        """Runs and kinds of lines with a gap: up to the next line, or for good, with consequences not reported."""
        self._due: dict[int, int] = {}
        """Expected first event of a missing line, by its number."""
        self._heads: dict[str, Head] = {}
        self._reported: dict[tuple[str, str], str] = {}
        """Parents' records of their children: input and outcome."""
        self._begin_run(RunId(""))

    def _begin_run(self, run: RunId) -> None:
        self._run, self._state, self._last = run, RunState(run), 0
        self._entries, self._redacted = 0, list[int]()
        self._links: dict[str, tuple[str, ...]] = {}
        self._claimed, self._good = set[str](), set[str]()

    def take(self, line: Line | Hole) -> Iterator[Hole]:
        if self._newer:
            return
        if isinstance(line, Hole):
            yield self._located_hole(line)
            return
        (kind, run), seq = self._kind_and_run(line.n), self._seq_of(line)
        try:
            for hole in self._check_end(line.n) if line.kind == END else self._check_line(line, kind):
                yield hole._replace(record=hole.record or line.n, run_id=hole.run_id or run, seq=hole.seq or seq)
        # Made-up events can raise any of these; a traceback would end the verification.
        except (AssertionError, AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
            self._mark_torn(line.kind, run)
            yield Hole("changed", line.n, f"{run}: what it says cannot be ({type(error).__name__})", run, seq)
        except (FoldError, MalformedError) as error:
            self._mark_torn(line.kind, run)
            yield self._unreadable(line, error)._replace(run_id=run, seq=seq)

    def _unreadable(self, line: Line, error: FoldError | MalformedError) -> Hole:
        newer = isinstance(error, FoldError) or "version" in error.fields
        self._newer = newer and not line.n
        reason = f"{error.message}: upgrade refold" if newer else error.message
        return Hole("version" if newer else "unreadable", line.n, reason)

    def notes(self) -> Iterator[str]:
        count = self.counts
        unsure = "the catalog has a hole" if self.authorities.trust else "name the root key that you trust (--root)"
        notes = {
            "hidden": "decisions are redacted: their signatures and votes are not checked",
            "unchecked": f"decisions are not checked: {unsure}",
            "unsigned": "entries of the catalog are not checked: name the root key that you trust (--root)",
            "older": f"decisions are younger than the catalog, which ends with number {self.last[0]}: a revocation may "
            "be left out; name the number that `refold policy show --json` prints (--catalog)",
            "unclaimed": "chained calls have no claim in the bundle",
            "uncompared": "heads are not compared: entries are not signed, so an author can make up a whole run; name "
            "the ids of heads that `refold run show RUN --json` prints, or that you have from elsewhere (--head)",
        }
        yield from self._redactions()
        if gone := self.authorities.withdrawn(kid for decided in self.decisions for kid in decided.keys):
            yield f"keys that were revoked later have signed decisions, which whoever had them can date back: {gone}"
        yield from (f"{count[name]} {text}" for name, text in notes.items() if count[name])
        if self.contents and self.contents.fork:
            yield "this is a fork: entries of it are in no topic"
        if self.contents is None:
            yield "without its first line nobody can tell what the bundle should hold"

    def _redactions(self) -> Iterator[str]:
        rules = ", ".join(self.contents.redacted) if self.contents else ""
        for run in (run for run in self.runs if run.redacted):
            places = with_ellipsis(", ".join(map(str, run.redacted)), 200)
            text = f"{run.run_id}: the entries of events {places} are redacted ({rules}) and do not prove their ids"
            yield f"{text}: what is left in them is the word of the bundle's author, but for digests that are signed"

    def unmet(self) -> Iterator[Hole]:
        """Holes against the expectations of the reader: subject, heads, catalog."""
        about = self.contents.about if self.contents else ""
        if not self._concerned:
            yield _hole("about", f"the bundle is about {about or 'nothing'}, which is not in it")
        for head in sorted(set(self._expected_heads) - {run.head for run in self.runs}):
            yield _hole("head", f"no run of the bundle ends with {head}: it is another history, or another part of it")
        if self.last[0] < self._expected:
            reason = f"the catalog ends with number {self.last[0]}, and not with {self._expected} as expected"
            yield _hole("cut", reason)

    def _is_subject(self, seq: int, event: events.Event) -> bool:
        about, names = self.contents.about if self.contents else "", {self._run, f"{self._run}/{seq}"}
        if isinstance(event, events.ApprovalRequested) and "~" in about:  # or a beginning of its question's id
            return approval_id(self._state.call_id(event.step), event.question).startswith(about)
        return bool(about) and about in {*names, getattr(event, "key", "")}

    def _check_line(self, line: Line, kind: str) -> Iterator[Hole]:
        self._mark_missing_before(line.n)
        self._next = max(self._next, line.n + 1)
        self.records += 1
        if not line.n:
            self.contents = bundle.contents_of(line)
            self._forked = bool(self.contents.fork)
        elif self.contents and kind != line.kind:
            yield _hole("foreign" if kind else "more", f"a line of kind {line.kind} stands here")
        elif line.kind == SCHEMA:
            yield from self._check_schema(line)
        elif line.kind in (CATALOGUED, ENTRY, CLAIMED):
            yield from self._check_record(bundle.bundled_record(line), line)
        else:
            raise FoldError(f"lines of kind {line.kind} are of a newer version")

    def _check_record(self, record: Record, line: Line) -> Iterator[Hole]:
        number = int.from_bytes((record.value or b"")[1 : codec.FRAME_BYTES])
        if number not in self._schemas and SCHEMA not in self._broken:
            yield _hole("removed", f"the bundle lacks schema {number}, which this record has")
        if record.offset < 0 and not self._forked:
            yield _hole("foreign", "the record is in no topic, as one of a fork, and the bundle is that of none")
        check = {CATALOGUED: self._check_catalog_entry, ENTRY: self._check_entry, CLAIMED: self._check_claim}[line.kind]
        yield from check(record, line)

    def _kind_and_run(self, number: int) -> tuple[str, str]:
        return self.contents.place(number) if self.contents else ("", "")

    def _head(self, run: str) -> Head:
        return self._heads.get(run, Head())

    def _seq_of(self, line: Line) -> int:
        parts = parse_log_key(str(line.content.get("key")).encode()) if line.kind == ENTRY else None
        return parts[1] if parts else 0

    def _mark_torn(self, kind: str, run: str) -> None:
        part = run if kind == ENTRY else f"{kind} {run}".strip()
        self._torn.add(part)
        self._broken.add(part)

    def _located_hole(self, hole: Hole) -> Hole:
        kind, run = self._kind_and_run(hole.record)
        if hole.kind != "removed":  # missing lines are reported last: they may still come
            self._mark_missing_before(hole.record + 1)
            self._mark_torn(kind, run)
        return hole._replace(what=f"{run or kind}: {hole.what}", run_id=run, seq=self._due.get(hole.record, 0))

    def _mark_missing_before(self, number: int) -> None:
        for missing in range(self._next, min(number, self._next + MOST_PASSED)):
            kind, run = self._kind_and_run(missing)
            if kind == ENTRY and run not in self._torn:
                self._due[missing] = self._head(run).seq + 1
            self._mark_torn(kind, run)
        self._next = max(self._next, number)

    def _check_schema(self, line: Line) -> Iterator[Hole]:
        number, subject, schema = (line.content.get(name) for name in ("id", "subject", "schema"))
        if type(number) is not int or (expected := registered()[0].get(number)) is None:
            raise FoldError(f"schema {number} is of a newer version")
        self._schemas.add(number)
        if expected != (subject, schema):
            yield _hole("changed", f"schema {number} is other than the one with this id")

    def _check_catalog_entry(self, record: Record, line: Line) -> Iterator[Hole]:
        entry = codec.decode(CatalogEntry, record.value or b"")
        self.counts["unsigned"] += not self.authorities.trust
        if self.authorities.trust and (why := self.authorities.add(entry, record.key or b"", record.value or b"")):
            yield _hole("signature", f"the catalog's entry {entry.name[:200]} does not count: {why}")
        if entry.counter != self._counter + 1 and CATALOGUED not in self._broken:
            kind = "removed" if entry.counter > self._counter else "moved"
            yield _hole(kind, f"number {entry.counter} of the catalog, {entry.name[:200]}, follows {self._counter}")
        self._counter, self.last = entry.counter, (entry.counter, entry.at_ms)

    def _check_entry(self, record: Record, line: Line) -> Iterator[Hole]:
        parts, listed = parse_log_key(record.key), self._kind_and_run(line.n)[1]
        if parts is None or (self.contents and parts[0] != listed):
            due = self._head(listed).seq + 1
            self._mark_torn(ENTRY, listed)
            yield Hole("foreign", 0, f"{listed}: the record has the key {line.content['key'][:300]}", listed, due)
            return
        (run, seq, name), hidden = parts, line.content.get("redacted") is True
        if run != self._run:
            yield from self._finish_run()
            self._begin_run(run)
        self._entries += 1
        self._redacted += [seq] * hidden
        self._rules = self.contents.redacted if hidden and self.contents else []
        head, parsed = self._head(run), self._read_entry(record, name, hidden=hidden)
        if parsed is None or (parsed.entry.run_id, parsed.entry.seq) != (run, seq):
            self._heads[run] = Head(name, max(seq, head.seq))
            self._mark_torn(ENTRY, run)
            yield _hole("changed", f"{run}: event {seq} has other bytes than its key names, or is not redacted")
            return
        yield from self._check_chain(parsed, line.n)

    def _check_chain(self, record: LogRecord, number: int) -> Iterator[Hole]:
        entry, run = record.entry, record.entry.run_id
        if not chain.extends(self._head(run), entry) and run not in self._torn:
            self._broken.add(run)
            yield _unlinked(self._head(run), entry)
        self._torn.discard(run)
        self._heads[run] = Head(record.id, entry.last_seq)
        if entry.actor == bundle.FORKED_BY and not self._forked:
            yield _hole("foreign", f"{run}: a fork has written event {entry.seq}, and the bundle is that of none")
        if run not in self._broken:
            yield from self._fold_entry(record, number)

    def _read_entry(self, record: Record, name: EntryId, *, hidden: bool) -> LogRecord | None:
        """Return the entry in a record if its bytes match its key or are redacted. **Raises** FoldError."""
        parsed = chain.read(record.key, record.value)
        if isinstance(parsed, Unreadable):
            raise FoldError(parsed.reason)
        if hidden:
            entry = codec.decode(Entry, record.value or b"")
            return LogRecord(name, entry) if is_redacted(entry, self._rules) else None
        return parsed if isinstance(parsed, LogRecord) else None

    def _fold_entry(self, record: LogRecord, number: int) -> Iterator[Hole]:
        (_, entry), before, settled = record, self._state, set[int]()
        try:
            self._state, self._last = evolve(before, entry, record.id), number
        except FoldError as error:
            self._broken.add(entry.run_id)
            yield _hole("changed", error.message)
            return
        for seq, event in enumerate(entry.events, entry.seq):
            self._concerned = self._concerned or self._is_subject(seq, event)
            if isinstance(event, events.ApprovalDecided | events.CallJudged | events.CallRenewed):
                settled.add(event.step)
            if isinstance(event, events.ApprovalDecided) and event.verdict != "expire":
                yield from (hole._replace(seq=seq) for hole in self._check_decision(before, event, seq))
            elif isinstance(event, events.CallDispatched):
                pending = event.step not in settled and _waits_for_people(before, event.step)
                if why := "those who were asked have not decided" if pending else self._not_let_out(event, entry.at_ms):
                    yield _hole("decision", f"{self._state.call_id(event.step)} was sent, and {why}")._replace(seq=seq)

    def _not_let_out(self, event: events.CallDispatched, at_ms: int) -> str:
        order = commands.request(self._state, event.step, event.attempt, issued=0, at_ms=at_ms).message
        assert isinstance(order, ToolRequest), "it orders the call"
        return not_let_out(order) if order.decision in self._good and not is_pointer(order.args) else ""

    def _check_decision(self, before: RunState, event: events.ApprovalDecided, seq: int) -> Iterator[Hole]:
        call, keys = before.call_id(event.step), list[str]()
        if is_hidden(event, self._rules):
            self.counts["hidden"] += 1
        elif not event.token or is_pointer(event.token):
            yield _hole("signature", f"{call} is decided, and nobody has signed it")
        elif not self.authorities.trust or CATALOGUED in self._broken:
            self.counts["unchecked"] += 1
        elif isinstance(result := recounted(before, event, self._state.at_ms, self.authorities), Hole):
            yield result
        else:
            keys = [kid_of(token) for token in (event.token, *result.tokens)]
            self.counts["older"] += self.last[1] < result.issued and not 0 < self._expected <= self.last[0]
            self._good.add(event.token)
        facts = call, before.call(event.step).tool, event.verdict, event.actors
        self.decisions.append(PeopleDecided(before.run_id, seq, *facts, keys, bool(keys)))

    def _check_claim(self, record: Record, line: Line) -> Iterator[Hole]:
        claim = codec.decode(ToolClaim, record.value or b"")
        (run, seq), links = parse_call_id(claim.call_id), self._links.get(claim.chain, ())
        step = self._state.step_of(seq) if run not in self._broken else None
        keys = {getattr(self._state.steps[step - 1], "key", ""), self._state.call(step).key} if step else {claim.key}
        self._claimed.add(claim.call_id)
        self._links[claim.chain] = (*links, claim.claim_id)
        if record.key != f"{claim.chain}/{claim.claim_id}".encode() or run != self._run or claim.key not in {"", *keys}:
            yield _hole("claim", f"the claim of {claim.call_id} is of another effect than its key or its run has")
        elif claim.prev and claim.prev not in links and f"{CLAIMED} {run}" not in self._broken:
            yield _hole("claim", f"the claim of {claim.call_id} follows {claim.prev}, which is not there")

    def _check_end(self, lines: int) -> Iterator[Hole]:
        yield from self._finish_run()
        contents = self.contents
        if contents is not None and lines < contents.first[-1]:
            self._mark_missing_before(contents.first[-1])
            kind, run = contents.place(lines)
            text = f"cut off: {contents.first[-1] - lines} lines are missing, the first is of {run or kind}"
            yield Hole("cut", lines, text, run, self._due.get(lines, 0))

    def _finish_run(self) -> Iterator[Hole]:
        state, run, head = self._state, self._run, self._head(self._run)
        if not run:
            return
        request, whole = state.request, run not in self._broken
        names = (request.agent, request.requester) if request else ("", "")
        self.runs.append(BundleRun(run, self._entries, head.seq, head.id.hex(), self._redacted, *names, state.status))
        self.counts["uncompared"] += head.id.hex() not in self._expected_heads
        if whole and request is not None:
            own = {"asked": f"{request.agent} {text_digest(request.input)}"}
            own |= {"ended": _ended(state.status, getattr(state.end, "result", ""))} if state.over else {}
            for fact in (fact for fact, digest in own.items() if self._reported.pop((fact, run), digest) != digest):
                yield Hole("changed", self._last, f"{run}: its parent says otherwise how it was {fact}", run, head.seq)
            self._report_children(state)

    def _report_children(self, state: RunState) -> None:
        """Record a run's facts about its children; count chained calls without a claim."""
        for step, request in enumerate(state.steps, 1):
            outcome = state.outcomes[step][1] if step in state.outcomes else None
            if isinstance(request, events.ChildStarted):
                child = child_id(state.run_id, step)
                self._reported["asked", child] = f"{request.agent} {text_digest(request.input)}"
                if isinstance(outcome, events.ChildCompleted):
                    self._reported["ended", child] = _ended(outcome.status, outcome.result)
            elif isinstance(outcome, events.CallCompleted) and getattr(request, "effect", "") in CHAINED:
                acted = bool(outcome.attempt and not outcome.how and not state.copied(state.outcomes[step][2]))
                self.counts["unclaimed"] += acted and state.call_id(step) not in self._claimed


def _hole(kind: str, reason: str) -> Hole:
    """Return a hole without line, run and event, which `take` adds."""
    return Hole(kind, 0, reason)


def _waits_for_people(state: RunState, step: int) -> bool:
    opened = state.open.get(step)
    return opened is not None and opened.phase == "approval"


def _unlinked(head: Head, entry: Entry) -> Hole:
    if entry.seq > head.seq + 1:
        missing = f"{entry.run_id}: events {head.seq + 1} to {entry.seq - 1} are missing before this one"
        return Hole("removed", 0, missing, entry.run_id, head.seq + 1)
    return _hole("changed", f"{entry.run_id}: event {entry.seq} does not follow the entry before it")


def _ended(status: str, result: str) -> str:
    return f"{status} {text_digest(result)}" if status == "completed" else status
