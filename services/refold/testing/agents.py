"""A run of an agent without Kafka and Redis, with the code of a planner and of executors. The clock is virtual: an
attempt takes a second of it, a wait its own time."""

import copy
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import FunctionType
from typing import Any

from pydantic_core import to_jsonable_python

from refold.core.errors import RefoldError, UsageError
from refold.core.events import Entry, Event
from refold.core.ids import RunId, child_id, is_below, next_generation, root_of, run_id
from refold.core.messages import ApprovalRequest, RunOperation, RunRequest, RunSignal, ToolRequest
from refold.core.planning.commands import commands
from refold.core.planning.family import FamilyMessage, family_messages, origin_of, pause_above, waits_for
from refold.core.planning.verdict import ChildEnded, Decided, Due, Input, PauseAbove, Refuse, Rules, Ruling, Start
from refold.core.planning.waiting import check_name
from refold.core.run.building import complete
from refold.core.run.intents import words_of
from refold.core.run.replay import Raised, Returned
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.engine.planner.runner import ATTEMPT_MS, Runner, StandstillError, WrittenEntry
from refold.sdk.app import App
from refold.sdk.frames import failure_of
from refold.testing.executors import Executors
from refold.testing.people import ASKER, FINDINGS, Finding, Panel, PeopleSay, Says
from refold.testing.reading import RECENT, Boundary, RunRead
from refold.testing.reruns import check_other_seed, keep_records, rerun, same_end
from refold.testing.scripts import as_by, scripted

START_MS = 1_700_000_000_000
"""Begin of a run on its clock: 2023-11-14, 22:13:20 UTC."""

MOST_STEPS = 1_000
"""Limit for an agent that polls for ever: each step replays all earlier ones."""

SEED = "seed"

FOR_PEOPLE = ("doubt", "held")
"""Phases of a call that only people can end."""


class AgentRun(RunRead):
    """A run: its history so far, and ways to continue it.

    `inputs` are the agent's, by name. `tools` are scripts by tool, see `attempts`; without one, a tool is real.
    `decisions` are people's, by tool; the default is `approve`. `policy` is the content of a policy file. `agents` are
    scripts of child agents, by name: a result, an exception, or a function of their input; agents without a script run
    too, and are `children`. `code` makes the history in place of the agent: another version, or removed code. `name` is
    the run's id, `sent` are signals to unknown runs, `submitted` are requests of other runs, which do not run here.
    `boundary` is the place of a kill. **Raises** UsageError for an input that does not fit.
    """

    def __init__(
        self,
        app: App,
        agent: str,
        inputs: Mapping[str, Any],
        *,
        tools: Mapping[Callable[..., Any] | str, Any] | None = None,
        decisions: Mapping[str, PeopleSay] | None = None,
        policy: Mapping[str, Any] | None = None,
        agents: Mapping[str, Any] | None = None,
        code: Callable[..., Any] | None = None,
        name: str = "r-1",
        boundary: Boundary | None = None,
    ) -> None:
        for unknown in (name for name in (agent, *(agents or {})) if name not in app.agents):
            raise UsageError(f"app {app.name} has no agent {unknown}", hint=f"there is {', '.join(sorted(app.agents))}")
        app = as_by(app, agent, code)
        text = app.agents[agent].input_json(dict(inputs))
        self.app, self.agent = app, agent
        self.state = RunState(run_id(name))
        self.events: list[Event] = []
        self.records: list[tuple[bytes, bytes]] = []
        self.sent: list[RunSignal] = []
        self.submitted: list[RunRequest] = []
        self._panel = Panel(app, policy)
        self._family = Relatives(agents or {})
        rules = Rules(app=app.facts(), authority=self._panel.authority)
        self._runner = Runner(app, rules, self._family.state)
        self._decisions = dict(decisions or {})
        self._orders: dict[int, ToolRequest | ApprovalRequest] = {}
        self._end: Returned | Raised | None = None
        self._boundary, self._numbers = boundary, count(1)
        self.executors = Executors(scripted(app, tools or {}), self._panel, START_MS)
        if boundary and boundary.dies != "planner":
            self.executors.kills[boundary.number] = boundary.dies
        self._family.runs[self.state.run_id] = self
        request = RunRequest(self.state.run_id, agent, text, ASKER)
        self._take(Start(request, digest="", seed=SEED))

    @property
    def now_ms(self) -> int:
        """Time of the virtual clock. **Units**: milliseconds since 1970."""
        return self.executors.now_ms

    @property
    def family(self) -> list["AgentRun"]:
        """This run and its descendants."""
        return self._family.below(self.state.run_id)

    @property
    def latest(self) -> "AgentRun":
        """This run, or after `ctx.continue_as` its latest generation."""
        later = self._family.runs.get(next_generation(self.state.run_id)) if self.status == "continued" else None
        return later.latest if later else self

    @property
    def children(self) -> list["AgentRun"]:
        """Runs started by this one, in order."""
        return [run for run in self.family if run.state.run_id.rpartition(".")[0] == self.state.run_id]

    @property
    def value(self) -> Any:
        """Result of the agent; raises the agent's error. **Raises** UsageError while it waits."""
        if self.latest is not self:
            return self.latest.value
        if isinstance(self._end, Raised):
            raise self._end.error
        if self.failure:
            raise RefoldError(self.failure.message, code=self.failure.code)
        if isinstance(self._end, Returned):
            return self._end.value
        waits = (f"step {n} ({self.state.open[n].phase}): {words_of(self.state.steps[n - 1])}" for n in self.open)
        raise UsageError(f"the agent waits for {'; '.join(waits)}", hint="settle them; a human resolves one in doubt")

    @property
    def ran(self) -> Counter[str]:
        """Number of executions of each tool's code."""
        return Counter(request.tool for request in self.executors.ran)

    def finish(self, pick: Callable[[list[int]], int] | None = None) -> "AgentRun":
        """Go on to the end, or until only a human can continue. The step that is due first ends first, or the one that
        `pick` chooses of the open steps."""
        while able := [(run, step) for run in self.family for step in run.open if run._ends(step)]:
            if len(self.state.steps) > MOST_STEPS:
                hint = "take it a part of its way: start(...), then settle(step)"
                raise UsageError(f"the agent has asked for {len(self.state.steps):,} steps and goes on", hint=hint)
            if pick:
                self.settle(pick([step for step in self.open if self.state.open[step].phase not in FOR_PEOPLE]))
            else:
                run, step = min(able, key=lambda pair: pair[0]._due_ms(pair[1]))
                run._end_wait(step)
        return self

    def settle(self, step: int) -> None:
        """Run an open step to its end, with all of its attempts; or until it is in doubt, or held."""
        if step not in self.state.open:
            raise UsageError(f"step {step} is not open", hint=f"open are {self.open}")
        if self.state.open[step].phase == "child":
            self._family.runs[child_id(self.state.run_id, step)].finish()
            return
        while step in self.state.open and self.state.open[step].phase not in FOR_PEOPLE and not self._waits(step):
            self._end_wait(step)

    def signal(self, name: str, data: Any = None, *, actor: str = "somebody", signal_id: str = "") -> "AgentRun":
        """Send the run a signal, as `refold run signal` does: a wait takes it, now or later."""
        own_id = signal_id or f"signal-{next(self._numbers)}"
        check_name(name)
        return self._send(RunSignal(self.state.run_id, own_id, "signal", canonical.dumps(data), actor, name=name))

    def update(self, name: str, data: Any = None, *, actor: str = "somebody", signal_id: str = "") -> Any:
        """Send the run an update, as `refold run update` does, and return the answer, a Failure if it is one.

        **Raises** UsageError if there is none so far: `answers` has it later.
        """
        own_id = signal_id or f"update-{next(self._numbers)}"
        self.signal(name, data, actor=actor, signal_id=own_id)
        if own_id not in self.answers:
            hint = "finish or settle what it waits for; `answers` has the answer then"
            raise UsageError(f"update {own_id} has no answer so far", hint=hint)
        return self.answers[own_id]

    def answer(self, token: str, data: Any = None, *, failure: str = "", actor: str = "somebody") -> "AgentRun":
        """Resolve a callback, or with a `failure` fail it, as `refold run callback` does."""
        text = canonical.dumps(data)
        return self._send(RunSignal(self.state.run_id, "", "callback", text, actor, callback=token, failure=failure))

    def resolve(self, step: int, finding: Finding, result: Any = None) -> "AgentRun":
        """State the outcome of a call in doubt, as the settlers of its policy, or an operator.

        For a held call an operator decides: `did_not_happen` tries it again, `give_up` lets it fail.
        """
        if step not in (*self.doubts, *self.held):
            raise UsageError(f"step {step} is neither in doubt nor held", hint=f"in doubt are {self.doubts}")
        order, text = self._orders.get(step), canonical.dumps(to_jsonable_python(result))
        if self.state.waits_for(step):
            assert isinstance(order, ApprovalRequest), "who waits for people has asked them"
            vote = Says(FINDINGS[finding], result=text if finding == "happened" else "")
            return self._send(self._panel.decide(order, vote, self.now_ms))
        attempt = self.state.open[step].attempt
        content = {"step": step, "attempt": attempt, "verdict": finding, "result": canonical.parse(text)}
        name = f"resolve-{next(self._numbers)}"
        return self._send(RunOperation(self.state.run_id, name, "resolve", canonical.dumps(content), "operator"))

    def pause(self, reason: str = "", *, actor: str = "operator") -> "AgentRun":
        """Pause the run and its children, as `refold run pause` does: executors finish their running calls."""
        content = canonical.dumps({"reason": reason})
        return self._send(RunOperation(self.state.run_id, f"pause-{next(self._numbers)}", "pause", content, actor))

    def resume(self, *, actor: str = "operator") -> "AgentRun":
        """Resume the run, as `refold run resume` does; `finish` takes it further."""
        return self._send(RunOperation(self.state.run_id, f"resume-{next(self._numbers)}", "resume", "{}", actor))

    def take_over(self) -> None:
        """Forget the running code, as a crash does: at the next event fresh code replays the history."""
        self._runner.forget(self.state.run_id)

    def check(self, agent: str = "") -> None:
        """Run fresh code along the history; with a name, the code of another agent, for example its next version.

        **Raises** NonDeterminismError with the step and the code's request there.
        """
        if agent in ("", self.agent):
            same_end(self.app, self.agent, self.state)
        else:
            rerun(self.app, agent, self.state)

    def save(self, path: str | Path) -> None:
        """Write the history to a file, for `replay` along later code."""
        keep_records(self.records, path)

    def deliver(self, message: Input) -> None:
        """Give the run a message of another one."""
        if isinstance(self._decide(message), list):
            self._take(message)

    def start_child(self, start: Start) -> None:
        # A copy: it shares executors, people and clock with its parent, as runs of one platform.
        child = copy.copy(self)
        child.state, child.agent, child._end = RunState(start.request.run_id), start.request.agent, None
        child.events, child.records, child._orders = [], [], {}
        vars(child).update(sent=[], submitted=[])
        self._family.runs[child.state.run_id] = child
        child._take(replace(start, seed=SEED))

    def _ends(self, step: int) -> bool:
        """True if a step ends without input from the test."""
        opened = self.state.open[step]
        if self._waits(step) or opened.phase in (*FOR_PEOPLE, "child"):
            return False
        return opened.phase not in ("wait", "callback") or opened.due_ms > 0

    def _waits(self, step: int) -> bool:
        """True if the pause of its run holds a step; running attempts and people's decisions go on."""
        phase, order = self.state.open[step].phase, self._orders.get(step)
        decided = phase == "approval" and order and self._decisions.get(order.tool) != "expire"
        return bool(self.state.paused) and phase != "dispatched" and not decided

    def _send(self, message: RunSignal | RunOperation | Decided) -> "AgentRun":
        verdict = self._decide(message)
        if isinstance(verdict, Refuse):
            raise UsageError(f"it is refused: {verdict.reason}", hint=f"in production a dead letter, {verdict.code}")
        if isinstance(verdict, list):
            self._take(message)
        return self

    def _decide(self, message: Input) -> Ruling:
        return self._runner.decide(self.state, message, self.now_ms)

    def _take(self, cause: Input) -> None:
        """Process an input as a planner does: it causes one entry of the history."""
        verdict = self._decide(cause)
        assert isinstance(verdict, list), f"only what is due is given: {verdict}"
        entry, record, self.state = self._write_entry(verdict)
        self.records.append(record)
        self.events += entry.events
        signals: list[RunSignal] = []
        for command in commands(self.state, entry, 0):
            if isinstance(command.message, ToolRequest | ApprovalRequest):
                self._orders[command.message.step] = command.message
            elif isinstance(command.message, RunSignal):
                signals.append(command.message)
            elif isinstance(command.message, RunRequest):
                self.submitted.append(command.message)
        self._check_with_fresh_code()
        self._family.deliver(self, entry)
        for message in signals:
            if relative := self._family.runs.get(message.run_id):
                relative.deliver(message)
            else:
                self.sent.append(message)
        if all(run.state.over for run in self._family.runs.values()):
            self.executors.close()
            if self._boundary is None:
                check_other_seed(self.app, [(run.agent, run.records) for run in self._family.runs.values()])

    def _write_entry(self, verdict: list[Event]) -> WrittenEntry:
        by = "test", len(self.events).to_bytes(16, "big")
        try:
            written = self._runner.take(self.state, verdict, self.now_ms, by=by)
        except StandstillError as error:
            stall = error.stall
        else:
            assert written is not None, "an input that is due has an entry"
            return written
        assert stall is not None, "there is no blob store, so nothing lies in one"
        # Not in the handler above: the code's own error keeps its cause and context.
        raise stall.error or RefoldError(stall.message, code=stall.reason)

    def _check_with_fresh_code(self) -> None:
        """Kill the planner if this is the boundary, and compare fresh code with the history."""
        if self._boundary == Boundary("planner", sum(run.entries for run in self._family.runs.values())):
            self._runner.forget_all()
        checks = self._boundary is None or self.state.over
        if checks and not self.state.unseen:  # a matrix has looked at each of the others once
            self._end = same_end(self.app, self.agent, self.state)

    def _due_ms(self, step: int) -> int:
        opened, order = self.state.open[step], self._orders.get(step)
        if opened.phase == "dispatched":
            assert isinstance(order, ToolRequest), "what is dispatched was ordered"
            return order.at_ms + ATTEMPT_MS
        if opened.phase == "approval":
            assert isinstance(order, ApprovalRequest), "who waits for people has asked them"
            return opened.due_ms if self._decisions.get(order.tool) == "expire" else order.asked_ms
        return opened.due_ms

    def _end_wait(self, step: int) -> None:
        opened, order = self.state.open[step], self._orders.get(step)
        self.executors.now_ms = max(self.now_ms, self._due_ms(step))
        if opened.phase == "dispatched":
            assert isinstance(order, ToolRequest), "what is dispatched was ordered"
            self._take(self.executors.attempt(complete(self.state, order)))
            return
        if opened.phase == "approval":
            assert isinstance(order, ApprovalRequest), "who waits for people has asked them"
            verdict = self._decisions.get(order.tool, "approve")
            if verdict != "expire":
                vote = verdict if isinstance(verdict, Says) else Says(verdict)
                self._take(self._panel.decide(order, vote, self.now_ms))
                return
            if not opened.due_ms:
                raise UsageError(f"the question about {order.tool} never expires", hint="give its rule expires:")
        self._take(Due(self.state.run_id, step, opened.due_ms))


class Relatives:
    """Runs of a test by id, the first one first. `scripts` are the results of agents whose runs are not made."""

    def __init__(self, scripts: Mapping[str, Any]) -> None:
        self.runs: dict[RunId, AgentRun] = {}
        self._scripts, self._undelivered, self._delivering = dict(scripts), deque[FamilyMessage](), False

    def state(self, run: RunId) -> RunState | None:
        relative = self.runs.get(run)
        return relative.state if relative else None

    def below(self, run: RunId) -> list[AgentRun]:
        return [relative for name, relative in self.runs.items() if is_below(name, run) or root_of(name) == run]

    def deliver(self, run: AgentRun, entry: Entry) -> None:
        # Queued: a run that gets a message writes others, which would overtake those sent before.
        self._undelivered.extend(family_messages(run.state, entry))
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._undelivered:
                self._undelivered.extend(self._deliver(self._undelivered.popleft()))
        finally:
            self._delivering = False

    def _deliver(self, message: FamilyMessage) -> Iterator[FamilyMessage]:
        if not isinstance(message, Start):
            if (run := self.runs.get(message.run_id)) is not None:
                run.deliver(self._with_present_pause(message, run) if isinstance(message, PauseAbove) else message)
            return
        if message.before is not None:
            if message.request.agent not in self._scripts:
                self.runs[message.before.run_id].start_child(message)
            return
        assert message.origin is not None, "a run that another starts has an origin"
        parent = self.runs[message.origin.parent]
        if not waits_for(parent.state, message.origin):
            return
        if message.request.agent not in self._scripts:
            parent.start_child(replace(message, pause=pause_above(parent.state, message.origin)))
        elif message.origin.step:
            yield self._scripted(message.origin.parent, message.origin.step, message)

    def _with_present_pause(self, pause: PauseAbove, run: AgentRun) -> PauseAbove:
        above, origin = self.runs[pause.parent], origin_of(run.state)
        return replace(pause, pause=pause_above(above.state, origin) if origin else None)

    def _scripted(self, parent: RunId, step: int, start: Start) -> ChildEnded:
        script = self._scripts[start.request.agent]
        try:
            if isinstance(script, FunctionType):
                script = script(**(canonical.parse(start.request.input) or {}))
            if isinstance(script, BaseException):
                raise script
        except Exception as error:  # noqa: BLE001 - the script of a failing run
            return ChildEnded(parent, step, "failed", "null", failure_of(error))
        return ChildEnded(parent, step, "completed", canonical.dumps(to_jsonable_python(script)), None)


def run(app: App, agent: str, /, **inputs: Any) -> AgentRun:
    """Run an agent to its end, on inputs by name: `run(app, "report", paths=["a.txt"]).value`.

    `tools=`, `agents=`, `decisions=`, `policy=` and `code=` are for `AgentRun`. An agent that has an input of such a
    name is run by `AgentRun(app, agent, {...}).finish()`.
    """
    return start(app, agent, **inputs).finish()


def start(app: App, agent: str, /, **inputs: Any) -> AgentRun:
    """Run an agent to its first waits; `AgentRun.settle` ends one of them. Arguments as of `run`."""
    options = {name: inputs.pop(name) for name in ("tools", "decisions", "policy", "agents", "code") if name in inputs}
    begun = AgentRun(app, agent, inputs, **options)
    RECENT.append(begun)
    return begun
