"""What may be done, as far as this process knows: policies judge calls, keys judge decisions.

The planner asks it what a call needs, the executor whether an order may be carried out. Both have one of their own,
over the catalog as their lane has read it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import orjson

from refold.core.approval import signature
from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import Decision, ToolFacts
from refold.core.approval.policy import FALLBACK, VARIABLES, Judgement
from refold.core.errors import MalformedError, UnauthorisedError
from refold.core.events import CallProposed
from refold.core.run.state import RunState

NO_RULE = ""


class Authority:
    """Judges for one lane. `tools` are those of the app in this process, by name."""

    def __init__(self, tools: Mapping[str, ToolFacts], environment: str, catalog: Catalog) -> None:
        self.tools, self.environment, self.catalog = tools, environment, catalog

    @property
    def current(self) -> str:
        """The digest of the policy that new runs get; nothing where there is none."""
        return self.catalog.current

    def changed(self, policy: str) -> bool:
        """Whether a call that this policy judged has to be judged again before it runs."""
        current = self.catalog.policy
        return current is not None and current.recheck and current.digest != policy

    def judge(self, state: RunState, call: CallProposed, policy: str, *, ahead: int = 0) -> Judgement:
        """What a policy says of a call. What cannot be judged, and a tool that says so itself, needs a decision.

        `ahead` calls were proposed before this one and are not folded into the state yet.
        """
        tool, known = self.tools.get(call.tool), self.catalog.policies.get(policy)
        if known is None and (policy or (tool is not None and tool.approval)):
            known = self.catalog.policy  # what has to be judged is judged by the policy in force, for want of its own
        if known is not None and tool is not None:
            facts = variables(state, call, tool, environment=self.environment, needs=known.needs)
            if "run.calls" in facts:
                facts["run.calls"] += ahead
            found = known.judge(facts)
        elif known is not None:
            found = Judgement("require", NO_RULE, known.digest, f"no tool {call.tool}", known.fallback)
        elif policy:
            found = Judgement("require", NO_RULE, policy, "the run's policy is not in the catalog", FALLBACK)
        else:
            found = Judgement("allow", NO_RULE, policy)
        if found.outcome == "allow" and tool is not None and tool.approval:
            why = "the tool never runs without a decision"
            return Judgement("require", found.rule, found.policy, why, known.fallback if known else FALLBACK)
        return found

    def open(self, token: str) -> Decision:
        """The decision in a token. **Raises** UnauthorisedError when its signature does not hold."""
        try:
            return Decision.parse(signature.verified(token, self.catalog.keys, use="decision"))
        except MalformedError as error:
            raise UnauthorisedError(error.message, reason="malformed") from None


def variables(
    state: RunState,
    call: CallProposed,
    tool: ToolFacts | None,
    *,
    environment: str,
    needs: Collection[str] = VARIABLES.keys(),
) -> dict[str, Any]:
    """What the rules of a policy may look at, for a call of a run; only what they need is worked out."""
    request = state.request
    labels = request.labels if request else {}
    found: dict[str, Any] = {}
    for name in needs:
        if name == "args":
            found[name] = orjson.loads(call.args)
        elif name == "tool.name":
            found[name] = call.tool
        elif name == "tool.effect":
            found[name] = call.effect
        elif name == "tool.version":
            found[name] = tool.version if tool else ""
        elif name == "tool.tags":
            found[name] = list(tool.tags) if tool else []
        elif name == "agent":
            found[name] = request.agent if request else ""
        elif name == "actor":
            found[name] = request.requester if request else ""
        elif name == "environment":
            found[name] = environment
        elif name == "run.id":
            found[name] = state.run_id
        elif name == "run.input":
            found[name] = orjson.loads(request.input) if request else None
        elif name == "run.session":
            found[name] = labels.get("session", "")
        elif name == "run.labels":
            found[name] = dict(labels)
        elif name == "run.depth":
            found[name] = state.run_id.count(".")
        elif name == "run.calls":
            found[name] = sum(isinstance(step, CallProposed) and step.step < call.step for step in state.steps)
        elif name == "run.cost":
            found[name] = 0.0
    return found
