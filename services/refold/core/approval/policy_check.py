"""Check that a policy requires the people named in a request, because a planner may not choose them. Rules are
evaluated on the facts that a decision binds, for all possible judgements: the rest of the run is the planner's
claim."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import ToolFacts
from refold.core.approval.policy import Judgement, Policy
from refold.core.events import DOUBT, Requirement
from refold.core.ids import depth_of
from refold.core.messages import ApprovalRequest
from refold.core.wire import canonical


def vouched(request: ApprovalRequest, catalog: Catalog, tools: Mapping[str, ToolFacts]) -> bool:
    """True if the policy may have asked for exactly this requirement."""
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
    """Possible judgements of a policy on a call: one of these requirements, or (`allows`) none. `denial` is the reason
    if neither is possible, else empty."""

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
