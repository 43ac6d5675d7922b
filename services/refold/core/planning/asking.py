"""The planner's side of approvals: questions to people, and the events of decisions."""

import dataclasses
from typing import NamedTuple

from refold.core import events
from refold.core.approval import decision, signature
from refold.core.approval.authority import Authority
from refold.core.approval.decision import Decision
from refold.core.approval.policy import Judgement
from refold.core.approval.policy_check import unfounded, unread
from refold.core.approval.question import named, proposal_digest, question_digest
from refold.core.errors import MalformedError, UnauthorisedError
from refold.core.events import DOUBT, NO_REQUEST
from refold.core.ids import approval_id, call_id, parse_approval_id
from refold.core.messages import ApprovalRequest
from refold.core.planning.budgets import let_out
from refold.core.planning.verdict import Decided, Ignore, Park, Refuse, Rules, Ruling
from refold.core.run.fold import advance
from refold.core.run.state import Asked, OpenStep, RunState
from refold.core.wire import canonical
from refold.core.wire.canonical import hex_digest, idempotency_key

_AS_REQUESTED = ("attempt", "covers", "environment", "version", "schema", "policy", "rule", "requirement", "about")
"""Fields that a question copies from its `ApprovalRequested`."""

CAME = {"approve": "did_not_happen", "answer": "happened", "reject": "give_up"}
"""Outcome of a call by verdict on its doubt. To approve another attempt is to state that the first had no effect."""
VERDICTS_ON_DOUBT = {outcome: verdict for verdict, outcome in CAME.items()}


def propose(
    state: RunState, call: events.CallProposed, authority: Authority, now: int, *, seq: int, ahead: int
) -> tuple[events.CallProposed, events.CallFailed | events.ApprovalRequested | None]:
    """Judge a new call, proposed as event `seq` after `ahead` calls of the same entry: return it with the rule that
    judged it, and the event that blocks it; None if it may be dispatched."""
    judgement = authority.judge(state, call, (state.request or NO_REQUEST).policy, ahead=ahead)
    if judgement.rule:
        call = dataclasses.replace(call, rule=judgement.rule)
    if judgement.outcome == "deny":
        return call, events.CallFailed(call.step, 0, _denial(judgement))
    if judgement.outcome == "require":
        return call, _ask(state, _Attempt(call, seq, 1), judgement, authority, now)
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
    policy = authority.catalog.current if authority.changed(opened.policy) else opened.policy
    judgement = authority.judge(state, call, policy)
    if judgement.outcome == "deny":
        return [closed(opened, step, _denial(judgement), may_have_happened=may_have_happened)]
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


def _denial(judgement: Judgement) -> events.Failure:
    return events.Failure("denied", judgement.message or f"the rule {judgement.rule!r} denies it", judgement.rule)


class _Attempt(NamedTuple):
    """Subject of a question: an attempt of the call proposed at `seq`, or (`about`) the attempt before it."""

    call: events.CallProposed
    seq: int
    attempt: int
    about: str = ""


def _ask(state: RunState, of: _Attempt, judged: Judgement, authority: Authority, now: int) -> events.ApprovalRequested:
    call, seq, attempt, about = of
    needed, tool, opened = judged.requirement, authority.tools.get(call.tool), state.open.get(call.step)
    assert needed is not None, "what is required has a requirement"
    last = attempt if about else call.retry.attempts + (opened.uncounted if opened else 0)
    event = events.ApprovalRequested(
        step=call.step,
        attempt=attempt,
        # A `once` call is never sent twice on one decision: nothing else would keep it single.
        covers=attempt if call.effect == "once" else max(attempt, last),
        policy=judged.policy,
        rule=judged.rule,
        requirement=needed,
        environment=authority.environment,
        version=tool.version if tool else "",
        schema=tool.schema if tool else "",
        question="",
        expires_ms=now + needed.expires_ms if needed.expires_ms else 0,
        about=about,
    )
    # The time of the entry that will hold it, which is never before that of the last entry.
    question = Asked(0, event, (), max(now, state.at_ms), event.expires_ms, escalated=False)
    before = opened or OpenStep("proposed", seq)
    request = question_of(state, call, before._replace(question=question, rounds=before.rounds + 1))
    return dataclasses.replace(event, question=named(request).question)


def question_of(state: RunState, call: events.CallProposed, opened: OpenStep) -> ApprovalRequest:
    """Question about a call as it would be dispatched; equal to the byte whenever it is built again."""
    question, request, first = opened.question, state.request or NO_REQUEST, call
    if call.step in state.edited and isinstance(was := state.steps[call.step - 1], events.CallProposed):
        first = was if was.args != call.args else call  # a fork has changed its key alone
    edited, name = first is not call, call_id(state.run_id, opened.seq)
    assert question is not None, "only what is asked is a question"
    approval = ApprovalRequest(
        approval_id=approval_id(name, question.question),
        run_id=state.run_id,
        call_id=name,
        step=call.step,
        agent=request.agent,
        requester=request.requester,
        # The token does not cover an operator who gave other arguments, so one more person has to agree.
        token="" if call.asked else request.token,
        session=request.session,
        tool=call.tool,
        effect=call.effect,
        args=call.args,
        key=call.key,
        question=question.question,
        proposal=proposal_digest(first),
        asked_ms=question.asked_ms,
        expires_ms=question.expires_ms,
        level=int(question.escalated),
        proposed_args=first.args if edited else "",
        traceparent=request.traceparent,
        round=opened.rounds,
        history=list(opened.past),
        writers=list(state.writers_of(call.step)),
        **{name: getattr(question.event, name) for name in _AS_REQUESTED},
    )
    return approval if question.question in ("", question_digest(approval)) else _in_older_form(state, approval)


def _in_older_form(state: RunState, new: ApprovalRequest) -> ApprovalRequest:
    """Question in the form of earlier releases: without writers, or without attempts of the forked run."""
    request = state.request or NO_REQUEST
    history = [past for past in new.history if not request.forked or past.at_ms > state.requested_ms]
    before = dataclasses.replace(new, writers=[], token=request.token, history=history)
    return before if question_digest(before) == new.question else new


def opened_by(state: RunState, approval: str) -> int | None:
    """Step whose open approval has this id, else None."""
    step = state.step_of(parse_approval_id(approval)[1])
    return step if step is not None and state.waits_for(step) == approval else None


def _open_question(state: RunState, step: int) -> tuple[OpenStep, Asked]:
    opened = state.open[step]
    assert opened.question is not None, "only an open approval is decided, asked anew or due"
    return opened, opened.question


def still_valid(state: RunState, question: Asked, signed: Decision, authority: Authority, *, now: int) -> bool:
    """True if a decision is still valid on arrival: not expired, voters entitled, grant use new, no recheck due."""
    # A rejection lets nothing out, so it stays valid, if its voters were entitled when they voted.
    if signed.verdict == "reject":
        return True
    # A finding on a past attempt does not expire.
    if (now >= signed.expires and question.event.about != DOUBT) or authority.changed(question.event.policy):
        return False
    if signed.grant and signed.grant.use and (signed.grant.id, signed.grant.use) in state.uses:
        return False
    return decision.disowned(signed, authority.catalog.roles) is None


def contradiction(state: RunState, step: int, signed: Decision) -> str:
    """Reason why a decision does not fit the approval of this step; empty if it fits."""
    opened, question = _open_question(state, step)
    if (signed.approval, signed.question) != (state.waits_for(step), question.question):
        return "the decision answers another question"
    # The receiver may have acted on the first request: other arguments, or a result by hand, would hide that. For a
    # doubt the result by hand is the finding.
    by_hand = ("edit", "amend") if question.event.about == DOUBT else ("edit", "amend", "answer")
    if signed.verdict in by_hand and opened.attempt:
        return "a call that was sent once cannot be changed any more"
    try:
        bound = signed.key, signed.args
        if signed.verdict in ("edit", "amend") and (_key(state, step, signed), hex_digest(signed.edited)) != bound:
            return "the decision does not bind the arguments that it holds"
        if signed.verdict == "answer":
            canonical.parse(signed.result)
    except MalformedError as error:
        return error.message
    return ""


def accepted(state: RunState, step: int, signed: Decision, token: str, *, now: int, rules: Rules) -> list[events.Event]:
    """Events of a valid decision, with the dispatch that it permits."""
    opened, question = _open_question(state, step)
    edits, actors = signed.verdict in ("edit", "amend"), [vote.actor for vote in signed.votes]
    args, key = (signed.edited, signed.key) if edits else ("", "")
    grant, use = (signed.grant.id, signed.grant.use) if signed.grant else ("", 0)
    decided = events.ApprovalDecided(
        step,
        question.seq,
        signed.verdict,
        token=token,
        actors=actors,
        message=signed.message,
        args=args,
        key=key,
        covers=signed.covers,
        expires_ms=signed.expires,
        grant=grant,
        use=use,
        question=question.question,
    )
    by = ", ".join(actors)
    if question.event.about == DOUBT:
        resolved = events.DoubtResolved(step, opened.attempt, CAME[signed.verdict], by, signed.message)
        return [decided, *settled(foreseen(state, [decided], now), resolved, signed.result, now, rules)]
    if signed.verdict == "reject":
        failure = events.Failure("rejected", signed.message or f"{by} said no", by)
        return [decided, closed(opened, step, failure, may_have_happened=opened.may_have_happened)]
    if signed.verdict == "answer":
        return [decided, events.CallCompleted(step, opened.attempt, signed.result)]
    if edits:
        return _edited(state, decided, now, rules)
    return [decided, *let_out(state, state.call(step), question.event.attempt, now, rules)]


def _edited(state: RunState, decided: events.ApprovalDecided, now: int, rules: Rules) -> list[events.Event]:
    """Events of an edit: its dispatch, another judgement, or the original question again if the policy denies it."""
    step, (opened, question), authority = decided.step, _open_question(state, decided.step), rules.authority
    assert authority is not None, "only an authority judges"
    after = state.copy()
    after.edit(step, decided.args, decided.key, after.head.seq, by=decided.actors)
    judgement = authority.judge(after, after.call(step), opened.policy)
    if judgement.outcome == "deny":
        return reopened(state, step, now, rules, why=f"the edit is denied: {_denial(judgement).message}")
    attempt, maybe = question.event.attempt, opened.may_have_happened
    needed = question.event.requirement
    # Requesters are excluded, and the author of an edit counts as one: then other people must decide.
    same = judgement.outcome == "allow" or (judgement.requirement == needed and not needed.not_requester)
    if decided.verdict == "edit" and same:
        return [decided, *let_out(after, after.call(step), attempt, now, rules)]
    decided = dataclasses.replace(decided, verdict="amend")
    return [decided, *judge_again(after, step, attempt, now, rules, may_have_happened=maybe)]


def _key(state: RunState, step: int, signed: Decision) -> str:
    tool, args = state.call(step).tool, canonical.dumps(canonical.parse(signed.edited))
    return idempotency_key(environment=signed.environment, run=state.run_id, step=step, tool=tool, args=args)


def reopened(
    state: RunState, step: int, now: int, rules: Rules, *, why: str = "the decision did not hold any more when it came"
) -> list[events.Event]:
    """End an approval whose decision is not valid, and judge the call again."""
    opened, question = _open_question(state, step)
    ended = unanswered(step, question, why)
    if question.event.about == DOUBT:
        return [ended, *ask_what_came(foreseen(state, [ended], now), step, now, rules)]
    attempt = question.event.attempt
    return [ended, *judge_again(state, step, attempt, now, rules, may_have_happened=opened.may_have_happened)]


def due(state: RunState, step: int, now: int) -> list[events.Event]:
    """Events of an approval at its deadline: its escalation, or its end by the policy's rule."""
    opened, question = _open_question(state, step)
    needed = question.event.requirement
    late = bool(question.expires_ms) and now >= question.expires_ms
    if not question.escalated and (not late or needed.on_expiry == "escalate"):
        approvers = list(dict.fromkeys([*question.approvers, *needed.escalate_to]))
        expires_ms = now + needed.expires_ms if late else question.expires_ms
        more = question._replace(approvers=tuple(approvers), expires_ms=expires_ms, escalated=True)
        request = named(question_of(state, state.call(step), opened._replace(question=more)))
        return [events.ApprovalEscalated(step, question.seq, approvers, expires_ms, request.question)]
    failure = events.Failure("approval_expired", "nobody decided in time")
    # A run does not end over an effect that may have happened: the call falls into doubt, for a human to settle.
    if needed.on_expiry == "fail" and not opened.may_have_happened:
        return [unanswered(step, question), events.RunFailed(failure)]
    return given_up(state, step, failure)


def given_up(state: RunState, step: int, failure: events.Failure, *, why: str = "") -> list[events.Event]:
    """End an approval and its call without a decision; `why` is empty for an expiry."""
    opened, question = _open_question(state, step)
    if question.event.about == DOUBT:  # the call stays in doubt
        return [unanswered(step, question, why)]
    return [unanswered(step, question, why), closed(opened, step, failure, may_have_happened=opened.may_have_happened)]


def unanswered(step: int, question: Asked, why: str = "") -> events.ApprovalDecided:
    """End of an approval without a decision; `why` is empty for an expiry."""
    return events.ApprovalDecided(step, question.seq, "expire", message=why, question=question.question)


def ask_what_came(state: RunState, step: int, now: int, rules: Rules) -> list[events.Event]:
    """Question about the outcome of a call in doubt; empty if no policy names people for it."""
    opened, call, authority = state.open[step], state.call(step), rules.authority
    if authority is None or (named_by := authority.settlers(opened.policy)) is None:
        return []
    judgement = Judgement("require", DOUBT, named_by[0], requirement=named_by[1])
    return [_ask(state, _Attempt(call, opened.seq, opened.attempt + 1, DOUBT), judgement, authority, now)]


def settled(state: RunState, answer: events.DoubtResolved, result: str, now: int, rules: Rules) -> list[events.Event]:
    """Events of a verdict on the outcome of a call, with its `result` if it happened."""
    step, attempt = answer.step, answer.attempt
    if answer.verdict == "happened":
        return [answer, events.CallCompleted(step, attempt, result)]
    if answer.verdict == "give_up" or step in state.given_up:  # a step that was given up gets no further attempt
        text = "a human gave the call up, its outcome unknown" if answer.verdict == "give_up" else "nobody waits for it"
        return [answer, events.CallFailed(step, attempt, events.Failure("given_up", text))]
    # No attempt so far has had an effect.
    return [answer, *send(foreseen(state, [answer], now), step, attempt + 1, now, rules, may_have_happened=False)]


class Draft:
    """Events of an entry in the making, and the state `after` them."""

    def __init__(self, state: RunState, now: int) -> None:
        self.after, self.events = state.copy(), list[events.Event]()
        self._seq, self._at_ms = state.head.seq + 1, max(now, state.at_ms)

    def add(self, fresh: list[events.Event]) -> None:
        # Folded at once: questions contain the seq of events before them in the entry.
        advance(self.after, fresh, seq=self._seq + len(self.events), at_ms=self._at_ms)
        self.events += fresh

    def start(self, now: int, rules: Rules) -> None:
        """Add the start of a pending run, unless it is paused or its `not_before_ms` is to come."""
        after = self.after
        if after.status == "pending" and not after.paused and after.request and after.request.not_before_ms <= now:
            self.add([rules.app.start(after.request.agent)])


def foreseen(state: RunState, fresh: list[events.Event], now: int) -> RunState:
    """State after events that no entry contains yet; `state` stays unchanged."""
    draft = Draft(state, now)
    draft.add(fresh)
    return draft.after


def _on_bad_signature(state: RunState, step: int, error: UnauthorisedError, now: int, rules: Rules) -> Ruling:
    reason = error.fields.get("reason")
    if reason == "unknown_key":  # a key just published may be read after its first signature
        return Park(error.message, code="unauthorised")
    if reason in signature.WITHDRAWN:  # the approval service is done with the question: ask another
        return reopened(state, step, now, rules)
    return Refuse("unauthorised", error.message)


def _on_votes(state: RunState, step: int, signed: Decision, now: int, rules: Rules) -> Ruling | None:
    """Ruling on a decision whose votes do not justify it; None if they do, or an executor is to check them."""
    assert rules.authority is not None, "only an authority has a catalog"
    (_, question), catalog = _open_question(state, step), rules.authority.catalog
    # No executor sees these verdicts and checks their votes, nor those of a call that is given up: the planner does.
    unseen = signed.verdict == "answer" or question.event.about == DOUBT
    if not unseen or not (refused := unfounded(signed, catalog)):
        return None
    if unread(signed, catalog):  # a key just published, as of a decision
        return Park(refused.message, code="unauthorised")
    return reopened(state, step, now, rules) if refused.stale else Refuse("unauthorised", refused.message)


def take_decision(state: RunState, decided: Decided, now: int, rules: Rules, *, sent_ms: int) -> Ruling:
    """Ruling on a decision. **Units**: `sent_ms` is the append time of its record."""
    step = opened_by(state, decided.approval)
    if step is None or rules.authority is None:
        return Ignore("the approval is closed")
    try:
        decision = rules.authority.open(decided.token)
    except UnauthorisedError as error:
        return _on_bad_signature(state, step, error, now, rules)
    if reason := contradiction(state, step, decision):
        return Refuse("unauthorised", reason)
    if (ruling := _on_votes(state, step, decision, now, rules)) is not None:
        return ruling
    _, question = _open_question(state, step)
    # The timer ends it. A later decision would otherwise count or not by which of the two is read first.
    if question.expires_ms and sent_ms >= question.expires_ms:
        return Ignore("the approval has expired")
    if not still_valid(state, question, decision, rules.authority, now=now):
        return reopened(state, step, now, rules)
    return accepted(state, step, decision, decided.token, now=now, rules=rules)
