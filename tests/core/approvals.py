"""People in the histories of the tests: a policy that asks them, a key that signs what they decide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from refold.core.approval import ballot, decision, signature
from refold.core.approval.authority import Authority
from refold.core.approval.catalog import Catalog, Roles
from refold.core.approval.decision import Cast, Decision, ToolFacts, Verdict
from refold.core.approval.policy import Policy
from refold.core.approval.requester import quorum_of
from refold.core.approval.signature import SigningKey
from refold.core.messages import ApprovalRequest
from refold.core.planning import asking
from refold.core.planning.verdict import Decided
from refold.core.run.state import RunState
from tests.core.decisions import VOTING, made, votes_of
from tests.roots import TRUST, publish

KEY = SigningKey("test-1", "decision", bytes(range(32)))
TOOLS = {
    "push": ToolFacts("push", "1", "digest of the schema", "keyed"),
    "wipe": ToolFacts("wipe", "1", "digest of the schema", "once", approval=True),
}
CONTENT = {
    "rules": [
        {"name": "reads", "when": 'tool.effect == "pure"', "allow": True},
        {"name": "never", "when": 'tool.effect == "probed"', "deny": "not in this house"},
        {
            "name": "asks",
            "when": "true",
            "require": {
                "approvers": ["*"],
                "expires": "60s",
                "on_expiry": "escalate",
                "escalate": {"after": "20s", "to": ["role:lead"]},
            },
        },
    ],
    "doubt": {"approvers": ["*"]},
}
POLICY = Policy.parse(CONTENT)
PEOPLE = ("ada", "bob")
ROLES = {"ops": frozenset(PEOPLE)}
ADA = (Cast("ada", "*", "key", "vote-1", 0),)


def catalog(policy: dict[str, Any] | None = CONTENT) -> Catalog:
    """A catalog with a decision key, and with a policy that new runs get."""
    found = Catalog(TRUST)
    for key in (KEY, VOTING):
        publish(found, f"key/{key.kid}", "key", key.public().content())
    publish(found, "roles", "roles", {"roles": {name: sorted(people) for name, people in ROLES.items()}, "revoked": []})
    if policy is not None:
        put_in_force(found, policy)
    return found


def put_in_force(found: Catalog, content: dict[str, Any]) -> Policy:
    """Publishes a policy and makes it the one that new runs get."""
    policy = Policy.parse(content)
    publish(found, f"policy/{policy.digest}", "policy", policy.content)
    publish(found, "current", "current", policy.digest)
    return policy


def authority(policy: dict[str, Any] | None = CONTENT) -> Authority:
    """What a planner of the tests knows."""
    return Authority(TOOLS, "test", catalog(policy))


def request(state: RunState, step: int) -> ApprovalRequest:
    """What people are asked for the approval that a step waits for."""
    return asking.question_of(state, state.call(step), state.open[step])


def _counted(asked: ApprovalRequest, verdict: Verdict, *, now: int, **said: Any) -> Decision | None:
    """The decision by votes, where planners count them once more; None where they do not, or it has none."""
    if verdict != "answer" and not (asked.about and verdict in ("approve", "reject")):
        return None
    votes, roles = votes_of(asked, *PEOPLE[: quorum_of(asked, {})], action=verdict, at=now, **said), Roles(ROLES)
    return made(asked, votes, roles, now=now) if ballot.count(asked, votes, roles, now).settled else None


def decided(state: RunState, step: int, verdict: Verdict = "approve", *, now: int, **more: Any) -> Decided:
    """The decision on the approval that a step waits for. `changes` alter it before it is signed."""
    changes, key = more.pop("changes", {}), more.pop("key", KEY)
    asked = request(state, step)
    found = _counted(asked, verdict, now=now, **more) or decision.build(
        asked, verdict, votes=ADA, issued_ms=now, nonce="nonce", **more
    )
    token = signature.sign(replace(found, **changes).payload(), key)
    return Decided(state.run_id, asked.approval_id, token)
