"""Runs, events and approvals as rows of plain data: what --json prints, and what the client's answers are made of."""

from __future__ import annotations

import dataclasses
import json
from itertools import takewhile
from typing import Any

from refold.client.register import Approval
from refold.client.runs import JudgedRecord, Run
from refold.core.approval.requester import is_verified, quorum_of
from refold.core.events import DOUBT
from refold.core.ids import log_key
from refold.core.run.suspension import blocked
from refold.core.wire.blobs import is_pointer

Data = dict[str, Any]


def plain(value: Any) -> Any:
    """Dataclasses, named tuples and bytes as JSON data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple | set | frozenset) else value


class Pointing(str):
    """What a record has in place of a large value. What only looks like one, in anybody's data, is a plain string."""

    __slots__ = ()


def json_text(text: str) -> Any:
    """A JSON text from a record as data; text that is none stays text, or is what stands for a large one."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return Pointing(text) if is_pointer(text) else text


def summary(run: Run) -> Data:
    """A run in a line."""
    state = run.state
    return {
        "run_id": state.run_id,
        "agent": state.request.agent if state.request else "",
        "status": run.status,
        "steps": len(state.steps),
        "open": len(state.open),
        "in_doubt": [line.call_id for line in run.timeline.in_doubt],
        "held": [line.call_id for line in run.timeline.held] if not state.over else [],
        "waiting": [line.name for line in run.timeline.waiting] if not state.over else [],
        "approvals": [line.approvals[-1].approval_id for line in run.timeline.asking],
        "seq": state.head.seq,
        "requested_ms": state.requested_ms,
        "at_ms": state.at_ms,
        "labels": state.request.labels if state.request else {},
        "says": "" if state.over else state.says,
        "suspended": plain(blocked(state)) if state.status == "suspended" else None,
        "paused": [plain(pause) | {"since_ms": at_ms} for at_ms, pause in run.timeline.pauses if not state.over],
        "sessions": state.request.sessions if state.request else [],
    }


def ending(run: Run) -> Data:
    """How a run ended, or that it has not."""
    end = run.state.end
    return {
        "run_id": run.state.run_id,
        "status": run.status,
        "result": json_text(getattr(end, "result", "")),
        "failure": plain(getattr(end, "failure", None)),
        "reason": getattr(end, "reason", ""),
        "seq": run.state.head.seq,
    }


def event_rows(run: Run, after: int = 0) -> list[Data]:
    """The events of a run, one by one, behind the one of this number. Costs what it gives, however long the run is."""
    rows: list[Data] = []
    for judged in reversed(list(takewhile(lambda each: _last(each) > after, reversed(run.records)))):
        assert judged.entry is not None, "what counts can be read"
        for number, event in enumerate(judged.entry.events, start=judged.entry.seq):
            if number <= after:
                continue
            rows.append(
                {
                    "seq": number,
                    "type": type(event).__name__,
                    "at_ms": judged.entry.at_ms,
                    **place_of(judged),
                    "cause": plain(judged.entry.cause),
                    "actor": judged.entry.actor,
                    "event": {name: _value(name, value) for name, value in plain(event).items()},
                }
            )
    return rows


def _last(judged: JudgedRecord) -> int:
    entry = judged.entry
    return entry.seq + len(entry.events) - 1 if entry else 0


def place_of(judged: JudgedRecord) -> Data:
    """Where a record lies, and its key."""
    record = judged.record
    key = (record.key or b"").decode(errors="replace")
    if judged.entry is not None:
        key = log_key(judged.run_id, judged.entry.seq, judged.id).decode()
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset, "key": key}


def _value(name: str, value: Any) -> Any:
    return json_text(value) if name in ("args", "result", "input", "data") and isinstance(value, str) else value


def approval_row(found: Approval) -> Data:
    """An approval in a line."""
    request, decided = found.request, found.decision
    return {
        "approval": request.approval_id,
        "state": found.state,
        "verdict": decided.verdict if decided else "",
        "run_id": request.run_id,
        "tool": request.tool,
        "agent": request.agent,
        "requester": request.requester,
        "requester_verified": is_verified(request, found.roles.askers),
        "args": json_text(request.args),
        "leading": found.count.leading,
        "quorum": quorum_of(request, found.roles.askers),
        "approvers": list(found.count.approvers),
        "asked_ms": request.asked_ms,
        "expires_ms": request.expires_ms,
        "level": request.level,
        "held": found.held,
        "grant": decided.grant.id if decided and decided.grant and decided.grant.use else "",
        "call_id": request.call_id,
        "about": request.about,
        "resolve": resolve_commands(request.approval_id) if request.about == DOUBT else [],
        "others": list(found.others),
    }


def resolve_commands(name: str) -> list[str]:
    """What people may say of a call in doubt, as commands to run."""
    start = f"refold run resolve {name}"
    return [f"{start} --happened '{{...}}'", f"{start} --did-not-happen", f"{start} --give-up"]
