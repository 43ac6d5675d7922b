"""The effects of each way to decide on a question, by the effect class of its tool."""

from __future__ import annotations

from typing import NamedTuple

from refold.core.events import DOUBT
from refold.core.messages import ApprovalRequest
from refold.views.words import duration, in_utc

CRASHED = {
    "pure": "If its executor dies, it runs again: it changes nothing.",
    "keyed": "If its executor dies, it goes out again with the same key, which the receiver counts once.",
    "probed": "If its executor dies, the receiver is asked whether it happened, before anybody tries again.",
    "once": "If its executor dies, nobody tries again: people are asked for the outcome.",
}
"""What becomes of a call whose executor dies, by effect class."""


class Deed(NamedTuple):
    """A way to decide: its effects, and those that it does not have."""

    verb: str
    happens: str
    never: str


def deeds(request: ApprovalRequest) -> list[Deed]:
    """Return the ways to decide on a question, and the one of not deciding."""
    if request.about == DOUBT:
        return [
            Deed(
                "It happened",
                "The agent gets your result, as if the tool had answered.",
                "The call does not go out again.",
            ),
            Deed(
                "It did not happen",
                f"The call goes out again, as attempt {request.attempt}, with the same key.",
                "If it did happen after all, it may have happened twice.",
            ),
            Deed("Give up", "The agent sees a call that has failed.", "The call does not go out again."),
            Deed("Nobody decides", "The call waits, for as long as it takes.", "Nothing goes out."),
        ]
    needed = request.requirement
    covered = f"It covers attempts up to {request.covers}. " if request.covers > request.attempt else ""
    lapse = f"Not used within {duration(needed.valid_ms)}, it lapses and people are asked again."
    context = " What begins with $ stays as it is." if '"$' in request.args else ""
    found = [
        Deed(
            "Approve",
            f"This one call goes out, once, with exactly these arguments. {covered}{CRASHED.get(request.effect, '')}",
            f"Nothing else of this run is done again, and no other call is let out. {lapse}",
        ),
        Deed(
            "Reject",
            "The agent sees a call that has failed, with your message, and goes on.",
            "The call never goes out. The run does not end by it, unless its agent ends it.",
        ),
    ]
    if request.attempt == 1:
        found[1:1] = [
            Deed(
                "Edit and approve",
                "The call goes out with your arguments. The policy is asked about them first, and where it names other "
                "people, it becomes their question.",
                f"The arguments that the agent proposed never go out.{context}",
            )
        ]
        found.append(
            Deed("Answer", "The agent gets your result, as if the tool had answered.", "The tool does not run.")
        )
    return [*found, Deed("Nobody decides", _waits(request), "Nothing goes out before somebody has decided.")]


def _waits(request: ApprovalRequest) -> str:
    needed = request.requirement
    then = {"fail": "the run fails", "reject": "it is rejected"}.get(needed.on_expiry, "it is rejected")
    more = f"At {in_utc(request.asked_ms + needed.escalate_ms)} {', '.join(needed.escalate_to)} may decide, too. "
    escalates = more if needed.escalate_ms and needed.escalate_to and not request.level else ""
    if needed.on_expiry == "escalate" and not request.level:
        then = f"it goes to {', '.join(needed.escalate_to)}"
    return escalates + (f"At {in_utc(request.expires_ms)} {then}." if request.expires_ms else "The call waits.")
