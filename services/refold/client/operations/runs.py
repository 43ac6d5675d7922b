"""Runs of the run log: read, followed and selected. `RunQuery` also selects those of views."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, get_args

from refold.client.reading.history import JudgedRecord, Run, at_time, feed
from refold.client.reading.run import first_request, row_of
from refold.client.reading.steps import Timeline
from refold.core.errors import GoneError, MalformedError, NotFoundError, TimedOutError
from refold.core.events import RunFailed
from refold.core.ids import RunId, generation_of, home, next_generation, parents_of, run_id
from refold.core.messages import Hold
from refold.core.planning.pausing import PAUSE, RESUME
from refold.core.planning.redrive import child_refusal
from refold.core.run.erased import Markers, gone, held_run, read_hold
from refold.core.run.log import LogFold
from refold.core.run.pausing import own
from refold.core.run.state import ENDED, RunState, Status
from refold.core.topics import RUN_LOG, RUN_SNAPSHOT
from refold.engine.ports.log import LogReader, Record
from refold.engine.ports.tables import MOST_PAGE

STATES = ("doubt", "waiting_for_people", "on_hold", "paused", "waiting")
"""Conditions of a run beside its status; where several are met, the first names it."""
STALLED = "stalled"
STATUSES = (*get_args(Status), STALLED)
SORTS = ("requested_ms", "at_ms", "ended_ms")


@dataclass(frozen=True)
class RunQuery:
    """Filter and order of a list of runs; empty fields match any. `alone`: by `one_state`. **Raises** MalformedError.
    The log is asked by agent, state, labels, session, code and the time of the last entry; the rest needs a view."""

    agent: str = ""
    state: str = ""
    alone: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    session: str = ""
    root: str = ""
    top: bool = False
    text: str = ""
    tool: str = ""
    code: str = ""
    since_ms: int = 0
    until_ms: int = 0
    sort: str = "-requested_ms"
    limit: int = MOST_PAGE

    def __post_init__(self) -> None:
        if self.state and self.state not in (*STATES, *STATUSES):
            hint = f"use one of {', '.join((*STATUSES, *STATES))}"
            raise MalformedError(f"state={self.state[:40]!r} is no state of runs", hint=hint)
        if self.sort.removeprefix("-") not in SORTS:
            raise MalformedError(
                f"sort={self.sort[:40]!r} is no order of runs", hint=f"use one of {', '.join(SORTS)}, or -one"
            )

    def fits(self, run: Run) -> bool:
        """True if the request of a run matches; the other fields are about its state."""
        request = first_request(run)
        return (
            self.agent in ("", request.agent)
            and self.session in ("", *request.sessions, request.session)
            and all(request.labels.get(label) == value for label, value in self.labels)
        )

    def matches(self, run: Run) -> bool:
        """True if a run `fits`, and its state, failure code and last entry match; a held run is `stalled` alone."""
        failure = getattr(run.state.end, "failure", None)
        has_failed = not self.code or (failure is not None and failure.code == self.code)
        return self.fits(run) and has_failed and run.state.at_ms >= self.since_ms and self._in_state(run)

    def _in_state(self, run: Run) -> bool:
        if self.state not in STATES:
            return self.state in ("", run.status)
        row = row_of(run)
        conditions = (row.in_doubt, row.approvals, row.held, row.pauses, row.waiting)
        return bool(dict(zip(STATES, conditions, strict=True))[self.state])


def one_state(row: Mapping[str, object], *, stalled: bool) -> str:
    """Single state of a run in lists: `doubt`, else its end or `stalled`, else the first of `STATES`, or the status."""
    status = str(row["status"])
    if status in ENDED or stalled:
        return "doubt" if row["doubt"] else status if status in ENDED else STALLED
    state = next((name for name in STATES if row[name]), status)
    return status if state == "waiting" and status != "suspended" else state


_SAFE = "(nothing is lost: what was sent stays in the log)"
_FIRST = b"/%010d/" % 1


class Newest(NamedTuple):
    """The newest selected runs, oldest first, with the numbers of selected ones and of all."""

    runs: list[Run]
    meant: int
    total: int


BEGINS_S = 10.0
"""Longest time in which a generation follows the one before, also while a planner takes over."""


class Runs:
    def __init__(self, reader: LogReader) -> None:
        self.reader = reader

    @cached_property
    def partitions(self) -> int:
        return self.reader.partitions(RUN_LOG)

    def get(self, run: str) -> Run:
        """Read a run with its history. **Raises** NotFoundError; GoneError if a marker shows that it was erased."""
        current = self.find(run)
        if current is None:
            if erased := self.gone(run_id(run)):
                raise erased
            hint = "`refold run list` shows all; a request is known once a planner took it, and gone once it is erased"
            raise NotFoundError(f"there is no run {run}", hint=hint)
        return current

    def find(self, run: str) -> Run | None:
        """Read a run: by its plain name the latest generation, by `RUN+1` the first."""
        run_name = run_id(run.removesuffix("+1"))
        start = b"." if {"+", "."} & set(run) else f"{run_name}+".encode()

        def is_meant(name: bytes) -> bool:
            return name == run_name.encode() or (name.startswith(start) and b"." not in name)

        runs = self._read_runs(home(run_name, self.partitions), is_meant, run_name)
        latest = max(runs, key=lambda found: generation_of(found.state.run_id), default=None)
        if latest is None or latest.state.status != "continued" or start == b".":
            return latest
        # The next one begins in a moment.
        following = self.follow(next_generation(latest.state.run_id), BEGINS_S, until="begun")
        return self.find(run) if any(current.records for current, _ in following) else None

    def gone(self, run: RunId) -> GoneError | None:
        """Error of an erased run, while a marker of it exists; else None."""
        markers = self.reader.scan(RUN_SNAPSHOT, home(run, self.partitions)) if self._knows_holds else ()
        marker = Markers((record.key, record.value) for record in markers).runs.get(run)
        return gone(run, marker.at_ms, marker.file) if marker else None

    def family(self, run: str) -> list[Run]:
        """Descendants of a run, each after its parent."""
        below = f"{run_id(run)}.".encode()
        runs = self._read_runs(home(run, self.partitions), lambda name: name.startswith(below))
        return sorted(runs, key=lambda descendant: _child_numbers(descendant.state.run_id))

    def holds(self, partition: int | None = None) -> dict[RunId, Hold]:
        by_run: dict[RunId, Hold] = {}
        for record in self.reader.scan(RUN_SNAPSHOT, partition) if self._knows_holds else ():
            _take_hold(by_run, record)
        return by_run

    @cached_property
    def _knows_holds(self) -> bool:
        """True if the topic exists: older platforms record no holds."""
        try:
            return self.reader.partitions(RUN_SNAPSHOT) > 0
        except NotFoundError:
            return False

    def all(self, partition: int | None = None) -> list[Run]:
        return sorted(self._read_runs(partition, lambda _: True), key=_requested_at)

    def newest(self, query: RunQuery, at_ms: int | None = None) -> Newest:
        """Newest selected runs by request, now or as of a time."""
        if at_ms is not None:
            return self._newest_at(query, at_ms)
        # The first pass keeps an id and a time per run, the second reads the chosen histories.
        by_state = query.state or query.code or query.since_ms
        times, meant, buried = self._by_state(query) if by_state else self._by_request(query)
        erased = self._erased() if buried else ()
        meant, total = meant.difference(erased), len(times.keys() - erased)
        names = sorted(meant, key=lambda run: (times[run], run))[-query.limit :]
        chosen = {name.encode() for name in names}
        runs = self._read_runs(None, chosen.__contains__) if names else []
        return Newest(sorted(runs, key=_requested_at), len(meant), total)

    def _newest_at(self, query: RunQuery, at_ms: int) -> Newest:
        runs = [run for run in self.all() if query.fits(run) and run.state.asked_ms <= at_ms]
        then = list(filter(query.matches, (at_time(run, at_ms) for run in runs)))
        return Newest(then[-query.limit :], len(then), len(runs))

    def _by_request(self, query: RunQuery) -> tuple[dict[RunId, int], set[RunId], bool]:
        """Select runs by request: request times in ms of all runs, matching runs, and True if there are tombstones."""
        times, meant, forks, buried = dict[RunId, int](), set[RunId](), set[bytes](), False
        for record in self.reader.scan(RUN_LOG):
            buried |= record.value is None
            if _FIRST not in (record.key or b"") or (judged := feed(LogFold(), record)).state is None:
                continue
            if judged.run_id not in times:
                times[judged.run_id] = judged.state.asked_ms
                forks |= {judged.run_id.encode()} if judged.state.copying else set()
                if query.fits(Run(judged.state, Timeline(judged.run_id))):
                    meant.add(judged.run_id)
        # The first entry of a live fork has the time of its source.
        times |= {run.state.run_id: run.state.asked_ms for run in self._read_runs(None, forks.__contains__) if forks}
        return times, meant, buried

    def _by_state(self, query: RunQuery) -> tuple[dict[RunId, int], set[RunId], bool]:
        """Select runs by state, with results as `_by_request`: each is folded until it ends, judged and dropped."""
        times, meant, runs, again, buried = dict[RunId, int](), set[RunId](), dict[RunId, Run](), set[bytes](), False

        def look(run: Run) -> None:
            times[run.state.run_id] = run.state.asked_ms
            (meant.add if query.matches(run) else meant.discard)(run.state.run_id)

        for fold, judged in judge(self.reader):
            buried |= judged.record.value is None
            if judged.run_id in times:
                # It was over, and may have gone on: its history is dropped here, so it is read again.
                again |= {judged.run_id.encode()} if not judged.void or judged.linked or judged.mended else set()
            elif judged.run_id:
                run = runs.setdefault(judged.run_id, Run.empty(judged.run_id))
                run.take(judged, fold)
                if run.state.over:
                    look(runs.pop(judged.run_id))
                    # A retry extends the state of a failed run: without it, its entries would be orphans.
                    if run.state.status != "failed":
                        del fold.states[judged.run_id]
        self._apply_holds(runs)
        for run in (*runs.values(), *(self._read_runs(None, again.__contains__) if again else ())):
            if run.records:
                look(run)
        return times, meant, buried

    def _erased(self) -> Collection[RunId]:
        return Markers((record.key, record.value) for record in self.reader.scan(RUN_SNAPSHOT)).runs

    def _read_runs(self, partition: int | None, only: Callable[[bytes], bool], one: RunId | None = None) -> list[Run]:
        """Runs whose names match `only`, up to the end of the log; `one`: unreadable records belong to it."""
        runs: dict[RunId, Run] = {}
        for fold, judged in judge(self.reader, partition=partition, only=only):
            if name := judged.run_id or one:
                runs.setdefault(name, Run.empty(name)).take(judged, fold)
        self._apply_holds(runs, partition)
        present = [run for run in runs.values() if run.records]
        # Runs are erased by tombstones: without any, the markers need not be read.
        buried = any(judged.record.value is None for run in present for judged in run.void)
        erased = self._erased() if buried else ()
        return [run for run in present if run.state.run_id not in erased]

    def _apply_holds(self, runs: Mapping[RunId, Run], partition: int | None = None) -> None:
        for name, hold in self.holds(partition).items() if runs else ():
            if name in runs:
                runs[name].stall(hold)

    def follow(
        self, run: str, timeout_s: float | None = None, *, until: str = "over"
    ) -> Iterator[tuple[Run, JudgedRecord | None]]:
        """Yield the run after each of its records, endlessly, and None at the end of the log. **Raises** TimedOutError,
        which reports that the run is not `until` in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        name = run_id(run)
        number, fold = home(name, self.partitions), LogFold()
        current, holds = Run.empty(name), dict[RunId, Hold]()
        changes = self.reader.tail(RUN_SNAPSHOT, number) if self._knows_holds else iter(())
        for record in self.reader.tail(RUN_LOG, number):
            if record is None:
                while change := next(changes, None):
                    _take_hold(holds, change)
                current.stall(holds.get(name))
                yield current, None
            elif run_named(record) == name.encode():
                judged = feed(fold, record)
                current.take(judged, fold)
                yield current, judged
            # Also between records of other runs: a busy partition has no end for a while.
            if deadline is not None and time.monotonic() > deadline:
                break
        now, hint = "the log does not know it yet", "`refold worker list --agents` lists the planners"
        if current.records:
            now, hint = f"it is {current.status}", f"`refold run show {run}` shows what it waits for"
        raise TimedOutError(f"run {run} is not {until} after {timeout_s:g} s, {now}", hint=f"{hint} {_SAFE}")

    def stall(self, run: str, timeout_s: float) -> Hold | None:
        """Hold of a newly requested run's code; None once the code acted, or after `timeout_s`."""
        with suppress(TimedOutError):
            for current, _ in self.follow(run, timeout_s):
                state = current.state
                if current.hold or state.over or state.steps or (current.records and state.status == "pending"):
                    return current.hold
        return None

    def ended(self, run: str, timeout_s: float | None = None) -> Run:
        """Wait until a run is over. **Raises** TimedOutError; NotFoundError if no planner has its agent."""
        for current, judged in self.follow(run, timeout_s):
            if is_over(current, judged):
                later = current.state.status == "continued"
                return self.ended(next_generation(current.state.run_id), timeout_s) if later else current
            if judged is None and current.hold and current.hold.reason == "unknown_agent":
                hint = f"`refold run cancel {run}` gives it up; a planner that has the agent goes on with it"
                raise NotFoundError(current.hold.message, hint=hint)
        raise AssertionError("a tail goes on for ever")


def is_over(run: Run, judged: JudgedRecord | None) -> bool:
    """True if a followed run is over at the `judged` record; a failure counts only at the end of the log."""
    # A retry may follow a failure.
    return run.state.over and (judged is None or run.state.status != "failed")


def _requested_at(run: Run) -> tuple[int, RunId]:
    return run.state.asked_ms, run.state.run_id


def _child_numbers(run: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, part.split("_"))) for part in run.split(".")[1:]]


def _take_hold(holds: dict[RunId, Hold], record: Record) -> None:
    run = held_run(record.key)
    if run is not None:
        holds.pop(run, None)
        if record.value is not None:
            holds[run] = read_hold(run, record.value)


def judge(
    reader: LogReader, *, partition: int | None = None, only: Callable[[bytes], bool] = lambda _: True
) -> Iterator[tuple[LogFold, JudgedRecord]]:
    """Judge every record of the run log up to its end; `only` selects by the run's name."""
    fold = LogFold()
    for record in reader.scan(RUN_LOG, partition):
        if only(run_named(record)):
            yield fold, feed(fold, record)


def run_named(record: Record) -> bytes:
    return (record.key or b"").partition(b"/")[0]


_ABLE: dict[str, Callable[[RunState], bool]] = {
    "cancel": lambda state: not state.over,
    PAUSE: lambda state: not state.over and own(state) is None,
    RESUME: lambda state: not state.over and own(state) is not None,
    "signal": lambda state: not state.over,
    "retry": lambda state: isinstance(state.end, RunFailed) and child_refusal(state) is None,
}


def selected(runs: Iterable[Run], query: RunQuery, kind: str) -> list[Run]:
    """Selected runs that allow an operation, without descendants that a cancel or pause reaches anyway."""
    below = kind in ("cancel", PAUSE)
    meant = [run for run in runs if query.matches(run) and not (below and run.state.over)]
    reached = {run.state.run_id for run in meant if below}
    return [run for run in meant if reached.isdisjoint(parents_of(run.state.run_id)) and _ABLE[kind](run.state)]
