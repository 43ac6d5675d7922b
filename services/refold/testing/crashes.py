"""`crash_matrix`: runs an agent once for every place of a kill, and counts effects. The planner dies after each entry,
the executor before each tool begins and after each has ended, before its result is recorded."""

import dis
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from secrets import token_hex
from types import FunctionType
from typing import Any

from refold.core.events import CallDoubted
from refold.core.ids import root_of
from refold.core.messages import ToolRequest
from refold.core.run.intents import call_words
from refold.sdk.app import App
from refold.testing.agents import AgentRun
from refold.testing.people import PeopleSay
from refold.testing.reading import Boundary

Scripts = Mapping[Callable[..., Any] | str, Any]
KEY = "idempotency_key"


@dataclass(frozen=True, slots=True)
class Repeated:
    """A call whose effect happened too often: `times`, first when killed at this boundary, of `places` in all."""

    tool: str
    effect: str
    step: int
    call: str
    key: str
    times: int
    boundary: Boundary
    reason: str
    places: int = 1

    def __str__(self) -> str:
        more = f" (and at {self.places - 1} other boundaries)" if self.places > 1 else ""
        times = "once" if self.times == 1 else f"{self.times} times"
        acted = f"{self.tool} ({self.effect}) acted {times} {_boundary_text(self.boundary)}{more}"
        return f"{acted}: step {self.step}, {self.call}, key {self.key[:12]}: {self.reason}"


@dataclass(slots=True)
class CrashReport:
    """Results at all crash points. `effects` counts by tool over the undisturbed run.

    `cases` is the number of runs; `entries` and `tools_run` count in the undisturbed one. `repeated` are calls that
    acted more than once, `astray` other wrong results of a kill: another end, or a doubt about a call that may be made
    again. `doubts` are the calls for people to settle, by tool.
    """

    agent: str
    cases: int = 0
    entries: int = 0
    tools_run: int = 0
    effects: Counter[str] = field(default_factory=Counter)
    repeated: list[Repeated] = field(default_factory=list)
    astray: list[tuple[Boundary, str]] = field(default_factory=list)
    doubts: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        """True if no effect happened twice, and every run ended as the undisturbed one or needs people."""
        return not (self.repeated or self.astray)

    def __str__(self) -> str:
        return "\n".join(self._report_lines())

    def _report_lines(self) -> Iterator[str]:
        yield (
            f"crash matrix of {self.agent}: {self.cases} runs; killed were the planner after each of {self.entries} "
            f"entries, an executor before and after each of {self.tools_run} runs of tools"
        )
        yield from (f"  {repeated}" for repeated in self.repeated)
        yield from (f"  {problem} {_boundary_text(boundary)}" for boundary, problem in self.astray)
        if self.effects:
            yield "  undisturbed: " + ", ".join(f"{tool} {times}" for tool, times in sorted(self.effects.items()))
        if self.doubts:
            calls = ", ".join(f"{tool} ({times})" for tool, times in sorted(self.doubts.items()))
            yield f"  people were asked what came of: {calls}"


class CrashError(AssertionError):
    """An unacceptable effect of a crash. `report` has all of them."""

    def __init__(self, report: CrashReport) -> None:
        super().__init__(str(report))
        self.report = report


def crash_matrix(
    app: App,
    agent: str,
    inputs: Mapping[str, Any],
    *,
    tools: Scripts | Callable[[], Scripts] | None = None,
    effects: Callable[[], int] | None = None,
    drive: Callable[[AgentRun], object] = AgentRun.finish,
    decisions: Mapping[str, PeopleSay] | None = None,
    policy: Mapping[str, Any] | None = None,
    agents: Mapping[str, Any] | None = None,
) -> CrashReport:
    """Run an agent once undisturbed, and once more for each boundary, with a kill there.

    `effects` returns the number of effects in the test's world so far, before and after each run of a tool: `lambda:
    len(bank.transfers)`. Without it every run of a tool is an effect, except of `pure` ones, and of `keyed` ones that
    use their key. `tools` are scripts, or a function that makes new ones for each run. `drive` takes a run to its end,
    for those that wait for signals or callbacks. Each run has an id and keys of its own. **Raises** CrashError when an
    effect happened twice, or a run ended unlike the undisturbed one; NonDeterminismError as every run of the kit.
    """
    __tracebackhide__ = True  # pytest: the text of the error is complete
    # A world that has seen these keys before, in another test or another day, would deduplicate, and hide effects.
    report, matrix = CrashReport(agent), token_hex(4)
    scripts = tools if callable(tools) else lambda: tools or {}

    def case(boundary: Boundary | None) -> tuple[AgentRun, _EffectCounter]:
        report.cases += 1
        fresh, name = scripts(), f"{matrix}-{report.cases}"
        options: dict[str, Any] = {"decisions": decisions, "policy": policy, "agents": agents}
        run = AgentRun(app, agent, inputs, tools=fresh, name=name, boundary=boundary, **options)
        counted = _EffectCounter(app, fresh, effects)
        run.executors.watch = counted.watch
        try:
            drive(run)
        except Exception:
            if not _doubted_calls(run):  # its next step may depend on a call that waits for people
                raise
        finally:
            run.executors.close()
        return run, counted

    calm, expected = case(None)
    report.entries, report.tools_run = sum(run.entries for run in calm.family), len(calm.executors.ran)
    report.effects = expected.effects_by_tool()
    report.repeated += expected.acting_while_pure()
    worst: dict[tuple[str, int, str], Repeated] = {}
    for boundary in _boundaries(calm):
        run, counted = case(boundary)
        report.doubts.update(relative.state.call(step).tool for relative in run.family for step in relative.doubts)
        report.astray += ((boundary, problem) for problem in _wrong_results(run, calm))
        for again in counted.beyond(expected, boundary):
            place = (again.tool, again.step, again.call)
            first = worst.get(place, again)
            places = first.places + (first is not again)
            worst[place] = replace(max(first, again, key=lambda one: one.times), places=places)
    report.repeated += worst.values()
    if not report.ok:
        raise CrashError(report)
    return report


class _EffectCounter:
    """Effects of a run, by the idempotency keys of its calls."""

    def __init__(self, app: App, scripts: Scripts, effects: Callable[[], int] | None) -> None:
        self._app, self._effects = app, effects
        self._scripts = {app.find(named).name: script for named, script in scripts.items()}
        self.times: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self.calls: dict[str, ToolRequest] = {}

    def watch(self, request: ToolRequest) -> Callable[[], None]:
        before = self._effects() if self._effects else 0

        def over() -> None:
            self.calls[request.key] = request
            self.runs[request.key] += 1
            self.times[request.key] = self._effects_so_far(request, before)

        return over

    def effects_by_tool(self) -> Counter[str]:
        totals: Counter[str] = Counter()
        for key, times in self.times.items():
            totals[self.calls[key].tool] += times
        return totals

    def acting_while_pure(self) -> list[Repeated]:
        reason = 'effect="pure" says that it may run any number of times: declare it keyed, probed or once'
        return [
            self._repeated(key, Boundary("planner", 0), reason)
            for key, call in self.calls.items()
            if call.effect == "pure" and self.times[key]
        ]

    def beyond(self, calm: "_EffectCounter", boundary: Boundary) -> list[Repeated]:
        usual = {(_child_path(call.run_id), call.step): calm.times[key] for key, call in calm.calls.items()}
        return [
            self._repeated(key, boundary, self._reason(call))
            for key, call in self.calls.items()
            if call.effect != "pure" and self.times[key] > max(1, usual.get((_child_path(call.run_id), call.step), 1))
        ]

    def _effects_so_far(self, request: ToolRequest, before: int) -> int:
        if self._effects:
            return self.times[request.key] + self._effects() - before
        if request.effect == "pure":
            return 0
        recognised = request.effect == "keyed" and self._uses_key(request.tool) is not False
        return 1 if recognised else self.runs[request.key]

    def _uses_key(self, tool: str) -> bool | None:
        if self._app.tools[tool].keyed_by == "arguments":
            return None
        script = self._scripts.get(tool, self._app.tools[tool].function)
        if not isinstance(script, FunctionType) or (tool in self._scripts and KEY not in _parameters(script)):
            return None  # a script has the result of a call, not the way it is made
        return uses_key(script)

    def _reason(self, call: ToolRequest) -> str:
        if call.effect == "keyed":
            if self._uses_key(call.tool) is False:
                return f"it does not use its {KEY}, so nobody can recognise the repetition"
            return f"whoever it calls does not recognise its {KEY}: is it handed on?"
        if call.effect == "probed":
            return "its probe said that it did not happen, and it had"
        return "it may not run again after it has acted"

    def _repeated(self, key: str, boundary: Boundary, reason: str) -> Repeated:
        call = self.calls[key]
        text = call_words(call.tool, call.args).removeprefix("call ")
        return Repeated(call.tool, call.effect, call.step, text, key, self.times[key], boundary, reason)


def uses_key(function: FunctionType) -> bool:
    plain = inspect.unwrap(function)
    code = getattr(plain, "__code__", None)
    if code is None or {"locals", "vars"} & set(code.co_names):
        return True  # unknown
    if KEY in code.co_names:  # tools of frameworks have it from a function, or from a context of theirs
        return True
    if KEY not in _parameters(plain):
        return False
    if KEY in code.co_cellvars:
        return True
    loads = (step.argval for step in dis.get_instructions(code) if step.opname.startswith("LOAD_"))
    return any(name == KEY or (isinstance(name, tuple) and KEY in name) for name in loads)


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def _wrong_results(run: AgentRun, calm: AgentRun) -> Iterator[str]:
    usual = _doubted_calls(calm)
    for relative in run.family:
        for event in relative.events:
            if not isinstance(event, CallDoubted) or event.step not in relative.doubts:
                continue
            call = relative.state.call(event.step)
            if call.effect != "once" and (_child_path(relative.state.run_id), event.step) not in usual:
                yield f"{call.tool} ({call.effect}), made again, came to be in doubt ({event.failure.message})"
    last, usual_last = run.latest, calm.latest
    if last.status != usual_last.status and not _doubted_calls(run):
        why = last.failure.message if last.failure else "it waits"
        yield f"{run.agent} was {last.status} ({why}) and not {usual_last.status},"


def _doubted_calls(run: AgentRun) -> set[tuple[str, int]]:
    return {(_child_path(relative.state.run_id), step) for relative in run.family for step in relative.doubts}


def _child_path(run: str) -> str:
    # The root has another name in each case.
    return run.removeprefix(root_of(run))


def _boundaries(calm: AgentRun) -> Iterator[Boundary]:
    for number in range(1, sum(run.entries for run in calm.family) + 1):
        yield Boundary("planner", number)
    for number in range(1, len(calm.executors.ran) + 1):
        yield Boundary("before", number)
        yield Boundary("after", number)


def _boundary_text(boundary: Boundary) -> str:
    if boundary.number == 0:
        return "with nothing killed"
    if boundary.dies == "planner":
        return f"with the planner killed after entry {boundary.number}"
    when = "before the tool began" if boundary.dies == "before" else "between the effect and the log hearing of it"
    return f"with the executor killed {when} (tool run {boundary.number})"
