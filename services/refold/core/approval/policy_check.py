"""True if a policy asks of people what a request says that it asks: a planner may not choose who decides.

Asked by the approval service before it decides, and by the executor about what it is about to send. The rest of the run
only its planner knows, so the rules are asked what they may say of a call by what a decision binds of it; a planner's
word on which rule has judged a call is not taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import ToolFacts
from refold.core.approval.policy import Policy
from refold.core.events import DOUBT, Requirement
from refold.core.ids import depth_of
from refold.core.messages import ApprovalRequest
from refold.core.wire import canonical


def vouched(request: ApprovalRequest, catalog: Catalog, tools: Mapping[str, ToolFacts]) -> bool:
    """True if people may be asked for just this: a planner may not make up approvers, nor choose the rule.

    Without a policy nobody may.
    """
    policy, tool = catalog.policies.get(request.policy), tools.get(request.tool)
    if policy is None:
        return False
    if request.about == DOUBT:
        return request.requirement == policy.doubt
    found = of_request(policy, request, tool).requirements
    return request.requirement in found or (tool is None and request.requirement == policy.fallback)


def suffices(request: ApprovalRequest, policy: Policy, tool: ToolFacts, *, args: str) -> bool:
    """True if those who are asked may let the call out with other arguments, because nobody else is asked about it.

    Whoever writes arguments asks for the call: where those who ask may not decide, others are asked about an edit.
    """
    found = of_request(policy, request, tool, args=args)
    same = request.requirement in found.requirements and not request.requirement.not_requester
    return same or (found.allows and not tool.approval)


@dataclass(frozen=True, slots=True)
class PartialJudgement:
    """What a policy may say of a call: that it needs people in one of these ways, or (`allows`) that it needs none.

    `denial` is why it may do neither; nothing where it may.
    """

    requirements: tuple[Requirement, ...] = ()
    allows: bool = False
    denial: str = ""


def judge_partially(policy: Policy, facts: Mapping[str, Any]) -> PartialJudgement:
    """PartialJudgement judgements on a call of which these facts are known.

    Whatever looks at what is not known may hold, fail, or be passed over, by what a planner says of it.
    """
    met, found = list[tuple[int, str, bool]](), [policy.unruled]
    for number, rule in enumerate(policy.rules):
        value = rule.when.value(facts)
        if value is True:
            found = [policy.judgements[number]]
            break
        # What has no value for want of a fact may have any; what has one has it whatever the missing facts are.
        if value is not False:
            met.append((number, value, rule.when.needs <= facts.keys()))
    for number, error, fails in reversed(met):
        failed = [policy.failed(number, error, behind) for behind in found]
        said = failed if fails else [policy.judgements[number], *found, *failed]
        found = list({(each.outcome, each.rule): each for each in said}.values())
    requirements = [each.requirement for each in found if each.requirement]
    allows = any(each.outcome == "allow" for each in found)
    if allows and policy.fallback:  # a tool may ask by itself
        requirements.append(policy.fallback)
    denial = "" if requirements or allows else f"the rule {found[0].rule!r} denies it: {found[0].message}"
    return PartialJudgement(tuple(requirements), allows, denial)


def of_request(policy: Policy, request: ApprovalRequest, tool: ToolFacts | None, *, args: str = "") -> PartialJudgement:
    """What a policy may say of what people are asked, or of the same call with other arguments."""
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
