"""Verification of all topics from raw bytes, without trust in any service."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from hashlib import blake2b
from typing import Any, NamedTuple, Self, TypeVar

from refold.client import catalog
from refold.client.reading.history import JudgedRecord, feed
from refold.core.approval import signature
from refold.core.approval.decision import Decision
from refold.core.approval.signature import PublicKey, Trust
from refold.core.errors import FoldError, MalformedError, NotFoundError, UnauthorisedError
from refold.core.events import ApprovalDecided, Entry
from refold.core.ids import EntryId, RunId, generation_id, generation_of, home, parse_log_key, root_of
from refold.core.messages import RunOutcome, ToolRequest
from refold.core.planning.commands import commands
from refold.core.run.erased import Markers
from refold.core.run.log import GAP, LogFold
from refold.core.run.pausing import status_after
from refold.core.run.state import WAITING, RunState, Status
from refold.core.topics import APPROVAL_REQUESTED, RUN_COMPLETED, RUN_LOG, RUN_SNAPSHOT, tool_requested
from refold.core.wire import codec
from refold.core.wire.headers import taken_back
from refold.engine.ports.log import LogReader, Record

PAUSE_S = 0.5
_home = lru_cache(1 << 12)(home)
_T = TypeVar("_T")


class Violation(NamedTuple):
    """A broken rule. `kind` is for programs; `run_id` is empty for a whole topic."""

    kind: str
    run_id: str
    what: str


@dataclass(slots=True)
class Verified:
    """Result of a verification. `erased`: remaining records of erased runs; `copied`: duplicate records by run;
    `digests`: folds of runs; `overdue`: runs with an action due before `now_ms`, stuck if the platform runs."""

    now_ms: int
    partitions: int = 0
    records: int = 0
    events: int = 0
    accepted: int = 0
    void: dict[str, int] = field(default_factory=dict)
    erased: int = 0
    runs: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    overdue: list[str] = field(default_factory=list)
    in_doubt: list[str] = field(default_factory=list)
    frozen: dict[str, str] = field(default_factory=dict)
    copied: dict[str, int] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)

    def add(self, kind: str, run: str, message: str) -> None:
        self.violations.append(Violation(kind, run, message))

    def settle(self, fold: LogFold, facts: "_Facts") -> None:
        """Complete the result at the end of the log: runs with a gap or two histories, and runs not ended for good."""
        for run, reason in fold.settle().items():
            self.add("beginning" if reason == GAP else "forked", run, reason)
        self.frozen = {str(run): reason for run, reason in fold.frozen.items()}
        for state in fold.states.values():
            self.note(state, facts)
            if not state.over:
                _note_open(self, state)
        live = [state.status for state in fold.states.values() if not state.over]
        self.runs = dict(Counter([*(end.status for end in facts.ends.values()), *live]))

    def note(self, state: RunState, facts: "_Facts") -> None:
        """Record the digest of a run, and, as facts, its pools and the outcome that `run-completed` should have."""
        self.digests[state.run_id] = state.digest()
        facts.pools.update(state.called_pools())
        facts.ends.pop(state.run_id, None)
        facts.heads[state.run_id] = state.head.id if state.status == "continued" else b""
        if state.request and state.request.continues:
            facts.links[state.run_id] = state.request.continues.head
        if (outcome := _expected_outcome(state)) is not None:
            facts.ends[state.run_id] = _Ended.of(outcome)

    def read(self, reader: LogReader, fold: LogFold, facts: "_Facts", erased: Markers) -> None:
        void, marked = Counter[str](), LogFold()
        for record in reader.scan(RUN_LOG):
            if erased.hides(record.key):
                self.erased += record.value is not None
                _check_record(self, judged := feed(marked, record))
                _drop_ended(marked, judged)
                continue
            judged = feed(fold, record)
            self.records += judged.void != "anchor"  # that is of no run
            _check_record(self, judged)
            if judged.void == "copy":
                self.copied[judged.run_id] = self.copied.get(judged.run_id, 0) + 1
            void[judged.void] += judged.void not in ("", "anchor")
            # Records held aside until now were counted as orphans.
            void["orphan"] -= len(judged.linked)
            for accepted in (judged, *judged.linked):
                if accepted.state is not None and accepted.entry is not None:
                    self._accept(accepted.entry, facts)
                    facts.follow(accepted.state, accepted.entry, accepted.id, judged)
            if (ended := _drop_ended(fold, judged)) is not None:
                self.note(ended, facts)
                facts.statuses.pop(ended.run_id, None)
        self.void = {reason: count for reason, count in void.items() if count}
        self._check_erased(marked, erased)

    def _accept(self, entry: Entry, facts: "_Facts") -> None:
        self.accepted += 1
        self.events += len(entry.events)
        for event in entry.events:
            if isinstance(event, ApprovalDecided) and event.token:
                try:
                    Decision.parse(signature.verified(event.token, facts.keys(), use="decision"))
                except (UnauthorisedError, MalformedError) as error:
                    reason = f"a decision that the run has accepted does not hold: {error.message}"
                    self.add("decision", entry.run_id, reason)

    def _check_erased(self, fold: LogFold, erased: Markers) -> None:
        for state in [state for run, state in fold.states.items() if fold.has_all(run) and not state.over]:
            # Planners write markers too; an archivist's names an end, which no copied beginning has.
            if erased.runs[state.run_id].head in ("", *(head.id.hex() for head in state.heads)):
                self.add("erased", state.run_id, f"it is marked as erased, and is {state.status}")

    def only(self, run: str) -> Self:
        """Return the result for one run; counts are of all. **Raises** NotFoundError for an unknown run."""
        own = [violation for violation in self.violations if violation.run_id == run]
        if run not in self.digests and run not in self.frozen and not own:
            raise NotFoundError(f"there is no run {run}", hint="`refold run list` shows all")
        of_runs = ("digests", "open", "overdue", "in_doubt", "frozen", "copied")
        return replace(self, violations=own, **{name: _entries_of(getattr(self, name), run) for name in of_runs})


def _entries_of(runs: Any, run: str) -> Any:
    if isinstance(runs, dict):
        return {run: runs[run]} if run in runs else {}
    return [run] * (run in runs)


def verify_log(reader: LogReader, trust: Trust, *, now_ms: int, settle_s: float = 5.0) -> Verified:
    """Verify all topics; the others have `settle_s` seconds to agree with the log."""
    deadline = time.monotonic() + settle_s
    while True:
        result = _verify_once(reader, trust, now_ms)
        if not any(violation.kind in _MAY_SETTLE for violation in result.violations) or time.monotonic() > deadline:
            return result
        time.sleep(PAUSE_S)


_MAY_SETTLE = frozenset({"outcome", "open-call", "decision"})
"""Violations that may soon be gone: other topics follow the log, and a key may be published meanwhile."""

# A re-dispatch waits 10 s beyond a call's timeout by default, and takes a moment itself.
_OVERDUE_MS = 15_000


def _verify_once(reader: LogReader, trust: Trust, now_ms: int) -> Verified:
    result, fold = Verified(now_ms, partitions=reader.partitions(RUN_LOG)), LogFold()
    facts = _Facts(cache(partial(_keys, reader, trust)))
    erased = Markers((record.key, record.value) for record in reader.scan(RUN_SNAPSHOT))
    result.read(reader, fold, facts, erased)
    states = {run: fold.states.get(run) or fold.ended(run) for run in map(RunId, result.copied)}
    copied = {run: [head.id for head in state.heads] for run, state in states.items() if state is not None}
    result.settle(fold, facts)
    _check_order(result, reader, copied)
    facts.add_to(result)
    live = {run: state for run, state in fold.states.items() if not state.over}
    _check_outcomes(result, reader, facts.ends, live, erased)
    _check_open_calls(result, reader, live, facts.pools)
    _check_approvals(result, reader, live)
    return result


class _Ended(NamedTuple):
    """Outcome of a run, as in `run-completed`, in few bytes."""

    status: str
    seq: int
    digest: bytes

    @classmethod
    def of(cls, outcome: RunOutcome) -> Self:
        """Short form of an outcome, for comparison: equal for equal outcomes, in any order of labels."""
        content = codec.encode(replace(outcome, labels=dict(sorted(outcome.labels.items()))))
        return cls(outcome.status, outcome.seq, blake2b(content, digest_size=16).digest())


def _keys(reader: LogReader, trust: Trust) -> dict[str, PublicKey]:
    """Public keys of the catalog for checks of signatures, including revoked and retired ones."""
    keys = catalog.read(reader, trust).whole.keys
    return {kid: replace(key, revoked=False, retired_ms=0, not_before_ms=0) for kid, key in keys.items()}


@dataclass(slots=True)
class _Facts:
    """Facts about runs, collected from the run log to check the other topics against it. `statuses`: last entry, and
    status by the events; `wrong`: first difference from the fold. `heads`: last entries of generations that another one
    follows, empty for other runs; `links`: what later ones name."""

    keys: Callable[[], dict[str, PublicKey]]
    ends: dict[RunId, _Ended] = field(default_factory=dict)
    pools: set[str] = field(default_factory=lambda: {"default"})
    statuses: dict[RunId, tuple[bytes, Status]] = field(default_factory=dict)
    wrong: dict[RunId, str] = field(default_factory=dict)
    skipped: set[RunId] = field(default_factory=set)
    heads: dict[RunId, bytes] = field(default_factory=dict)
    links: dict[RunId, bytes] = field(default_factory=dict)

    def add_to(self, result: Verified) -> None:
        """Add the differences, and generations that do not name the end of the one before, if that is not erased."""
        for run, problem in self.wrong.items():
            result.add("status", run, problem)
        for run, head in self.links.items():
            before = generation_id(root_of(run), generation_of(run) - 1)
            if self.heads.get(before, head) != head:
                result.add("generation", run, "it does not continue the end of the generation before")

    def follow(self, state: RunState, entry: Entry, name: EntryId, judged: JudgedRecord) -> None:
        """Compare a run's status by its events alone with the status of the fold, if its entries are in order."""
        run = entry.run_id
        head, status = self.statuses.get(run, (b"", "pending"))
        if run in self.skipped or entry.prev != head:
            self.skipped.add(run)
            return
        self.statuses[run] = name, status_after(status, entry.events)
        if (status := self.statuses[run][1]) != state.status:
            self.wrong.setdefault(run, f"by {judged.place} it is {state.status}, and its events say {status}")


def _drop_ended(fold: LogFold, judged: JudgedRecord) -> RunState | None:
    """Drop and return the state of a run that this record ended for good."""
    state = fold.states.get(judged.run_id) if not judged.void or judged.mended else None
    if state is None or not state.over or state.status == "failed":  # a retry may extend a failed one
        return None
    return fold.states.pop(state.run_id)


def _check_record(result: Verified, judged: JudgedRecord) -> None:
    run, void = judged.run_id, judged.void
    if void == "hash":
        result.add("hash", run, f"{judged.place} has other bytes than its key names: they were changed")
    elif void == "body":
        result.add("body", run, f"{judged.place} is not an entry of the run that its key names")
    elif void == "time":
        result.add("time", run, f"{judged.place} has a time that no log has: it counts for no reader")
    elif not void and _home(run, result.partitions) != judged.record.partition:
        result.add("home", run, f"{judged.place} counts, but the home of the run is {home(run, result.partitions)}")


def _check_order(result: Verified, reader: LogReader, copied: dict[RunId, list[EntryId]]) -> None:
    for run, offsets in _last_offsets(reader, copied).items() if copied else ():
        order = [offsets[name] for name in copied[run] if name in offsets]
        # Cleaning keeps a record's last copy, which may then lie behind its successor.
        if order != sorted(order) and run not in result.frozen:
            text = f"{result.copied[run]} of its records are copied behind others, and cleaning keeps the copies"
            result.add("copied", run, f"{text}: refold run repair {run}")


def _last_offsets(reader: LogReader, runs: Container[RunId]) -> dict[RunId, dict[bytes, int]]:
    last: dict[RunId, dict[bytes, int]] = defaultdict(dict)
    for record in reader.scan(RUN_LOG):
        if (parts := parse_log_key(record.key)) is not None and parts[0] in runs:
            last[parts[0]][parts[2]] = record.offset
    return last


def _note_open(result: Verified, state: RunState) -> None:
    result.open.append(state.run_id)
    # Of a paused run nothing is due before it goes on.
    if not state.paused and any(opened.phase == "doubt" for opened in state.open.values()):
        result.in_doubt.append(state.run_id)
    if not state.paused and _is_overdue(state, result.now_ms):
        result.overdue.append(state.run_id)


def _is_overdue(state: RunState, now_ms: int) -> bool:
    """True if an action is due, or nothing will ever be: a live run has to wait for a time or an input."""
    due = [opened.due_ms for opened in state.open.values() if opened.due_ms]
    if state.status == "pending" and state.request:
        due.append(state.request.not_before_ms or state.requested_ms)
    if due:
        return min(due) < now_ms - _OVERDUE_MS
    return not any(opened.phase in WAITING for opened in state.open.values())


def _outcomes(result: Verified, reader: LogReader) -> dict[RunId, _Ended]:
    outcomes: dict[RunId, _Ended] = {}
    for key, outcome, _ in _decode(result, reader, RUN_COMPLETED, RunOutcome):
        if outcome is None:
            outcomes.pop(RunId(key), None)
            continue
        before, now = outcomes.get(outcome.run_id), _Ended.of(outcome)
        again = before is not None and before.status == "failed" and before.seq < now.seq  # it was retried
        if before not in (None, now) and not again:
            result.add("outcome", outcome.run_id, f"{RUN_COMPLETED} has two different outcomes of the run")
        outcomes[outcome.run_id] = now
    return outcomes


def _check_outcomes(
    result: Verified, reader: LogReader, ends: dict[RunId, _Ended], live: dict[RunId, RunState], erased: Markers
) -> None:
    outcomes = _outcomes(result, reader)
    for run in ends.keys() - outcomes.keys():
        result.add("outcome", run, f"the run is {ends[run].status}, and {RUN_COMPLETED} does not have it")
    for run in outcomes.keys() - erased.runs.keys():
        retried = run in live and outcomes[run].seq + 1 == live[run].retried.at
        if run not in ends and run not in live:
            result.add("outcome", run, f"{RUN_COMPLETED} tells of a run that the log does not have")
        elif outcomes[run] != ends.get(run) and not retried:
            result.add("outcome", run, f"{RUN_COMPLETED} says {outcomes[run].status} otherwise than the fold")


def _expected_outcome(state: RunState) -> RunOutcome | None:
    if state.end is None:
        return None
    last = Entry(state.run_id, state.head.seq, b"", state.at_ms, None, "", b"", [state.end])
    messages = (command.message for command in commands(state, last, 0))
    return next((message for message in messages if isinstance(message, RunOutcome)), None)


def _check_open_calls(result: Verified, reader: LogReader, live: dict[RunId, RunState], pools: set[str]) -> None:
    sent: dict[str, tuple[int, str]] = {
        state.call_id(step): (opened.attempt, "paused" if state.paused else opened.phase)
        for state in live.values()
        for step, opened in state.open.items()
        if opened.attempt
    }
    # The order of a call that waits may be taken back.
    waits = {call for call, (_, phase) in sent.items() if phase not in ("paused", "dispatched")}
    requested = _open_requests(result, reader, pools, waits)
    for call, (attempt, phase) in sent.items():
        at = requested.get(call, attempt if call in waits else 0)
        # The request of a paused run's call may have to wait until the run goes on.
        if at != attempt and phase != "paused":
            wrong = f"at attempt {attempt}, and executors are asked for {at}"
            how = wrong if at else "open, and no executor is asked for it"
            result.add("open-call", call.partition("/")[0], f"call {call} is {how}")
    for call in requested.keys() - sent.keys():
        result.add("open-call", call.partition("/")[0], f"call {call} is settled, and executors are asked for it")


def _open_requests(result: Verified, reader: LogReader, pools: set[str], waits: set[str]) -> dict[str, int]:
    requested: dict[str, int] = {}
    for pool in sorted(pools):
        # A planner that lies can name any pool: of one without a topic no executor is asked for a call.
        with suppress(NotFoundError):
            for call, request, record in _decode(result, reader, tool_requested(pool), ToolRequest):
                requested.pop(call, None)
                # A tombstone in `waits` that takes nothing back closes the call as if it were settled.
                if request is not None or (call in waits and not taken_back(record.read_headers())):
                    requested[call] = request.attempt if request else 0
    return requested


def _decode(result: Verified, reader: LogReader, topic: str, kind: type[_T]) -> Iterator[tuple[str, _T | None, Record]]:
    """Key, message (None for a tombstone) and record; an unreadable record becomes a violation in `result` instead."""
    for record in reader.scan(topic):
        try:
            row = codec.decode(kind, record.value) if record.value is not None else None
        except (MalformedError, FoldError) as error:
            place = f"{topic}/{record.partition}/{record.offset}"
            result.add("unreadable", "", f"{place} is not what the topic holds: {error.message}")
            continue
        yield (record.key or b"").decode(errors="replace"), row, record


def _check_approvals(result: Verified, reader: LogReader, live: dict[RunId, RunState]) -> None:
    expected = {name: run for run, s in live.items() for step in s.open if (name := s.waits_for(step))}
    requested: set[str] = set()
    for record in reader.scan(APPROVAL_REQUESTED):
        name = (record.key or b"").decode(errors="replace")
        (requested.discard if record.value is None else requested.add)(name)
    for name in sorted(expected.keys() - requested):
        result.add("open-call", expected[name], f"approval {name} is open, and nobody is asked")
    for name in sorted(requested - expected.keys()):
        result.add("open-call", name.partition("/")[0], f"approval {name} is closed, and people are asked")
