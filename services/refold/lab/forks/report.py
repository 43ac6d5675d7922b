"""Reports: a fork beside the recorded run (result, calls, judgements, cost, end), and a replay with an app's code."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from pydantic import Field

from refold.client.reading.model import Data, ReadModel, json_text, plain
from refold.core import events
from refold.core.approval.policy import Judgement
from refold.core.errors import NonDeterminismError, text_of
from refold.core.ids import RunId
from refold.core.run.account import NANO, tokens_of, usage_of
from refold.core.run.fold import fold
from refold.core.run.handed import NO_VALUES, Values
from refold.core.run.state import RunState
from refold.core.wire.blobs import is_pointer, stands_for
from refold.engine.planner.runner import StandstillError
from refold.lab.forks.engine import Fork, ForkChanges, ForkedRun, Surroundings, UnansweredStep
from refold.lab.forks.record import LogRow, RecordedRun
from refold.sdk.app import App
from refold.sdk.frames import stack_of
from refold.sdk.rehearsal import rehearse
from refold.sdk.source import spoken

ForkVerdict = Literal["same", "other", "stopped", "disagrees", "raises"]


class ForkedCall(ReadModel):
    """A call that one side lacks, or that differs in its arguments. `before` and `after` are its steps; 0: none."""

    change: Literal["added", "left out", "changed"]
    run_id: str
    tool: str
    before: int
    after: int
    args: Any
    were: Any


class OtherJudgement(ReadModel):
    """A call of both sides that a policy judges differently in the fork."""

    run_id: str
    step: int
    tool: str
    before: str
    after: str
    rule: str


class ForkReport(ReadModel):
    """Comparison of a fork with its run. Pairs are before and after.

    `verdict`: `same`, `other`, `stopped`, `disagrees` (at `step`; the code agrees up to `fork_at`) or `raises`.
    `answered` counts answers to calls by their source: `record`, `given`, `decided`, `stub`, `pure`. `usd` is None
    without a price of a model. `refused` counts refused actions of the app, by Python's audit event. `isolated`: the
    kernel (seccomp) refused effects too, not only Python. `kept` counts the entries of each run that the fork begins
    with, `rows` are the entries that it added, in no topic: key and value in hex. `steps` lists the recorded step for
    each step of the fork, by run; 0: none."""

    run_id: str
    at: int
    verdict: ForkVerdict
    agent: str = ""
    status: tuple[str, str] = ("", "")
    result: tuple[Any, Any] = (None, None)
    calls: list[ForkedCall] = Field(default_factory=list)
    judgements: list[OtherJudgement] = Field(default_factory=list)
    stopped: list[UnansweredStep] = Field(default_factory=list)
    answered: dict[str, int] = Field(default_factory=dict)
    tokens: tuple[int, int] = (0, 0)
    usd: tuple[float | None, float | None] = (None, None)
    step: int = 0
    fork_at: int = 0
    message: str = ""
    entries: int = 0
    refused: dict[str, int] = Field(default_factory=dict)
    isolated: bool = False
    kept: dict[str, int] = Field(default_factory=dict)
    rows: dict[str, list[tuple[str, str]]] = Field(default_factory=dict)
    steps: dict[str, list[int]] = Field(default_factory=dict)


def forked(
    app: App, family: Mapping[RunId, list[LogRow]], run: RunId, at: int, changes: ForkChanges, around: Surroundings
) -> ForkReport:
    """Fork a run with its descendants. **Raises** UsageError for impossible changes."""
    recorded = {name: RecordedRun.of(rows) for name, rows in family.items()}
    state, agent = recorded[run].state, recorded[run].request.agent
    none = ForkReport(run_id=run, at=at, verdict="raises", agent=agent)
    none = none.model_copy(update={"status": (state.status, ""), "result": (_run_result(state), None)})
    fork = Fork(app, recorded, run, at, changes, around)
    try:
        fork.run()
    except StandstillError as error:
        if not error.step:
            return none.model_copy(update={"message": error.message})
        where = f"{error.run_id}: " if error.run_id != run else ""
        agreed = _agrees_until(app, recorded[run], at, around) if error.run_id == run else 0
        update = {"verdict": "disagrees", "step": error.step, "fork_at": agreed, "message": f"{where}{error.message}"}
        return none.model_copy(update=update)
    return _comparison(fork, recorded, none)


def _agrees_until(app: App, source: RecordedRun, at: int, around: Surroundings) -> int:
    """End of the longest prefix of a history with which today's code agrees."""
    prefix = [(name, entry) for _, entry, name in source.entries if entry.last_seq <= at]

    def differs(count: int) -> bool:
        return check_replay(app, fold(prefix[:count], source.run_id), around.values).verdict != "agrees"

    # Disagreement is final: a replay that differs once differs for every longer prefix, so bisection is valid.
    agreed = bisect_left(range(1, len(prefix)), True, key=differs)
    return prefix[agreed - 1][1].last_seq if agreed else 0


def _comparison(fork: Fork, recorded: Mapping[RunId, RecordedRun], none: ForkReport) -> ForkReport:
    after = {name: line.forked for name, line in fork.lines.items()}
    new, old = after[fork.root].state, recorded[fork.root].state
    names = dict.fromkeys([*recorded, *after])
    fields: dict[str, Any] = {
        "status": (old.status, new.status),
        "result": (_run_result(old), _run_result(new)),
        "calls": [call for name in names for call in _calls(fork, name, recorded.get(name), after.get(name))],
        "judgements": [other for name, run in after.items() for other in _differing_judgements(fork, name, run)],
        **_fork_fields(fork),
        **_spending_fields(fork.app, recorded, after),
    }
    same = not (fields["calls"] or fields["judgements"]) and _same_end(new, old)
    verdict, message = _verdict(fork, new, old, same=same and all(map(_same_outcomes, fork.lines.values())))
    if unused := ", ".join(_unused(fork, new)):
        message = f"{message} it never came to {unused}".strip()
    return none.model_copy(update={**fields, "verdict": verdict, "message": message})


def _verdict(fork: Fork, new: RunState, old: RunState, *, same: bool) -> tuple[ForkVerdict, str]:
    if fork.unanswered:
        return "stopped", ""
    if old.over and not new.over:
        waits = ", ".join(f"step {step} ({opened.phase})" for step, opened in sorted(new.open.items()))
        return "stopped", f"it waits, and nothing comes: {waits or 'nothing'}"
    return "same" if same else "other", ""


def _unused(fork: Fork, state: RunState) -> Iterator[str]:
    changes = fork.changes
    yield from (f"step {step}" for step in sorted(changes.edits) if step > len(state.steps))
    yield from (f"the result of step {step}" for step in sorted(changes.results) if step not in fork.used)
    yield from (call for call in changes.decisions if call not in fork.used)


def _fork_fields(fork: Fork) -> Data:
    lines = fork.lines
    return {
        "stopped": fork.unanswered,
        "answered": dict(sorted(fork.answered.items())),
        "entries": sum(len(line.rows) for line in lines.values()),
        "kept": {name: line.copied for name, line in lines.items()},
        "rows": {name: [(k.hex(), v.hex()) for k, v in line.rows] for name, line in lines.items() if line.rows},
        "steps": {name: [line.matched[step][0] or 0 for step in sorted(line.matched)] for name, line in lines.items()},
    }


def _calls(fork: Fork, name: RunId, recorded: RecordedRun | None, after: RecordedRun | None) -> Iterator[ForkedCall]:
    line = fork.lines.get(name)
    matched = {step: source for step, (source, _) in line.matched.items()} if line else {}
    # The omissions of an unfinished fork are unknown.
    ended = not fork.unanswered and (after is None or after.state.over)
    gone = _proposals(line.source if line else recorded, but=set(matched.values())) if ended else []
    for call in _proposals(after, but={step for step, source in matched.items() if source is not None}):
        were = next((other for other in gone if other.tool == call.tool), None)
        if were is not None:
            gone.remove(were)
        yield _forked_call(name, were, call)
    yield from (_forked_call(name, call, None) for call in gone)


def _proposals(run: RecordedRun | None, *, but: Collection[int | None]) -> list[events.CallProposed]:
    steps = run.state.steps if run else ()
    return [step for step in steps if isinstance(step, events.CallProposed) and step.step not in but]


def _forked_call(run: RunId, before: events.CallProposed | None, after: events.CallProposed | None) -> ForkedCall:
    some = after or before
    assert some is not None, "one side has it"
    return ForkedCall(
        change="left out" if after is None else "changed" if before else "added",
        run_id=run,
        tool=some.tool,
        before=before.step if before else 0,
        after=after.step if after else 0,
        args=json_text(after.args) if after else None,
        were=json_text(before.args) if before else None,
    )


def _differing_judgements(fork: Fork, name: RunId, run: RecordedRun) -> Iterator[OtherJudgement]:
    line = fork.lines[name]
    for step, (source, _) in line.matched.items():
        then = line.source.requests[source].judgement if line.source and source else None
        now = run.requests[step].judgement
        if then is None or now is None or (then.outcome, then.requirement) == (now.outcome, now.requirement):
            continue
        tool = run.requests[step].key[1]
        yield OtherJudgement(run_id=name, step=step, tool=tool, before=_words(then), after=_words(now), rule=now.rule)


def _words(judged: Judgement) -> str:
    needed = judged.requirement
    return f"{judged.outcome} {needed.quorum} of {', '.join(needed.approvers)}" if needed else judged.outcome


def _same_end(new: RunState, old: RunState) -> bool:
    if len(new.steps) != len(old.steps) or new.status != old.status:
        return False
    if isinstance(new.end, events.RunCompleted) and isinstance(old.end, events.RunCompleted):
        was, now = old.end.result, new.end.result
        return stands_for(was, now) if is_pointer(was) else was == now
    if isinstance(new.end, events.RunFailed) and isinstance(old.end, events.RunFailed):
        # Texts of errors may contain addresses of objects.
        return new.end.failure.code == old.end.failure.code
    return True


def _same_outcomes(line: ForkedRun) -> bool:
    were = line.source.state.outcomes if line.source else {}
    ended = ((line.matched[step][0], outcome) for step, (_, outcome, _) in line.state.outcomes.items())
    return all(old is None or old not in were or type(were[old][1]) is type(outcome) for old, outcome in ended)


def _run_result(state: RunState) -> Data | Any:
    if isinstance(state.end, events.RunCompleted):
        return json_text(state.end.result)
    return plain(state.end.failure) if isinstance(state.end, events.RunFailed) else None


def _spending_fields(app: App, *sides: Mapping[RunId, RecordedRun]) -> Data:
    tokens, usd = zip(*(_spent_by(app, runs.values()) for runs in sides), strict=True)
    return {"tokens": tokens, "usd": usd}


def _spent_by(app: App, runs: Iterable[RecordedRun]) -> tuple[int, float | None]:
    outcomes = (outcome for run in runs for _, outcome, _ in run.state.outcomes.values())
    results = (outcome.result for outcome in outcomes if isinstance(outcome, events.CallCompleted))
    usages = [usage for usage in map(usage_of, results) if usage is not None]
    prices = list(map(app.prices.of, usages))
    return sum(tokens_of(usage) or 0 for usage in usages), None if None in prices else sum(filter(None, prices)) / NANO


class CheckJob(NamedTuple):
    state: RunState
    values: Values = NO_VALUES


class ReplayCheck(ReadModel):
    """Result of a replay of a run's history with an app's code.

    `verdict`: `agrees`; `differs`, first at `step`, by `change`; `no_agent`; or `raises`, with the user's `stack`.
    `version`: of the run; `code`: of the tried agent. `needs`: Python, framework or version that this app lacks: an
    agreement then proves little, and a planner would hold the run."""

    run_id: str
    agent: str
    version: str
    code: str
    verdict: Literal["agrees", "differs", "no_agent", "raises"]
    steps: int
    over: bool = False
    step: int = 0
    change: str = ""
    message: str = ""
    needs: str = ""
    stack: str = ""


def check_replay(app: App, state: RunState, values: Values = NO_VALUES) -> ReplayCheck:
    """Replay a run with the app's code for it; `values` are its large values."""
    name = state.request.agent if state.request else ""
    registered = app.agent_of(name, state.version)
    agent = registered or app.agents.get(name)  # where a migration to the newest would lead
    report = ReplayCheck(
        run_id=state.run_id, agent=name, version=state.version, code="", verdict="no_agent", steps=len(state.steps)
    )
    if agent is None:
        names = ", ".join(sorted(app.agents)) or "none"
        return report.model_copy(update={"message": f"app {app.name} has no agent {name}; there is {names}"})
    needs = agent.needs(state.version) if state.version else ""
    if registered is None and not needs:
        needs = f"version {spoken(state.version)[0]}"
    try:
        arrival = rehearse(app, agent, state, values)
        result = {"verdict": "agrees", "over": arrival.over, **(_raised(arrival.error) if arrival.error else {})}
    except NonDeterminismError as error:
        result = _difference(error)
    except Exception as error:  # noqa: BLE001 - the boundary to agent code, which is only tried here
        result = {"verdict": "raises", **_raised(error)}
    return report.model_copy(update={"code": agent.version, "needs": needs, **result})


def _difference(error: NonDeterminismError) -> Data:
    step, change = error.fields.get("step"), str(error.fields.get("change") or "")
    return {"verdict": "differs", "step": step if isinstance(step, int) else 0, "change": change, "message": str(error)}


def _raised(error: BaseException) -> Data:
    return {"message": f"{type(error).__name__}: {text_of(error)}", "stack": stack_of(error)}
