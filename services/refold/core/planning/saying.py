"""What people say of a run: what a word holds, and whether it is one of theirs to say."""

from __future__ import annotations

from refold.core.approval.requester import FRESH_MS, signed_ms
from refold.core.errors import MalformedError
from refold.core.glyphs import is_same
from refold.core.messages import RunOperation, RunSignal
from refold.core.planning.verdict import Refuse, Rules
from refold.core.run.state import RunState
from refold.core.wire import canonical

REASON_CHARS = 4_096
"""The longest reason: it stays in the history of its run."""


def not_own(state: RunState, signal: RunSignal, at_ms: int, rules: Rules) -> str:
    """Why somebody does not say this of a run of their own, at this time; nothing if they do."""
    request = state.request
    requester = request.requester if request else ""
    if not is_same(requester, signal.actor):
        whose = f"{requester!r} asked" if requester else "nobody says who asked"
        return f"{whose} for run {state.run_id}, so {signal.actor!r} says {signal.kind} of it only as an operator"
    signed = signed_at(signal, rules) if is_signed(state) else at_ms
    if signed is None:
        return f"{requester!r} has signed the request of this run, and not this {signal.kind}"
    # What was signed once does not end a run for ever after, whoever has kept it.
    return "" if abs(at_ms - signed) <= FRESH_MS else "its token is of another day: sign it again"


def is_signed(state: RunState) -> bool:
    """Whether who asked for a run has signed that. Who has signs what else they say: a name alone anybody may write."""
    return bool(state.request and state.request.token)


def signed_at(signal: RunSignal, rules: Rules) -> int | None:
    """When a signal was signed, by a key that the catalog knows."""
    return signed_ms(signal, rules.authority.catalog.roles.askers if rules.authority else {})


def word_content(said: RunSignal | RunOperation) -> dict[str, object] | Refuse:
    """What a word holds besides its kind."""
    try:
        data = canonical.parse(said.data)
    except MalformedError as error:
        return Refuse("malformed", str(error))
    data = data if isinstance(data, dict) else {}
    if len(str(data.get("reason", ""))) > REASON_CHARS:
        return Refuse("malformed", f"its reason has more than {REASON_CHARS:,} characters")
    return data
