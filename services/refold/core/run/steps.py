"""Transitions of a run's steps: number, update, settle and give up."""

from refold.core.errors import FoldError
from refold.core.events import CallCompleted, CallFailed
from refold.core.run.state import WAITING, OpenStep, RunState, Settled, Step

_NO_CALLS = frozenset({"sleep", "wait", "callback", "child"})
_OF_CALLS = frozenset({CallCompleted, CallFailed})


def number(state: RunState, event: Step, seq: int) -> int:
    """Add the next step of a run, proposed as event `seq`; return its number."""
    state.steps, state.seqs = state.steps.append(event), state.seqs.append(seq)
    if event.step != len(state.steps):
        raise FoldError(f"run {state.run_id} numbers a step {event.step} as its {len(state.steps)}th")
    return event.step


def keep(state: RunState, step: int, opened: OpenStep, before: OpenStep | None = None) -> None:
    """Set an open step; `before` is its previous value."""
    if before is not None and before.phase in _NO_CALLS and opened.phase != before.phase:
        raise KeyError(step)  # only calls are tried, judged and doubted
    state.busy += (opened.phase not in WAITING) - (before is not None and before.phase not in WAITING)
    state.open = state.open.set(step, opened)


def settle(state: RunState, step: int, outcome: Settled, *, seq: int, at_ms: int) -> None:
    opened = state.open[step]
    if (opened.phase in _NO_CALLS) is (type(outcome) in _OF_CALLS):
        raise KeyError(step)
    state.busy -= opened.phase not in WAITING
    state.open = state.open.delete(step)
    state.outcomes = state.outcomes.add(step, (at_ms, outcome, seq))


def give_up(state: RunState, step: int, *, seq: int) -> None:
    """Close a step that was given up. A call in doubt stays open for people."""
    opened = state.open[step]
    state.given_up = state.given_up.set(step, opened._replace(given_up_at=seq))
    if opened.phase != "doubt":  # a doubt has to be settled all the same
        state.busy -= opened.phase not in WAITING
        state.open = state.open.delete(step)
