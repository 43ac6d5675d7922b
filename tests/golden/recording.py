"""Golden runs: the records that today's planner has made of the golden agents, kept for ever in `runs.json`.

For another agent run `python -m tests.golden.recording`, which never touches a run that is there.
"""

from __future__ import annotations

import json
from pathlib import Path

from refold.core.messages import ToolRequest, ToolResult
from refold.core.run import chain
from refold.core.run.fold import apply
from refold.core.run.state import RunState
from refold.core.wire import codec
from refold.engine.ports.log import Outgoing
from tests.golden.agents import app
from tests.recovery.rig import Rig

RUNS = Path(__file__).with_name("runs.json")


def kept() -> dict[str, list[tuple[str, str]]]:
    """The records of the golden runs, key and value in hex."""
    found: dict[str, list[tuple[str, str]]] = json.loads(RUNS.read_text()) if RUNS.exists() else {}
    return found


def golden(run: str) -> list[RunState]:
    """The states of a golden run, after each of its entries."""
    state, states = RunState(run), list[RunState]()  # type: ignore[arg-type]
    for key, value in kept()[run]:
        read = chain.read(bytes.fromhex(key), bytes.fromhex(value))
        assert isinstance(read, chain.LogRecord), "a golden record can be read"
        states.append(apply(state, read.entry, read.id).copy())
    return states


def _played(agent: str) -> list[tuple[str, str]]:
    """The newest of what executors are asked for is answered first; `slow` calls are answered by nobody."""
    rig = Rig(app)
    rig.start(agent, agent)
    rig.run()
    while not rig.state(agent).over:
        able = [asked for asked in rig.asked(agent) if "slow" not in asked.args]
        if able:
            _answer(rig, able[-1])
        elif agent == "waits":
            break
        else:
            rig.later(1_500)
    return [(record.key.hex(), record.value.hex()) for record in rig.broker.log("run-log", 0).records if record.value]


def _answer(rig: Rig, asked: ToolRequest) -> None:
    name = json.loads(asked.args)["name"]
    told = ToolResult(asked.call_id, asked.run_id, asked.step, asked.attempt, "completed", json.dumps(name))
    if name == "fails":
        told = ToolResult(asked.call_id, asked.run_id, asked.step, asked.attempt, "failed", "", retryable=False)
    rig.broker.write(Outgoing("tool-completed.default", 0, asked.call_id.encode(), codec.encode(told), (), 0))
    rig.run()


def _append() -> None:
    runs = kept()
    for agent in app.agents:
        if agent not in runs:
            runs[agent] = _played(agent)
    RUNS.write_text(json.dumps(runs, indent=1) + "\n")


if __name__ == "__main__":
    _append()
