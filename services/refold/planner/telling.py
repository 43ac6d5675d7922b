"""What a planner says of accepted entries in the log of its process."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from refold.core import events
from refold.core.run.state import RunState
from refold.runtime.lanes import Journal

_TOLD = {
    events.RunRequested: "run.requested",
    events.RunCompleted: "run.completed",
    events.RunFailed: "run.failed",
    events.RunCancelled: "run.cancelled",
    events.CallDoubted: "call.doubted",
    events.ApprovalRequested: "approval.requested",
    events.ApprovalDecided: "approval.accepted",
    events.LateResultRecorded: "call.late",
}
"""What a lane tells of accepted entries: what somebody may wait for or has to look at, not every step."""


def tell_accepted(journal: Journal, partition: int, entry: events.Entry) -> None:
    """Says what an accepted entry means to people."""
    for event in entry.events:
        if isinstance(event, events.CallFailed | events.CallDoubted) and event.failure.code == "unauthorised":
            journal.counts["unauthorised"] += 1
            journal.news.append(("call.unauthorised", {"run_id": entry.run_id, "reason": event.failure.message}))
        if told := _TOLD.get(type(event)):
            journal.news.append((told, {"run_id": entry.run_id, "seq": entry.seq, "partition": partition}))


RESUMED_TOLD = 20
"""Of so many runs a take-over says one by one where they go on; of the others there is the count."""


def tell_resumed(journal: Journal, states: Iterable[RunState]) -> None:
    """Says where runs go on after a take-over."""
    for state in islice(states, RESUMED_TOLD):
        place = {"run_id": state.run_id, "step": len(state.steps), "events": state.head.seq}
        journal.news.append(("run.resumed", place))
