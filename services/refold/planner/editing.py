"""Gives a call other arguments than the code has asked for, where an operator has said so with a retry."""

from __future__ import annotations

from dataclasses import replace

from refold.core import events
from refold.core.errors import RefoldError
from refold.core.run.intents import Call, Intent, words_of
from refold.core.run.state import RunState


def edited_by_operator(state: RunState, intent: Intent, step: int) -> tuple[Intent, str]:
    """What the code asks for, with the arguments that an operator has given it, if any, and those that it had.

    **Raises** RefoldError where it is another call, or none: the edited one would go out as the code has it.
    """
    edited, args = state.retried.edit
    if not args or step != edited:
        return intent, ""
    first, _ = state.retried.left[-1]
    before = state.steps[first - 1]
    if not isinstance(intent, Call) or not isinstance(before, events.CallProposed) or before.tool != intent.tool:
        message = f"the code asks for {intent.words}, and {words_of(before)} was to have other arguments"
        raise RefoldError(message, code="edit", hint="retry it without --edit")
    return replace(intent, args=args), intent.args
