"""Second judgement of what planners and approval services claim. A policy has to require the people named in a request:
rules are evaluated on the facts that a decision binds, for all possible judgements, because the rest of the run is the
planner's claim. A decision contains its question and the signed votes, which its executor counts again: a thief of the
service's key can withhold decisions, but not forge one without votes."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from refold.core.approval import ballot, signature
from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import AS_ASKED, Decision, Grant, Refusal, ToolFacts, final, revoked
from refold.core.approval.policy import Judgement, Policy
from refold.core.approval.question import bound_request, digest
from refold.core.approval.requester import has_asked, quorum_of
from refold.core.errors import MalformedError, UnauthorisedError
from refold.core.events import DOUBT, Requirement
from refold.core.ids import approval_id, depth_of
from refold.core.messages import ApprovalRequest, ToolRequest
from refold.core.wire import canonical

_AS_GIVEN: tuple[str, ...] = ("run", "tool", "version", "schema", "effect", "args", "environment")
_AS_GIVEN += ("policy", "verdict", "votes", "message")
"""Fields of a decision by a grant that equal those of the decision that gave it."""

_MAY_CHANGE = ("unentitled", "handed_on")
"""Objections that may arise later: the voter has lost a right since."""


def vouched(request: ApprovalRequest, catalog: Catalog, tools: Mapping[str, ToolFacts]) -> bool:
    """True if the policy of a question may demand exactly the question's requirement for its call."""
    policy, tool = catalog.policies.get(request.policy), tools.get(request.tool)
    if policy is None:
        return False
    if request.about == DOUBT:
        return request.requirement == policy.doubt
    requirements = of_request(policy, request, tool).requirements
    return request.requirement in requirements or (tool is None and request.requirement == policy.fallback)


def suffices(request: ApprovalRequest, policy: Policy, tool: ToolFacts, *, args: str) -> bool:
    """True if the voters may permit the call with other arguments, because the policy asks no other people about it."""
    judged = of_request(policy, request, tool, args=args)
    # The author of arguments counts as a requester: if requesters may not decide, others decide on an edit.
    same = request.requirement in judged.requirements and not request.requirement.not_requester
    return same or (judged.allows and not tool.approval)


@dataclass(frozen=True, slots=True)
class PartialJudgement:
    """Possible judgements on a call: one of these requirements, or (`allows`) none; else `denial` is the reason."""

    requirements: tuple[Requirement, ...] = ()
    allows: bool = False
    denial: str = ""


def judge_partially(policy: Policy, facts: Mapping[str, Any]) -> PartialJudgement:
    """Judge a call by the known facts: a rule on an unknown fact may hold, fail, or not apply."""
    candidates = _candidates(policy, facts)
    requirements = [judgement.requirement for judgement in candidates if judgement.requirement]
    allows = any(judgement.outcome == "allow" for judgement in candidates)
    if allows and policy.fallback:  # a tool may ask by itself
        requirements.append(policy.fallback)
    denial = "" if requirements or allows else f"the rule {candidates[0].rule!r} denies it: {candidates[0].message}"
    return PartialJudgement(tuple(requirements), allows, denial)


def _candidates(policy: Policy, facts: Mapping[str, Any]) -> list[Judgement]:
    met, candidates = list[tuple[int, str, bool]](), [policy.unruled]
    for number, rule in enumerate(policy.rules):
        value = rule.when.value(facts)
        if value is True:
            candidates = [policy.judgements[number]]
            break
        # A rule without a value for want of a fact may have any; one with a value keeps it, whatever the missing facts
        # are.
        if value is not False:
            met.append((number, value, rule.when.needs <= facts.keys()))
    for number, error, fails in reversed(met):
        failed = [policy.failed(number, error, behind) for behind in candidates]
        possible = failed if fails else [policy.judgements[number], *candidates, *failed]
        candidates = list({(judgement.outcome, judgement.rule): judgement for judgement in possible}.values())
    return candidates


def of_request(policy: Policy, request: ApprovalRequest, tool: ToolFacts | None, *, args: str = "") -> PartialJudgement:
    """Possible judgements on a request's call, or on the same call with other arguments."""
    facts: dict[str, Any] = {
        "args": canonical.parse(args or request.args),
        "environment": request.environment,
        "run.id": request.run_id,
        "run.depth": depth_of(request.run_id),
        "tool.name": request.tool,
        "tool.effect": request.effect,
        "tool.version": request.version,
    }
    return judge_partially(policy, facts | ({"tool.tags": list(tool.tags)} if tool else {}))


def unfounded(decided: Decision, catalog: Catalog) -> Refusal | None:
    """Refusal of a decision without valid votes by keys and roles, or None. `stale`: it may have had them before."""
    try:
        request = _question(decided)
        _check_fields(decided, request)
        if decided.grant and decided.grant.use:
            return _granted(decided, decided.grant, request, catalog)
        return _counted(decided, request, catalog)
    except MalformedError as error:
        return final(error.message)
    except UnauthorisedError as error:
        if error.fields.get("reason") in signature.WITHDRAWN:
            return revoked(f"a vote does not hold any more: {error.message}")
        return final(f"a vote does not hold: {error.message}")


def unread(decided: Decision, catalog: Catalog) -> bool:
    """True if a vote is signed with a key that is not in the catalog as read so far."""
    for token in decided.tokens:
        with suppress(MalformedError):
            try:
                ballot.open_vote(token, catalog.keys)
            except UnauthorisedError as error:
                if error.fields.get("reason") == "unknown_key":
                    return True
    return False


def unasked(decided: Decision, order: ToolRequest, catalog: Catalog, tools: Mapping[str, ToolFacts]) -> Refusal | None:
    """Refusal of a decision by other people than the policy requires for the (edited) call; None if they suffice."""
    if decided.policy and decided.policy not in catalog.policies:
        return revoked("the decision's policy is not in the catalog any more")
    request, policy, tool = bound_request(decided.asked), catalog.policies.get(decided.policy), tools.get(order.tool)
    if decided.verdict == "edit" and policy is not None and tool is not None:
        required = suffices(request, policy, tool, args=order.args)
    elif request.proposed_args and not request.writers and tool is not None:
        return revoked("its question names nobody who has edited the arguments")
    else:
        required = vouched(replace(request, args=order.args), catalog, tools)
    if required:
        return None
    if decided.verdict == "edit":  # maybe of an earlier release: people are asked about the edited call
        return revoked("others than whoever wrote its arguments have to agree to an edit")
    return final("its policy asks for other people about this call")


def _question(decided: Decision) -> ApprovalRequest:
    request, question = bound_request(decided.asked), digest(decided.asked)
    return replace(request, question=question, approval_id=approval_id(request.call_id, question))


def _check_fields(decided: Decision, request: ApprovalRequest) -> None:
    """Check that a decision agrees with its question. **Raises** MalformedError."""
    edited, needed = decided.edited, request.requirement
    same = {
        "id": (decided.approval, request.approval_id),
        "run": (decided.run, request.run_id),
        "call": (decided.call, request.call_id),
        "arguments": (decided.args, canonical.hex_digest(edited) if edited else request.args),
        "key": (decided.key, decided.key if edited else request.key),
        "expiry": (decided.expires, decided.issued + needed.valid_ms),
        **{name: (getattr(decided, name), getattr(request, name)) for name in AS_ASKED},
    }
    for part, (actual, expected) in same.items():
        if actual != expected:
            raise MalformedError(f"the decision has another {part} than its question")
    if request.expires_ms and decided.issued >= request.expires_ms:
        raise MalformedError("the decision was made after its question had expired")


def _counted(decided: Decision, request: ApprovalRequest, catalog: Catalog) -> Refusal | None:
    votes = [ballot.open_vote(token, catalog.keys) for token in decided.tokens]
    count = ballot.count(request, votes, catalog.roles, decided.issued)
    for void in count.void.values():
        if void.code not in _MAY_CHANGE:
            return final(f"a vote behind the decision is void: {void.reason}")
    settled = count.settled
    # An amendment is an edit by its votes, and lets nothing out.
    verdict = "edit" if decided.verdict == "amend" else decided.verdict
    if settled is None:
        people = {vote.actor for vote in votes if ballot.DECIDING.get(vote.action) == verdict}
        needed = 1 if verdict == "reject" else quorum_of(request, catalog.roles.askers)
        return _unsettled(request, len(people), needed, [vote.actor for vote in count.void])
    outcome = settled.verdict, settled.edited, settled.result, settled.message, settled.grant
    if outcome != (verdict, decided.edited, decided.result, decided.message, decided.grant):
        return final("its votes say otherwise than the decision")
    if {(by.actor, by.vote, by.at_ms) for by in settled.votes} != {(b.actor, b.vote, b.at_ms) for b in decided.votes}:
        return final("other people stand behind the decision than it says")
    return None


def _unsettled(request: ApprovalRequest, people: int, needed: int, gone: list[str]) -> Refusal:
    if people >= needed:
        return revoked(f"{', '.join(sorted(gone)) or 'who decided'} may not decide any more")
    # Enough for a known requester: the key that vouched for them may be gone since.
    if request.token and people >= quorum_of(request, {}):
        return revoked("nobody knows any more who asked for the run")
    return final(f"{people} of {needed} people stand behind the decision")


def _granted(decided: Decision, grant: Grant, request: ApprovalRequest, catalog: Catalog) -> Refusal | None:
    """Refusal of a call by the grant of its decision; None if the grant permits it."""
    origin = Decision.parse(signature.verified(decided.given, catalog.keys, use="decision"))
    if origin.grant is None or origin.grant.use:
        return final("what the decision rests on gives no grant")
    if refused := unfounded(origin, catalog):
        return refused
    same = all(getattr(decided, name) == getattr(origin, name) for name in _AS_GIVEN)
    same &= grant == origin.grant._replace(use=grant.use) and grant.rule == request.rule
    same &= (decided.attempt, decided.edited, decided.result, request.about) == (1, "", "", "")
    people, needed = {by.actor for by in origin.votes}, request.requirement
    good = (
        same
        # One decision does not prove the number of past uses: `use` is the signer's claim.
        and 0 < grant.use <= grant.uses
        and decided.issued < grant.until_ms
        and len(people) >= quorum_of(request, catalog.roles.askers)
        and not (needed.not_requester and any(has_asked(request, name) for name in people))
    )
    return None if good else final("the grant that the decision uses is not for this call")
