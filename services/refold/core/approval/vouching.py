"""Whether a policy asks of people what a request says that it asks: a planner may not choose who decides.

Asked by the approval service before it decides, and by the executor about what it is about to send.
"""

from __future__ import annotations

from collections.abc import Mapping

from refold.core.approval import possible
from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import ToolFacts
from refold.core.approval.policy import Policy
from refold.core.events import DOUBT
from refold.core.messages import ApprovalRequest


def vouched(request: ApprovalRequest, catalog: Catalog, tools: Mapping[str, ToolFacts]) -> bool:
    """Whether people may be asked for just this: a planner may not make up approvers, nor choose the rule.

    Without a policy nobody may.
    """
    policy, tool = catalog.policies.get(request.policy), tools.get(request.tool)
    if policy is None:
        return False
    if request.about == DOUBT:
        return request.requirement == policy.doubt
    found = possible.of_request(policy, request, tool).requirements
    return request.requirement in found or (tool is None and request.requirement == policy.fallback)


def suffices(request: ApprovalRequest, policy: Policy, tool: ToolFacts, *, args: str) -> bool:
    """Whether those who are asked may let the call out with other arguments, because nobody else is asked about it."""
    found = possible.of_request(policy, request, tool, args=args)
    return request.requirement in found.requirements or (found.allows and not tool.approval)
