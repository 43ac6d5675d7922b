"""Pause and resume of runs. A paused run records its inputs, but no event that causes work, so the log alone is enough
for a take-over."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from refold.core import events
from refold.core.messages import RunOperation, RunSignal
from refold.core.planning.asking import send
from refold.core.planning.deadlines import missed
from refold.core.planning.operator_commands import OPERATORS_ONLY, command_content, is_signed, not_own, signed_at
from refold.core.planning.verdict import Ignore, PauseAbove, Refuse, Rules, Ruling
from refold.core.run.fold import advance
from refold.core.run.pausing import OPERATOR, PARENT, REQUESTER, inherited, own
from refold.core.run.state import LastCommand, RunState

PAUSE, RESUME = "pause", "resume"


class RequestedAt(NamedTuple):
    """Append time and offset of a request's record; 0 if it is no record."""

    ms: int
    place: int = 0


def take_word(state: RunState, order: RunSignal | RunOperation, now: int, rules: Rules, *, sent: RequestedAt) -> Ruling:
    """Ruling on a request to pause or resume a run."""
    role = OPERATOR if isinstance(order, RunOperation) else REQUESTER
    if isinstance(order, RunSignal) and (why := not_own(state, order, min(now, sent.ms or now), rules)):
        return Refuse(OPERATORS_ONLY, why)
    data = command_content(order)
    if isinstance(data, Refuse):
        return data
    signed = (signed_at(order, rules) or 0) if isinstance(order, RunSignal) and is_signed(state) else 0
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
    """True if a request was overtaken by a later one. A user's request never overtakes an operator's."""
    last, operators = state.pause_said.get(role, LastCommand()), state.pause_said.get(OPERATOR, LastCommand())
    # A request comes again after lost positions, a signed one also by replay.
    return 0 < signed <= last.signed_ms or (sent.ms > 0 and (sent <= last[:2] or sent.ms < operators.ms))


def follow_parent(state: RunState | None, above: PauseAbove, now: int, rules: Rules) -> Ruling:
    """Ruling on the pause or resumption of the parent."""
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
    added: list[events.Event] = []
    after, seq, at_ms = state.copy(), state.head.seq + 1, max(now, state.at_ms)

    def add(more: list[events.Event]) -> None:
        advance(after, more, seq=seq + len(added), at_ms=at_ms)
        added.extend(more)

    add([over])
    if not after.paused and (end := missed(after, now)) is not None:
        return [over, end]
    request = after.request
    if not after.paused and after.status == "pending" and request and request.not_before_ms <= now:
        add([rules.app.start(request.agent)])
    for step in sorted(after.open) if not after.paused else ():
        opened, resolved = after.open[step], after.resolved.get(step)
        settled = opened.phase in ("doubt", "held") and resolved is not None and resolved.attempt == opened.attempt
        if (opened.phase == "proposed" or settled) and not after.over:
            add(send(after, step, opened.attempt + 1, now, rules, may_have_happened=opened.may_have_happened))
    return added


def keep_back(fresh: list[events.Event]) -> list[events.Event]:
    """Events of a paused run without its dispatches, unless they resume it."""
    if isinstance(fresh[0], events.RunUnpaused):
        return fresh
    return [event for event in fresh if not isinstance(event, events.CallDispatched)]
