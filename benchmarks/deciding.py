"""How long an executor takes to check a decision with three votes: `python -m benchmarks.deciding`. Prints JSON.

All that stands between an order and its claim: the decision's signature, the call that it binds, three votes that were
signed by three people with keys of their own, the count, and what the policy asks. Medians of nine rounds, in CPU time.
"""

from __future__ import annotations

import json
import sys

from benchmarks.policy import us

from refold.core.approval import ballot, decision, signature
from refold.core.approval.ballot import Vote
from refold.core.approval.catalog import Catalog, Roles
from refold.core.approval.decision import ToolFacts
from refold.core.approval.policy import Policy
from refold.core.approval.question import named
from refold.core.approval.signature import SigningKey
from refold.core.ids import CallId, RunId
from refold.core.messages import ApprovalRequest, ToolRequest
from refold.core.wire.canonical import idempotency_key
from refold.engine.executor.gate import Gate

NOW = 1_800_000_000_000
PEOPLE = ("ada", "bob", "cyd")
RUN, CALL, ARGS = RunId("run-1"), CallId("run-1/5"), '{"amount":900,"to":"ann"}'
TOOL = ToolFacts("pay", "v1", "schema", "once", approval=True)
POLICY = Policy.parse(
    {
        "rules": [
            {"name": "reading", "when": 'tool.effect == "pure"', "allow": True},
            {"name": "paying", "when": "args.amount < 1000", "require": {"approvers": ["role:lead"], "quorum": 3}},
        ]
    }
)
SERVICE = SigningKey("service", "decision", bytes(32))
KEYS = {name: SigningKey(name, "vote", name.encode() * 10 + b"--") for name in PEOPLE}


def catalog() -> Catalog:
    """What an executor has read."""
    found = Catalog()
    found.keys = {key.kid: key.public(actors=(name,)) for name, key in KEYS.items()} | {SERVICE.kid: SERVICE.public()}
    found.roles = Roles({"lead": frozenset(PEOPLE)})
    found.policies[POLICY.digest] = POLICY
    return found


def asked() -> ApprovalRequest:
    """What people were asked."""
    needed = POLICY.rules[1].requirement
    assert needed is not None, "the rule asks"
    key = idempotency_key(environment="prod", run=RUN, step=1, tool=TOOL.name, args=ARGS)
    facts = {"tool": TOOL.name, "version": TOOL.version, "schema": TOOL.schema, "effect": TOOL.effect}
    place = {"run_id": RUN, "call_id": CALL, "step": 1, "attempt": 1, "covers": 1, "environment": "prod"}
    who = {"agent": "payer", "requester": "eve", "session": "", "asked_ms": NOW}
    rule = {"policy": POLICY.digest, "rule": "paying", "requirement": needed, "proposal": "0" * 64}
    return named(ApprovalRequest(approval_id="", question="", args=ARGS, key=key, **facts, **place, **who, **rule))


def order(request: ApprovalRequest) -> ToolRequest:
    """The order of the call, with the decision of the three."""
    votes = [
        Vote(request.approval_id, name, request.question, "prod", name, "approve", NOW, message="fine with me")
        for name in PEOPLE
    ]
    settled = ballot.count(request, votes, catalog().roles, NOW).settled
    assert settled is not None, "three are enough"
    tokens = tuple(signature.sign(vote.payload(), KEYS[vote.actor]) for vote in settled.said)
    made = decision.build(
        request, "approve", votes=settled.votes, tokens=tokens, message=settled.message, issued_ms=NOW, nonce="n"
    )
    token = signature.sign(made.payload(), SERVICE)
    return ToolRequest(
        CALL, RUN, 1, 1, 7, TOOL.name, ARGS, request.key, "once", 1_000, policy=POLICY.digest, decision=token, at_ms=NOW
    )


def main() -> int:
    """Prints the figure and how large a decision is; returns the exit code."""
    gate, known, wanted = Gate({TOOL.name: TOOL}, "prod", 1), catalog(), order(asked())
    refused = gate.refusal(wanted, known, partition=0, now_ms=NOW)
    assert refused is None, refused
    took = us(lambda: gate.refusal(wanted, known, partition=0, now_ms=NOW))
    print(json.dumps({"decision_us": round(took), "decision_bytes": len(wanted.decision)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
