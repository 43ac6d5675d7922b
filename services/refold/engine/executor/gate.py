"""The executor's own gate: calls that need a decision, and checks of decisions. It relies on nothing from a planner:
the tools are the app's in this process, the keys the operator's, the call the bytes about to be sent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from refold.core.approval import decision, signature
from refold.core.approval.authority import Authority
from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import Decision, Refusal, ToolFacts
from refold.core.approval.policy_check import unasked, unfounded
from refold.core.errors import UnauthorisedError
from refold.core.events import CallProposed, RetryPolicy, RunRequested
from refold.core.messages import ToolRequest
from refold.core.run.state import CHAINED, RunState
from refold.core.wire import canonical

UNKNOWN = frozenset({"run.session", "run.labels"})
"""Facts of a run that an order lacks: rules that read them take the stricter outcome."""

_STRICTER = ("pure", "keyed", "probed", "once")


@dataclass(frozen=True, slots=True)
class Gate:
    """Checks of an executor before it acts; `required` are patterns of tool names, besides the tools' declarations."""

    tools: Mapping[str, ToolFacts] = field(default_factory=dict)
    environment: str = "dev"
    partitions: int = 1
    pool: str = "default"
    required: Sequence[str] = ()

    def needs_decision(self, request: ToolRequest) -> bool:
        """True if a call needs a decision here, or has one, which then has to hold."""
        tool = self.tools.get(request.tool)
        declared = tool is not None and tool.asks(request.args)
        return declared or bool(request.decision) or any(fnmatchcase(request.tool, name) for name in self.required)

    def effect(self, request: ToolRequest) -> str:
        """Effect class of a call: the stricter of the order's and of the tool's here."""
        tool = self.tools.get(request.tool)
        effects = [name for name in (request.effect, tool.effect if tool else "pure") if name in _STRICTER]
        # A class of a later version is treated as the strictest.
        return max(effects, key=_STRICTER.index) if request.effect in effects else "once"

    def refusal(self, request: ToolRequest, catalog: Catalog, *, partition: int, now_ms: int) -> Refusal | None:
        """Reason why a call may not be acted upon now. **Units**: `now_ms` is by the log."""
        if (registered := self.tools.get(request.tool)) is not None and registered.pool != self.pool:
            # A pool's permissions do not extend to another pool, whatever an order names.
            message = f"{request.tool} is a tool of pool {registered.pool}, not of {self.pool}"
            return Refusal("wrong_pool", message, stale=False)
        # Refused as not begun: after a halt the claim alone would put a `once` call in doubt.
        if halted := self.halted(request, catalog):
            return Refusal("halted", halted, stale=True)
        # Its claims are in its home partition, and nowhere else.
        if self.effect(request) in CHAINED and (refused := decision.away(request, partition, self.partitions)):
            return refused
        authority = Authority(self.tools, self.environment, catalog)
        if self.needs_decision(request):
            refused = self._undecided(request, authority, partition=partition, now_ms=now_ms)
            if refused:
                return refused
        if authority.changed(request.policy):
            return Refusal("policy_changed", "another policy is in force, and it wants to judge the call", stale=True)
        return None

    def _undecided(self, request: ToolRequest, authority: Authority, *, partition: int, now_ms: int) -> Refusal | None:
        """Reason why the decision that came with a call does not permit it."""
        decided, catalog = self._open(request.decision, authority), authority.catalog
        if isinstance(decided, Refusal):
            return decided
        tool = self.tools.get(request.tool)
        if tool is None:
            return decision.final(f"there is no tool {request.tool} here")
        return (
            decision.away(request, partition, self.partitions)
            or decision.refusal(decided, request, tool, environment=self.environment, now_ms=now_ms)
            or unfounded(decided, catalog)
            or unasked(decided, request, catalog, self.tools)
        )

    def unsettled(self, request: ToolRequest, catalog: Catalog, *, begun: tuple[int, int]) -> Refusal | None:
        """Reason why earlier attempts may have had an effect; None if people have confirmed that they had none.
        `begun`: the highest attempt with a possible effect, and its log time. After a `stale` reason people are asked;
        any other means a forged confirmation."""
        authority, tool = Authority(self.tools, self.environment, catalog), self.tools.get(request.tool)
        if not request.settled or tool is None:
            return Refusal("in_doubt", "nobody has said what came of the attempts before", stale=True)
        decided = self._open(request.settled, authority)
        if isinstance(decided, Refusal):
            return decided
        if authority.changed(decided.policy):
            return Refusal("policy_changed", "another policy is in force, and it wants to ask again", stale=True)
        return (
            decision.unsettled(decided, request, tool, environment=self.environment, begun=begun)
            or unfounded(decided, catalog)
            or unasked(decided, request, catalog, self.tools)
        )

    def halted(self, request: ToolRequest, catalog: Catalog) -> str:
        return catalog.halts.why(
            tool=request.tool, pool=self.pool, agent=request.agent, requester=request.requester, above=request.above
        )

    def key_forgotten(self, request: ToolRequest, catalog: Catalog, now_ms: int) -> bool:
        """True if a try may reach a receiver that has forgotten the key."""
        tool, arrives_ms = self.tools.get(request.tool), now_ms + request.timeout_ms
        if tool is not None and tool.key_window_ms and self.needs_decision(request):
            decided = self._open(request.decision, Authority(self.tools, self.environment, catalog))
            # No attempt went out before the decision, so the receiver has known the key for that long at most: or since
            # people have confirmed that earlier attempts had no effect.
            since_ms = arrives_ms - tool.key_window_ms
            if isinstance(decided, Refusal) or (
                decided.issued < since_ms and not self._settled_since(request, catalog, since_ms)
            ):
                return True
        return bool(request.key_expires_ms) and arrives_ms > request.key_expires_ms

    def _settled_since(self, request: ToolRequest, catalog: Catalog, since_ms: int) -> bool:
        """True if people have confirmed, since this time, that earlier attempts had no effect."""
        settled = self._open(request.settled, Authority(self.tools, self.environment, catalog))
        if isinstance(settled, Refusal) or settled.issued < since_ms:
            return False
        return self.unsettled(request, catalog, begun=(request.attempt - 1, 0)) is None

    @staticmethod
    def _open(token: str, authority: Authority) -> Decision | Refusal:
        """Decision in a token, or the reason why it does not count."""
        if not token:
            return decision.final("the call needs a decision and came without")
        try:
            return authority.open(token)
        except UnauthorisedError as error:
            withdrawn = error.fields.get("reason") in signature.WITHDRAWN
            return (decision.revoked if withdrawn else decision.final)(error.message)


@dataclass(frozen=True, slots=True)
class NestedPolicy:
    """Policy for calls that an agent makes in memory, which are in no log: `halted` is temporary, `denied` goes to the
    agent, `needs_decision` ends it, as no approval can be requested there."""

    gate: Gate
    request: ToolRequest
    catalog: Catalog

    def __call__(self, tool: str, args: str, calls: int) -> Refusal | None:
        inner = replace(self.request, tool=tool, args=args, decision="")
        # Called from another thread: it reads values that are replaced as a whole.
        if halted := self.gate.halted(inner, self.catalog):
            return Refusal("halted", halted, stale=True)
        authority = Authority(self.gate.tools, self.gate.environment, self.catalog)
        policy = self.request.policy
        if authority.changed(policy):
            policy = self.catalog.current
        input_text = canonical.dumps(canonical.parse(self.request.args)["input"])
        request = RunRequested(self.request.agent, input_text, "", "", self.request.requester)
        state = RunState(self.request.run_id, request=request)
        call = CallProposed(1, tool, args, "", self.gate.pool, "pure", 0, RetryPolicy(1, 0, 0))
        judged = authority.judge(state, call, policy, ahead=calls, unknown=UNKNOWN)
        if judged.outcome == "deny":
            return Refusal("denied", judged.message or f"the rule {judged.rule!r} denies it", stale=False)
        if judged.outcome == "require" or self.gate.needs_decision(inner):
            why = judged.message or f"the rule {judged.rule!r} asks people"
            return Refusal("needs_decision", why, stale=False)
        return None
