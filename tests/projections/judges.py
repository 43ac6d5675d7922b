"""Compares rows with what every other reader makes of the same log."""

from __future__ import annotations

from collections import Counter
from typing import Any

from refold.core import events
from refold.core.run.metering import tokens_of, usage_of
from refold.projections.shipped import tables
from refold.views.history import Run
from refold.views.run import row_of
from refold.views.steps import RunStep
from tests.projections.viewed import Viewed, folded

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
        row["approvals"] = sorted(asked.get(name, []))
        found += [f"{name}: {key} is {row[key]!r}, not {value!r}" for key, value in said.items() if row[key] != value]
        lines = run.timeline.steps
        if len(lines) != len(steps.get(name, [])):
            found.append(f"{name}: {len(steps.get(name, []))} steps, not {len(lines)}")
            continue
        for step, line in zip(steps.get(name, []), lines, strict=True):
            opened = run.state.open.get(line.step)
            said = {**_of_step(line), "phase": opened.phase if opened else ""}
            found += [f"{name} step {line.step}: {key} is {step[key]!r}, not {value!r}"
                      for key, value in said.items() if step[key] != value]  # fmt: skip
    return found + _of_sums(viewed, runs)


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
    kept = {row["root"]: +Counter({name: row[name] for name in tables.FAMILIES.names[2:]}) for row in
            viewed.rows(tables.FAMILIES)}  # fmt: skip
    found = [] if kept == {root: +family for root, family in families.items()} else ["families differ"]
    counted = Counter[str]()
    for run in runs.values():
        counted.update(_counted([judged.entry for judged in run.records if judged.entry]))
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
    events.RunCompleted: "runs_completed",
    events.RunFailed: "runs_failed",
    events.RunCancelled: "runs_cancelled",
}


def _counted(entries: list[events.Entry]) -> Counter[str]:
    found = Counter[str]()
    metered: set[int] = set()
    for entry in entries:
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
                    found["tokens"] += tokens_of(usage_of(event.result) or {}) or 0
                case events.ApprovalDecided(verdict="reject"):
                    found["rejections"] += 1
    return found
