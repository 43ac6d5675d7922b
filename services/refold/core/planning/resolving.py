"""What an operator says came of a call in doubt, or is to become of one that is held."""

from __future__ import annotations

from refold.core import events
from refold.core.errors import UsageError
from refold.core.planning import asking
from refold.core.planning.asking import ask_what_came, settled
from refold.core.planning.verdict import Ignore, Refuse, Rules, Ruling
from refold.core.run.purse import of_budget
from refold.core.run.state import RunState
from refold.core.wire import canonical


def resolve(
    state: RunState, actor: str, data: dict[str, object], now: int, rules: Rules, *, sent_ms: int | None
) -> Ruling:
    """The events of an operator's verdict on a call in doubt, or on one that is held."""
    step, attempt, verdict = data.get("step"), data.get("attempt"), data.get("verdict")
    if type(step) is not int or type(attempt) is not int or verdict not in ("happened", "did_not_happen", "give_up"):
        return Refuse("malformed", "resolve needs step, attempt and verdict (happened, did_not_happen or give_up)")
    opened, said = state.open.get(step), state.resolved.get(step)
    if said and said.attempt >= attempt:
        same = said.attempt > attempt or said.verdict == verdict
        return Ignore("resolved before") if same else Refuse("conflict", f"step {step} was resolved as {said.verdict}")
    if opened is None or opened.phase not in ("doubt", "held") or opened.attempt != attempt:
        return Refuse("conflict", f"attempt {attempt} of step {step} is neither in doubt nor held")
    # It was refused when it came, and comes once more because positions were lost: nobody has seen the doubt then.
    if sent_ms is not None and sent_ms < opened.doubted_ms:
        return Refuse("conflict", f"attempt {attempt} of step {step} was neither in doubt nor held when this was said")
    if (asked := opened.question) is not None:
        named = rules.authority.settlers(opened.policy) if rules.authority else None
        if named != (asked.event.policy, asked.event.requirement):
            return asking.reopened(state, step, now, rules, why="others are named by now")
        return Refuse("conflict", f"people are asked what came of step {step}, and their votes say it")
    call, result, held = state.call(step), canonical.dumps(data.get("result")), opened.phase == "held"
    if held and verdict == "happened" and rules.authority and rules.authority.settlers(opened.policy):
        return Refuse("unauthorised", ONLY_PEOPLE_ANSWER)
    if not held and (question := ask_what_came(state, step, now, rules)):  # nobody was named when it fell in doubt
        return question
    if not held and verdict == "did_not_happen" and call.effect == "once":  # its executor wants the word of people
        return Refuse("unauthorised", NOBODY_SETTLES)
    if verdict == "happened" and rules.takes:
        try:
            rules.takes(call.tool, result)
        except UsageError as error:
            return Refuse("malformed", f"{call.tool} cannot have had this result: {error}")
    said = events.DoubtResolved(step, attempt, str(verdict), actor, str(data.get("comment", "")))
    # What a budget holds after an attempt says nothing of that: it may have had its effect.
    if held and verdict == "give_up" and opened.failure and not (attempt and of_budget(opened.failure)):
        return [said, events.CallFailed(step, attempt, opened.failure)]
    return settled(state, said, result, now, rules)


NOBODY_SETTLES = "only people whom a policy names under `doubt` can let a `once` call out again, and none is named"

ONLY_PEOPLE_ANSWER = "only people whom the policy names under `doubt` may say a result: try it again, or let it fail"
