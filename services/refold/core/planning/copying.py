"""Live forks: runs that begin with the history of another one. A planner copies the entries under the id of the fork,
which has the home of its source. Copied entries cause nothing. `RunForked` ends the copy."""

from dataclasses import replace
from typing import Any, NamedTuple

from refold.core import events
from refold.core.errors import ConflictError, MalformedError, UsageError
from refold.core.events import Entry, ForkedFrom
from refold.core.ids import RunId, run_id
from refold.core.messages import RunOperation
from refold.core.planning.family import requested_digest
from refold.core.planning.pausing import REASON_CHARS
from refold.core.planning.redrive import renewed
from refold.core.planning.verdict import Ignore, Input, Refuse, Rules, Ruling, Start
from refold.core.run.pausing import PARENT
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.core.wire.canonical import idempotency_key

FORK = "fork"


class ForkAsked(NamedTuple):
    """Content of a fork request. `edit` has other arguments for the first step after the cut, a call of `tool`."""

    source: ForkedFrom
    edit: str = ""
    tool: str = ""
    reason: str = ""


def fork_asked(order: RunOperation) -> ForkAsked:
    """Parse the content of a fork request. **Raises** MalformedError."""
    source, edit, tool, reason = _fork_data(order.data)
    if "." in order.run_id or order.run_id == source.run_id:
        raise MalformedError(f"a fork of {source.run_id} is a run of its own: {order.run_id} is a child, or the same")
    if type(source.seq) is not int or not isinstance(reason, str) or not isinstance(edit, dict | None):
        raise MalformedError("`at` is a number, `reason` a text, and `edit` an object with all arguments of a call")
    if (edit is None) != (tool == "") or not isinstance(tool, str) or len(reason) > REASON_CHARS:
        raise MalformedError(f"an edit names its `tool`, and a reason has at most {REASON_CHARS:,} characters")
    return ForkAsked(source, canonical.dumps(edit) if tool else "", tool, reason)


def _fork_data(text: str) -> tuple[ForkedFrom, Any, Any, Any]:
    try:
        data = canonical.parse(text)
        source = ForkedFrom(run_id(data["source"]), data["at"], bytes.fromhex(data["head"]))
        return source, data.get("edit"), data.get("tool", ""), data.get("reason", "")
    except (TypeError, KeyError, ValueError, AttributeError):
        raise MalformedError("a fork says `source`, `at` and `head`, and maybe `edit`, `tool` and `reason`") from None


def lacks_history(state: RunState | None, request: ForkAsked) -> bool:
    """True if a run is this fork, or may become it, and its copied history is incomplete."""
    return state is None or (state.copying and _is_this_fork(state, request) and state.head.seq < request.source.seq)


def kept_for(request: ForkAsked, history: list[Entry]) -> list[Entry]:
    """History that a fork keeps. **Raises** ConflictError if it cannot be forked there."""
    run, seq = request.source.run_id, request.source.seq
    if history[-1].last_seq != seq:
        raise ConflictError(f"this entry of run {run} ends at {history[-1].last_seq}, not at {seq}")
    # The copied end would end the fork as well, for as long as the retry that revoked it is not copied.
    if ended := next((entry for entry in history if isinstance(entry.events[-1], events.Terminal)), None):
        raise ConflictError(f"run {run} was over at {ended.last_seq}: fork it before that event")
    return history


def fitting(request: ForkAsked, rules: Rules) -> str:
    """Edited arguments of the next step in canonical form. **Raises** UsageError, MalformedError."""
    return rules.app.fits(request.tool, request.edit) if request.edit and rules.app.fits else request.edit


def may_come(message: Input | None) -> bool:
    """True if an input is allowed for a fork whose history is not completely copied."""
    return isinstance(message, Start) or (isinstance(message, RunOperation) and message.kind in (FORK, "cancel"))


def fork_digest(request: ForkAsked) -> str:
    """Digest of a fork's content, to detect a repeated request."""
    return requested_digest(canonical.dumps([request.source.head.hex(), request.tool, request.edit]))


def copy_of(entry: Entry, request: ForkAsked, run: RunId, before: RunState | None) -> Entry:
    fresh = [_for_fork(event, request) if isinstance(event, events.RunRequested) else event for event in entry.events]
    return replace(entry, run_id=run, prev=before.head.id if before else b"", events=fresh)


def _for_fork(event: events.RunRequested, request: ForkAsked) -> events.RunRequested:
    budget = replace(event.budget, root="") if event.budget else None
    lineage = [*(event.forked.lineage if event.forked else []), request.source.run_id]
    return replace(
        event,
        request_digest=fork_digest(request),
        token="",
        outlives=False,
        above=[],
        budget=budget,
        forked=replace(request.source, lineage=lineage),
    )


def fork(state: RunState | None, order: RunOperation, now: int, rules: Rules) -> Ruling:
    """Ruling on a fork: end of the copy, once it is complete."""
    try:
        request = fork_asked(order)
        edit = fitting(request, rules)
    except (MalformedError, UsageError) as error:
        return Refuse("malformed", error.message)
    own = state.request.forked if state and state.request else None
    if state is None or not _is_this_fork(state, request):
        run, seq = request.source.run_id, request.source.seq
        return Refuse("conflict", f"run {order.run_id} exists, and is not this fork of {run} at {seq}")
    if own is None or not state.copying:  # a finished run may have only its digest
        return Ignore("it was forked before")
    left_ms = state.deadline_ms - state.at_ms if state.deadline_ms else 0
    keys, deadline_ms = _keys(state, rules), now + left_ms if left_ms else 0
    event = events.RunForked(own, order.actor, request.reason, edit, request.tool, deadline_ms, keys)
    fresh: list[events.Event] = [event]
    return fresh + renewed(state, fresh, now, rules)


def frees(state: RunState, fresh: list[events.Event]) -> bool:
    """True if these events end a pause."""
    # It came from the parent of the source, and a fork has no parent.
    first = next(iter(fresh), None)
    return isinstance(first, events.RunForked) and all(pause.role == PARENT for pause in state.paused)


def _is_this_fork(state: RunState, request: ForkAsked) -> bool:
    return state.request is not None and state.request.request_digest == fork_digest(request)


def _keys(state: RunState, rules: Rules) -> dict[str, str]:
    done = {step for step, (_, outcome, _) in state.outcomes.items() if isinstance(outcome, events.CallCompleted)}
    calls = (step for step in range(1, len(state.steps) + 1) if state.is_call(step) and step not in done)
    return {str(step): _key(state, step, rules) for step in calls}


def _key(state: RunState, step: int, rules: Rules) -> str:
    """Idempotency key of a call in a fork, which shares no effect with its source."""
    call, environment = state.call(step), rules.authority.environment if rules.authority else ""
    return idempotency_key(environment=environment, run=state.run_id, step=step, tool=call.tool, args=call.args)


def cut_short(state: RunState, actor: str, rules: Rules) -> list[events.Event]:
    """Events before the cancellation of a fork whose history is not fully copied."""
    own = state.request.forked if state.request and state.copying else None
    return [events.RunForked(own, actor, keys=_keys(state, rules))] if own else []
