"""Pause and resume of runs. A paused run records its inputs, but no event that causes work, so the log alone is enough
for a take-over."""

from dataclasses import replace
from typing import NamedTuple

from refold.core import events
from refold.core.messages import RunOperation, RunSignal
from refold.core.planning.asking import Draft, send
from refold.core.planning.budgets import missed
from refold.core.planning.operator_commands import OPERATORS_ONLY, command_content, is_signed, not_own, signed_at
from refold.core.planning.verdict import Ignore, PauseAbove, Refuse, Rules, Ruling
from refold.core.run.pausing import OPERATOR, PARENT, REQUESTER, inherited, own
from refold.core.run.state import LastCommand, OpenStep, RunState

PAUSE, RESUME = "pause", "resume"


class RequestedAt(NamedTuple):
    """Append time and offset of a request's record; 0 if it is no record."""

    ms: int
    place: int = 0

    def append_ms(self, now: int) -> int:
        # A delay in reading is not the sender's fault.
        return min(now, self.ms or now)


def take_word(state: RunState, order: RunSignal | RunOperation, now: int, rules: Rules, *, sent: RequestedAt) -> Ruling:
    """Ruling on a request to pause or resume a run."""
    role, signed = OPERATOR, 0
    if isinstance(order, RunSignal):
        role, signed = REQUESTER, (signed_at(order, rules) or 0) if is_signed(state) else 0
        if why := not_own(state, order, sent.append_ms(now), rules):
            return Refuse(OPERATORS_ONLY, why)
    data = command_content(order)
    if isinstance(data, Refuse):
        return data
    if _is_old(state, role, sent, signed):
        return Ignore("it was heard before, or something was said since")
    if order.kind == RESUME:
        return _resume(state, events.RunUnpaused(order.actor, role, *sent, signed), now, rules)
    if (pause := own(state)) is not None and role in (REQUESTER, pause.role):
        return Ignore("the run is paused already")
    return [events.RunPaused(order.actor, str(data.get("reason", "")), role, *sent, signed)]


def _resume(state: RunState, over: events.RunUnpaused, now: int, rules: Rules) -> Ruling:
    pause = own(state)
    if pause is None and state.paused:
        return Refuse("conflict", f"run {state.run_id} is paused with the run above it: resume that one")
    if pause is None:
        return Ignore("the run is not paused")
    if over.role == REQUESTER != pause.role:
        return Refuse(OPERATORS_ONLY, f"{pause.actor!r} has paused run {state.run_id} as an operator: one resumes it")
    return go_on(state, over, now, rules)


def _is_old(state: RunState, role: str, sent: RequestedAt, signed: int) -> bool:
    last, operators = state.pause_said.get(role, LastCommand()), state.pause_said.get(OPERATOR, LastCommand())
    # A request comes again after lost positions, a signed one also by replay. A user's request never overtakes an
    # operator's.
    return 0 < signed <= last.signed_ms or (sent.ms > 0 and (sent <= last[:2] or sent.ms < operators.ms))


def follow_parent(state: RunState | None, above: PauseAbove, now: int, rules: Rules) -> Ruling:
    if state is None or state.over:
        return Ignore("the run is not there any more")
    # A message may come twice before its answer is known, and the parent may have changed by then.
    if above.seq <= state.pause_said.get(PARENT, LastCommand()).place:
        return Ignore("it has heard of its parent since")
    if (above.pause is None) == (inherited(state) is None):
        return Ignore("it stands as its parent does")
    if above.pause is not None:
        return [replace(above.pause, seq=above.seq)]
    return go_on(state, events.RunUnpaused(above.parent, PARENT, seq=above.seq), now, rules)


def go_on(state: RunState, over: events.RunUnpaused, now: int, rules: Rules) -> list[events.Event]:
    """Events of the end of a pause, with the work that it held back if it was the last."""
    draft = Draft(state, now)
    draft.add([over])
    after = draft.after
    if after.paused:
        return draft.events
    if (end := missed(after, now)) is not None:
        return [over, end]
    draft.start(now, rules)
    for step in sorted(after.open):
        opened = after.open[step]
        if _is_kept_back(after, step, opened) and not after.over:
            draft.add(send(after, step, opened.attempt + 1, now, rules, may_have_happened=opened.may_have_happened))
    return draft.events


def _is_kept_back(state: RunState, step: int, opened: OpenStep) -> bool:
    """True if the pause kept back the next attempt of a call: proposed, or settled by people since."""
    resolved = state.resolved.get(step)
    settled = opened.phase in ("doubt", "held") and resolved is not None and resolved.attempt == opened.attempt
    return opened.phase == "proposed" or settled


def keep_back(fresh: list[events.Event]) -> list[events.Event]:
    """Events of a paused run without its dispatches, unless they resume it."""
    if isinstance(fresh[0], events.RunUnpaused):
        return fresh
    return [event for event in fresh if not isinstance(event, events.CallDispatched)]
