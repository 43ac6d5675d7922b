"""The executor's own gate: which calls need a decision, and whether the one that came with a call allows it.

It rests on nothing that a planner says: the tools are those of the app in this process, the keys are the operator's,
and the call is what the bytes say that are about to be sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from refold.core.approval import decision, signature
from refold.core.approval.authority import Authority
from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import Decision, Refusal, ToolFacts
from refold.core.approval.recount import unasked, unfounded
from refold.core.errors import UnauthorisedError
from refold.core.messages import ToolRequest


@dataclass(frozen=True, slots=True)
class Gate:
    """What an executor knows by itself. `required` are patterns of tool names, besides what the tools declare."""

    tools: Mapping[str, ToolFacts] = field(default_factory=dict)
    environment: str = "dev"
    partitions: int = 1
    pool: str = "default"
    required: Sequence[str] = ()

    def needs_decision(self, request: ToolRequest) -> bool:
        """Whether a call may not run without a decision here, or comes with one that then has to hold."""
        tool = self.tools.get(request.tool)
        declared = tool is not None and tool.approval
        return declared or bool(request.decision) or any(fnmatchcase(request.tool, name) for name in self.required)

    def refusal(self, request: ToolRequest, catalog: Catalog, *, partition: int, now_ms: int) -> Refusal | None:
        """Why a call may not be acted upon now; None if it may. **Units**: `now_ms` is by the log.

        What is halted after its claim says that it was not begun: the claim alone would put a `once` call in doubt.
        """
        if (known := self.tools.get(request.tool)) is not None and known.pool != self.pool:
            # What one pool may reach is no affair of another, whatever an order says.
            message = f"{request.tool} is a tool of pool {known.pool}, not of {self.pool}"
            return Refusal("wrong_pool", message, stale=False)
        if halted := self.halted(request, catalog):
            return Refusal("halted", halted, stale=True)
        authority = Authority(self.tools, self.environment, catalog)
        if self.needs_decision(request):
            decided = self._open(request, authority)
            if isinstance(decided, Refusal):
                return decided
            tool = self.tools.get(request.tool)
            if tool is None:
                return Refusal("unauthorised", f"there is no tool {request.tool} here", stale=False)
            refused = (
                decision.away(request, partition, self.partitions)
                or decision.refusal(decided, request, tool, environment=self.environment, now_ms=now_ms)
                or unfounded(decided, catalog)
                or unasked(decided, request, catalog, self.tools)
            )
            if refused:
                return refused
        if authority.changed(request.policy):
            return Refusal("policy_changed", "another policy is in force, and it wants to judge the call", stale=True)
        return None

    def halted(self, request: ToolRequest, catalog: Catalog) -> str:
        """Why a call is halted, or nothing."""
        return catalog.halts.why(tool=request.tool, pool=self.pool, agent=request.agent, requester=request.requester)

    def key_forgotten(self, request: ToolRequest, catalog: Catalog, now_ms: int) -> bool:
        """Whether a try may reach a receiver that has forgotten the key, by what the planner says or is known here."""
        tool, arrives_ms = self.tools.get(request.tool), now_ms + request.timeout_ms
        if tool is not None and tool.key_window_ms and self.needs_decision(request):
            decided = self._open(request, Authority(self.tools, self.environment, catalog))
            # No attempt went out before the decision, so the receiver has known the key for that long at most.
            if isinstance(decided, Refusal) or arrives_ms > decided.issued + tool.key_window_ms:
                return True
        return bool(request.key_expires_ms) and arrives_ms > request.key_expires_ms

    @staticmethod
    def _open(request: ToolRequest, authority: Authority) -> Decision | Refusal:
        if not request.decision:
            return Refusal("unauthorised", "the call needs a decision and came without", stale=False)
        try:
            return authority.open(request.decision)
        except UnauthorisedError as error:
            withdrawn = error.fields.get("reason") in signature.WITHDRAWN
            return Refusal("decision_revoked" if withdrawn else "unauthorised", error.message, stale=withdrawn)
