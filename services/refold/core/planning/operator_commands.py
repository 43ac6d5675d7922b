"""Requests of people about a run: content, and permission of the sender."""

from typing import TypeGuard

from refold.core import events
from refold.core.approval.requester import FRESH_MS, signed_ms
from refold.core.confusables import is_same
from refold.core.errors import MalformedError
from refold.core.messages import RunOperation, RunSignal
from refold.core.planning.verdict import Ignore, Refuse, Rules, Ruling
from refold.core.run.pausing import OPERATOR, REQUESTER
from refold.core.run.state import RunState, note_digest
from refold.core.wire import canonical

REASON_CHARS = 4_096
"""Longest reason or note: both stay in the history of their run."""

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
        role, why = REQUESTER, not_own(state, command, at_ms, rules) or _of_another(state, command, data)
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


def _of_another(state: RunState, signal: RunSignal, data: dict[str, object]) -> str:
    # A token does not cover the signal id: a reader of it could send the note again under another id.
    return "its token is of another note" if is_signed(state) and data.get("id") != signal.signal_id else ""
