"""Units of pydantic-ai as Refold tools: calls in the planner, work in the executor."""

import asyncio
import copy
import dataclasses
import inspect
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import chain
from types import FunctionType
from typing import Any, cast
from uuid import uuid4

from pydantic_ai import durable_exec as durable
from pydantic_ai.exceptions import ModelRetry

from refold.contrib.mcp.server import MOST_KNOWN
from refold.contrib.pydantic_ai import results
from refold.contrib.pydantic_ai.approvals import CLAIM, people_decision, with_edits
from refold.contrib.pydantic_ai.conversation import Conversations, Models, conversations, most_of
from refold.contrib.pydantic_ai.transports import (
    UNAUTHORISED,
    FunctionTransport,
    ModelTransport,
    RefoldTransports,
    Transport,
    why_unfit,
)
from refold.core.approval.decision import ToolFacts
from refold.core.errors import CallFailed, MalformedError, TerminalError, TransientError, UsageError
from refold.core.events import CallProposed
from refold.core.planning.budgets import DEGRADE
from refold.core.run.intents import Call
from refold.core.run.state import Step
from refold.core.wire import canonical
from refold.core.wire.conversation import Before, Wire
from refold.core.wire.fits import misfit
from refold.sdk import loop
from refold.sdk.context import current
from refold.sdk.heartbeat import Heartbeat
from refold.sdk.secret import Secrets
from refold.sdk.source import closure_of, code_version, codes_of
from refold.sdk.tool import NATURAL, Body, CallOptions, EarlierCalls, ToolDef

Handler = Callable[[Wire, Before], Awaitable[Any]]
"""Executor's work on the arguments of a call and those it builds on."""

FunctionHandler = Callable[[str, Wire, Before], Awaitable[Any]]
"""As `Handler`, for the functions of a toolset; the first argument names one."""

IDENTITY = "asked"
"""Argument with the identity of the requested model: `model` may name another one after a deploy."""

ELSEWHERE_S = 10.0
"""Wait for an executor with the model of a request."""

_METERED = (durable.ModelRequestId, durable.ModelCompactMessagesId)
OF_FUNCTIONS = (durable.ToolsetCallToolId, durable.ToolsetValidateToolArgumentsId)
"""Units that run one function of a toolset, or its validator, by the tool's name."""

_OF_LOOP = (
    durable.ModelRequestId,
    durable.ModelCompactMessagesId,
    durable.ModelCancelSuspendedResponseId,
    durable.CapabilityOperationId,
)
"""Units whose errors the agent's loop handles; a tool may have had its effect all the same."""
FORM = "1"
"""Version of tools without an author: it changes with the forms of their arguments and results."""

_CALL: ContextVar[str] = ContextVar("idempotency_key", default="")


def idempotency_key() -> str:
    """Return the key of the current call, equal in all attempts, for deduplication; outside a run a new one."""
    return _CALL.get() or uuid4().hex


class OperationTool(ToolDef):
    """Tool that runs a unit of pydantic-ai, such as a model request, by a handler. `function`: its author's, if any."""

    pattern = re.compile(r"[^\s/@\x00-\x1f]{1,255}\Z")

    def __init__(
        self,
        name: str,
        handler: Handler,
        options: CallOptions,
        *,
        function: FunctionType | None = None,
        text: str = "",
        schema: dict[str, Any] | None = None,
    ) -> None:
        async def unit(arguments: Any) -> Any:
            raise NotImplementedError("its body is the handler")

        self._hands_on_key = function is not None and _reaches_idempotency_key(function)
        settings: Any = {"version": code_version([function]) if function else FORM, **options}
        super().__init__(cast(FunctionType, unit), name=name, **settings)
        self.function = function or self.function
        self.arguments = cast(Any, UnitArguments(name, schema or {"type": "object"}))
        self.options, self._handler, self._schema, self.description = options, handler, schema, text

    @cached_property
    def facts(self) -> ToolFacts:
        # Approval by the framework needs a question.
        return replace(super().facts, claim=CLAIM)

    def schema(self) -> dict[str, Any]:
        return self._schema or {"type": "object"}

    def canonical_args(self, /, *args: Any, **kwargs: Any) -> str:
        return canonical.dumps(kwargs)

    def run(
        self, args_json: str, *, idempotency_key: str, heartbeat: Heartbeat, secrets: Secrets | None = None
    ) -> Body:
        return self._attempt(canonical.parse(args_json), idempotency_key)

    def run_on(self, earlier: EarlierCalls, args_json: str, *, idempotency_key: str) -> Body:
        return self._attempt(canonical.parse(args_json), idempotency_key, earlier)

    def acted_by(self, function: Callable[..., Any]) -> ToolDef:
        names = inspect.signature(function).parameters

        async def act(arguments: Wire, before: Before) -> Any:
            return function(**{name: arguments[name] for name in names})

        double = copy.copy(self)
        double._handler = act
        return double

    def _refuse_keyless(self, tool: str) -> None:
        if not self._hands_on_key:
            hint = f"hand idempotency_key() of refold.contrib.pydantic_ai to the receiver, in the function; {NATURAL}"
            raise UsageError(f"{tool} is keyed and its function uses no idempotency_key()", hint=hint)

    async def _attempt(self, arguments: Wire, key: str, earlier: EarlierCalls | None = None) -> Any:
        _CALL.set(key)
        # In a thread: large values take a while, in which the loop would serve no other tool.
        before: Before = await asyncio.to_thread(earlier) if earlier is not None else {}
        with durable.durable_unit_scope():
            return await self._handler(arguments, before)


def _reaches_idempotency_key(function: FunctionType) -> bool:
    """True if a function, or a helper that it uses from its module, refers to `idempotency_key`."""
    ahead: list[Any] = [function]
    for reached in ahead:
        names = set(chain.from_iterable((*code.co_names, *code.co_freevars) for code in codes_of(reached.__code__)))
        used = [*map(reached.__globals__.get, names), *closure_of(reached).values()]
        if idempotency_key.__name__ in names or idempotency_key in used:
            return True
        helpers = (helper for helper in used if isinstance(helper, FunctionType))
        ahead += [helper for helper in helpers if helper.__module__ == function.__module__ and helper not in ahead]
    return False


class UnitArguments:
    """Arguments of a unit's tool, checked by a schema except names with `$`: the run's, which no edit changes."""

    def __init__(self, name: str, schema: dict[str, Any]) -> None:
        """`name` of the tool, for errors; JSON `schema` of the arguments."""
        self._owner, self._schema = f"tool {name}", canonical.dumps(schema)
        self.names = tuple(schema.get("properties", ()))

    def load(self, text: str, secrets: Secrets | None = None) -> Wire:
        """Parse the arguments. **Raises** UsageError if they do not fit the function."""
        arguments = canonical.parse(text)
        if not isinstance(arguments, dict):
            raise UsageError(f"{self._owner}: its arguments are an object")
        if reason := misfit(self._schema, {name: arguments[name] for name in arguments if not name.startswith("$")}):
            raise UsageError(f"{self._owner}: {reason}")
        return arguments


class RefoldNamer(durable.JournalOperationNamer):
    """Names of pydantic-ai's journal, and names for units of later releases."""

    def operation_name(self, operation_id: durable.DurableOperationId) -> str:
        """Name of a unit in histories, for ever."""
        try:
            return super().operation_name(operation_id)
        except AssertionError:
            facts = "__".join(value for value in vars(operation_id).values() if isinstance(value, str))
            return f"{self._agent_name}__{type(operation_id).__name__}__{facts}"

    def tool_name(self, unit: durable.DurableOperationId, params: Any) -> str:
        if not isinstance(unit, OF_FUNCTIONS):
            return self.operation_name(unit)
        tool = getattr(params, "tool", None)
        return self.function_name(unit, getattr(tool, "original_name", None) or params.name)

    def function_name(self, unit: durable.DurableOperationId, function: str) -> str:
        return f"{self.operation_name(unit)}:{function}"


@dataclass(slots=True, eq=False)
class ListedCall(Call):
    """A call of a tool of a listed toolset. `before`: its arguments in histories of earlier releases."""

    before: str = ""

    def agrees(self, recorded: Step) -> bool:
        """True if this is the recorded step, in which the function may be named in the arguments."""
        if Call.agrees(self, recorded) or not isinstance(recorded, CallProposed):
            return Call.agrees(self, recorded)
        return self.tool.startswith(f"{recorded.tool}:") and (recorded.asked or recorded.args) == self.before


class ListedTools:
    """Tools of one toolset that only executors can list (MCP, dynamic), each made when its name is first looked up."""

    def __init__(self, unit: str, handler: FunctionHandler, options: CallOptions) -> None:
        """`unit` precedes the tools' names, `UNIT:FUNCTION`; `handler` runs any function of the toolset."""
        self.prefix = f"{unit}:"
        self._handler, self._options = handler, options
        self._tool = lru_cache(MOST_KNOWN)(self._make_tool)

    def declared(self) -> Sequence[ToolDef]:
        return ()

    def tool(self, name: str) -> ToolDef | None:
        return self._tool(name) if OperationTool.pattern.match(name) else None

    def _make_tool(self, name: str) -> ToolDef:
        return OperationTool(name, partial(self._handler, name.removeprefix(self.prefix)), self._options)


class RefoldBoundOperation(durable.BoundDurableOperation[Any, Wire, Any]):
    """A unit in the planner: calling it makes a call of the unit's tool."""

    def __init__(self, operation: durable.DurableOperation[Any, Wire, Any], namer: RefoldNamer, models: Models) -> None:
        self._operation, self._namer, self._models = operation, namer, models

    @property
    def operation(self) -> durable.DurableOperation[Any, Wire, Any]:
        return self._operation

    async def __call__(self, params: Any, *, config: object | None = None) -> Any:
        """Request the call and wait for its outcome. **Raises** the model's error of pydantic-ai, else CallFailed."""
        context, unit = current(), self._operation
        assert context is not None, "pydantic-ai asks only within a run"
        tool = context.find(self._namer.tool_name(unit.operation_id, params))
        called = unit.operation_id
        registered = isinstance(called, durable.ToolsetCallToolId) and called.toolset_kind == "function"
        if registered and cast(OperationTool, tool).options != config:
            hint = "say how it is called before durable(app, agent), and the same in every run"
            raise UsageError(f"tool {tool.name} is to be called in another way by now", hint=hint)
        so_far = conversations(context)
        try:
            step, result = await self._request_call(tool, params, so_far)
        except CallFailed as failed:
            if failed.fields["code"] != DEGRADE or so_far.cheaper or not self._models.cheaper:
                raise results.as_raised(failed) from failed
            so_far.cheaper = True
            return await self(params, config=config)
        output, spent = results.as_output(unit.operation_id, result)
        if spent is not None:
            params.ctx.usage.incr(spent)
        elif isinstance(unit.operation_id, durable.ToolsetCallToolId) and (call := params.ctx.tool_call_id):
            so_far.results[call] = step, result
        return unit.result_codec.load(output)

    async def _request_call(self, tool: ToolDef, params: Any, so_far: Conversations) -> tuple[int, Any]:
        """Request a unit's call; return its step and result. **Raises** ModelRetry for a tool's unfit arguments."""
        unit = self._operation
        metered = isinstance(unit.operation_id, _METERED)
        if metered and so_far.cheaper:
            params = replace(params, model_id=self._models.cheaper or params.model_id)
        calls = isinstance(unit.operation_id, durable.ToolsetCallToolId)
        try:
            prepared = cast(Transport[Any] | ModelTransport, unit.parameter_transport).prepare(params, so_far)
            if metered:
                prepared.arguments[IDENTITY] = self._models.identity(params.model_id)
            claim = {CLAIM: True} if calls and params.ctx.tool_call_approved else {}
            text = canonical.dumps({**prepared.arguments, **claim})
        except (MalformedError, UsageError) as error:
            if calls and (why := why_unfit(params.tool_args)):
                raise ModelRetry(why) from error
            raise
        label = unit.invocation_label(params) if unit.invocation_label else ""
        most = most_of(params, self._models.name(params.model_id), prepared, text, so_far) if metered else None
        call = tool.call(text, label=label, builds_on=prepared.builds_on, reserve=most)
        running, before = loop.running("a unit of pydantic-ai"), getattr(unit.parameter_transport, "before", None)
        if before is not None and running.passed():
            fields = {field.name: getattr(call, field.name) for field in dataclasses.fields(call)}
            call = ListedCall(**fields, before=canonical.dumps({**before(params), **claim}))
        step = running.ask(call)
        result = await step
        prepared.settled(step.step, result)
        return step.step, result


class RefoldBackend(durable.RegisteredOperationBackend[CallOptions]):
    """Makes a tool of every unit, in `tools` by name. `functions` has handlers of functions by their unit, `sources`
    the toolsets that are listed later. `approval_missing` returns the reason against acting without a decision."""

    def __init__(
        self,
        namer: RefoldNamer,
        config: durable.DurableOperationConfig[CallOptions],
        transports: RefoldTransports,
        models: Models,
        approval_missing: Callable[[durable.ToolsetCallToolId, Any], Awaitable[str]],
    ) -> None:
        super().__init__(namer=namer, config=config, parameter_transports=transports)
        self.namer, self.models, self.approval_missing = namer, models, approval_missing
        self.tools: dict[str, OperationTool] = {}
        self.functions: dict[str, FunctionHandler] = {}
        self.sources: list[ListedTools] = []

    def register(
        self, operation: durable.DurableOperation[Any, Any, Any], *, name: str, config: CallOptions
    ) -> tuple[durable.BoundDurableOperation[Any, Any, Any], Sequence[Callable[..., object]]]:
        """Add a unit's handler for executors; return the planner's callable, which requests the unit's call."""
        unit, transport = operation.operation_id, operation.parameter_transport

        async def handle(arguments: Wire, before: Before) -> Any:
            sent = _without_approval_claim(arguments)
            if isinstance(unit, _METERED):
                identity, own = sent.pop(IDENTITY, ""), self.models.identity(sent["model"])
                if identity != own:  # a run goes on with the model that it began with
                    problem = f"the run asks {identity}, and this executor would ask {own}"
                    raise TransientError(problem, retry_after=ELSEWHERE_S)
            return await act(sent, transport.load(sent, runtime=before))

        async def handle_function(name: str, arguments: Wire, before: Before) -> Any:
            sent = _without_approval_claim(arguments)
            params = await cast(FunctionTransport[Any], transport).load_for(name, sent)
            try:
                return await act(sent, params)
            finally:
                for toolset in (params.ctx._run_held_toolsets or {}).values():
                    await toolset.aclose(*sys.exc_info())

        async def act(sent: Wire, params: Any) -> Any:
            decision, ctx = people_decision(), getattr(params, "ctx", None)
            if isinstance(unit, durable.ToolsetCallToolId):
                # Never as the planner has it in the context: a hijacked one would approve its own calls.
                params.ctx.tool_call_approved = decision is not None
                if decision is None and (why := await self.approval_missing(unit, params)):
                    raise TerminalError(why, code=UNAUTHORISED)
            # A tool adds to the usage in place, and the loop adds the recorded one: only the difference is the call's.
            used = copy.copy(ctx.usage) if ctx is not None else None
            try:
                output = operation.result_codec.dump(results.in_base64(await operation.handler(params)))
            except Exception as error:
                if (failure := results.as_failure(error)) is None or not isinstance(unit, _OF_LOOP):
                    raise
                raise failure from error
            if isinstance(unit, durable.ToolsetCallToolId) and decision is not None:
                output = with_edits(cast(Wire, output), sent, decision)
            spent, model = ctx.usage - used if ctx is not None else None, getattr(params, "model_id", None)
            return results.as_recorded(unit, output, spent, self.models.name(model))

        self.functions[name] = handle_function
        if not isinstance(unit, OF_FUNCTIONS) or unit.toolset_kind != "function":
            self.tools[name] = OperationTool(name, handle, config)
        if isinstance(unit, OF_FUNCTIONS) and unit.toolset_kind != "function":
            self.sources.append(ListedTools(name, handle_function, config))
        return RefoldBoundOperation(operation, self.namer, self.models), [handle]


def _without_approval_claim(arguments: Wire) -> Wire:
    return {name: value for name, value in arguments.items() if name != CLAIM}
