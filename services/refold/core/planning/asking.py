"""The planner's side of approvals: questions to people, and the events of decisions."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

from refold.core import events
from refold.core.approval import decision, signature
from refold.core.approval.authority import Authority
from refold.core.approval.decision import Decision
from refold.core.approval.policy import Judgement
from refold.core.approval.question import args_digest, named, proposal_digest, question_digest
from refold.core.approval.vote_check import unfounded, unread
from refold.core.errors import MalformedError, UnauthorisedError
from refold.core.events import DOUBT
from refold.core.ids import approval_id, call_id, parse_approval_id
from refold.core.messages import ApprovalRequest
from refold.core.planning.outgoing import let_out
from refold.core.planning.verdict import Decided, Ignore, Park, Refuse, Rules, Ruling
from refold.core.run.fold import advance
from refold.core.run.state import Asked, OpenStep, RunState
from refold.core.wire import canonical
from refold.core.wire.canonical import idempotency_key


@dataclass(frozen=True, slots=True)
class Proposal:
    """Call before its first judgement: its seq, and the number of calls proposed before it in the same entry."""

    call: events.CallProposed
    seq: int
    ahead: int


def propose(
    state: RunState, new: Proposal, authority: Authority, now: int
) -> tuple[events.CallProposed, events.CallFailed | events.ApprovalRequested | None]:
    """The call with the rule that judged it, and the event that blocks it; None if it may be dispatched."""
    call, request = new.call, state.request
    found = authority.judge(state, call, request.policy if request else "", ahead=new.ahead)
    if found.rule:
        call = dataclasses.replace(call, rule=found.rule)
    if found.outcome == "deny":
        return call, events.CallFailed(call.step, 0, _denied(found))
    if found.outcome == "require":
        return call, _ask(state, _Attempt(call, new.seq, 1), found, authority, now)
    return call, None


def permitted(state: RunState, step: int, attempt: int, authority: Authority, now: int) -> bool:
    """True if an attempt of a call that was judged before may be dispatched without another judgement."""
    opened = state.open[step]
    # A run keeps the policy of its start, unless the policy in force has `recheck`.
    if authority.changed(opened.policy):
        return False
    last = opened.decision
    if last is None:
        return True
    # After a rejection or an expiry the policy decides again: a call in doubt may get here with such a decision.
    return last.verdict in ("approve", "edit") and attempt <= last.covers and now < last.expires_ms


def judge_again(
    state: RunState, step: int, attempt: int, now: int, rules: Rules, *, may_have_happened: bool
) -> list[events.Event]:
    """Events of a further judgement: a dispatch, a question, or the end of the call."""
    opened, call, authority = state.open[step], state.call(step), rules.authority
    assert authority is not None, "only an authority judges"
    judgement = authority.judge(state, call, authority.current if authority.changed(opened.policy) else opened.policy)
    if judgement.outcome == "deny":
        return [closed(opened, step, _denied(judgement), may_have_happened=may_have_happened)]
    if judgement.outcome == "require":
        return [_ask(state, _Attempt(call, opened.seq, attempt), judgement, authority, now)]
    return [events.CallJudged(step, judgement.policy, judgement.rule), *let_out(state, call, attempt, now, rules)]


def send(
    state: RunState, step: int, attempt: int, now: int, rules: Rules, *, may_have_happened: bool
) -> list[events.Event]:
    """Events of a further attempt, judged again if its permission no longer holds."""
    if rules.authority and not permitted(state, step, attempt, rules.authority, now):
        return judge_again(state, step, attempt, now, rules, may_have_happened=may_have_happened)
    return let_out(state, state.call(step), attempt, now, rules)


def closed(opened: OpenStep, step: int, failure: events.Failure, *, may_have_happened: bool) -> events.Event:
    """End of a call: failed, or in doubt if an earlier attempt may have had its effect."""
    if may_have_happened:
        return events.CallDoubted(step, opened.attempt, failure)
    return events.CallFailed(step, opened.attempt, failure)


def _denied(found: Judgement) -> events.Failure:
    return events.Failure("denied", found.message or f"the rule {found.rule!r} denies it", found.rule)


class _Attempt(NamedTuple):
    """Subject of a question: an attempt of the call proposed at `seq`, or (`about`) the attempt before it."""

    call: events.CallProposed
    seq: int
    attempt: int
    about: str = ""


def _ask(state: RunState, of: _Attempt, found: Judgement, authority: Authority, now: int) -> events.ApprovalRequested:
    call, seq, attempt, about = of
    needed, tool, opened = found.requirement, authority.tools.get(call.tool), state.open.get(call.step)
    assert needed is not None, "what is required has a requirement"
    last = attempt if about else call.retry.attempts + (opened.uncounted if opened else 0)
    event = events.ApprovalRequested(
        step=call.step,
        attempt=attempt,
        # A `once` call is never sent twice on one decision: nothing else would keep it single.
        covers=attempt if call.effect == "once" else max(attempt, last),
        policy=found.policy,
        rule=found.rule,
        requirement=needed,
        environment=authority.environment,
        version=tool.version if tool else "",
        schema=tool.schema if tool else "",
        question="",
        expires_ms=now + needed.expires_ms if needed.expires_ms else 0,
        about=about,
    )
    # The time of the entry that will hold it, which is never before that of the last entry.
    asked = Asked(0, event, (), max(now, state.at_ms), event.expires_ms, escalated=False)
    before = opened or OpenStep("proposed", seq)
    request = question_of(state, call, before._replace(question=asked, rounds=before.rounds + 1))
    return dataclasses.replace(event, question=named(request).question)


def question_of(state: RunState, call: events.CallProposed, opened: OpenStep) -> ApprovalRequest:
    """Question about a call as it would be dispatched; equal to the byte whenever it is built again."""
    asked, request, first = opened.question, state.request, call
    if call.step in state.edited and isinstance(was := state.steps[call.step - 1], events.CallProposed):
        first = was if was.args != call.args else call  # a fork has changed its key alone
    edited, name = first is not call, call_id(state.run_id, opened.seq)
    assert asked is not None, "only what is asked is a question"
    made = ApprovalRequest(
        approval_id=approval_id(name, asked.question),
        run_id=state.run_id,
        call_id=name,
        step=call.step,
        attempt=asked.event.attempt,
        covers=asked.event.covers,
        agent=request.agent if request else "",
        requester=request.requester if request else "",
        # The token does not cover an operator who gave other arguments, so one more person has to agree.
        token=request.token if request and not call.asked else "",
        session=request.session if request else "",
        environment=asked.event.environment,
        tool=call.tool,
        version=asked.event.version,
        schema=asked.event.schema,
        effect=call.effect,
        args=call.args,
        key=call.key,
        policy=asked.event.policy,
        rule=asked.event.rule,
        requirement=asked.event.requirement,
        question=asked.question,
        proposal=proposal_digest(first),
        asked_ms=asked.asked_ms,
        expires_ms=asked.expires_ms,
        level=int(asked.escalated),
        proposed_args=first.args if edited else "",
        traceparent=request.traceparent if request else "",
        round=opened.rounds,
        history=list(opened.past),
        about=asked.event.about,
        writers=list(state.writers_of(call.step)),
    )
    return made if asked.question in ("", question_digest(made)) else _asked_before(state, made)


def _asked_before(state: RunState, made: ApprovalRequest) -> ApprovalRequest:
    """Question in the form of earlier releases: without writers, or without attempts of the forked run."""
    request = state.request
    history = [each for each in made.history if not (request and request.forked) or each.at_ms > state.requested_ms]
    before = dataclasses.replace(made, writers=[], token=request.token if request else "", history=history)
    return before if question_digest(before) == made.question else made


def opened_by(state: RunState, approval: str) -> int | None:
    step = state.step_of(parse_approval_id(approval)[1])
    return step if step is not None and state.waits_for(step) == approval else None


def _asked(state: RunState, step: int) -> tuple[OpenStep, Asked]:
    opened = state.open[step]
    assert opened.question is not None, "only an open approval is decided, asked anew or due"
    return opened, opened.question


def holds(state: RunState, asked: Asked, found: Decision, authority: Authority, *, now: int) -> bool:
    """True if a decision is still valid on arrival: not expired, voters entitled, grant use new, no recheck due."""
    # A rejection lets nothing out, so it stays valid, if its voters were entitled when they voted.
    if found.verdict == "reject":
        return True
    # A finding on a past attempt does not expire.
    if (now >= found.expires and asked.event.about != DOUBT) or authority.changed(asked.event.policy):
        return False
    if found.grant and found.grant.use and (found.grant.id, found.grant.use) in state.uses:
        return False
    return decision.disowned(found, authority.catalog.roles) is None


def contradiction(state: RunState, step: int, found: Decision) -> str:
    """Reason why a decision does not fit the approval of this step; empty if it fits."""
    opened, asked = _asked(state, step)
    if (found.approval, found.question) != (state.waits_for(step), asked.question):
        return "the decision answers another question"
    # The receiver may have acted on the first request: other arguments, or a result by hand, would hide that. For a
    # doubt the result by hand is the finding.
    by_hand = ("edit", "amend") if asked.event.about == DOUBT else ("edit", "amend", "answer")
    if found.verdict in by_hand and opened.attempt:
        return "a call that was sent once cannot be changed any more"
    try:
        if found.verdict in ("edit", "amend") and (_key(state, step, found), args_digest(found.edited)) != (
            found.key,
            found.args,
        ):
            return "the decision does not bind the arguments that it holds"
        if found.verdict == "answer":
            canonical.parse(found.result)
    except MalformedError as error:
        return error.message
    return ""


def accepted(state: RunState, step: int, found: Decision, token: str, *, now: int, rules: Rules) -> list[events.Event]:
    """Events of a valid decision, with the dispatch that it permits."""
    opened, asked = _asked(state, step)
    edits, actors = found.verdict in ("edit", "amend"), [vote.actor for vote in found.votes]
    taken = events.ApprovalDecided(
        step,
        asked.seq,
        found.verdict,
        token=token,
        actors=actors,
        message=found.message,
        args=found.edited if edits else "",
        key=found.key if edits else "",
        covers=found.covers,
        expires_ms=found.expires,
        grant=found.grant.id if found.grant else "",
        use=found.grant.use if found.grant else 0,
        question=asked.question,
    )
    by = ", ".join(actors)
    if asked.event.about == DOUBT:
        said = events.DoubtResolved(step, opened.attempt, CAME[found.verdict], by, found.message)
        return [taken, *settled(foreseen(state, [taken], now), said, found.result, now, rules)]
    if found.verdict == "reject":
        failure = events.Failure("rejected", found.message or f"{by} said no", by)
        return [taken, closed(opened, step, failure, may_have_happened=opened.may_have_happened)]
    if found.verdict == "answer":
        return [taken, events.CallCompleted(step, opened.attempt, found.result)]
    if edits:
        return _edited(state, taken, now, rules)
    return [taken, *let_out(state, state.call(step), asked.event.attempt, now, rules)]


def _edited(state: RunState, taken: events.ApprovalDecided, now: int, rules: Rules) -> list[events.Event]:
    """Events of an edit: its dispatch, another judgement, or the original question again if the policy denies it."""
    step, (opened, asked), authority = taken.step, _asked(state, taken.step), rules.authority
    assert authority is not None, "only an authority judges"
    after = state.copy()
    after.edit(step, taken.args, taken.key, after.head.seq, by=taken.actors)
    found = authority.judge(after, after.call(step), opened.policy)
    if found.outcome == "deny":
        return reopened(state, step, now, rules, why=f"the edit is denied: {_denied(found).message}")
    attempt, maybe = asked.event.attempt, opened.may_have_happened
    needed = asked.event.requirement
    # Requesters are excluded, and the author of an edit counts as one: then other people must decide.
    same = found.outcome == "allow" or (found.requirement == needed and not needed.not_requester)
    if taken.verdict == "edit" and same:
        return [taken, *let_out(after, after.call(step), attempt, now, rules)]
    taken = dataclasses.replace(taken, verdict="amend")
    return [taken, *judge_again(after, step, attempt, now, rules, may_have_happened=maybe)]


def _key(state: RunState, step: int, found: Decision) -> str:
    tool, args = state.call(step).tool, canonical.dumps(canonical.parse(found.edited))
    return idempotency_key(environment=found.environment, run=state.run_id, step=step, tool=tool, args=args)


def reopened(
    state: RunState, step: int, now: int, rules: Rules, *, why: str = "the decision did not hold any more when it came"
) -> list[events.Event]:
    """End an approval whose decision is not valid, and judge the call again."""
    opened, asked = _asked(state, step)
    ended = unanswered(step, asked, why)
    if asked.event.about == DOUBT:
        return [ended, *ask_what_came(foreseen(state, [ended], now), step, now, rules)]
    attempt = asked.event.attempt
    return [ended, *judge_again(state, step, attempt, now, rules, may_have_happened=opened.may_have_happened)]


def due(state: RunState, step: int, now: int) -> list[events.Event]:
    """Events of an approval at its deadline: its escalation, or its end by the policy's rule."""
    opened, asked = _asked(state, step)
    needed = asked.event.requirement
    late = bool(asked.expires_ms) and now >= asked.expires_ms
    if not asked.escalated and (not late or needed.on_expiry == "escalate"):
        approvers = list(dict.fromkeys([*asked.approvers, *needed.escalate_to]))
        expires_ms = now + needed.expires_ms if late else asked.expires_ms
        more = asked._replace(approvers=tuple(approvers), expires_ms=expires_ms, escalated=True)
        request = named(question_of(state, state.call(step), opened._replace(question=more)))
        return [events.ApprovalEscalated(step, asked.seq, approvers, expires_ms, request.question)]
    failure = events.Failure("approval_expired", "nobody decided in time")
    # A run does not end over an effect that may have happened: the call falls into doubt, for a human to settle.
    if needed.on_expiry == "fail" and not opened.may_have_happened:
        return [unanswered(step, asked), events.RunFailed(failure)]
    return given_up(state, step, failure)


def given_up(state: RunState, step: int, failure: events.Failure, *, why: str = "") -> list[events.Event]:
    """End an approval and its call without a decision; `why` is empty for an expiry."""
    opened, asked = _asked(state, step)
    if asked.event.about == DOUBT:  # the call stays in doubt
        return [unanswered(step, asked, why)]
    return [unanswered(step, asked, why), closed(opened, step, failure, may_have_happened=opened.may_have_happened)]


def unanswered(step: int, asked: Asked, why: str = "") -> events.ApprovalDecided:
    """End of an approval without a decision; `why` is empty for an expiry."""
    return events.ApprovalDecided(step, asked.seq, "expire", message=why, question=asked.question)


CAME = {"approve": "did_not_happen", "answer": "happened", "reject": "give_up"}
"""Outcome of a call by verdict on its doubt. To approve another attempt is to state that the first had no effect."""
VERDICTS_ON_DOUBT = {outcome: verdict for verdict, outcome in CAME.items()}


def ask_what_came(state: RunState, step: int, now: int, rules: Rules) -> list[events.Event]:
    """Question about the outcome of a call in doubt; empty if no policy names people for it."""
    opened, call, authority = state.open[step], state.call(step), rules.authority
    if authority is None or (named_by := authority.settlers(opened.policy)) is None:
        return []
    found = Judgement("require", DOUBT, named_by[0], requirement=named_by[1])
    return [_ask(state, _Attempt(call, opened.seq, opened.attempt + 1, DOUBT), found, authority, now)]


def settled(state: RunState, said: events.DoubtResolved, result: str, now: int, rules: Rules) -> list[events.Event]:
    """Events of a verdict on the outcome of a call, with its `result` if it happened."""
    step, attempt = said.step, said.attempt
    if said.verdict == "happened":
        return [said, events.CallCompleted(step, attempt, result)]
    if said.verdict == "give_up" or step in state.given_up:  # a step that was given up gets no further attempt
        told = "a human gave the call up, its outcome unknown" if said.verdict == "give_up" else "nobody waits for it"
        return [said, events.CallFailed(step, attempt, events.Failure("given_up", told))]
    # No attempt so far has had an effect.
    return [said, *send(foreseen(state, [said], now), step, attempt + 1, now, rules, may_have_happened=False)]


def foreseen(state: RunState, fresh: list[events.Event], now: int) -> RunState:
    """State after the earlier events of the same entry."""
    after = state.copy()
    advance(after, fresh, seq=state.head.seq + 1, at_ms=max(now, state.at_ms))
    return after


def take_decision(state: RunState, given: Decided, now: int, rules: Rules, *, said_ms: int) -> Ruling:
    """Ruling on a decision. **Units**: `said_ms` is the append time of its record."""
    step = opened_by(state, given.approval)
    if step is None or rules.authority is None:
        return Ignore("the approval is closed")
    try:
        decision = rules.authority.open(given.token)
    except UnauthorisedError as error:
        reason = error.fields.get("reason")
        if reason == "unknown_key":  # a key just published may be read after its first signature
            return Park(error.message, code="unauthorised")
        if reason in signature.WITHDRAWN:  # the approval service is done with the question: ask another
            return reopened(state, step, now, rules)
        return Refuse("unauthorised", error.message)
    if reason := contradiction(state, step, decision):
        return Refuse("unauthorised", reason)
    _, asked = _asked(state, step)
    unseen, catalog = decision.verdict == "answer" or asked.event.about == DOUBT, rules.authority.catalog
    # No executor sees these verdicts and checks their votes, nor those of a call that is given up: the planner does.
    if unseen and (refused := unfounded(decision, catalog)):
        if unread(decision, catalog):  # as above, for votes
            return Park(refused.message, code="unauthorised")
        return reopened(state, step, now, rules) if refused.stale else Refuse("unauthorised", refused.message)
    # The timer ends it. A later decision would otherwise count or not by which of the two is read first.
    if asked.expires_ms and said_ms >= asked.expires_ms:
        return Ignore("the approval has expired")
    if not holds(state, asked, decision, rules.authority, now=now):
        return reopened(state, step, now, rules)
    return accepted(state, step, decision, given.token, now=now, rules=rules)
