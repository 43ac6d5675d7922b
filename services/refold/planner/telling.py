"""What a planner says of accepted entries in the log of its process."""

from __future__ import annotations

from refold.core import events
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


def tell(journal: Journal, partition: int, entry: events.Entry) -> None:
    """Says what an accepted entry means to people."""
    for event in entry.events:
        if isinstance(event, events.CallFailed | events.CallDoubted) and event.failure.code == "unauthorised":
            journal.counts["unauthorised"] += 1
            journal.news.append(("call.unauthorised", {"run_id": entry.run_id, "reason": event.failure.message}))
        if told := _TOLD.get(type(event)):
            journal.news.append((told, {"run_id": entry.run_id, "seq": entry.seq, "partition": partition}))
