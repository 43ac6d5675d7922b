"""Simulated tools: what they do to the world and what they say of it, by script."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from refold.core.wire import canonical
from refold.engine.ports.effects import StartTool, StopTool, ToolEnded
from tests.simulator.app import FACTS, RECALL, told
from tests.simulator.world.process import Act, SimProcess
from tests.simulator.world.surroundings import Surroundings


@dataclass(frozen=True, slots=True)
class Script:
    """One run of a tool: whether it has its effect, and what it says after how long (None: it never ends).

    **Units**: milliseconds after the effect; `effect_ms` from the beginning to the effect. `deaf`: it does not hear
    that it should stop.
    """

    acts: bool
    status: str
    after_ms: int | None = 4
    retryable: bool = True
    deaf: bool = False
    effect_ms: int = 3

    @property
    def lasts_ms(self) -> float:
        """From its beginning to what it says."""
        return math.inf if self.after_ms is None else self.effect_ms * self.acts + self.after_ms


SCRIPTS: Mapping[str, Script] = {
    "ok": Script(True, "completed"),
    "slow": Script(True, "completed", 500),
    "slower": Script(True, "completed", 650, deaf=True),
    "late": Script(True, "completed", 1_500, deaf=True),
    "not-done": Script(False, "failed"),
    "terminal": Script(False, "failed", retryable=False),
    "raises-after": Script(True, "unknown"),
    "raises-before": Script(False, "unknown"),
    "hangs-after": Script(True, "unknown", None, deaf=True),
    "hangs-before": Script(False, "unknown", None, deaf=True),
    "broken": Script(True, "broken"),
    "creeps": Script(True, "completed", deaf=True, effect_ms=250),
    "crawls": Script(True, "completed", effect_ms=700),
}
"""`late` ends after its timeout (800 ms); `slow` outlasts the lease of a keyed call and not its timeout; `creeps`
has its effect long after it was last looked at, `crawls` after the lease that it began under."""

WEIGHTS = {"ok": 10, "slow": 2, "slower": 1, "late": 2, "not-done": 2, "terminal": 1, "raises-after": 2, "crawls": 1}
WEIGHTS |= {"raises-before": 1, "hangs-after": 1, "hangs-before": 1, "broken": 1}

ANY = "*"
"""Among a case's scripts: what is not scripted is drawn by chance."""

_PROBE_MS = 2


@dataclass(slots=True, eq=False)
class ToolRun:
    """A tool at work in a process."""

    process: SimProcess
    order: StartTool
    script: Script
    stopped: bool = False
    over: bool = False


class Workshop:
    """All tools of a case. `scripts` names for a tool what its runs for a call do, in order; then all is `ok`.

    `told` are the results that tools gave to their processes, with their calls; `ran` is what they did, by call;
    `happened` are the keys of which a status hook has reported that the effect happened; `wrong` is what tools were
    told that they must not be.
    """

    def __init__(self, scripts: Mapping[str, tuple[str, ...]]) -> None:
        self._scripts = scripts
        self._times: Counter[str] = Counter()
        self._runs: dict[tuple[str, int], ToolRun] = {}
        self.told: list[tuple[str, str]] = []
        self.wrong: list[str] = []
        self.ran: dict[str, list[Script]] = defaultdict(list)
        self.happened: set[str] = set()

    def start(self, world: Surroundings, process: SimProcess, order: StartTool) -> None:
        """A tool or a probe begins."""
        request = order.request
        if order.probe:
            probed = Act("probed", lambda: self._probe(world, process, order), 0)
            world.at(_PROBE_MS, lambda: self._later(process, probed))
            return
        if request.tool not in FACTS:
            missing = ToolEnded(order.number, "failed", code="usage", message="no such tool", retryable=False)
            process.inbox.append(missing)
            return
        if request.tool == RECALL and told(request.earlier) != canonical.parse(request.args)["before"]:
            self.wrong.append(f"altered: {request.call_id} is told of other calls than it was asked with")
        self._times[request.call_id] += 1
        script = SCRIPTS[self._choose(world, request.tool, self._times[request.call_id])]
        self.ran[request.call_id].append(script)
        run = self._runs[process.name, order.number] = ToolRun(process, order, script)
        if script.acts:
            act = Act("effect", lambda: self._act(world, run), (request.call_id, request.attempt, request.key[:8]))
            world.at(script.effect_ms, lambda: self._later(process, act))
        else:
            process.checked_ms.pop(order.number, None)
            self._end_later(world, run, "")

    def stop(self, world: Surroundings, process: SimProcess, order: StopTool) -> None:
        """A tool is told to stop; most do."""
        run = self._runs.get((process.name, order.number))
        if run is None or run.over or run.script.deaf or run.stopped:
            return
        run.stopped = True
        ended = ToolEnded(order.number, "unknown", code="Cancelled", message=f"stopped: {order.reason}")
        world.at(2, lambda: self._later(process, Act("ended", lambda: self._end(run, ended), ended[:2])))

    def _choose(self, world: Surroundings, tool: str, time: int) -> str:
        scripts = self._scripts.get(tool, ())
        if time <= len(scripts):
            return scripts[time - 1]
        if ANY in self._scripts and world.unsafe:
            return world.chance.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        return "ok"

    def _later(self, process: SimProcess, act: Act) -> None:
        if process.state != "dead":
            process.tool_acts.append(act)

    def _act(self, world: Surroundings, run: ToolRun) -> None:
        run.process.checked_ms.pop(run.order.number, None)
        if not run.stopped:
            self._end_later(world, run, world.receiver.act(run.order.request, world.now_ms))

    def _end_later(self, world: Surroundings, run: ToolRun, result: str) -> None:
        script = run.script
        if script.after_ms is None:
            return
        if script.status == "completed" and len(result) > world.settings.payload_bytes:
            ended = ToolEnded(run.order.number, "broken", "", "too_large", "no log takes it", retryable=False)
        elif script.status == "completed":
            ended = ToolEnded(run.order.number, script.status, result)
        else:
            code = "bad_result" if script.status == "broken" else script.status
            ended = ToolEnded(run.order.number, script.status, "", code, "as scripted", script.retryable)
        act = Act("ended", lambda: self._end(run, ended), ended[:2])
        world.at(script.after_ms, lambda: self._later(run.process, act))

    def _end(self, run: ToolRun, ended: ToolEnded) -> None:
        if not run.over:
            run.over = True
            run.process.inbox.append(ended)
            if ended.status == "completed":
                self.told.append((run.order.request.call_id, ended.result))

    def _probe(self, world: Surroundings, process: SimProcess, order: StartTool) -> None:
        result = world.receiver.happened(order.request.key)
        if result:
            self.happened.add(order.request.key)
        process.inbox.append(ToolEnded(order.number, "happened" if result else "did_not_happen", result or ""))
