"""The executor's own gate: which calls need a decision, and whether those that came with a call allow it.

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
from refold.core.approval.vote_check import unasked, unfounded
from refold.core.errors import UnauthorisedError
from refold.core.messages import ToolRequest
from refold.core.run.state import CHAINED

_STRICTER = ("pure", "keyed", "probed", "once")


@dataclass(frozen=True, slots=True)
class Gate:
    """Executor's own checks. `required` are patterns of tool names, besides what the tools declare."""

    tools: Mapping[str, ToolFacts] = field(default_factory=dict)
    environment: str = "dev"
    partitions: int = 1
    pool: str = "default"
    required: Sequence[str] = ()

    def needs_decision(self, request: ToolRequest) -> bool:
        """True if a call may not run without a decision here, or comes with one that then has to hold."""
        tool = self.tools.get(request.tool)
        declared = tool is not None and tool.asks(request.args)
        return declared or bool(request.decision) or any(fnmatchcase(request.tool, name) for name in self.required)

    def effect(self, request: ToolRequest) -> str:
        """The class that a call is treated by: the stricter one of what is ordered and what the tool here declares."""
        tool = self.tools.get(request.tool)
        known = [name for name in (request.effect, tool.effect if tool else "pure") if name in _STRICTER]
        # A class of a later version is treated as the strictest.
        return max(known, key=_STRICTER.index) if request.effect in known else "once"

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
        # The claims that say what was sent before are there, and nowhere else.
        if self.effect(request) in CHAINED and (refused := decision.away(request, partition, self.partitions)):
            return refused
        authority = Authority(self.tools, self.environment, catalog)
        if self.needs_decision(request):
            decided = self._open(request.decision, authority)
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

    def unsettled(self, request: ToolRequest, catalog: Catalog, *, begun: tuple[int, int]) -> Refusal | None:
        """Why it is not known that nothing came of the attempts before; None if people have said so.

        `begun` is the highest attempt that somebody may have acted on, and since when by the log. `stale`: nobody has,
        or too early, or who did may not say it any more. So people are asked; all else is made up.
        """
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
        """Why a call is halted, or nothing."""
        return catalog.halts.why(
            tool=request.tool, pool=self.pool, agent=request.agent, requester=request.requester, above=request.above
        )

    def key_forgotten(self, request: ToolRequest, catalog: Catalog, now_ms: int) -> bool:
        """True if a try may reach a receiver that has forgotten the key, by what the planner says or is known here."""
        tool, arrives_ms = self.tools.get(request.tool), now_ms + request.timeout_ms
        if tool is not None and tool.key_window_ms and self.needs_decision(request):
            decided = self._open(request.decision, Authority(self.tools, self.environment, catalog))
            # No attempt went out before the decision, so the receiver has known the key for that long at most: or since
            # people have said that nothing came of those before this one.
            since_ms = arrives_ms - tool.key_window_ms
            if isinstance(decided, Refusal) or (
                decided.issued < since_ms and not self._settled_since(request, catalog, since_ms)
            ):
                return True
        return bool(request.key_expires_ms) and arrives_ms > request.key_expires_ms

    def _settled_since(self, request: ToolRequest, catalog: Catalog, since_ms: int) -> bool:
        """True if people have said, since this time, that nothing came of the attempts before."""
        said = self._open(request.settled, Authority(self.tools, self.environment, catalog))
        if isinstance(said, Refusal) or said.issued < since_ms:
            return False
        return self.unsettled(request, catalog, begun=(request.attempt - 1, 0)) is None

    @staticmethod
    def _open(token: str, authority: Authority) -> Decision | Refusal:
        if not token:
            return Refusal("unauthorised", "the call needs a decision and came without", stale=False)
        try:
            return authority.open(token)
        except UnauthorisedError as error:
            withdrawn = error.fields.get("reason") in signature.WITHDRAWN
            return Refusal("decision_revoked" if withdrawn else "unauthorised", error.message, stale=withdrawn)
