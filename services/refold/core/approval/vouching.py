"""Whether a policy asks of people what a request says that it asks: a planner may not choose who decides.

Asked by the approval service before it decides, and by the executor about what it is about to send.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import ToolFacts
from refold.core.approval.policy import FALLBACK, Policy
from refold.core.events import Requirement
from refold.core.messages import ApprovalRequest
from refold.core.wire import canonical


def vouched(request: ApprovalRequest, catalog: Catalog, tools: Mapping[str, ToolFacts]) -> bool:
    """Whether people may be asked for just this: a planner may not make up approvers, nor choose the rule.

    Without a policy anybody may decide, but only as long as none is in force.
    """
    policy = catalog.policies.get(request.policy)
    if policy is None:
        return not catalog.current and request.requirement == FALLBACK
    return request.requirement in _wanted(policy, request, tools)


def _wanted(policy: Policy, request: ApprovalRequest, tools: Mapping[str, ToolFacts]) -> Iterator[Requirement]:
    """What a policy may want for a call.

    That is what its first rule wants that is about the call for certain, or one before it that may be, because it looks
    at what only the planner knows of the run.
    """
    facts = _bound(request, tools)
    if request.tool not in tools:
        yield policy.fallback
    for rule in policy.rules:
        certain = rule.when.needs <= facts.keys()
        value = rule.when.value(facts) if certain else None
        if value is False:
            continue
        if rule.requirement is not None and (value is None or value is True):
            yield rule.requirement
        if rule.outcome == "allow" or value is not True:
            yield policy.fallback
        if certain:
            return
    yield policy.fallback


def _bound(request: ApprovalRequest, tools: Mapping[str, ToolFacts]) -> dict[str, Any]:
    """What a rule may look at that a decision binds, or that is the tool's own: a lie about it gains nothing."""
    facts = {
        "args": canonical.parse(request.args),
        "environment": request.environment,
        "run.depth": request.run_id.count("."),
        "run.id": request.run_id,
        "tool.effect": request.effect,
        "tool.name": request.tool,
        "tool.version": request.version,
    }
    if tool := tools.get(request.tool):
        facts["tool.tags"] = list(tool.tags)
    return facts
