"""What `the demo` proves: every check is a comparison of things that were found out independently."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from examples.demo.stage import Stage

from refold.cli import output
from refold.client.reading.history import Run
from refold.client.reading.steps import RunStep

ACTIONS = {"switch_mesh_once": "switch_mesh"}
"""Tools whose effect has another name in the cloud."""


def judge(stage: Stage, live: Run, said: dict[str, Any] | None = None) -> dict[str, Any]:
    """The findings. `live` was folded while processes died; `said` is what a human did about a doubt."""
    run = live.state.run_id
    with ThreadPoolExecutor(3) as pool:
        asked = pool.submit(stage.outside, "await_completion.py", run), pool.submit(stage.outside, "fold_log.py", run)
        verified = stage.command("verify", "--run", run)
        outcome, projected = asked[0].result(), asked[1].result()["runs"][run]
    rebuilt = verified["digests"].get(run, "")
    steps = _steps(stage, live)
    effects = [step for step in steps if step["tool_effect"] != "pure"]
    checks = {
        "every effect happened exactly once, by the cloud's own count": bool(effects)
        and all(step["effects"] == 1 for step in effects),
        "the killed processes were replaced": bool(stage.kills)
        and all(kill.pid != kill.successor for kill in stage.kills),
        "the run completed": live.state.status == "completed" and len(steps) == 5,
        "run-completed, as consumed from outside, says what the fold says": outcome["status"] == live.state.status
        and outcome["seq"] == live.state.head.seq
        and outcome["result"] == output.json_text(getattr(live.state.end, "result", "")),
        "a projection with fastavro alone sees the same steps": projected["status"] == live.state.status
        and [call["tool"] for call in projected["calls"].values()] == [step["tool"] for step in steps],
        "state rebuilt from the topics equals live state": rebuilt == live.state.digest(),
        "the chain, the folds and all other topics agree": bool(verified["ok"]),
    }
    if said is None:
        checks["a repetition was attempted, and recognised by its key"] = any(step["recognised"] for step in steps)
        checks["the planner's successor went on from history"] = any(step["replayed"] for step in steps)
    else:
        checks |= _doubt_checks(live, said)
    return {
        "ok": all(checks.values()),
        "run_id": run,
        "checks": checks,
        "steps": steps,
        "kills": output.plain(stage.kills),
        "run_completed": outcome,
        "digests": {"live": live.state.digest(), "rebuilt": rebuilt},
        **({"doubt": said} if said is not None else {}),
    }


def _steps(stage: Stage, live: Run) -> list[dict[str, Any]]:
    counts = stage.cloud.counts()
    calls = [line for line in live.timeline.steps if line.kind == "call"]
    replayed = _replayed(stage, live)
    rows = []
    for number, line in enumerate(calls, start=1):
        action = ACTIONS.get(line.name, line.name)
        recognised = counts["avoided"].get(action, 0)
        again = line.step in replayed
        rows.append(
            {
                "step": number,
                "tool": line.name,
                "tool_effect": line.effect,
                "effects": counts["effects"].get(action, 0),
                "avoided": recognised + again,
                "recognised": recognised,
                "replayed": again,
                "how": _how(line, recognised=recognised, again=again),
            }
        )
    return rows


def _replayed(stage: Stage, live: Run) -> set[int]:
    """Steps that were settled when the planner was killed: its successor ran the same agent code through them, from
    the top, and had their results from history."""
    killed_ms = min((kill.at_ms for kill in stage.kills if kill.service == "planner"), default=0)
    return {step for step, (at_ms, *_) in live.state.outcomes.items() if at_ms < killed_ms}


def _how(line: RunStep, *, recognised: int, again: bool) -> str:
    if line.resolved:
        return f"in doubt, a human said: {line.resolved.verdict}"
    parts = ["repeated with its key: recognised"] if recognised else []
    parts += ["replayed from history"] if again else []
    return ", ".join(parts)


def _doubt_checks(live: Run, said: dict[str, Any]) -> dict[str, bool]:
    """What must hold when a call could not be known."""
    line = next((line for line in live.timeline.steps if line.call_id == said["call"]), None)
    return {
        "the call went in doubt and was not tried again": line is not None
        and len(line.attempts) == 1
        and line.effect == "once",
        "it was listed": any(said["call"] in row["in_doubt"] for row in said["listed"]),
        "a signed vote resolved it, and the run went on with what the human said": line is not None
        and said["resolved"]["what"] == "decided"
        and line.resolved is not None
        and line.resolved.verdict == "happened"
        and line.status == "completed",
    }
