"""What a record says, or why it says nothing that the service can use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from refold.approval.question import ToolDefs
from refold.core.approval import signature
from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import Decision
from refold.core.approval.policy import FALLBACK, Policy
from refold.core.errors import MalformedError
from refold.core.events import Requirement
from refold.core.ids import home, parse_approval_id
from refold.core.messages import ApprovalDecision, ApprovalRequest, ApprovalVote
from refold.core.wire import canonical, codec
from refold.ports.log import Record

ASKED_AGAIN = "again/"
"""What the key of a record begins with that tells of a question asked once more; otherwise it is the approval's id."""


def read_vote(record: Record, *, partitions: int) -> ApprovalVote:
    """The vote in a record, its token unopened. **Raises** MalformedError."""
    message = codec.decode_message(ApprovalVote, record.value or b"")
    run, _, _ = parse_approval_id(message.approval_id)
    if record.key != f"{message.approval_id}/{message.vote_id}".encode():
        raise MalformedError("the key is not that of the vote")
    if run != message.run_id or home(run, partitions) != record.partition:
        raise MalformedError("the vote is not at home in this partition")
    return message


def read_decision(record: Record) -> ApprovalDecision:
    """The decision in a record, its token unopened. **Raises** MalformedError."""
    message = codec.decode_message(ApprovalDecision, record.value or b"")
    prefix = ASKED_AGAIN if message.kind == "again" else ""
    if record.key != f"{prefix}{message.approval_id}".encode():
        raise MalformedError("the key is not that of the decision")
    return message


def opened(message: ApprovalDecision, catalog: Catalog) -> Decision:
    """The decision that is in its token. **Raises** MalformedError, UnauthorisedError."""
    decided = Decision.parse(signature.verified(message.token, catalog.keys, use="decision"))
    if (decided.approval, decided.run) != (message.approval_id, message.run_id):
        raise MalformedError("the decision is another one than its record says")
    return decided


def vouched(request: ApprovalRequest, catalog: Catalog, tools: ToolDefs) -> bool:
    """Whether people may be asked for just this: a planner may not make up approvers, nor choose the rule.

    Without a policy anybody may decide, but only as long as none is in force.
    """
    policy = catalog.policies.get(request.policy)
    if policy is None:
        return not catalog.current and request.requirement == FALLBACK
    return request.requirement in _wanted(policy, request, tools)


def _wanted(policy: Policy, request: ApprovalRequest, tools: ToolDefs) -> Iterator[Requirement]:
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


def _bound(request: ApprovalRequest, tools: ToolDefs) -> dict[str, Any]:
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
        facts["tool.tags"] = list(tool.facts.tags)
    return facts
