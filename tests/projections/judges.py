"""Compares rows with what every other reader makes of the same log."""

from __future__ import annotations

from collections import Counter
from typing import Any

from refold.client.reading.budget import limits_in_use, limits_of
from refold.client.reading.history import Run
from refold.client.reading.run import row_of
from refold.client.reading.steps import RunStep
from refold.console.projections.shipped import tables
from refold.console.projections.shipped.beside import spent_of
from refold.core import events
from refold.core.approval.signature import content_of
from refold.core.errors import FoldError, MalformedError, UnauthorisedError
from refold.core.ids import RunId, parent_of, root_of
from refold.core.run.account import tokens_of, usage_of
from refold.core.run.erased import Markers, held_run
from refold.core.run.pausing import PARENT
from refold.core.run.state import RunState
from refold.core.topics import APPROVAL_VOTED, BUDGET_SPENT, DEAD_LETTERS, RUN_SNAPSHOT
from refold.engine.approval.inputs import read_vote
from refold.engine.archive.erasure import run_of
from refold.engine.ports.log import Record
from tests.projections.viewed import Log, Viewed, folded

LIVE = ("pending", "running", "suspended")


def differences(viewed: Viewed) -> list[str]:
    """What differs between the rows of a view and the runs of its log."""
    runs = folded(viewed.log)
    found = [] if {row["run_id"] for row in viewed.rows(tables.RUNS)} == set(runs) else ["other runs"]
    labels: dict[str, dict[str, str]] = {}
    for row in viewed.rows(tables.RUN_LABELS):
        labels.setdefault(row["run_id"], {})[row["name"]] = row["value"]
    sessions: dict[str, list[tuple[int, str]]] = {}
    for row in viewed.rows(tables.RUN_SESSIONS):
        sessions.setdefault(row["run_id"], []).append((row["number"], row["session"]))
        if row["requested_ms"] != runs[row["run_id"]].state.requested_ms:
            found.append(f"{row['run_id']}: its session has another time")
    values: dict[str, dict[str, str]] = {}
    for row in viewed.rows(tables.RUN_VALUES):
        values.setdefault(row["run_id"], {})[row["name"]] = row["value"]
    steps: dict[str, list[dict[str, Any]]] = {}
    for row in viewed.rows(tables.STEPS):
        steps.setdefault(row["run_id"], []).append(row)
    asked: dict[str, list[str]] = {}
    for row in viewed.rows(tables.APPROVALS):
        if row["open"]:
            asked.setdefault(row["run_id"], []).append(row["approval_id"])
    for name, run in runs.items():
        row, said = viewed.row(tables.RUNS, name), _of_run(run)
        row["labels"], row["sessions"] = labels.get(name, {}), [each for _, each in sorted(sessions.get(name, []))]
        row["approvals"], row["values"] = sorted(asked.get(name, [])), values.get(name, {})
        found += [f"{name}: {key} is {row[key]!r}, not {value!r}" for key, value in said.items() if row[key] != value]
        lines = run.timeline.steps
        if len(lines) != len(steps.get(name, [])):
            found.append(f"{name}: {len(steps.get(name, []))} steps, not {len(lines)}")
            continue
        for step, line in zip(steps.get(name, []), lines, strict=True):
            opened = run.state.open.get(line.step)
            said = {**_of_step(line), "phase": opened.phase if opened else "", "status": _status(run.state, line)}
            found += [f"{name} step {line.step}: {key} is {step[key]!r}, not {value!r}"
                      for key, value in said.items() if step[key] != value]  # fmt: skip
    return found + _of_sums(viewed, runs) + _beside(viewed, runs) + _of_operators(viewed, runs)


def _of_operators(viewed: Viewed, runs: dict[Any, Run]) -> list[str]:
    """Operator actions, counted once more from the events of the log."""
    wanted = sorted(
        (name, seq, *action)
        for name, run in runs.items()
        for entry in (judged.entry for judged in run.records if judged.entry)
        for seq, event in enumerate(entry.events, entry.seq)
        if (action := _action(event, name))
    )
    columns = ("run_id", "seq", "action", "actor", "reason")
    kept = sorted(tuple(row[name] for name in columns) for row in viewed.rows(tables.OPERATOR_ACTIONS))
    return [f"{len(kept)} actions of operators are {kept}, not {wanted}"] if kept != wanted else []


def _action(event: Any, run: str) -> tuple[str, str, str] | None:
    """The action, the actor and the reason."""
    match event:
        case events.RunAnnotated():
            return "annotated", event.actor, event.note
        case events.RunPaused(role=role) if role != PARENT:
            return "paused", event.actor, event.reason
        case events.RunUnpaused(role=role) if role != PARENT:
            return "unpaused", event.actor, ""
        case events.DoubtResolved():
            return "resolved", event.actor, event.comment
        case events.RunMigrated(actor=actor) if actor:
            return "migrated", actor, ""
        case events.RunRetried():
            return "retried", event.actor, event.reason
        case events.RunForked():
            return "forked", event.actor, event.reason
        case events.RunCancelled(actor=actor) if actor != parent_of(RunId(run))[0]:
            return "cancelled", actor, event.reason
    return None


def _beside(viewed: Viewed, runs: dict[Any, Run]) -> list[str]:
    """Rows of what lies beside the run log, recounted: the last record of each key, but for runs that are erased."""
    markers = Markers((record.key, record.value) for record in viewed.log if record.topic == RUN_SNAPSHOT)
    last: dict[tuple[str, int, bytes | None], list[Record]] = {}
    for record in viewed.log:
        known = last.setdefault((record.topic, record.partition, record.key), [])
        if record.topic not in DEAD_LETTERS or record.value is None:
            known.clear()
        if record.value is not None and run_of(record) not in markers.runs:
            known.append(record)
    there = [record for records in last.values() for record in records]
    counted = _decisive(runs)
    votes = {
        (record.key or b"").decode(): (record.partition, record.offset)
        for record in there
        if record.topic == APPROVAL_VOTED and _readable(record, viewed.log.number)
    }
    said = {
        "holds": {held_run(record.key) for record in there if record.topic == RUN_SNAPSHOT} - {None},
        "letters": {record[:3] for record in there if record.topic in DEAD_LETTERS},
        "votes": votes,
        "counted": {vote for vote in counted if vote.partition("/")[0] not in markers.runs},
        "limits": limits_in_use(there_of(viewed.log, BUDGET_SPENT)),
    }
    rows = viewed.rows(tables.VOTES)
    kept = {
        "holds": {row["run_id"] for row in viewed.rows(tables.HOLDS)},
        "letters": {(row["topic"], row["partition"], row["offset"]) for row in viewed.rows(tables.DEAD_LETTER_ROWS)},
        "votes": {f"{r['approval_id']}/{r['vote_id']}": (r["partition"], r["offset"]) for r in rows if r["logged_ms"]},
        "counted": {f"{row['approval_id']}/{row['vote_id']}" for row in rows if row["counts"]},
        "limits": limits_of(map(spent_of, viewed.store.scan(tables.LIMIT_ROWS))),
    }
    return [f"{name} are {kept[name]}, not {value}" for name, value in said.items() if kept[name] != value]


def there_of(log: Log, topic: str) -> list[Record]:
    """The records of a topic."""
    return [record for record in log if record.topic == topic]


def _decisive(runs: dict[Any, Run]) -> set[str]:
    """The votes that decisions in the log rest on."""
    found = set[str]()
    for run in runs.values():
        for judged in run.records:
            for event in judged.entry.events if judged.entry else ():
                if isinstance(event, events.ApprovalDecided) and event.token:
                    made = content_of(event.token)
                    if not (made["grant"] and made["grant"]["use"]):
                        found |= {f"{made['approval']}/{vote['vote']}" for vote in made["votes"]}
    return found


def _readable(record: Record, partitions: int) -> bool:
    try:
        content_of(read_vote(record, partitions=partitions).token)
    except (MalformedError, FoldError, UnauthorisedError):
        return False
    return True


def _of_run(run: Run) -> dict[str, Any]:
    row, state, failure = row_of(run), run.state, getattr(run.state.end, "failure", None)
    return {
        "agent": row.agent,
        "status": state.status,
        "steps": row.steps,
        "open": row.open,
        "busy": state.busy,
        "doubt": len(row.in_doubt),
        "on_hold": len(row.held),
        "waiting": len(row.waiting),
        "waiting_for_people": len(row.approvals),
        "approvals": sorted(row.approvals),
        "paused": sum(2 if pause.role == "parent" else 1 for pause in row.pauses),
        "seq": row.seq,
        "head": state.head.id.hex(),
        "requested_ms": row.requested_ms,
        "started_ms": state.started_ms,
        "ended_ms": state.at_ms if state.over else 0,
        "at_ms": row.at_ms,
        "labels": row.labels,
        "says": row.says,
        "values": dict(state.values),
        "sessions": row.sessions,
        "version": state.version,
        "app": state.app,
        "failure_code": "cancelled" if state.status == "cancelled" else failure.code if failure else "",
    }


def _of_step(line: RunStep) -> dict[str, Any]:
    return {
        "kind": line.kind,
        "name": line.name,
        "status": line.status,
        "label": line.label,
        "effect": line.effect,
        "rule": line.rule,
        "call_id": line.call_id,
        "started_ms": line.started_ms,
        "ended_ms": line.ended_ms,
        "attempts": len(line.attempts),
        "dispatches": sum(each.dispatches for each in line.attempts),
        "approvals": len(line.approvals),
        "failure_code": line.failure.code if line.failure else "",
    }


_BY_PHASE = {
    "proposed": "proposed", "approval": "approval", "dispatched": "running", "backoff": "backoff", "doubt": "doubt",
    "held": "held", "sleep": "sleeping", "wait": "waiting", "callback": "waiting", "child": "running",
}  # fmt: skip
_BY_OUTCOME = {
    events.CallCompleted: "completed",
    events.CallFailed: "failed",
    events.SleepEnded: "completed",
    events.SignalReceived: "completed",
    events.WaitExpired: "expired",
    events.CallbackCompleted: "completed",
    events.CallbackFailed: "failed",
}


def _status(state: RunState, line: RunStep) -> str:
    """Status of a step by the fold of core: views and timelines share a table of their own, which this checks."""
    if opened := state.open.get(line.step):
        decided = opened.phase == "proposed" and opened.decision is not None
        return "approval" if decided else _BY_PHASE[opened.phase]
    if line.step in state.outcomes:
        outcome = state.outcomes[line.step][1]
        if isinstance(outcome, events.ChildCompleted):
            return "completed" if outcome.status == "completed" else "failed"
        return _BY_OUTCOME[type(outcome)]
    if line.step in state.given_up:
        return "given_up"
    if isinstance(answer := state.steps[line.step - 1], events.SignalAnswered) and answer.failure:
        return "left" if line.status == "left" else "failed"
    return "left" if line.status == "left" else "noted"  # a retry removes the outcomes of these steps from the state


def _of_sums(viewed: Viewed, runs: dict[Any, Run]) -> list[str]:
    """Sums, counted once more: families from the rows of runs, days from the events of the log."""
    families: dict[str, Counter[str]] = {}
    for row in viewed.rows(tables.RUNS):
        family = families.setdefault(row["root"], Counter())
        family["live"] += row["status"] in LIVE
        family["waiting_for_people"] += row["status"] in LIVE and row["waiting_for_people"] > 0
        family["in_doubt"] += row["doubt"] > 0
        family["on_hold"] += row["on_hold"] > 0
        for name in ("completed", "failed", "cancelled"):
            family[name] += row["status"] == name
        family["tokens"] += row["tokens"]
        family["nano_usd"] += row["nano_usd"]
    for row in viewed.rows(tables.HOLDS):
        families.setdefault(root_of(row["run_id"]), Counter())["stalled"] += 1
    kept = {row["root"]: +Counter({name: row[name] for name in tables.FAMILIES.names[2:]}) for row in
            viewed.rows(tables.FAMILIES)}  # fmt: skip
    found = [] if kept == {root: +family for root, family in families.items()} else ["families differ"]
    counted, price = Counter[str](), vars(viewed.projection).get("_prices")
    for run in runs.values():
        counted.update(_counted([judged.entry for judged in run.records if judged.entry], price))
    days = Counter[str]()
    for row in viewed.rows(tables.DAILY):
        if not row["erased"]:
            days.update({name: row[name] for name in tables.DAILY.names[5:] if name[1:].isdecimal() is False})
            days["timed"] += sum(row[f"b{number}"] for number in range(tables.BUCKETS))
    failures = sum(row["n"] for row in viewed.rows(tables.DAILY_FAILURES) if not row["erased"])
    found += [f"{name} of all days: {days[name]}, not {many}" for name, many in counted.items() if days[name] != many]
    return found + ([] if failures == counted["failed"] + counted["runs_failed"] else ["failures differ"])


_COUNTS: dict[type, str] = {
    events.CallProposed: "calls",
    events.CallCompleted: "completed",
    events.CallFailed: "failed",
    events.CallDoubted: "doubts",
    events.RunRequested: "runs_requested",
    events.RunForked: "runs_requested",
    events.RunCompleted: "runs_completed",
    events.RunFailed: "runs_failed",
    events.RunCancelled: "runs_cancelled",
}


def _own(entries: list[events.Entry]) -> list[events.Entry]:
    """The entries of a run that are no copies of those of another one."""
    first = entries[0].events[0] if entries else None
    forked = first.forked if isinstance(first, events.RunRequested) else None
    if forked is None:
        return entries
    ends = (entry.events[0] for entry in entries)
    own = [isinstance(event, events.RunForked) and event.source == forked for event in ends]
    return entries[own.index(True) :] if any(own) else []


def _counted(entries: list[events.Entry], price: Any) -> Counter[str]:
    found = Counter[str]()
    metered: set[int] = set()
    for entry in _own(entries):
        for event in entry.events:
            if name := _COUNTS.get(type(event)):
                found[name] += 1
            match event:
                case events.CallReserved():
                    metered.add(event.step)
                case events.CallBilled():
                    found["tokens"] += event.tokens
                    found["nano_usd"] += event.nano_usd
                case events.CallCompleted() if event.step not in metered:
                    if usage := usage_of(event.result):
                        found["tokens"] += tokens_of(usage) or 0
                        found["nano_usd"] += price(usage, entry.at_ms) if price else 0
                case events.ApprovalDecided(verdict="reject"):
                    found["rejections"] += 1
    return found
