"""People of a test: a policy asks them; votes are signed and counted as in production."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic_core import to_jsonable_python

from refold.core.approval import ballot, decision, signature
from refold.core.approval.authority import Authority
from refold.core.approval.ballot import Vote
from refold.core.approval.catalog import CURRENT, ROLE, ROLES_ENTRY, Catalog
from refold.core.approval.policy import Policy
from refold.core.approval.policy_check import unfounded
from refold.core.approval.requester import has_asked, quorum_of
from refold.core.approval.signature import ROOT, SigningKey, sealed
from refold.core.errors import UsageError
from refold.core.events import Requirement
from refold.core.messages import ApprovalRequest, CatalogEntry
from refold.core.planning.verdict import Decided
from refold.core.wire import canonical, codec
from refold.engine.approval.question import as_judged, unfit
from refold.engine.executor.gate import Gate
from refold.sdk.app import App
from refold.sdk.sources import FactsTable

ENVIRONMENT, ASKER = "test", "requester"


class Says(NamedTuple):
    """Vote on a call: its `action`, with arguments, result or message, as canonical JSON."""

    action: str
    args: str = ""
    result: str = ""
    message: str = ""


PeopleSay = Literal["approve", "reject", "expire"] | Says


def edit(**args: Any) -> Says:
    """People approve a call with other arguments, given in full; the policy may then ask others."""
    return Says("edit", args=canonical.dumps(to_jsonable_python(args, by_alias=True)))


def reject(message: str) -> Says:
    """People refuse a call: the agent gets their message."""
    return Says("reject", message=message)


def answer(result: Any) -> Says:
    """People give the result themselves, and the call is not made."""
    return Says("answer", result=canonical.dumps(to_jsonable_python(result, by_alias=True)))


Finding = Literal["did_not_happen", "happened", "give_up"]
FINDINGS: Mapping[Finding, str] = {"did_not_happen": "approve", "happened": "answer", "give_up": "reject"}
"""Votes on the question about a call in doubt, by its outcome."""

_KEY = SigningKey("testing", "decision", bytes(range(32)))
_GATEWAY = SigningKey("testing-votes", "vote", bytes(range(1, 33)))
_ROOT = SigningKey("testing-root", ROOT, bytes(range(2, 34)))

_ANYBODY: Mapping[str, Any] = {
    "fallback": {"approvers": ["*"], "not_requester": False, "expires": "24h"},
    "doubt": {"approvers": ["*"], "not_requester": False},
    "rules": [{"name": "all but what asks itself", "when": "true", "allow": True}],
}


class Panel:
    """Policy, people and keys of a test. Without a policy all calls are allowed, except tools that need a decision,
    which anyone may make. Its people are in the policy; `tester-1`, `tester-2`, ... have all roles."""

    def __init__(self, app: App, content: Mapping[str, Any] | None) -> None:
        policy, self.trust = Policy.parse(dict(_ANYBODY if content is None else content)), {_ROOT.kid: _ROOT.public()}
        needed = _requirements(policy)
        quorum = max((rule.quorum for rule in needed), default=1)
        self._testers = [f"tester-{number}" for number in range(1, 2 + quorum)]
        roles = {name for rule in needed for name in (*rule.approvers, *rule.escalate_to) if name.startswith(ROLE)}
        self.catalog: list[tuple[bytes, bytes]] = []
        for key in (_KEY.public(), _GATEWAY.public(strength="test")):
            self._publish(f"key/{key.kid}", key.content())
        self._publish(ROLES_ENTRY, {"roles": {name.removeprefix(ROLE): self._testers for name in sorted(roles)}})
        self._publish(f"policy/{policy.digest}", policy.content)
        self._publish(CURRENT, policy.digest)
        self._tools, read = app.tools, Catalog(self.trust)
        for offset, record in enumerate(self.catalog):
            read.follow(offset, *record)
        self.authority = Authority(FactsTable(app.tools), ENVIRONMENT, read)

    def gate(self, pool: str) -> Gate:
        return Gate(FactsTable(self._tools, pool), ENVIRONMENT, 1, pool)

    def decide(self, request: ApprovalRequest, answer: Says, now_ms: int) -> Decided:
        """Decision of people with a full quorum. **Raises** UsageError if the policy does not allow it."""
        voted, catalog = {}, self.authority.catalog
        about: dict[str, Any] = {"approval": request.approval_id, "question": request.question}
        about["environment"] = request.environment
        if answer.args == request.args:  # a second question about their own edit
            answer = Says("approve")
        for number, actor in enumerate(self._voters(request, answer.action), start=1):
            vote = Vote(vote=f"vote-{number}", actor=actor, issued=now_ms, **about, **answer._asdict())
            token = signature.sign(vote.payload(), _GATEWAY)
            voted[ballot.open_vote(token, catalog.keys)] = token
        count = ballot.count(request, voted, catalog.roles, now_ms)
        void = [*count.void.values(), *filter(None, (unfit(request, vote, catalog, self._tools) for vote in voted))]
        if void or count.settled is None:
            why = "; ".join(sorted({objection.reason for objection in void})) or "too few may decide"
            raise UsageError(f"nobody can {answer.action} the call of {request.tool}: {why}", hint="look at its policy")
        content = as_judged(request, count.settled, catalog, self.authority.tools)._asdict()
        tokens = tuple(voted[vote] for vote in content.pop("said"))
        decided = decision.build(request, **content, tokens=tokens, issued_ms=now_ms, nonce=request.approval_id)
        if refused := unfounded(decided, catalog):
            raise UsageError(refused.message)
        return Decided(request.run_id, request.approval_id, signature.sign(decided.payload(), _KEY))

    def _voters(self, request: ApprovalRequest, action: str) -> list[str]:
        needed = request.requirement
        approvers = [*needed.approvers, *(needed.escalate_to if request.level else ())]
        named = [name for name in approvers if name != "*" and not name.startswith(ROLE)]
        people = [*named, *(self._testers if len(named) < len(approvers) else ())]
        able = [name for name in people if not (needed.not_requester and has_asked(request, name))] or people
        return able[: 1 if action == "reject" else quorum_of(request, {})]

    def _publish(self, name: str, content: Any) -> None:
        kind = name.partition("/")[0]
        entry = CatalogEntry(name, kind, canonical.dumps(content), actor="tester", at_ms=0)
        self.catalog.append((name.encode(), codec.encode(sealed(entry, _ROOT, len(self.catalog) + 1))))


def _requirements(policy: Policy) -> list[Requirement]:
    return [*filter(None, (policy.fallback, policy.doubt, *(rule.requirement for rule in policy.rules)))]
