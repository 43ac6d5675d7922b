"""Comparison of fresh code with a test run's history."""

import atexit
import base64
import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NoReturn

from refold.core.errors import NonDeterminismError, UsageError
from refold.core.events import RunCompleted, RunContinued, RunFailed, Terminal
from refold.core.run import chain
from refold.core.run.account import BUDGET_CODES
from refold.core.run.fold import evolve
from refold.core.run.intents import Continuation
from refold.core.run.replay import Raised, Returned, Wanted
from refold.core.run.replay import replay as replay_along
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.sdk.app import App
from refold.sdk.determinism import watch
from refold.sdk.execution import Execution
from refold.sdk.frames import failure_of
from refold.sdk.rehearsal import Past, rehearse
from refold.testing.reading import RunRead

Records = Sequence[tuple[bytes, bytes]]

_LIMITS = {*BUDGET_CODES.values(), "too_large", "too_many_waits", "no_price"}
"""Codes of runs that ended at the request of a step, which planners then do not record."""


def rerun(app: App, agent: str, state: RunState) -> tuple[Returned | Raised | None, Wanted]:
    """End of fresh code after the history, and its requests beyond it."""
    moment, request = Past(), state.request
    assert request is not None, "a run begins with a request"
    context = app.context(state.run_id, seed=request.seed, moment=moment, history=state)
    with watch.watching():
        try:
            definition = app.agents[agent]
            if definition.draws:
                definition.completed(request.input)
            code = definition.open(request.input, context)
            execution = Execution(code, moment, request.seed, left=state.retried.left, context=context)
        except UsageError as error:
            return Raised(error), []
        try:
            beyond = replay_along(execution, state)
        finally:
            execution.close()
    return execution.end, beyond


def same_end(app: App, agent: str, state: RunState) -> Returned | Raised | None:
    """End of the agent, if there was one. **Raises** NonDeterminismError if fresh code ends elsewhere."""
    end, beyond = rerun(app, agent, state)
    # A run that a limit has ended made one more request, which was refused.
    if beyond and not (isinstance(state.end, RunFailed) and state.end.failure.code in _LIMITS):
        step, intent = beyond[0]
        _raise_difference(step, "nothing", intent.words)
    before, again = _end_text(state.end), _end_text(_terminal_of(app, agent, end))
    # A policy or the end of an approval may have ended it too, and then the code is not over.
    if again != before and not (end is None and isinstance(state.end, RunFailed)):
        _raise_difference(len(state.steps) + 1, before, again)
    return end


def keep_records(records: Records, path: str | Path) -> None:
    """Write the records of a history to a file: a JSON array, with key and value in base64."""
    rows = [[base64.b64encode(part).decode() for part in record] for record in records]
    Path(path).write_text(canonical.dumps(rows) + "\n")


def replay(app: App, history: str | Path | RunRead) -> RunState:
    """Replay the present agents, without effects, along a history: one from `AgentRun.save`, or of a run of another app
    or code. **Raises** NonDeterminismError, which names the first step that differs; UsageError if the app has no such
    agent, or this is no history."""
    state, source = (history.state, "this run") if isinstance(history, RunRead) else (_history_state(history), history)
    name = state.request.agent if state.request else ""
    agent = app.agent_of(name, state.version) or app.agents.get(name)
    if agent is None:
        raise UsageError(f"app {app.name} has no agent for {source}", hint=f"there is {', '.join(sorted(app.agents))}")
    rehearse(app, agent, state)
    return state


def _history_state(history: str | Path) -> RunState:
    rows = canonical.parse(Path(history).read_text())
    if not rows:
        raise UsageError(f"there is no history in {history}", hint="AgentRun.save writes one")
    return fold_records([(base64.b64decode(key), base64.b64decode(value)) for key, value in rows], str(history))


def fold_records(records: Records, source: str = "the history") -> RunState:
    state: RunState | None = None
    for key, value in records:
        record = chain.read(key, value)
        if not isinstance(record, chain.LogRecord):
            raise UsageError(f"{source} has a record that is none of a run log", hint=str(record))
        state = evolve(state or RunState(record.entry.run_id), record.entry, record.id)
    assert state is not None, "a history has records"
    return state


def _terminal_of(app: App, agent: str, end: Returned | Raised | None) -> Terminal | None:
    if isinstance(end, Returned):
        if isinstance(end.value, Continuation):
            return RunContinued(end.value.input)
        try:
            return RunCompleted(app.agents[agent].result_json(end.value))
        except UsageError as error:
            return RunFailed(failure_of(error))
    return RunFailed(failure_of(end.error)) if end else None


def _end_text(end: Terminal | None) -> str:
    if isinstance(end, RunCompleted):
        return f"the end with {end.result}"
    if isinstance(end, RunContinued):
        return f"the next generation with {end.input}"
    # Texts of errors may contain addresses of objects.
    return f"the end by {end.failure.code}" if isinstance(end, RunFailed) else "no end"


def _raise_difference(step: int, before: str, again: str) -> NoReturn:
    problem = f"step {step} is {before} in history and {again} when the code runs again"
    hint = "let it depend on its input, its context and what its calls gave"
    raise NonDeterminismError(problem, step=step, expected=before, found=again, hint=hint)


# The same in a process with another hash seed, in which sets have another order. One process for each seed, begun when
# the first run of a module's app has ended, answers for all tests of this one. Agents that a test defines in its own
# function are nowhere else, and are not looked at.

_INSIDE: Final = "_REFOLD_OTHER_SEED"
# If the first differs, the others decide: a module patched by a test differs in all of them alike.
_SEEDS: Final = ("1", "2", "3")


def check_other_seed(app: App, runs: Iterable[tuple[str, Records]]) -> None:
    """Run an app's agents along histories. **Raises** NonDeterminismError if the result depends on the hash seed."""
    if _INSIDE in os.environ:  # a module that runs agents when it is imported
        return
    place = next((place for name, module in [*sys.modules.items()] if (place := _variable_of(name, module, app))), None)
    for agent, records in runs if place else ():
        order = (place, agent, [*records])
        if (first := _ask_process(_SEEDS[0], order)) and any(_ask_process(seed, order) != first for seed in _SEEDS[1:]):
            hint = "sort what comes from a set, and use no hash() of a text"
            raise NonDeterminismError(f"in a process with another hash seed {first}", hint=hint)


def _variable_of(name: str, module: Any, app: App) -> tuple[str, str] | None:
    if name in ("__main__", "builtins") or not isinstance(names := getattr(module, "__dict__", None), dict):
        return None
    return next(((name, variable) for variable, value in [*names.items()] if value is app), None)


def _ask_process(seed: str, order: Any) -> str:
    """Disagreement with a history in that process; empty if it agrees, or without an answer."""
    with suppress(OSError, EOFError, ValueError, pickle.PickleError):
        process: Any = _seeded_process(seed)
        pickle.dump(order, process.stdin)
        process.stdin.flush()
        return str(pickle.load(process.stdout))
    return ""


@lru_cache
def _seeded_process(seed: str) -> subprocess.Popen[bytes]:
    own = {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), _INSIDE: "yes"}
    command, pipe, env = [sys.executable, "-m", "refold.testing.reruns"], subprocess.PIPE, {**os.environ, **own}
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=env)
    atexit.register(process.communicate)  # it ends when its input does
    return process


def _compare_order(order: Any) -> str:
    (module, name), agent, records = order
    try:
        same_end(getattr(importlib.import_module(module), name), agent, fold_records(records))
    except NonDeterminismError as error:
        return error.message
    except BaseException:  # noqa: BLE001 - a module that cannot be imported there, and whatever else it does
        return ""
    return ""


if __name__ == "__main__":
    # Answers have a copy of stdout: texts that imported modules print would lie between the pickles.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with suppress(EOFError):
        while True:
            pickle.dump(_compare_order(pickle.load(sys.stdin.buffer)), answers)
            answers.flush()
