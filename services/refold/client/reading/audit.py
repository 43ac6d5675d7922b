"""Audit trail of a run, without arguments and results."""

from typing import Any

from refold.client.reading.history import Run
from refold.client.reading.model import ReadModel, json_text
from refold.core import events
from refold.core.events import Cause
from refold.core.ids import call_id

PEOPLE = ("actor", "actors", "requester")
WHY = ("reason", "comment", "message", "verdict", "rule", "text")


class AuditLine(ReadModel):
    """An event of a run's history. `writer` is the service that wrote it, `actors` are the people that it names.

    `cause` is the input that led to it. `key` is the idempotency key, if the event is about a call. `why` contains the
    recorded reasons, `note` a note of the agent or on the run.
    """

    run_id: str
    seq: int
    at_ms: int
    type: str
    writer: str
    actors: list[str]
    cause: Cause | None
    step: int
    tool: str
    call_id: str
    key: str
    why: dict[str, str]
    note: Any = None


def audit_of(run: Run) -> list[AuditLine]:
    calls: dict[int, tuple[str, str, str]] = {}
    lines = []
    for entry in (judged.entry for judged in run.records if judged.entry):
        for seq, event in enumerate(entry.events, start=entry.seq):
            if isinstance(event, events.CallProposed):
                calls[event.step] = event.tool, call_id(run.state.run_id, seq), event.key
            step = getattr(event, "step", 0)
            tool, call, key = calls.get(step, ("", "", ""))
            lines.append(
                AuditLine(
                    run_id=run.state.run_id,
                    seq=seq,
                    at_ms=entry.at_ms,
                    type=type(event).__name__,
                    writer=entry.actor,
                    actors=_actors(event),
                    cause=entry.cause,
                    step=step,
                    tool=tool,
                    call_id=call,
                    key=key,
                    why={name: str(value) for name in WHY if (value := getattr(event, name, ""))},
                    note=_note(event),
                )
            )
    return lines


def _note(event: events.Event) -> Any:
    if isinstance(event, events.RunAnnotated):
        return event.note
    return json_text(event.data) if isinstance(event, events.NoteRecorded) else None


def _actors(event: events.Event) -> list[str]:
    values = [getattr(event, name, "") for name in PEOPLE]
    named = [actor for value in values for actor in (value if isinstance(value, list) else [value]) if actor]
    return list(dict.fromkeys(named))
