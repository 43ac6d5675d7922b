"""A shop whose tool must not pay twice: its executor, what that knows, and what people say of calls in doubt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from refold.core.approval.catalog import Catalog, Roles
from refold.core.approval.decision import Decision, ToolFacts
from refold.core.approval.policy import Policy
from refold.core.approval.signature import SigningKey, sign
from refold.core.events import DOUBT, Earlier
from refold.core.ids import CallId, RunId
from refold.core.messages import ApprovalRequest, ToolClaim, ToolRequest
from refold.core.run.erased import erased_claims_key
from refold.core.wire import codec
from refold.core.wire.canonical import idempotency_key
from refold.engine.executor.claim_chain import record_key
from refold.engine.executor.gate import Gate
from refold.engine.executor.settings import ExecutorSettings
from refold.engine.ports.effects import Append, AskLedger, Effect, Item
from refold.engine.ports.ledger import Complete
from refold.engine.ports.log import Outgoing, Record
from tests.approval.questions import request as question
from tests.core.decisions import VOTING, made, votes_of
from tests.recovery.executor_rig import CLAIMS, Rig

KEY = SigningKey("service-1", "decision", b"s" * 32)
ROLES = Roles({"cashier": frozenset({"ada", "bob"}), "lead": frozenset({"lea"})})
POLICY = Policy.parse(
    {
        "doubt": {"approvers": ["role:cashier"], "quorum": 2},
        "rules": [{"name": "large", "when": "true", "require": {"approvers": ["role:lead"]}}],
    }
)
MUTE = Policy.parse({"rules": POLICY.content["rules"]})
PAY = ToolFacts("pay", "1", "schema", "once")
TOOLS = {"pay": PAY, "look": ToolFacts("look", "1", "schema", "pure")}
SETTINGS = ExecutorSettings(gate=Gate(TOOLS, "test"))
LEASE_MS = SETTINGS.times.lease("pay", "once")


def order(
    attempt: int = 1, *, call: str = "run-1/5", step: int = 1, args: str = '{"to":"ann"}', **more: Any
) -> ToolRequest:
    """The order of an attempt."""
    run = RunId(call.partition("/")[0])
    key = idempotency_key(environment="test", run=run, step=step, tool="pay", args=args)
    request = ToolRequest(CallId(call), run, step, attempt, 0, "pay", args, key, "once", 3_000, policy=POLICY.digest)
    return replace(request, **more)


def claim(attempt: int, name: str, prev: str = "", **more: Any) -> ToolClaim:
    """A link of somebody else's."""
    return replace(ToolClaim(order().call_id, name, prev, attempt, False, "another", order().key), **more)


def asked(again: ToolRequest, /, **changes: Any) -> ApprovalRequest:
    """What an honest planner asks of people before this attempt goes out."""
    given: dict[str, Any] = {
        "step": again.step,
        "attempt": again.attempt,
        "args": again.args,
        "tool": again.tool,
        "schema": "schema",
        "policy": POLICY.digest,
        "rule": DOUBT,
        "needs": POLICY.doubt,
        "about": DOUBT,
        "history": [Earlier(again.attempt - 1, "doubt", "no answer", "", 1)],
    }
    return question(again.call_id, **given | changes)


def decided(request: ApprovalRequest, *actors: str, **vote: Any) -> Decision:
    """What people decide, by their votes."""
    votes = votes_of(request, *(actors or ("ada", "bob")), at=request.asked_ms, **vote)
    return made(request, votes, ROLES, now=request.asked_ms + 1)


def settled(again: ToolRequest, /, **changes: Any) -> ToolRequest:
    """The order with what people have said of the attempts before."""
    return replace(again, settled=sign(decided(asked(again, **changes)).payload(), KEY))


def furnish(catalog: Catalog, *more: Policy) -> None:
    """What is in the catalog."""
    catalog.keys = {KEY.kid: KEY.public(), VOTING.kid: VOTING.public()}
    catalog.roles = ROLES
    catalog.policies.update({policy.digest: policy for policy in (POLICY, MUTE, *more)})


@dataclass
class Shop(Rig):
    """An executor that knows its tools, and the catalog.

    `between` is called when it has written a link and before it reads that; a `deaf` one hears of none. `did` has what
    it did, in order.
    """

    deaf = False

    def __post_init__(self) -> None:
        self.settings = SETTINGS
        self.between: Callable[[], None] = lambda: None
        self.did: list[str] = []
        super().__post_init__()
        furnish(self.catalog)

    def _carry_out(self, order: Effect) -> list[Item]:
        if isinstance(order, AskLedger) and any(isinstance(each, Complete) for each in order.operations):
            self.did.append("result")
        if isinstance(order, Append):
            self.did.append("link")
            if self.deaf:
                return []
            self.between()
        return super()._carry_out(order)

    def foreign(self, claim: ToolClaim) -> None:
        """Somebody else's link comes."""
        key, value = record_key(claim), codec.encode(claim)
        self.claims.append(Outgoing(CLAIMS, 0, key, value, (), 0))
        self.turn(Record(CLAIMS, 0, len(self.claims) - 1, key, value, lambda: None, self.now_ms))

    def erased(self, run: str, *, back: bool = False) -> None:
        """The claims of a run are erased, as an archivist does it; or somebody takes back that they are."""
        key, value = erased_claims_key(RunId(run)), None if back else codec.encode(ToolClaim.of_none("archivist"))
        self.claims.append(Outgoing(CLAIMS, 0, key, value, (), 0))
        self.turn(*self._claimed(len(self.claims) - 1))

    @property
    def catalog(self) -> Catalog:
        """What its lane has read of the catalog."""
        (lane,) = self.executor.lanes
        return lane.catalog

    def tries(self) -> list[int]:
        """The attempts that began, by number."""
        return [start.request.attempt for start in self.started]

    def said(self) -> str:
        """What was said last, and why."""
        result = self.results[-1]
        return f"{result.status}: {result.failure.code}" if result.failure else result.status

    def links(self) -> list[str]:
        """What the chain has, in order."""
        found = [codec.decode(ToolClaim, record.value or b"") for record in self.claims]
        return [f"{'undone' if c.undone else 'doubt' if c.doubt else 'claim'} {c.attempt}" for c in found]


def tried(status: str = "unknown") -> Shop:
    """A shop in which a first attempt has ended like this."""
    shop = Shop()
    shop.ask(order())
    shop.end(status)
    return shop
