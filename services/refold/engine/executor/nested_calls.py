"""Policy for calls that an agent makes in memory, which are in no log. Denials and halts apply; calls that need people
fail, as no approval can be requested there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from refold.core.approval.authority import Authority
from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import Refusal
from refold.core.events import CallProposed, RetryPolicy, RunRequested
from refold.core.messages import ToolRequest
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.engine.executor.gate import Gate

UNKNOWN = frozenset({"run.session", "run.labels"})
"""Facts of a run that an order lacks: rules that read them take the stricter outcome."""


@dataclass(frozen=True, slots=True)
class NestedPolicy:
    """Policy for an agent's calls in memory: `halted` is temporary, `denied` goes to the agent, `needs_decision` ends
    it."""

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
            policy = authority.current
        request = RunRequested(self.request.agent, self._input(), "", "", self.request.requester)
        state = RunState(self.request.run_id, request=request)
        call = CallProposed(1, tool, args, "", self.gate.pool, "pure", 0, RetryPolicy(1, 0, 0))
        judged = authority.judge(state, call, policy, ahead=calls, unknown=UNKNOWN)
        if judged.outcome == "deny":
            return Refusal("denied", judged.message or f"the rule {judged.rule!r} denies it", stale=False)
        if judged.outcome == "require" or self.gate.needs_decision(inner):
            why = judged.message or f"the rule {judged.rule!r} asks people"
            return Refusal("needs_decision", why, stale=False)
        return None

    def _input(self) -> str:
        return canonical.dumps(canonical.parse(self.request.args)["input"])
