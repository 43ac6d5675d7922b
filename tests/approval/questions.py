"""Requests and votes for tests: one call that waits for people, and what they may say of it."""

from __future__ import annotations

from typing import Any

from refold.core.approval.ballot import Vote
from refold.core.approval.catalog import Roles
from refold.core.approval.question import named
from refold.core.events import Requirement
from refold.core.messages import ApprovalRequest
from refold.core.wire.canonical import idempotency_key

NOW = 1_800_000_000_000
RUN = "run-1"
ROLES = Roles({"lead": frozenset({"ada", "bob", "cyd"}), "owner": frozenset({"dan"})})


def request(
    call: str = f"{RUN}/5",
    *,
    args: str = '{"service":"api"}',
    needs: Requirement | None = None,
    environment: str = "test",
    **more: Any,
) -> ApprovalRequest:
    """A request as the planner would write it; `more` are fields that are to be different."""
    run = call.partition("/")[0]
    given: dict[str, Any] = {
        "approval_id": "",
        "run_id": run,
        "call_id": call,
        "step": 1,
        "attempt": 1,
        "covers": more.get("attempt", 1),
        "agent": "deploy",
        "requester": "eve",
        "session": "s1",
        "environment": environment,
        "tool": "restart",
        "version": "1",
        "schema": "digest of the schema",
        "effect": "once",
        "args": args,
        "policy": "",
        "rule": "",
        "requirement": needs or Requirement(["role:lead"]),
        "proposal": "digest of the proposal",
        "asked_ms": NOW,
        **more,
    }
    if given["requirement"].expires_ms:
        given.setdefault("expires_ms", NOW + given["requirement"].expires_ms)
    key = idempotency_key(environment=environment, run=run, step=given["step"], tool=given["tool"], args=given["args"])
    blank = ApprovalRequest(**{"key": key, "question": "", **given})
    return blank if blank.question else named(blank)


def vote(asked: ApprovalRequest, actor: str, action: str = "approve", *, at: int = 1, **more: Any) -> Vote:
    """What somebody says of a request, so many ms after `NOW`."""
    given: dict[str, Any] = {
        "approval": asked.approval_id,
        "vote": f"{actor}-{action}-{at}",
        "question": asked.question,
        "environment": asked.environment,
        "actor": actor,
        "action": action,
        "issued": NOW + at,
        **more,
    }
    return Vote(**given)
