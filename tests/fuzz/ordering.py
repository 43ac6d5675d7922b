"""A decision, the order that it allows, and what an executor says to that and to what is made of the two."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from refold.core.approval.catalog import Catalog, Roles
from refold.core.approval.decision import ToolFacts
from refold.core.approval.policy import Policy
from refold.core.approval.question import named
from refold.core.approval.signature import PublicKey, SigningKey, sign, verified
from refold.core.errors import UnauthorisedError
from refold.core.events import Requirement
from refold.core.ids import home
from refold.core.messages import ApprovalRequest, ToolRequest
from refold.core.wire.canonical import idempotency_key
from refold.engine.executor.gate import Gate
from tests.core.decisions import VOTING, made, votes_of

NOW, VALID_MS, PARTITIONS = 1_700_000_000_000, 3_600_000, 8
POLICY = "policy-1"
ARGS = '{"amount":100,"to":"ann"}'
KEY = SigningKey("approval-1", "decision", b"k" * 32)
OTHER = SigningKey("approval-2", "decision", b"o" * 32)
OLD = SigningKey("approval-0", "decision", b"r" * 32)
GONE = SigningKey("approval-9", "decision", b"g" * 32)
VOTER = SigningKey("ann-1", "vote", b"v" * 32)
STRANGER = SigningKey("stranger-1", "decision", b"s" * 32)
KEYS = {key.kid: key.public() for key in (KEY, OTHER, VOTER, VOTING)}
KEYS |= {OLD.kid: OLD.public(retired_ms=NOW), GONE.kid: GONE.public(revoked=True)}
TOOL = ToolFacts("pay", "v1", "schema-1", "probed", approval=True)
TOOLS = {
    "pay": TOOL,
    "pay2": replace(TOOL, name="pay2"),
    "refund": ToolFacts("refund", "v1", "schema-1", "once"),
    "look": ToolFacts("look", "v1", "schema-1", "pure"),
}
RULES, OTHERS = (
    Policy.parse(
        {
            "rules": [
                {"name": "never", "when": "args.to == 'eve'", "deny": "she has enough"},
                {"name": "large", "when": "true", "require": {"approvers": [who], "quorum": 2}},
            ]
        }
    )
    for who in ("role:lead", "role:owner")
)
DENY = Policy.parse(
    {"rules": [{"name": "large", "when": "true", "deny": "never"}], "fallback": {"approvers": ["role:owner"]}}
)
STRANGER_VOTES = SigningKey(VOTING.kid, "vote", b"x" * 32)
ROLES = Roles({"lead": frozenset({"ann", "bob"})})


class Attempt(NamedTuple):
    """What is held against the gate."""

    what: str
    request: ToolRequest
    world: World


@dataclass(frozen=True)
class World:
    """What an executor knows by itself when an order reaches it."""

    environment: str = "prod"
    partition: int = home("run-1", PARTITIONS)
    now_ms: int = NOW + 1_000
    tools: dict[str, ToolFacts] = field(default_factory=lambda: TOOLS)
    keys: dict[str, PublicKey] = field(default_factory=lambda: KEYS)
    roles: Roles = ROLES
    policy: Policy | None = RULES


def catalog_of(world: World) -> Catalog:
    """What its lane has read of the catalog."""
    catalog = Catalog()
    catalog.keys, catalog.roles = world.keys, world.roles
    if world.policy is not None:
        catalog.policies[POLICY] = world.policy
    return catalog


def gate(request: ToolRequest, world: World) -> str:
    """Why an executor does not carry an order out, in words; nothing if it does."""
    catalog = catalog_of(world)
    gate = Gate(world.tools, world.environment, PARTITIONS, required=("*",))
    refused = gate.refusal(request, catalog, partition=world.partition, now_ms=world.now_ms)
    if refused is None:
        return ""
    try:
        verified(request.decision, world.keys, use="decision")
    except UnauthorisedError as error:
        return f"token: {error.fields['reason']}"
    return refused.message


def asked(**changes: Any) -> ApprovalRequest:
    """What people were asked."""
    request = ApprovalRequest(
        approval_id="",
        run_id="run-1",
        call_id="run-1/3",
        step=2,
        attempt=2,
        covers=4,
        agent="payer",
        requester="eve",
        session="s",
        environment="prod",
        tool="pay",
        version="v1",
        schema="schema-1",
        effect="probed",
        args=ARGS,
        key=key_of(),
        policy=POLICY,
        rule="large",
        requirement=Requirement(["role:lead"], quorum=2, valid_ms=VALID_MS),
        question="",
        proposal="proposal-1",
        asked_ms=NOW - 1_000,
    )
    return named(replace(request, **changes))


def key_of(environment: str = "prod", run: str = "run-1", step: int = 2, tool: str = "pay", args: str = ARGS) -> str:
    """The idempotency key of a call."""
    return idempotency_key(environment=environment, run=run, step=step, tool=tool, args=args)


DECISION = made(asked(), votes_of(asked(), "ann", "bob", at=NOW - 10), ROLES, now=NOW)
PAYLOAD = DECISION.payload()
TOKEN = sign(PAYLOAD, KEY)
REQUEST = ToolRequest(
    call_id="run-1/3",
    run_id="run-1",
    step=2,
    attempt=2,
    issued=7,
    tool="pay",
    args=ARGS,
    key=key_of(),
    effect="probed",
    timeout_ms=30_000,
    policy=POLICY,
    decision=TOKEN,
    at_ms=NOW + 500,
)
BOUND = {
    *("environment", "run", "call", "step", "tool", "version", "schema", "effect", "args", "key", "policy"),
    *("verdict", "attempt", "covers", "issued", "expires"),
}
"""The fields of a decision that say for which call it is good. The others tell what led to it."""


def holding(payload: dict[str, Any]) -> str:
    """A payload that the approval service itself has signed."""
    return sign(payload, KEY)
