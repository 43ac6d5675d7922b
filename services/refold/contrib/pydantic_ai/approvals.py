"""Approvals of an agent of pydantic-ai: one question of Refold for each call that needs one.

`requires_approval`, `ApprovalRequired` and a policy all become the question about the very call that is to run. The
framework's approval only has people asked (`CLAIM`): the executor verifies their signed decision. Questions and calls
of external tools are calls that people `answer`.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from pydantic_ai import tools, toolsets
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.capabilities.abstract import CapabilityOrdering, WrapToolExecuteHandler, leaf_capabilities
from pydantic_ai.durable_exec import BaseDurabilityCapability
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ToolCallPart

from refold.contrib.pydantic_ai.options import WORD
from refold.contrib.pydantic_ai.tools import ServerTools
from refold.core.approval.decision import Decision
from refold.core.errors import CallFailed, TerminalError, UsageError
from refold.core.wire import canonical
from refold.core.wire.conversation import Wire
from refold.sdk import loop
from refold.sdk.context import Context, current
from refold.sdk.current_attempt import current_attempt

CLAIM = "$approved"
"""Argument of a call that the framework counts as approved: people are asked about it."""

_REFUSED = ("rejected", "denied", "approval_expired")


class RefoldApprovals(AbstractCapability[tools.AgentDepsT]):
    """Has people decide on calls through Refold. `durable()` gives it to an agent that has none. The model gets a
    rejection, an expiry and a policy's denial as `ToolDenied`, with the reason. It precedes any other handler:
    executors accept no approval in people's place."""

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="outermost")

    async def handle_deferred_tool_calls(
        self, ctx: tools.RunContext[tools.AgentDepsT], *, requests: tools.DeferredToolRequests
    ) -> tools.DeferredToolResults | None:
        """Propose calls with a pending approval, and request results of deferred calls if no other capability does."""
        context = current()
        if context is None:
            return None
        approvals = {call.tool_call_id: tools.ToolApproved() for call in requests.approvals}
        results = requests.build_results(approvals=approvals)
        if requests.calls and not _other_capability_handles(ctx):
            pending = [_request_result(context, ctx, call, requests) for call in requests.calls]
            for call, answer in zip(requests.calls, await asyncio.gather(*pending), strict=True):
                results.calls[call.tool_call_id] = answer
        return results

    async def wrap_tool_execute(
        self,
        ctx: tools.RunContext[tools.AgentDepsT],
        *,
        call: ToolCallPart,
        tool_def: tools.ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Run a tool; refusals become `ToolDenied`. **Raises** UsageError for approved calls in the planner."""
        if current() is not None and ctx.tool_call_approved and (tool_def.metadata or {}).get(WORD) is False:
            hint = f"leave {WORD!r}: False out, so that it is a call"
            raise UsageError(f"nobody can be asked about {call.tool_name}, which runs in the planner", hint=hint)
        try:
            return await handler(args)
        except CallFailed as failed:
            if failed.fields.get("code") not in _REFUSED:
                raise
            return tools.ToolDenied(_refusal_text(failed))


def question_tool_name(agent: str, kind: str) -> str:
    return f"{agent}__deferred.{kind}"


async def without_answer(arguments: Wire, *rest: Any) -> Any:
    """Body of the tools for questions and external calls, whose results people give."""
    raise TerminalError("it was approved, and has no answer: give one with `refold approval answer`", code="no_answer")


def people_decision() -> Decision | None:
    """Decision of people on the call that this executor runs, if any."""
    return attempt.decision if (attempt := current_attempt()) else None


def with_edits(output: dict[str, Any], arguments: Wire, decision: Decision) -> dict[str, Any]:
    """Tool's result with a notice of arguments that people have edited."""
    if output["kind"] != "tool_return" or not _is_edited(decision):
        return output
    sent = canonical.dumps({name: value for name, value in arguments.items() if not name.startswith("$")})
    people = ", ".join(vote.actor for vote in decision.votes)
    text = f"Before this call was made {people} changed its arguments to: {sent}"
    result = output["result"]
    if not (isinstance(result, dict) and result.get("kind") == "tool-return"):
        result = {"kind": "tool-return", "return_value": result}
    content = result.get("content") or []
    return {**output, "result": {**result, "content": [*([content] if isinstance(content, str) else content), text]}}


def _is_edited(decision: Decision) -> bool:
    return decision.verdict == "edit" or bool(decision.asked.get("proposed_args"))


async def _request_result(
    context: Context, ctx: tools.RunContext[Any], call: ToolCallPart, requests: tools.DeferredToolRequests
) -> Any | ToolFailed:
    """Request a deferred call's result from people; ToolFailed if they refuse or give none."""
    agent = next(leaf.name for leaf in _capabilities_of(ctx) if isinstance(leaf, BaseDurabilityCapability))
    tool = context.find(question_tool_name(agent, requests.kind(call.tool_call_id)))
    fields = {"tool": call.tool_name, "args": call.args_as_dict()}
    if metadata := requests.metadata.get(call.tool_call_id):
        fields["metadata"] = metadata
    try:
        text = canonical.dumps(fields)
        return await loop.step(tool.call(text, label=call.tool_name))
    except CallFailed as failed:
        if failed.fields.get("code") not in (*_REFUSED, "no_answer"):
            raise
        return ToolFailed(_refusal_text(failed))


def _other_capability_handles(ctx: tools.RunContext[Any]) -> bool:
    usual = (AbstractCapability.handle_deferred_tool_calls, RefoldApprovals.handle_deferred_tool_calls)
    return any(type(leaf).handle_deferred_tool_calls not in usual for leaf in _capabilities_of(ctx))


def _capabilities_of(ctx: tools.RunContext[Any]) -> list[AbstractCapability[Any]]:
    return leaf_capabilities(ctx.agent.root_capability) if ctx.agent else []


def _refusal_text(failed: CallFailed) -> str:
    return str(failed.fields.get("message") or failed.message)


Required = Callable[[tools.RunContext[Any], tools.ToolDefinition, dict[str, Any]], bool]
"""Condition on a call of a tool: if it holds, the call acts after an approval alone."""

_ALWAYS: tuple[Any, ...] = (
    toolsets.ApprovalRequiredToolset.__dataclass_fields__["approval_required_func"].default,
    *(toolsets.AbstractToolset.approval_required.__defaults__ or ()),
)
"""Default conditions of pydantic-ai hold for every call."""


def required_by(toolset: toolsets.AbstractToolset[Any], owner: str) -> dict[int, list[Required]]:
    """Conditions of `approval_required()` by the id of each toolset: executors check them again, as a planner may omit
    the question. **Raises** UsageError for conditions that no executor can check."""
    conditions: dict[int, list[Required]] = {}

    # In `above`, True marks a condition whose definition an inner wrapper may change.
    def walk(node: toolsets.AbstractToolset[Any], above: list[tuple[Required, bool]]) -> None:
        if isinstance(node, toolsets.CombinedToolset):
            for inner in node.toolsets:
                walk(inner, above)
        elif isinstance(node, toolsets.ApprovalRequiredToolset):
            walk(node.wrapped, [*above, (node.approval_required_func, False)])
        elif isinstance(node, toolsets.WrapperToolset):
            changes = not isinstance(node, toolsets.FilteredToolset)
            walk(node.wrapped, [(condition, changed or changes) for condition, changed in above])
        else:
            _check_askable(node, above, owner)
            conditions[id(node)] = [_true_on_error(condition) for condition, _ in above]

    walk(toolset, [])
    return conditions


def _check_askable(leaf: toolsets.AbstractToolset[Any], above: list[tuple[Required, bool]], owner: str) -> None:
    """Refuse conditions `above` a toolset that executors cannot check for its tools. **Raises** UsageError."""
    if above and _runs_in_planner(leaf):
        hint = 'say it of the tool: approval="required", or MCPServer(required=...)'
        raise UsageError(f"approval_required() of {owner} is around tools that no executor asks about", hint=hint)
    for condition, changed in above:
        if condition not in _ALWAYS and (changed or not isinstance(leaf, toolsets.FunctionToolset)):
            hint = "put it around a FunctionToolset, without a wrapper in between, or leave its condition out"
            raise UsageError(f"approval_required() of {owner} has a condition that executors cannot ask", hint=hint)


def _runs_in_planner(leaf: toolsets.AbstractToolset[Any]) -> bool:
    if isinstance(leaf, toolsets.FunctionToolset):
        return any((tool.metadata or {}).get(WORD) is False for tool in leaf.tools.values())
    return isinstance(leaf, ServerTools)


def _true_on_error(condition: Required) -> Required:
    """Condition that also holds if the original raises."""

    def check(ctx: tools.RunContext[Any], definition: tools.ToolDefinition, args: dict[str, Any]) -> bool:
        try:
            return bool(condition(ctx, definition, args))
        except Exception:  # noqa: BLE001 - the author's code, on unchecked arguments: then people are asked
            return True

    return check
