"""Data between the planner, where an agent's loop runs, and the executors, where its units do. A unit's parameters are
the arguments of a call: JSON data, equal in every process for equal requests, without drawn times and ids."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar, cast

from pydantic import TypeAdapter
from pydantic_ai import durable_exec as durable
from pydantic_ai.durable_exec._toolset import RunHeldToolset
from pydantic_ai.messages import AgentStreamEvent, ModelMessage, ModelResponse
from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset, FunctionToolset
from pydantic_ai.workspaces import WorkspaceRef

from refold.contrib.pydantic_ai.conversation import Conversations, Prepared, dump_message
from refold.contrib.pydantic_ai.options import WORD
from refold.contrib.pydantic_ai.run_context import ContextCodec, as_json
from refold.core.errors import MalformedError, TerminalError, UsageError
from refold.core.wire import canonical
from refold.core.wire.conversation import OF_RUN, Before, Wire, whole_request, without_drawn

ParamsT = TypeVar("ParamsT")

_MESSAGES: TypeAdapter[list[ModelMessage]] = TypeAdapter(list[ModelMessage])
_RESPONSE: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)
_PARAMETERS: TypeAdapter[ModelRequestParameters] = TypeAdapter(ModelRequestParameters)
_EVENT: TypeAdapter[AgentStreamEvent] = TypeAdapter(AgentStreamEvent)
_TOOL: TypeAdapter[ToolDefinition] = TypeAdapter(ToolDefinition)
_WORKSPACE_CALL: TypeAdapter[durable.WorkspaceCall] = TypeAdapter(durable.WorkspaceCall)
_WORKSPACE: TypeAdapter[WorkspaceRef | None] = TypeAdapter(WorkspaceRef | None)

NAME = "tool_name"
_SELECTING = frozenset({NAME, "tool"})
_SELECTING_ONCE = frozenset({"$name", "$tool"})
"""Arguments of earlier releases, which named the function of a listed toolset."""
UNAUTHORISED = "unauthorised"
"""Error code of a call without the necessary decision: its planner is not honest."""


class Transport(durable.ParameterTransport[ParamsT, Wire], Generic[ParamsT]):
    """Conversion of the parameters of one kind of unit into arguments, and back."""

    def __init__(self, dump: Callable[[ParamsT], Wire], load: Callable[[Wire], ParamsT]) -> None:
        self._dump, self._load = dump, load

    def prepare(self, params: ParamsT, so_far: Conversations) -> Prepared:
        """Whole arguments: rules and people judge them. **Raises** UsageError for values without a JSON form."""
        return Prepared(self._dump(params))

    def dump(self, params: ParamsT) -> Wire:
        return self._dump(params)

    def load(self, payload: Wire, *, runtime: object) -> ParamsT:
        return self._load(payload)


class FunctionTransport(Transport[ParamsT]):
    """Transport of a call of a function, which the tool names. `before` returns arguments as of earlier releases."""

    def __init__(
        self,
        dump: Callable[[ParamsT], Wire],
        load: Callable[[str, Wire], Awaitable[ParamsT]],
        before: Callable[[ParamsT], Wire] | None = None,
    ) -> None:
        super().__init__(dump, self._refuse_unnamed)
        self._load_for, self.before = load, before

    async def load_for(self, name: str, payload: Wire) -> ParamsT:
        """Parameters of a call of this function. **Raises** TerminalError if the arguments name another."""
        if foreign := _SELECTING_ONCE & payload.keys():
            raise TerminalError(f"the arguments hold {', '.join(sorted(foreign))}", code=UNAUTHORISED)
        return await self._load_for(name, payload)

    @staticmethod
    def _refuse_unnamed(payload: Wire) -> ParamsT:
        hint = "the order is of an earlier release: `refold run retry RUN --from STEP` asks for the call anew"
        raise TerminalError("a function is called by its name alone", code=UNAUTHORISED, hint=hint)


class ModelTransport(durable.ParameterTransport[durable.ModelRequestParams, Wire]):
    """Conversion of a request to a model into arguments, and back."""

    def __init__(self, contexts: ContextCodec) -> None:
        self._contexts = contexts

    def prepare(self, params: durable.ModelRequestParams, so_far: Conversations) -> Prepared:
        """Arguments that build on earlier requests."""
        run = self._contexts.dump(params.run_context)
        settings = as_json(params.model_settings, "the model's settings")
        return so_far.request(params, run, lambda: _parameters_as_json(params.model_request_parameters), settings)

    def dump(self, params: durable.ModelRequestParams) -> Wire:
        return self.prepare(params, Conversations()).arguments

    def load(self, payload: Wire, *, runtime: object) -> durable.ModelRequestParams:
        """Parameters of a request; `runtime` are the calls on which it builds. **Raises** TerminalError."""
        wire = whole_request(payload, cast(Before, runtime))
        return durable.ModelRequestParams(
            wire["model"],
            messages=_MESSAGES.validate_python(wire["messages"]),
            # The run retries, visibly in its history; retries in here would be hidden, and paid again.
            model_settings=cast(ModelSettings, {**(wire["settings"] or {}), "max_retries": 0}),
            model_request_parameters=_PARAMETERS.validate_python(wire["parameters"]),
            run_context=self._contexts.load(wire[OF_RUN]),
        )


class RefoldTransports(durable.ParameterTransports):
    def __init__(self, contexts: ContextCodec) -> None:
        self._contexts = contexts

    def model_request(self, result_type: object) -> ModelTransport:
        return ModelTransport(self._contexts)

    def compact_messages(self) -> Transport[durable.ModelCompactMessagesParams]:
        def dump(params: durable.ModelCompactMessagesParams) -> Wire:
            request = params.request_context
            return {
                "model": params.model_id,
                "messages": [dump_message(message) for message in request.messages],
                "settings": as_json(request.model_settings, "the model's settings"),
                "parameters": _parameters_as_json(request.model_request_parameters),
                "streaming": request.streaming,
                "instructions": params.instructions,
                OF_RUN: self._contexts.dump(params.run_context),
            }

        def load(wire: Wire) -> durable.ModelCompactMessagesParams:
            request = ModelRequestContext(
                model=cast(Any, None),  # the handler puts in the one that it finds by `model`
                messages=_MESSAGES.validate_python(wire["messages"]),
                model_settings=wire["settings"],
                model_request_parameters=_PARAMETERS.validate_python(wire["parameters"]),
            )
            request.model_id, request.streaming = wire["model"], wire["streaming"]
            return durable.ModelCompactMessagesParams(
                wire["model"],
                request_context=request,
                instructions=wire["instructions"],
                run_context=self._contexts.load(wire[OF_RUN]),
            )

        return Transport(dump, load)

    def cancel_suspended_response(self) -> Transport[durable.ModelCancelSuspendedResponseParams]:
        def dump(params: durable.ModelCancelSuspendedResponseParams) -> Wire:
            ctx = params.run_context
            return {
                "model": params.model_id,
                "response": _RESPONSE.dump_python(params.response, mode="json"),
                OF_RUN: None if ctx is None else self._contexts.dump(ctx),
            }

        def load(wire: Wire) -> durable.ModelCancelSuspendedResponseParams:
            ctx = None if wire[OF_RUN] is None else self._contexts.load(wire[OF_RUN])
            response = _RESPONSE.validate_python(wire["response"])
            return durable.ModelCancelSuspendedResponseParams(wire["model"], response=response, run_context=ctx)

        return Transport(dump, load)

    def event_stream_handler(self) -> Transport[durable.EventStreamHandlerParams]:
        def dump(params: durable.EventStreamHandlerParams) -> Wire:
            event = without_drawn(_EVENT.dump_python(params.event, mode="json"))
            return {"event": event, OF_RUN: self._contexts.dump(params.run_context)}

        def load(wire: Wire) -> durable.EventStreamHandlerParams:
            ctx = self._contexts.load(wire[OF_RUN])
            return durable.EventStreamHandlerParams(_EVENT.validate_python(wire["event"]), run_context=ctx)

        return Transport(dump, load)

    def capability_operation(
        self, declaration: durable.CapabilityMethodDeclaration
    ) -> Transport[durable.CapabilityOperationParams]:
        def dump(params: durable.CapabilityOperationParams) -> Wire:
            codec = self._contexts.engine_spec.codec
            return {
                "$model": params.model_id,
                "arguments": as_json(codec.dump(dict[str, Any], params.arguments), "the arguments"),
                OF_RUN: self._contexts.dump(params.run_context),
            }

        def load(wire: Wire) -> durable.CapabilityOperationParams:
            ctx = self._contexts.load(wire[OF_RUN])
            return durable.CapabilityOperationParams(ctx, arguments=wire["arguments"], model_id=wire["$model"])

        return Transport(dump, load)

    def workspace_call(self) -> Transport[durable.WorkspaceCallParams]:
        def dump(params: durable.WorkspaceCallParams) -> Wire:
            return {
                "call": _WORKSPACE_CALL.dump_python(params.call, mode="json"),
                "$workspace": _WORKSPACE.dump_python(params.ref, mode="json"),
                OF_RUN: self._contexts.dump(params.run_context),
            }

        def load(wire: Wire) -> durable.WorkspaceCallParams:
            ctx, ref = self._contexts.load(wire[OF_RUN]), _WORKSPACE.validate_python(wire["$workspace"])
            return durable.WorkspaceCallParams(ctx, ref=ref, call=_WORKSPACE_CALL.validate_python(wire["call"]))

        return Transport(dump, load)

    def function_call(self, toolset: FunctionToolset[Any]) -> FunctionTransport[durable.ToolsetCallToolParams]:
        async def load(name: str, wire: Wire) -> durable.ToolsetCallToolParams:
            args, ctx = self._load_call(name, wire)
            definition = toolset.tools[name].tool_def
            tool = toolset.tool_for_tool_def(definition, ctx=ctx, original_name=name)
            return durable.ToolsetCallToolParams(name, tool_args=args, ctx=ctx, tool=tool)

        return FunctionTransport(self._dump_call, load)

    async def prepare_function_call(
        self, toolset: FunctionToolset[Any], params: durable.ToolsetCallToolParams
    ) -> durable.ToolsetCallToolParams:
        return await durable.revalidate_function_call(toolset, params, engine_spec=self._contexts.engine_spec)

    def mcp_call(self, toolset: AbstractToolset[Any]) -> FunctionTransport[durable.ToolsetCallToolParams]:
        async def load(name: str, wire: Wire) -> durable.ToolsetCallToolParams:
            args, ctx = self._load_call(name, wire)
            # One session for the list and the call: a server may be a process that is started for each session.
            session = RunHeldToolset(cast(str, toolset.id), await toolset.for_run(ctx))
            ctx = replace(ctx, _run_held_toolsets={session.id: session})
            tool = (await (await session.entered()).get_tools(ctx)).get(name)
            if tool is None:
                await session.aclose(None, None, None)
                raise TerminalError(f"the server of toolset {toolset.id} has no tool {name}", code="tool_gone")
            return durable.ToolsetCallToolParams(name, tool_args=args, ctx=ctx, tool=tool)

        def before(params: durable.ToolsetCallToolParams) -> Wire:
            return self._listed_call(params, params.tool.tool_def if params.tool else None)

        return FunctionTransport(self._dump_call, load, before)

    def dynamic_call(self, toolset: DynamicToolset[Any]) -> FunctionTransport[durable.DynamicToolsetCallToolParams]:
        async def load(name: str, wire: Wire) -> durable.DynamicToolsetCallToolParams:
            args, ctx = self._load_call(name, wire)
            # Without a definition, the executor uses its own.
            return durable.DynamicToolsetCallToolParams(name, tool_args=args, ctx=ctx)

        return FunctionTransport(self._dump_call, load, lambda params: self._listed_call(params, params.tool_def))

    def get_tools(self, toolset: AbstractToolset[Any]) -> Transport[durable.ToolsetGetToolsParams]:
        dump, load = self._contexts.dump, self._contexts.load
        return Transport(
            lambda params: {OF_RUN: dump(params.ctx)}, lambda wire: durable.ToolsetGetToolsParams(load(wire[OF_RUN]))
        )

    get_instructions = dynamic_get_tools = get_tools

    def _dump_call(self, params: durable.ToolsetCallToolParams | durable.DynamicToolsetCallToolParams) -> Wire:
        context = self._contexts.dump(params.ctx)
        # Which function acts is the name of the tool that was ordered, never a word beside its arguments.
        context.pop(NAME, None)
        return with_run(params.tool_args, context)

    def _load_call(self, name: str, wire: Wire) -> tuple[dict[str, Any], RunContext[Any]]:
        """Arguments and context of a call of `name`. **Raises** TerminalError if its context selects a function."""
        context = dict(wire.get(OF_RUN) or {})
        if foreign := _SELECTING & context.keys():
            raise TerminalError(f"$run holds {', '.join(sorted(foreign))}", code=UNAUTHORISED)
        args = {argument: value for argument, value in wire.items() if argument != OF_RUN}
        return args, self._contexts.load({**context, NAME: name})

    def _listed_call(
        self,
        params: durable.ToolsetCallToolParams | durable.DynamicToolsetCallToolParams,
        definition: ToolDefinition | None,
    ) -> Wire:
        """Arguments of a call in the form of earlier releases."""
        tool = as_json(_TOOL.dump_python(definition), f"tool {definition.name}") if definition else None
        return {
            "$name": params.name,
            "args": as_json(params.tool_args, f"an argument of {params.name}"),
            "$tool": tool and _forget_options(tool),
            OF_RUN: self._contexts.dump(params.ctx),
        }


def with_run(args: dict[str, Any], run: Wire) -> Wire:
    """Tool's arguments with its part of the run context. **Raises** UsageError for an argument of that name."""
    if OF_RUN in args:
        raise UsageError(f"a tool has an argument {OF_RUN}", hint="rename it: Refold tells of the run by this name")
    return {**as_json(args, "an argument of a tool"), OF_RUN: run}


def why_unfit(args: dict[str, Any]) -> str:
    """Reason against recording a model's arguments; empty without any."""
    try:
        canonical.dumps(with_run(args, {}))
    except (MalformedError, UsageError) as error:
        return str(error)
    return ""


def _parameters_as_json(parameters: ModelRequestParameters) -> Wire:
    wire: Wire = as_json(_PARAMETERS.dump_python(parameters), "the definition of a tool")
    for kind in ("function_tools", "output_tools"):
        for tool in wire.get(kind) or ():
            _forget_options(tool)
    return wire


def _forget_options(tool: Wire) -> Wire:
    """Remove Refold's call options from a tool's definition, in place: they are no part of a model's request."""
    if metadata := tool.get("metadata"):
        metadata.pop(WORD, None)
        tool["metadata"] = metadata or None
    return tool
