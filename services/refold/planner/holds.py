"""Runs of a lane whose code is not run: what comes for them is decided and recorded, and their code follows later.

Nothing that goes wrong while code runs along accepted history may end a run: other code, or another machine, may well
agree with it. So the run is held, visibly, until code that differs from what failed has the lane, or a human says
`refold run retry` or `refold run fail`. What may pass by itself (no memory, a file that could not be opened) is tried
again after a while. Holds lie in `run-snapshot`, where every successor reads them before it runs any code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from refold.core.errors import MalformedError
from refold.core.events import Failure, RunFailed
from refold.core.ids import RunId, hold_key
from refold.core.messages import Hold, RunOperation
from refold.core.planning.redrive import failure_named
from refold.core.planning.verdict import Ignore, Refuse, Ruling
from refold.core.run.held import held_run, read_hold
from refold.core.run.state import RunState
from refold.core.topics import RUN_SNAPSHOT
from refold.core.wire import canonical, codec
from refold.core.wire.headers import cloud_event
from refold.planner.timers import Timers
from refold.ports.log import Outgoing
from refold.runtime.lanes import Journal

RETRY_MS = 30_000
"""When what may pass by itself is tried again for the first time; then after twice as long, up to an hour."""

LONGEST_RETRY_MS = 3_600_000
JUDGED = frozenset({"retry", "fail"})


@dataclass(frozen=True, slots=True)
class Stall:
    """Why the code of a run cannot be run along its history here. `passing`: it may be otherwise in a while.

    `error` is what was raised, if anything was.
    """

    reason: str
    message: str
    detail: str
    needs: str
    code: str
    passing: bool
    error: BaseException | None = None


class Holds:
    """The holds of one lane. `publish` sends one (None: a tombstone) on its way into `run-snapshot`."""

    def __init__(self, member: str, journal: Journal, publish: Callable[[RunId, Hold | None], None]) -> None:
        self._member, self._journal, self._publish = member, journal, publish
        self._holds: dict[RunId, Hold] = {}
        self._tried: set[RunId] = set()
        self._retries = Timers()
        self._since: dict[RunId, int] = {}

    def get(self, run: RunId) -> Hold | None:
        """Why a run is held, if it is."""
        return self._holds.get(run)

    def follow(self, key: bytes | None, value: bytes | None, *, at_ms: int) -> None:
        """A record of `run-snapshot`, there since `at_ms`, at a take-over; others than holds are passed over."""
        run = held_run(key)
        if run is not None:
            self._forget(run)
            if value is not None:
                hold = read_hold(run, value)
                # The clock of whoever wrote it may be ahead, and that of the broker of `run-snapshot`: later than what
                # a human says of the hold, either would refuse that.
                self._since[run] = min(at_ms, hold.at_ms or at_ms)
                self._keep(hold)

    def bars(self, run: RunId) -> bool:
        """Whether the code of a run must not be run."""
        return run in self._holds and run not in self._tried

    def tries(self, run: RunId) -> bool:
        """Whether the code of a run that is held is to be run all the same, to see whether it agrees by now."""
        return run in self._tried

    def stall(self, run: RunId, stall: Stall, now: int) -> None:
        """The code of a run does not go with its history: from now on it is held."""
        before = self._holds.get(run)
        tries = before.tries + 1 if before and before.reason == stall.reason else 0
        wait = min(RETRY_MS << min(tries, 20), LONGEST_RETRY_MS)
        hold = Hold(
            run_id=run,
            kind="quarantined" if stall.reason == "hang" else "stalled",
            reason=stall.reason,
            message=stall.message,
            detail=stall.detail,
            needs=stall.needs,
            code=stall.code,
            member=self._member,
            at_ms=now,
            retry_ms=now + wait if stall.passing else 0,
            tries=tries,
        )
        self._keep(hold)
        # Tried again by itself it is the same hold still.
        if before is None or not tries:
            self._since[run] = now
        self._tried.discard(run)
        self._journal.tell("run.stalled", run_id=run, reason=hold.reason, message=hold.message, needs=hold.needs)
        self._publish(run, hold)

    def tangle(self, run: RunId, why: str, now: int) -> None:
        """The history of a run cannot be told from the log: it stands still until it is repaired."""
        reason, _, message = why.partition(": ")
        before = self._holds.get(run)
        self._tried.discard(run)
        self._journal.tell("run.stalled", run_id=run, reason=reason, message=message)
        if before is None or before.reason != reason:
            hold = Hold(run, "stalled", reason, message, member=self._member, at_ms=now)
            self._keep(hold)
            self._publish(run, hold)

    def lift(self, run: RunId, *, over: bool = False) -> None:
        """The run goes on, or is over; nothing happens to one that is not held."""
        self._tried.discard(run)
        if self._forget(run) is not None:
            if not over:
                self._journal.tell("run.unstalled", run_id=run)
            self._publish(run, None)

    def send_again(self, run: RunId) -> None:
        """Nobody knows whether the hold of a run came into its topic: says again what is true by now."""
        self._publish(run, self._holds.get(run))

    def judge(self, said: RunOperation, state: RunState, *, sent_ms: int) -> Ruling:
        """What an operator says of a run that is held. **Units**: `sent_ms` by the log's clock."""
        run = state.run_id
        if state.over:
            return Ignore("the run is over")
        if said.kind == "retry":
            if run not in self._holds:
                return Ignore("the run is not held")
            if state.paused:  # its code is not run now, and who has the lane when it is may not have heard this
                self.lift(run)
            else:
                self._tried.add(run)
            return []
        if run not in self._holds:
            return Refuse("conflict", f"run {run} is not held; `refold run cancel {run}` stops one that goes on")
        # It was meant for a hold that is gone, and comes once more because positions were lost.
        if sent_ms < self._since.get(run, 0):
            return Refuse("conflict", f"run {run} was not held like this when this was said: see `refold run list`")
        return [RunFailed(Failure("given_up", _said(said), self._holds[run].message))]

    def review(self, run: RunId, code: str) -> bool:
        """Whether a run is held by code that is not the code here: then it is tried. A quarantine waits for a human."""
        hold = self._holds.get(run)
        if hold is not None and hold.kind == "stalled" and hold.code != code:
            self._tried.add(run)
        return run in self._tried

    def ready(self, find: Callable[[RunId], RunState | None], code_of: Callable[[RunState], str]) -> Iterator[RunId]:
        """At a take-over: the held runs to be tried here. Holds of what is over are taken back.

        Of a run that nobody knows the hold stays: its code may have hung before its first entry was written.
        """
        for run in list(self._holds):
            state = find(run)
            if state is not None and state.over:
                self.lift(run, over=True)
            elif state is not None and self.review(run, code_of(state)):
                yield run

    def due(self, now: int) -> Iterator[RunId]:
        """The runs that are to be tried again by now."""
        for due in self._retries.due(now):
            self._tried.add(due.run_id)
            yield due.run_id

    def next_ms(self) -> int | None:
        """When something is to be tried again."""
        return self._retries.next_ms()

    def _keep(self, hold: Hold) -> None:
        self._holds[hold.run_id] = hold
        self._retries.set(hold.run_id, 0, hold.retry_ms)

    def _forget(self, run: RunId) -> Hold | None:
        self._retries.set(run, 0, 0)
        self._since.pop(run, None)
        return self._holds.pop(run, None)


def retries(said: RunOperation, state: RunState) -> bool:
    """Whether what is said lets a failed run go on, or did, and is not about a hold."""
    return said.kind == "retry" and (state.over or failure_named(said) > 0)


def hold_record(partition: int, run: RunId, hold: Hold | None, *, source: str) -> Outgoing:
    """The record that says that the code of a run is held, or (None) no longer."""
    record = Outgoing(RUN_SNAPSHOT, partition, hold_key(run), None, (), 0)
    if hold is None:
        return record
    headers = cloud_event(RUN_SNAPSHOT, run, id=f"{run}/{hold.at_ms}", source=source, at_ms=hold.at_ms)
    return record._replace(value=codec.encode(hold), headers=headers)


def _said(said: RunOperation) -> str:
    try:
        data = canonical.parse(said.data)
    except MalformedError:
        data = None
    reason = str(data.get("reason", "")) if isinstance(data, dict) else ""
    return f"given up by {said.actor or 'somebody'}{f': {reason}' if reason else ''}"
