"""What becomes of a call after any word of an executor: every verdict of `decide` on it, in one letter each.

`python -m tests.core.effects` writes them; they were written before the matrix was a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

from refold.core.events import (
    ApprovalRequested,
    AttemptFailed,
    CallCompleted,
    CallDispatched,
    CallDoubted,
    CallFailed,
    CallJudged,
    Event,
    Failure,
)
from refold.core.messages import ToolResult
from refold.core.planning.decide import decide
from refold.core.planning.verdict import Ignore, Rules
from tests.core import approvals
from tests.core.histories import EFFECTS, JUDGED, NOW, RULES, Log, call, started

PATH = Path(__file__).with_name("effects.txt")
PHASES = ("dispatched", "doubt", "backoff", "proposed", "approval")
STATUSES = ("completed", "failed", "broken", "unknown", "doubt", "unauthorised")
CODES = ("unauthorised", "policy_changed", "decision_expired")
"""Why an executor has sent nothing: for good, for a policy that is not known here, or for a decision that is over."""

_LETTERS: dict[type[Event], str] = {
    AttemptFailed: "r",  # R: and the effect may have happened
    CallDoubted: "d",
    CallFailed: "f",
    CallCompleted: "c",
    CallJudged: "j",
    CallDispatched: "o",
    ApprovalRequested: "q",
}
_IGNORED = {"another attempt is under way": "-", "somebody else acts on it": "=", "the call is in doubt": "?"}


def lines() -> Iterator[str]:
    """One line for each effect, status and phase; its verdicts differ by what was before and what the tool allows.

    **JsonCodec**: 16 verdicts in the order of `_verdicts`, or one where all are equal.
    """
    for effect, status, late, phase in product(EFFECTS, STATUSES, (False, True), PHASES):
        for code, judged in product(CODES, (False, True)) if status == "unauthorised" else [("boom", False)]:
            log = _calling(effect, phase, JUDGED if judged else RULES)
            said = log.result(status=status, attempt=2, late=late, failure=Failure(code, "it broke"))
            name = f"{code}/{'judged' if judged else 'free'}" if status == "unauthorised" else status
            verdicts = list(_verdicts(log, said))
            shown = " ".join(verdicts[:1] if len(set(verdicts)) == 1 else verdicts)
            yield f"{effect} {name} {'late' if late else 'in time'} {phase}: {shown}"


def _calling(effect: str, phase: str, rules: Rules) -> Log:
    log = started()
    log.rules = rules
    log.append([call(1, effect, attempts=2)])
    _put(log, phase=phase, attempt=2, policy=approvals.POLICY.digest)
    return log


def _put(log: Log, **values: object) -> None:
    log.live.open = log.live.open.set(1, log.live.open[1]._replace(**values))  # type: ignore[arg-type]


def _verdicts(log: Log, said: ToolResult) -> Iterator[str]:
    choices = product((False, True), (False, True), (False, True), (0, 1))
    for maybe, again, retryable, refused in choices:
        _put(log, may_have_happened=maybe, uncounted=refused)
        verdict = decide(log.live, replace(said, retryable=retryable, again=again), NOW, log.rules)
        if isinstance(verdict, Ignore):
            yield _IGNORED[verdict.reason]
            continue
        assert isinstance(verdict, list)
        yield "".join(_letter(event) for event in verdict)


def _letter(event: Event) -> str:
    letter = _LETTERS[type(event)]
    return letter.upper() if isinstance(event, AttemptFailed) and event.unknown else letter


if __name__ == "__main__":
    PATH.write_text("".join(f"{line}\n" for line in lines()))
