"""Permissions by the catalog that a lane has read: policies judge calls, keys verify decisions."""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from refold.core.approval import signature
from refold.core.approval.catalog import Catalog
from refold.core.approval.condition import VARIABLES
from refold.core.approval.decision import Decision, ToolFacts
from refold.core.approval.policy import Judgement, Policy
from refold.core.errors import MalformedError, UnauthorisedError
from refold.core.events import NO_REQUEST, CallProposed, Requirement
from refold.core.ids import depth_of
from refold.core.run.account import NANO
from refold.core.run.state import RunState
from refold.core.wire.blobs import is_pointer


class Authority:
    """Judges calls for one lane. `tools` are the app's in this process, by name."""

    def __init__(self, tools: Mapping[str, ToolFacts], environment: str, catalog: Catalog) -> None:
        self.tools, self.environment, self.catalog = tools, environment, catalog

    def changed(self, policy: str) -> bool:
        """True if calls that this policy judged must be judged again before they run."""
        current = self.catalog.policy
        return current is not None and current.recheck and current.digest != policy

    def judge(
        self, state: RunState, call: CallProposed, policy: str, *, ahead: int = 0, unknown: frozenset[str] = frozenset()
    ) -> Judgement:
        """Judge a call by a policy, `ahead` calls behind the fold. A rule that reads an `unknown` variable fails."""
        tool, judge = self.tools.get(call.tool), self.catalog.policies.get(policy)
        needs_decision = tool is not None and tool.asks(call.args)
        if judge is None and (policy or needs_decision):
            judge = self.catalog.policy  # the policy in force replaces an unknown one
        if judge is not None and tool is not None:
            facts = variables(state, call, tool, environment=self.environment, needs=judge.needs - unknown)
            if "run.calls" in facts:
                facts["run.calls"] += ahead
            judgement = judge.judge(facts)
        elif judge is not None:
            judgement = judge.by_fallback("", f"there is no tool {call.tool} here")
        elif policy:
            judgement = Judgement("deny", "", policy, "the run's policy is not in the catalog, and none is in force")
        else:
            judgement = Judgement("allow", "", policy)
        asks = judgement.outcome == "allow" and needs_decision
        return _left_to_people(tool, judge, policy, judgement.rule) if tool is not None and asks else judgement

    def settlers(self, policy: str) -> tuple[str, Requirement] | None:
        """Policy digest and requirement for a doubt about a call that `policy` judged; None if no people are named."""
        own, current = self.catalog.policies.get(policy), self.catalog.policy
        policies = [current] if self.changed(policy) else [own, current]
        return next(((named.digest, named.doubt) for named in policies if named is not None and named.doubt), None)

    def open(self, token: str) -> Decision:
        """Decision in a token. **Raises** UnauthorisedError if its signature is invalid."""
        try:
            return Decision.parse(signature.verified(token, self.catalog.keys, use="decision"))
        except MalformedError as error:
            raise UnauthorisedError(error.message, reason="malformed") from None


def _left_to_people(tool: ToolFacts, judge: Policy | None, policy: str, rule: str) -> Judgement:
    why = f"{'the tool' if tool.approval else 'this call of'} {tool.name} never runs without a decision"
    if judge is None:
        return Judgement("deny", "", policy, f"{why}, and no policy is in force that says who decides")
    return judge.by_fallback(rule, why)


def variables(
    state: RunState,
    call: CallProposed,
    tool: ToolFacts | None,
    *,
    environment: str,
    needs: Collection[str] = VARIABLES.keys(),
) -> dict[str, Any]:
    """Values of the policy variables in `needs` for a call, without a stored input: a rule that reads it fails."""
    request = state.request or NO_REQUEST
    if is_pointer(request.input):
        needs = set(needs) - {"run.input"}
    facts: dict[str, Callable[[], Any]] = {
        "args": lambda: json.loads(call.args),
        "tool.name": lambda: call.tool,
        "tool.effect": lambda: call.effect,
        "tool.version": lambda: tool.version if tool else "",
        "tool.tags": lambda: list(tool.tags) if tool else [],
        "agent": lambda: request.agent,
        "actor": lambda: request.requester,
        "environment": lambda: environment,
        "run.id": lambda: state.run_id,
        "run.input": lambda: json.loads(request.input) if state.request else None,
        "run.session": lambda: request.session,
        "run.labels": lambda: dict(request.labels),
        "run.depth": lambda: depth_of(state.run_id),
        "run.calls": lambda: sum(isinstance(step, CallProposed) and step.step < call.step for step in state.steps),
        "run.cost": lambda: state.account.total.nano_usd / NANO if state.account else 0.0,
    }
    return {name: facts[name]() for name in needs}
