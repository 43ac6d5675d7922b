"""What a planner says of accepted entries in the log of its process."""

from __future__ import annotations

from collections.abc import Iterable

from refold.core import events
from refold.core.ids import RunId
from refold.core.run.fold import wakes
from refold.core.run.state import RunState, Step
from refold.runtime.lanes import Journal

_TOLD = {
    events.RunRequested: "run.requested",
    events.RunCompleted: "run.completed",
    events.RunFailed: "run.failed",
    events.RunCancelled: "run.cancelled",
    events.CallDoubted: "call.doubted",
    events.CallHeld: "call.held",
    events.ApprovalRequested: "approval.requested",
    events.ApprovalDecided: "approval.accepted",
    events.LateResultRecorded: "call.late",
    events.TaskFailed: "task.failed",
    events.RunPaused: "run.paused",
    events.RunUnpaused: "run.unpaused",
}
"""What a lane tells of accepted entries: what somebody may wait for or has to look at, not every step."""

_HEARD = frozenset({*_TOLD, events.CallFailed})
"""What may be told; of a failed call one kind of failure is."""


class Telling:
    """What one lane says, which writes its entries as `actor`."""

    def __init__(self, journal: Journal, partition: int, actor: str) -> None:
        self._journal, self._partition, self._actor = journal, partition, actor
        self._taken: set[RunId] = set()

    def begin(self, runs: Iterable[RunId]) -> None:
        """These runs were somebody else's until now."""
        self._taken.update(runs)

    def accepted(self, after: RunState, entry: events.Entry) -> None:
        """Says what an accepted entry means to people."""
        run = entry.run_id
        if run in self._taken:
            self._resume(after, entry)
        if _HEARD.isdisjoint(map(type, entry.events)):  # of most steps nothing is said
            return
        for event in entry.events:
            if isinstance(event, (events.CallFailed, events.CallDoubted)) and event.failure.code == "unauthorised":
                self._journal.counts["unauthorised"] += 1
                self._journal.news.append(("call.unauthorised", {"run_id": run, "reason": event.failure.message}))
            if told := _TOLD.get(type(event)):
                facts = {"run_id": run, "seq": entry.seq, "partition": self._partition}
                if isinstance(event, events.RunFailed):
                    facts |= {"code": event.failure.code, "at": event.failure.detail}
                self._journal.news.append((told, facts))

    def _resume(self, after: RunState, entry: events.Entry) -> None:
        """Says where a run goes on, if this is the first entry for which its code was opened here."""
        asked = sum(isinstance(event, Step) for event in entry.events)
        opened = entry.actor == self._actor and not entry.held and (asked or wakes(entry.events))
        if opened and (step := len(after.steps) - asked):
            place = {"run_id": entry.run_id, "step": step, "events": entry.seq - 1}
            self._journal.news.append(("run.resumed", place))
        if opened or after.over:
            self._taken.discard(entry.run_id)
