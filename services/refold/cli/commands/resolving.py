"""`refold run resolve`: what came of a call of which nobody knows it, as the people say whom the policy names for that.

Where it names nobody, an operator does.
"""

from __future__ import annotations

from typing import Annotated

from refold.cli import output
from refold.cli.apps import load_app
from refold.cli.platform import json_value
from refold.cli.voting import Voter, told
from refold.client.platform import login
from refold.core.errors import UsageError
from refold.core.events import DOUBT
from refold.core.ids import asked_about
from refold.core.planning.asking import CAME
from refold.core.wire import canonical
from refold.operations.operation import one
from refold.operations.run import Settlement, doubted, settle_call
from refold.views.outcome import Resolved


def resolve_call(
    call: Annotated[str, "RUN/SEQ~DIGEST or RUN/SEQ, as `refold run show` prints it."],
    *,
    happened: Annotated[
        str | None, "--happened, --answer JSON|@FILE|-", "The effect happened, with this result."
    ] = None,
    did_not_happen: Annotated[bool, "--did-not-happen, --retry", "It did not happen: run it."] = False,
    give_up: Annotated[bool, "--give-up, --fail", "Nobody can tell: the call fails."] = False,
    comment: Annotated[str, "How you know; it stays in the history."] = "",
    app_: Annotated[str, "MODULE:APP or path/file.py[:APP], to check the result before it is said."] = "",
    as_operator: Annotated[bool, "Re-ask under the current policy instead of voting."] = False,
    voter: Voter,
) -> None:
    """Settle a call in doubt: record its outcome.

    Your word is a signed vote where the policy names people for doubts, and an operator's where it names nobody.
    A call that is held, as its attempts are used up, gets as many anew (--retry), a result (--answer), or fails
    (--fail), by an operator's word.
    """
    if (happened is not None) + did_not_happen + give_up != 1:
        raise UsageError("say one thing about the call", hint="--happened JSON, --did-not-happen or --give-up")
    verdict = "happened" if happened is not None else "did_not_happen" if did_not_happen else "give_up"
    result = canonical.dumps(json_value(happened, "--happened")) if happened is not None else ""
    if app_ and result:
        _check(voter, call, result, app_)
    approval = doubted(voter.runs, call).approval
    if as_operator or (call == asked_about(call) and not approval):
        if not _say(voter, asked_about(call), verdict, result=result, comment=comment, though_asked=as_operator):
            return
        approval = doubted(voter.runs, call).approval
        if as_operator:
            voter.tell({"call_id": asked_about(call), "asked": approval}, _asked(approval))
            return
        output.note(f"the policy names people for that by now, so they are asked what came of {call}")
    if approval:
        voter.platform.approvals.asked(approval, voter.timeout)
    action = next(action for action, word in CAME.items() if word == verdict)
    vote, answer = voter.cast(call, action, about=DOUBT, result=result, message=comment)
    row = {**answer.voted(vote.vote).dump(), "call_id": asked_about(call), "verdict": verdict}
    voter.tell(row, told(answer, action))


def _asked(approval: str) -> str:
    if approval:
        return f"the people of the policy in force are asked instead: {output.escape(approval)}"
    return "the policy in force names nobody, so nobody is asked any more: say it once more"


def _say(voter: Voter, call: str, verdict: str, *, result: str, comment: str, though_asked: bool) -> bool:
    """An operator's word, where nobody else is asked; tells whether people are, because of it."""
    actor = login() if voter.actor is None else voter.actor
    value = output.json_text(result) if result else None
    found = Settlement(verdict, value, comment)
    operation = settle_call(voter.runs, call, found, actor, though_asked=though_asked)
    answer = one(voter.runs, voter.platform.publisher, operation, voter.timeout)
    if answer.what == "asked":
        return True
    state = answer.run.state
    about = {"run_id": state.run_id, "outcome": answer.what, "status": state.status}
    row = Resolved(**about, call_id=call, verdict=verdict)
    known = "was resolved before as" if answer.what == "known" else "is resolved as"
    text = f"call [bold]{output.escape(call)}[/] {known} {verdict}; the run is {output.styled(state.status)}"
    voter.tell(row, text)
    return False


def _check(voter: Voter, call: str, result: str, app: str) -> None:
    """**Raises** UsageError when the tool could not have had such a result."""
    tool = load_app(app).tools.get(name := doubted(voter.runs, call).tool)
    if tool is None:
        raise UsageError(f"the app has no tool {name}", hint="--app names the app of the run")
    tool.result.load(result)
