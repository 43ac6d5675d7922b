"""Requests of people about a run: pause, resume, note, and the permission of the sender. A paused run records its
inputs, but no event that causes work, so the log alone is enough for a take-over."""

from dataclasses import replace
from typing import NamedTuple, TypeGuard

from refold.core import events
from refold.core.approval.requester import FRESH_MS, signed_ms
from refold.core.confusables import is_same
from refold.core.errors import MalformedError
from refold.core.messages import RunOperation, RunSignal
from refold.core.planning.asking import Draft, send
from refold.core.planning.budgets import missed
from refold.core.planning.verdict import Ignore, PauseAbove, Refuse, Rules, Ruling
from refold.core.run.pausing import OPERATOR, PARENT, REQUESTER, inherited, own
from refold.core.run.state import LastCommand, RunState, note_digest
from refold.core.wire import canonical

REASON_CHARS = 4_096
"""Longest reason or note: both stay in the history of their run."""

PAUSE, RESUME = "pause", "resume"


ANNOTATE = "annotate"
MOST_NOTES = 200
"""Most notes on one run: each makes its history longer."""

OPERATORS_ONLY = "operators_only"
"""Code of the dead letter for an operator's request from a user."""


def not_own(state: RunState, signal: RunSignal, at_ms: int, rules: Rules) -> str:
    """Reason why a request is not from the run's requester, or not fresh; empty if it is."""
    request = state.request
    requester = request.requester if request else ""
    if not is_same(requester, signal.actor):
        author = f"{requester!r} asked" if requester else "nobody says who asked"
        return f"{author} for run {state.run_id}, so {signal.actor!r} says {signal.kind} of it only as an operator"
    signed = signed_at(signal, rules) if is_signed(state) else at_ms
    if signed is None:
        return f"{requester!r} has signed the request of this run, and not this {signal.kind}"
    # An old signature does not end a run again, whoever has a copy of it.
    return "" if abs(at_ms - signed) <= FRESH_MS else "its token is of another day: sign it again"


def is_signed(state: RunState) -> bool:
    """True if the request of a run was signed. Later requests then need a signature, too."""
    return bool(state.request and state.request.token)


def signed_at(signal: RunSignal, rules: Rules) -> int | None:
    return signed_ms(signal, rules.authority.catalog.roles.askers if rules.authority else {})


def command_content(command: RunSignal | RunOperation) -> dict[str, object] | Refuse:
    try:
        data = canonical.parse(command.data)
    except MalformedError as error:
        return Refuse("malformed", str(error))
    data = data if isinstance(data, dict) else {}
    if len(str(data.get("reason", ""))) > REASON_CHARS:
        return Refuse("malformed", f"its reason has more than {REASON_CHARS:,} characters")
    return data


def take_note(state: RunState, command: RunSignal | RunOperation, at_ms: int, rules: Rules) -> Ruling:
    role, data = OPERATOR, command_content(command)
    if isinstance(data, Refuse):
        return data
    if isinstance(command, RunSignal):
        role, why = REQUESTER, not_own(state, command, at_ms, rules) or _wrong_note_id(state, command, data)
        if why:
            return Refuse(OPERATORS_ONLY, why)
    note = data.get("note")
    if not command.signal_id or not _is_note(note):
        return Refuse("malformed", f"a note has an id, and a text of at most {REASON_CHARS:,} characters")
    if (recorded := state.notes.get(command.signal_id)) is not None:
        same = recorded == note_digest(note)
        return Ignore("it is noted") if same else Refuse("conflict", f"another note has the id {command.signal_id}")
    if len(state.notes) >= MOST_NOTES:
        return Refuse("conflict", f"run {state.run_id} has {MOST_NOTES} notes, which is the limit")
    return [events.RunAnnotated(command.signal_id, note, command.actor, role)]


def _is_note(note: object) -> TypeGuard[str]:
    return isinstance(note, str) and bool(note.strip()) and len(note) <= REASON_CHARS


def _wrong_note_id(state: RunState, signal: RunSignal, data: dict[str, object]) -> str:
    # A token does not cover the signal id: a reader of it could send the note again under another id.
    return "its token is of another note" if is_signed(state) and data.get("id") != signal.signal_id else ""


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
    if _is_superseded(state, role, sent, signed):
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


def _is_superseded(state: RunState, role: str, sent: RequestedAt, signed: int) -> bool:
    last, operators = state.pause_orders.get(role, LastCommand()), state.pause_orders.get(OPERATOR, LastCommand())
    # A request comes again after lost positions, a signed one also by replay. A user's request never overtakes an
    # operator's.
    return 0 < signed <= last.signed_ms or (sent.ms > 0 and (sent <= last[:2] or sent.ms < operators.ms))


def follow_parent(state: RunState | None, above: PauseAbove, now: int, rules: Rules) -> Ruling:
    if state is None or state.over:
        return Ignore("the run is not there any more")
    # A message may come twice before its answer is known, and the parent may have changed by then.
    if above.seq <= state.pause_orders.get(PARENT, LastCommand()).place:
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
        opened, resolved = after.open[step], after.resolved.get(step)
        settled = opened.phase in ("doubt", "held") and resolved is not None and resolved.attempt == opened.attempt
        # The pause kept back the next attempt of a call that was proposed, or settled by people since.
        if (opened.phase == "proposed" or settled) and not after.over:
            draft.add(send(after, step, opened.attempt + 1, now, rules, may_have_happened=opened.may_have_happened))
    return draft.events


def keep_back(fresh: list[events.Event]) -> list[events.Event]:
    """Events of a paused run without its dispatches, unless they resume it."""
    if isinstance(fresh[0], events.RunUnpaused):
        return fresh
    return [event for event in fresh if not isinstance(event, events.CallDispatched)]
