"""Executions in memory and holds of stalled runs."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import structlog

from refold.core.errors import MalformedError, text_of
from refold.core.events import Failure, RunFailed
from refold.core.ids import RunId, hold_key
from refold.core.messages import Hold, RunOperation
from refold.core.planning.redrive import failure_named
from refold.core.planning.verdict import Ignore, Refuse, Ruling
from refold.core.run.erased import held_run, read_hold
from refold.core.run.state import RunState
from refold.core.topics import RUN_SNAPSHOT
from refold.core.wire import canonical, codec
from refold.core.wire.headers import cloud_event
from refold.engine.planner.intake.timers import Timers
from refold.engine.ports.log import Outgoing
from refold.engine.runtime.clock import clock_ms
from refold.engine.runtime.lanes import Journal
from refold.engine.runtime.watchdog import Driven, HeldUp, Mark
from refold.sdk.execution import Execution

EXECUTION_BYTES = 4_096
"""Memory of an execution with one waiting task."""

TASK_BYTES = 2_048
"""Memory of each further task."""

_log = structlog.get_logger()


class LiveRoom:
    """Memory account of agent code kept open in a process; beyond `most_bytes` executions close, and replay later."""

    def __init__(self, most_bytes: int) -> None:
        self.most, self.bytes = most_bytes, 0
        self.lanes: dict[LiveCode, None] = {}

    def add(self, size: int) -> None:
        self.bytes += size

    def make(self, user: LiveCode) -> None:
        """Drop the oldest executions of the largest lanes until the rest fits, but not the one just used."""
        while self.bytes > self.most and (lanes := [lane for lane in self.lanes if len(lane) > (lane is user)]):
            most = max(lanes, key=lambda lane: (lane.bytes, lane is user))
            most.drop(next(iter(most)))


class LiveCode:
    """Executions of one lane, by run, within the memory of its process. **Units**: bytes."""

    def __init__(self, room: LiveRoom, mark: Mark) -> None:
        self._room, self.mark = room, mark
        self._executions: OrderedDict[str, tuple[Execution, int]] = OrderedDict()
        self.bytes = 0
        # A collector must not close coroutines: outside of a turn their waits raise, and they may go on for ever.
        weakref.finalize(self, _close_all, self._executions)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._executions))

    def __len__(self) -> int:
        return len(self._executions)

    def get(self, run: str) -> Execution | None:
        live = self._executions.get(run)
        return live[0] if live else None

    def store(self, run: str, execution: Execution, history_bytes: int) -> None:
        """Add an execution, and drop others if memory is short."""
        # The memory of an execution cannot be measured: it is estimated.
        size = EXECUTION_BYTES + TASK_BYTES * execution.tasks + history_bytes
        before = self._executions.pop(run, None)
        self._executions[run] = execution, size
        self._add(size - (before[1] if before else 0))
        self._room.lanes[self] = None
        self._room.make(self)

    def drop(self, run: str) -> None:
        if live := self._executions.pop(run, None):
            self._add(-live[1])
            if not self._executions:
                del self._room.lanes[self]
            with suppress(HeldUp), self.mark.on(Driven(RunId(run), "", "", ends=True)):
                for name, error in live[0].unheard[:5] if live[0].end is None else ():  # no entry will name them
                    _log.warning("task.failed", run_id=run, task=name, error=type(error).__name__, text=text_of(error))
                if live[0].close():
                    _log.warning("run.ignored_its_end", run_id=run, hint="catch Exception, and not BaseException")

    def _add(self, size: int) -> None:
        self.bytes += size
        self._room.add(size)


def _close_all(executions: dict[str, tuple[Execution, int]]) -> None:
    for execution, _ in executions.values():
        execution.close()


RETRY_MS = 30_000
"""First retry of a stall that may pass; the delay doubles up to `LONGEST_RETRY_MS`."""

LONGEST_RETRY_MS = 3_600_000
JUDGED = frozenset({"retry", "fail"})


@dataclass(frozen=True, slots=True)
class Stall:
    """Reason why a run's code cannot follow its history here; `passing`: perhaps temporary."""

    reason: str
    message: str
    detail: str
    needs: str
    code: str
    passing: bool
    error: BaseException | None = None


class Holds:
    """Holds (stalled and quarantined runs) of one lane; `publish` sends one to `run-snapshot`, None as a tombstone."""

    def __init__(self, member: str, journal: Journal, publish: Callable[[RunId, Hold | None], None]) -> None:
        self._member, self._journal, self._publish = member, journal, publish
        self._stalls: dict[RunId, Hold] = {}
        self._tried: set[RunId] = set()
        self._retries = Timers()
        self._since: dict[RunId, int] = {}

    def get(self, run: RunId) -> Hold | None:
        return self._stalls.get(run)

    def follow(self, key: bytes | None, value: bytes | None, *, at_ms: int) -> None:
        """Read a record of `run-snapshot` at a take-over; records other than holds are ignored."""
        run = held_run(key)
        if run is not None:
            self._forget(run)
            if value is not None:
                stall = read_hold(run, value)
                # Its writer's clock or the broker's may be ahead: a time after an operator's order would refuse that.
                self._since[run] = min(at_ms, stall.at_ms or at_ms)
                self._store(stall)

    def bars(self, run: RunId) -> bool:
        """True if a run's code may not run here: the run is held, and no retry of it is under way."""
        return run in self._stalls and run not in self._tried

    def tries(self, run: RunId) -> bool:
        return run in self._tried

    def stall(self, run: RunId, stall: Stall, now: int) -> None:
        before = self._stalls.get(run)
        tries = before.tries + 1 if before and before.reason == stall.reason else 0
        entry = _hold(run, stall, self._member, at_ms=now, tries=tries)
        self._store(entry)
        # A failed retry keeps the time of the hold.
        if before is None or not tries:
            self._since[run] = now
        self._tried.discard(run)
        # A typo in a request is no broken deploy, and alerts no one.
        event = "run.unserved" if entry.reason == "unknown_agent" else "run.stalled"
        self._journal.tell(event, run_id=run, reason=entry.reason, message=entry.message, needs=entry.needs)
        self._publish(run, entry)

    def disorder(self, run: RunId, why: str, now: int) -> None:
        """Hold a run with an ambiguous history until it is repaired."""
        reason, _, message = why.partition(": ")
        before = self._stalls.get(run)
        self._tried.discard(run)
        self._journal.tell("run.stalled", run_id=run, reason=reason, message=message)
        if before is None or before.reason != reason:
            stall = Hold(run, "stalled", reason, message, member=self._member, at_ms=now)
            self._store(stall)
            self._publish(run, stall)

    def lift(self, run: RunId, *, over: bool = False) -> None:
        """Remove the hold of a run that goes on, or is `over`."""
        self._tried.discard(run)
        if self._forget(run) is not None:
            if not over:
                self._journal.tell("run.unstalled", run_id=run)
            self._publish(run, None)

    def judge(self, operation: RunOperation, state: RunState, *, sent_ms: int) -> Ruling:
        """Judge an operator's order about a held run. **Units**: `sent_ms` by the log's clock."""
        run = state.run_id
        if state.over:
            return Ignore("the run is over")
        if operation.kind == "retry":
            if run not in self._stalls:
                return Ignore("the run is not held")
            if state.paused:  # its code does not run now, and a later owner of the lane may not have this order
                self.lift(run)
            else:
                self._tried.add(run)
            return []
        if run not in self._stalls:
            return Refuse("conflict", f"run {run} is not held; `refold run cancel {run}` stops one that goes on")
        # The order was for an earlier hold, and arrives again because positions were lost.
        if sent_ms < self._since.get(run, 0):
            return Refuse("conflict", f"run {run} was not held like this when this was said: see `refold run list`")
        return [RunFailed(Failure("given_up", _reason_of(operation), self._stalls[run].message))]

    def review(self, run: RunId, code: str) -> bool:
        """Try a stalled run if other code than this has held it; True if it is to be tried."""
        # A quarantine waits for a human.
        stall = self._stalls.get(run)
        if stall is not None and stall.kind == "stalled" and stall.code != code:
            self._tried.add(run)
        return run in self._tried

    def ready(self, find: Callable[[RunId], RunState | None], code_of: Callable[[RunState], str]) -> Iterator[RunId]:
        """Held runs to be tried at a take-over; holds of finished runs are removed."""
        for run in list(self._stalls):
            state = find(run)
            # The hold of an unknown run stays: its code may have hung before its first entry was written.
            if state is not None and state.over:
                self.lift(run, over=True)
            elif state is not None and self.review(run, code_of(state)):
                yield run

    def due(self, now: int) -> Iterator[RunId]:
        for due in self._retries.due(now):
            self._tried.add(due.run_id)
            yield due.run_id

    def next_ms(self) -> int | None:
        return self._retries.next_ms()

    def _store(self, stall: Hold) -> None:
        self._stalls[stall.run_id] = stall
        self._retries.set(stall.run_id, 0, stall.retry_ms)

    def _forget(self, run: RunId) -> Hold | None:
        self._retries.set(run, 0, 0)
        self._since.pop(run, None)
        return self._stalls.pop(run, None)


def retries(operation: RunOperation, state: RunState) -> bool:
    """True if an order retries a failed run, not a hold."""
    return operation.kind == "retry" and (state.over or failure_named(operation) > 0)


def hold_record(partition: int, run: RunId, stall: Hold | None, *, source: str) -> Outgoing:
    record = Outgoing(RUN_SNAPSHOT, partition, hold_key(run), None, (), 0)
    if stall is None:
        return record
    headers = cloud_event(RUN_SNAPSHOT, run, id=f"{run}/{stall.at_ms}", source=source, at_ms=stall.at_ms)
    return record._replace(value=codec.encode(stall), headers=headers)


def _reason_of(operation: RunOperation) -> str:
    try:
        data = canonical.parse(operation.data)
    except MalformedError:
        data = None
    reason = str(data.get("reason", "")) if isinstance(data, dict) else ""
    return f"given up by {operation.actor or 'somebody'}{f': {reason}' if reason else ''}"


HELD_UP = "its code held the planner without giving it back (REFOLD_PLANNER__HANG_MS)"


def hang(driven: Driven, stack: str, *, member: str) -> Hold:
    """The quarantine of a run whose code blocks its planner."""
    stall = Stall("hang", HELD_UP, stack, driven.needs, driven.code, passing=False)
    return _hold(driven.run_id, stall, member, at_ms=clock_ms())


def _hold(run: RunId, stall: Stall, member: str, *, at_ms: int, tries: int = 0) -> Hold:
    """The hold of a run that stalls, with a time for the next try if the stall may pass; `tries` have failed."""
    wait_ms = min(RETRY_MS << min(tries, 20), LONGEST_RETRY_MS)
    return Hold(
        run_id=run,
        kind="quarantined" if stall.reason == "hang" else "stalled",
        reason=stall.reason,
        message=stall.message,
        detail=stall.detail,
        needs=stall.needs,
        code=stall.code,
        member=member,
        at_ms=at_ms,
        retry_ms=at_ms + wait_ms if stall.passing else 0,
        tries=tries,
    )
