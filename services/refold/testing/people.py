"""The people of a test: what they are asked is what a policy asks, and what they say is signed as in production."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from refold.core.approval import decision, signature
from refold.core.approval.authority import Authority
from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import Cast
from refold.core.approval.policy import Policy
from refold.core.approval.signature import SigningKey
from refold.core.messages import ApprovalRequest
from refold.core.planning.verdict import Decided
from refold.sdk.app import App

ENVIRONMENT = "test"
PeopleSay = Literal["approve", "reject", "expire"]
_KEY = SigningKey("testing", "decision", bytes(range(32)))


_ANYBODY: Mapping[str, Any] = {
    "fallback": {"approvers": ["*"], "not_requester": False, "expires": "24h"},
    "doubt": {"approvers": ["*"], "not_requester": False},
    "rules": [{"name": "all but what asks itself", "when": "true", "allow": True}],
}


def authority(app: App, content: Mapping[str, Any] | None) -> Authority:
    """What a planner knows of tools, policies and keys: an approval service signs with the one key.

    Without a policy it is as with `refold dev`: everything is allowed but what asks by itself, and that asks anybody.
    """
    catalog = Catalog()
    catalog.keys[_KEY.kid] = _KEY.public()
    policy = Policy.parse(dict(_ANYBODY if content is None else content))
    catalog.policies[policy.digest], catalog.current = policy, policy.digest
    return Authority({tool.name: tool.facts for tool in app.tools.values()}, ENVIRONMENT, catalog)


def signed_decision(request: ApprovalRequest, verdict: Literal["approve", "reject"], now_ms: int) -> Decided:
    """A decision as the approval service signs it."""
    vote = Cast("tester", "*", "key", "vote-1", now_ms)
    signed = decision.build(request, verdict, votes=(vote,), issued_ms=now_ms, nonce=request.approval_id)
    return Decided(request.run_id, request.approval_id, signature.sign(signed.payload(), _KEY))
