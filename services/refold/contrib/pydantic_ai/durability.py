"""The durability engine of pydantic-ai, backed by the current run. Its waits for external events are callbacks."""

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from types import FunctionType
from typing import Any, ClassVar, Literal, Optional, cast
from weakref import WeakKeyDictionary

from pydantic import JsonValue, TypeAdapter
from pydantic_ai import _model_request_attempts, _utils, messages
from pydantic_ai import durable_exec as durable
from pydantic_ai._utils import disable_threads
from pydantic_ai.agent import Agent, EventStreamHandler
from pydantic_ai.agent.abstract import AbstractAgent
from pydantic_ai.capabilities import AbstractCapability, ModelFallback, RequestInput, SetToolMetadata
from pydantic_ai.capabilities.abstract import WrapRunHandler, leaf_capabilities
from pydantic_ai.durable_exec._toolset import get_dynamic_tools
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT, DeferredToolRequests, DeferredToolResults, RunContext, Tool, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, CombinedToolset, DynamicToolset, FunctionToolset

from refold.contrib.pydantic_ai.approvals import Required, question_tool_name, required_by, without_answer
from refold.contrib.pydantic_ai.conversation import Models, facts_digest
from refold.contrib.pydantic_ai.operations import OperationTool, RefoldBackend, RefoldNamer
from refold.contrib.pydantic_ai.options import WORD, checked_options, default_options, with_own_options
from refold.contrib.pydantic_ai.run_context import ContextCodec, RefoldRunContext
from refold.contrib.pydantic_ai.transports import RefoldTransports
from refold.core.errors import CallbackError, TerminalError, UsageError
from refold.core.wire import canonical
from refold.core.wire.conversation import OF_RUN, Before, Wire
from refold.sdk import loop, patches
from refold.sdk.context import Callback, Context, current
from refold.sdk.current_attempt import current_attempt
from refold.sdk.determinism import scan
from refold.sdk.json_codec import JsonCodec
from refold.sdk.tool import CallOptions

for _module in (_model_request_attempts, _utils):
    # They call `datetime.now`, which is in C: only the name `datetime` of a module can be replaced.
    patches.tell_time(_module)

AskFunction = Callable[[str], Awaitable[JsonValue]]

# The token, an argument, is the same each time, so a receiver that gets it twice has one token.
_HANDS_OUT: CallOptions = {"effect": "keyed", "keyed_by": "arguments"}

_REQUESTS: TypeAdapter[DeferredToolRequests] = TypeAdapter(DeferredToolRequests)
_RESULTS: TypeAdapter[DeferredToolResults] = TypeAdapter(DeferredToolResults)

_BEGUN: WeakKeyDictionary[Context, int] = WeakKeyDictionary()
"""Number of agents of pydantic-ai that the code of a run has run so far."""


class RefoldDurability(durable.BaseDurabilityCapability[AgentDepsT]):
    """Makes an agent durable inside a run of Refold; elsewhere it is an ordinary agent.

    `models` can be selected by name in a run, besides the agent's own; `cheaper` is the one of them for runs whose
    budget degrades. `model`, `tools` and `toolsets` are default options of model requests, tool calls, and calls of a
    toolset, by its id; a tool has its own in its metadata: `metadata={"refold": CallOptions(effect="keyed")}`.
    **Raises** UsageError at once for an unknown option.
    """

    engine_spec: ClassVar[durable.DurabilityEngineSpec] = durable.DurabilityEngineSpec(
        engine_name="Refold",
        durable_unit_noun="call",
        durable_container_noun="run",
        codec=durable.JSON_CODEC,
        serialization_failure=lambda error: TerminalError(f"a result has no JSON form: {error}", code="bad_result"),
        tool_config_key=WORD,
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={
            "function": "enter-outside-durable",
            "mcp": "enter-outside-durable",
            "dynamic": "enter-never",
        },
        # The loop of a run is deterministic, and refuses calls from other threads.
        accepts_cancellation_token=True,
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        cheaper: str = "",
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        stream: bool = False,
        name: str | None = None,
        model: CallOptions | None = None,
        tools: CallOptions | None = None,
        toolsets: Mapping[str, CallOptions] | None = None,
        run_context_type: type[RefoldRunContext[Any]] = RefoldRunContext,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        if cheaper and cheaper not in (models or {}):
            raise UsageError(f"cheaper={cheaper!r} is none of models=", hint="give it there under this name")
        self._model_options, self._tool_options = checked_options(model, "model="), checked_options(tools, "tools=")
        self._toolset_options = {
            name: checked_options(options, f"toolsets[{name!r}]") for name, options in (toolsets or {}).items()
        }
        self._run_context_type, self._streams, self._cheaper = run_context_type, stream, cheaper
        self._backend: RefoldBackend | None = None
        self._contexts: ContextCodec
        self._required: dict[int, list[Required]] = {}

    def get_durable_operation_backend(self) -> RefoldBackend:
        assert self._backend is not None, "it is asked for once there is an agent"
        return self._backend

    @property
    def in_durable_context(self) -> bool:
        return current() is not None

    def get_default_run_id(self) -> str | None:
        if (context := current()) is None:
            return None
        _BEGUN[context] = _BEGUN.get(context, 0) + 1
        # The same in every replay.
        return f"{context.run_id}/{_BEGUN[context]}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return durable.conversation_id_from_run_id(run_id) if self.in_durable_context else None

    def get_run_clock(self) -> Callable[[], datetime] | None:
        return context.now if (context := current()) is not None else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        return context.now() if (context := current()) is not None else None

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Run the agent with durable sleeps, without threads, and without events during replay."""
        context = current()
        if context is None:
            return await handler()
        replaying = durable.replay_scope(is_replaying=lambda: context.replaying)
        waits = durable.external_event_scope(RefoldWaiter(context, self._contexts))
        with disable_threads(), Agent.using_sleep(asyncio.sleep), replaying, waits:
            return await super().wrap_run(ctx, handler=handler)

    @property
    def has_wrap_run_event_stream(self) -> bool:
        # Model requests are streamed for a handler of events, or for a live view of the run.
        return super().has_wrap_run_event_stream or (self._streams and self.in_durable_context)

    def _model_stream_event_handler(self) -> EventStreamHandler[AgentDepsT]:
        return _live_handler(super()._model_stream_event_handler())

    @property
    def instrumented(self) -> bool:
        """True if pydantic-ai makes spans of the model requests of its agent."""
        return self._instrumentation_settings() is not None

    def definition(self, tools: Iterable[OperationTool]) -> dict[str, str]:
        """Parts of the agent beside code, for manifests: model, settings, prompt, tools."""
        agent, backend = cast(Agent[Any, Any], self._agent), self.get_durable_operation_backend()
        models = {name: backend.models.identity(name) for name in sorted(self._models_by_id)}
        stated = [part for part in (agent.model_settings, agent._cap_model_settings) if isinstance(part, Mapping)]
        instructions = [getattr(part, "instruction", part) for part in agent._instructions]
        prompt = [part for part in (*agent._system_prompts, *instructions) if isinstance(part, str)]
        facts = {part.name: [part.description, part.schema(), part.effect, part.approval, part.pool] for part in tools}
        return {
            "model": backend.models.identity(None),
            "models": facts_digest(models),
            "settings": facts_digest(stated),
            "prompt": facts_digest([repr(agent.output_type), *prompt]),
            "functions": facts_digest(facts),
        }

    def operation_tools(self) -> Iterator[OperationTool]:
        """Tools to register in the app: units, functions, questions, external calls and tokens of waits."""
        backend = self.get_durable_operation_backend()
        yield from backend.tools.values()
        answered: CallOptions = {"effect": "pure", "approval": "required"}
        for kind in ("question", "external"):
            yield OperationTool(question_tool_name(self.name, kind), without_answer, answered)
        leaves = leaf_capabilities(cast(AbstractAgent[Any, Any], self._agent).root_capability)
        yield from _token_tools(self._contexts, leaves, self._tool_options)
        for toolset in self._toolsets_by_id.values():
            if isinstance(functions := toolset.wrapped, FunctionToolset):
                for name, tool in functions.tools.items():
                    yield from self._function_tool(backend, cast(str, functions.id), name, tool)

    def _function_tool(
        self, backend: RefoldBackend, toolset: str, name: str, tool: Tool[Any]
    ) -> Iterator[OperationTool]:
        """Tools of a function and its validator; none if it runs in the planner. **Raises** UsageError if unfit."""
        subject = f"tool {name} of agent {self.name}"
        unit = durable.ToolsetCallToolId("function", toolset_id=toolset)
        metadata = _effective_metadata(cast(AbstractAgent[Any, Any], self._agent), tool)
        options = self._options_of(unit, metadata, subject, approval=tool.requires_approval)
        if options is False:
            if not tool.function_schema.is_async:
                hint = f"leave {WORD!r}: False out"
                raise UsageError(f"{subject} is to run in the planner, and is not async", hint=hint)
            scan.check(cast(Any, tool.function), subject)
            return
        handler = partial(backend.functions[backend.namer.operation_name(unit)], name)
        called, schema = backend.namer.function_name(unit, name), tool.function_schema.json_schema
        if tool.args_validator is not None:
            checks = durable.ToolsetValidateToolArgumentsId("function", toolset_id=toolset)
            checked_by = partial(backend.functions[backend.namer.operation_name(checks)], name)
            yield OperationTool(backend.namer.function_name(checks, name), checked_by, self._base_options(checks))
        body = tool.function if isinstance(tool.function, FunctionType) else None
        yield OperationTool(called, handler, options, function=body, text=tool.description or "", schema=schema)

    def _bind_models(self, agent: AbstractAgent[AgentDepsT, Any]) -> None:
        """Register the models of `ModelFallback` capabilities as well, so that requests can name them."""
        super()._bind_models(agent)
        for capability in leaf_capabilities(agent.root_capability):
            for model in capability.models if isinstance(capability, ModelFallback) else ():
                if isinstance(model, Model) and not any(model is bound for bound in self._models_by_id.values()):
                    self._models_by_id[f"fallback-{len(self._models_by_id)}-{model.model_id}"] = model

    def _bind_to_agent(self, agent: AbstractAgent[AgentDepsT, Any]) -> None:
        deps = JsonCodec(Optional[agent.deps_type], f"deps of agent {self.name}")  # noqa: UP045 - the type is a value here
        self._contexts = ContextCodec(self.name, agent, self._run_context_type, deps, self.engine_spec)
        models = Models(self._models_by_id, lambda: self.default_model_id, self._cheaper)
        self._required = required_by(CombinedToolset(agent.toolsets), f"agent {self.name}")
        self._backend = RefoldBackend(
            RefoldNamer(self.name), _UnitOptions(self), RefoldTransports(self._contexts), models, self._approval_missing
        )
        super()._bind_to_agent(agent)
        if self._event_stream_handler is not None:
            self._bound_event_operation = self._bind_event_operation(self._backend)

    async def _approval_missing(self, unit: durable.ToolsetCallToolId, params: Any) -> str:
        """Reason against a call without a decision; empty if it needs none."""
        leaf = self._toolsets_by_id[unit.toolset_id].wrapped
        definition = params.tool.tool_def if isinstance(leaf, FunctionToolset) else None
        if isinstance(leaf, DynamicToolset):
            # The definition beside the arguments is the planner's word: the tools are listed here once more.
            listed = (await get_dynamic_tools(leaf, params.ctx)).tools.get(params.name)
            definition = listed.tool_def if listed else None
        unapproved = definition is not None and (definition.kind == "unapproved" or _demands_approval(definition))
        required = self._required.get(id(leaf), ())
        if unapproved or any(test(params.ctx, cast(ToolDefinition, definition), params.tool_args) for test in required):
            return f"{params.name} of agent {self.name} needs an approval, and nobody has decided on this call"
        return ""

    def check_toolsets(self) -> None:
        """Refuse toolsets that came after the durability. **Raises** UsageError."""
        agent = cast(AbstractAgent[Any, Any], self._agent)
        for leaf in self._unregistered_toolsets(CombinedToolset(agent.toolsets)):
            if isinstance(leaf, DynamicToolset):  # as @agent.toolset makes one
                hint = "give RefoldDurability to durable(app, agent, ...) below it, and not to Agent(capabilities=...)"
                raise UsageError(f"{leaf.label} of agent {self.name} has come after its RefoldDurability", hint=hint)

    def _reject_runtime_toolsets(self, toolset: AbstractToolset[AgentDepsT]) -> None:
        # Only toolsets of a single run: registered ones, decorated ones included, are known.
        super()._reject_runtime_toolsets(CombinedToolset(self._unregistered_toolsets(toolset)))

    def _unregistered_toolsets(self, toolset: AbstractToolset[AgentDepsT]) -> list[AbstractToolset[AgentDepsT]]:
        bound = {id(durable.wrapped) for durable in self._toolsets_by_id.values()}
        leaves = list[AbstractToolset[AgentDepsT]]()
        toolset.apply(leaves.append)
        return [leaf for leaf in leaves if id(leaf) not in bound]

    def _base_options(self, operation_id: durable.DurableOperationId) -> CallOptions:
        own = self._toolset_options.get(getattr(operation_id, "toolset_id", ""), {})
        return default_options(operation_id, self._model_options, CallOptions(**{**self._tool_options, **own}))

    def _resolve_tool(self, unit: durable.DurableOperationId, tool: Any, name: str) -> CallOptions | Literal[False]:
        metadata = (tool.tool_def.metadata or {}) if tool is not None else {}
        approval, subject = tool is not None and tool.tool_def.kind == "unapproved", f"tool {name} of agent {self.name}"
        options, kind = self._options_of(unit, metadata, subject, approval=approval), getattr(unit, "toolset_kind", "")
        # The executor's tool is that of the whole toolset: options of one tool, or a server's tool that `prepare` has
        # made to need an approval, are known to planners alone.
        alone = kind == "mcp" or (kind == "dynamic" and not approval)
        if alone and options != self._base_options(unit):
            hint = "give them to its toolset, RefoldDurability(toolsets={id: ...}), or use approval_required()"
            raise UsageError(f"{subject} has options of its own, which no executor knows", hint=hint)
        return options

    def _options_of(
        self, unit: durable.DurableOperationId, metadata: Mapping[str, Any], tool: str, *, approval: bool = False
    ) -> CallOptions | Literal[False]:
        """Options of a unit with those in a tool's metadata; False: it runs in the planner."""
        own = metadata.get(WORD)
        if own is False and approval:
            raise UsageError(f"{tool} requires an approval", hint=f"leave {WORD!r}: False out: people decide on calls")
        if own is False and getattr(unit, "toolset_kind", "") == "function":
            return False
        if own is False:
            raise UsageError(f"{tool} reaches the world", hint=f"only an async function may say {WORD!r}: False")
        base = self._base_options(unit)
        needs: CallOptions = {"approval": "required"} if approval else {}
        return {**with_own_options(base, checked_options(own, tool)), **needs}


class RefoldWaiter(durable.ExternalEventWaiter):
    """Waits for external events, as callbacks. Two of one name get different tokens, in order of their beginning."""

    def __init__(self, context: Context, contexts: ContextCodec) -> None:
        self._context, self._contexts = context, contexts

    async def wait(self, name: str, *, ask: AskFunction, timeout: timedelta | None) -> JsonValue:  # noqa: ASYNC109 - its face
        """Return the answer of `ask`, or else of the token's holder. **Raises** ExternalEventError; UsageError."""
        function = _token_function(ask)
        schema = DeferredToolResults if isinstance(function, partial) else None
        waiting: Callback[Any] = self._context.callback(name, schema=schema, timeout=timeout)
        try:
            answer = await self._hand_out_token(function, waiting.token)
        except BaseException:
            waiting.cancel()
            raise
        if answer is not None:
            waiting.cancel()
            return cast(JsonValue, answer)
        try:
            result = await waiting
        except TimeoutError:
            raise durable.ExternalEventError(f"No resolution arrived within {timeout}.") from None
        except CallbackError as failed:
            raise durable.ExternalEventError(failed.message) from None
        return cast(JsonValue, _RESULTS.dump_python(result, mode="json") if schema else result)

    async def _hand_out_token(self, function: Any, token: str) -> Any:
        if not isinstance(function, partial):
            return await self._context.call(function, token)
        ctx, requests = function.args
        tool = self._context.find(_token_tool_name(self._contexts.name, cast(Any, function.func).__self__))
        arguments = {"token": token, "requests": _REQUESTS.dump_python(requests, mode="json")}
        text = canonical.dumps({**arguments, OF_RUN: self._contexts.dump(ctx)})
        return await loop.step(tool.call(text, label=token))


def _token_tools(
    contexts: ContextCodec, leaves: list[AbstractCapability[Any]], options: CallOptions
) -> Iterator[OperationTool]:
    """Tools of `RequestInput` capabilities: each hands the token of a wait to a receiver, and may run twice."""
    for leaf in leaves:
        if isinstance(leaf, RequestInput):
            handler, call_options = partial(_hand_out, contexts, leaf), with_own_options(options, _HANDS_OUT)
            function = leaf.ask if isinstance(leaf.ask, FunctionType) else None
            yield OperationTool(_token_tool_name(contexts.name, leaf), handler, call_options, function=function)


def _token_tool_name(agent: str, capability: RequestInput[Any]) -> str:
    return f"{agent}__external_event.{capability.name}.ask"


async def _hand_out(contexts: ContextCodec, capability: RequestInput[Any], arguments: Wire, before: Before) -> Any:
    """Call of `ask` of a `RequestInput` in an executor, with pending requests and the token of the wait."""
    requests = _REQUESTS.validate_python(arguments["requests"])
    return await capability._ask(contexts.load(arguments[OF_RUN]), requests, arguments["token"])


def _token_function(ask: AskFunction) -> Any:
    """Function of a wait that hands its token to a receiver. **Raises** UsageError for other callables."""
    inner = inspect.getclosurevars(ask).nonlocals.get("ask", ask)
    if isinstance(inner, partial) and isinstance(getattr(inner.func, "__self__", None), RequestInput):
        return inner
    if isinstance(inner, FunctionType):
        return inner  # it has to be a tool: the look-up raises otherwise
    raise UsageError(f"{inner!r} asks for what a run waits for", hint="give a function that is a tool: @app.tool")


class _UnitOptions(durable.RoleBasedOperationConfig[CallOptions]):
    """Options of each unit, as pydantic-ai requests them."""

    def __init__(self, durability: RefoldDurability[Any]) -> None:
        super().__init__(model={}, event={}, capability={}, tool={}, resolve_tool=durability._resolve_tool)
        self._base = durability._base_options

    def base(self, role: str, *, operation_id: durable.DurableOperationId) -> CallOptions:
        return self._base(operation_id)


def _demands_approval(definition: ToolDefinition) -> bool:
    own = (definition.metadata or {}).get(WORD)
    return isinstance(own, Mapping) and own.get("approval") == "required"


def _effective_metadata(agent: AbstractAgent[Any, Any], tool: Tool[Any]) -> dict[str, Any]:
    metadata = dict(tool.metadata or {})
    for capability in leaf_capabilities(agent.root_capability):
        if isinstance(capability, SetToolMetadata):
            selector = capability.tools
            names = [selector] if isinstance(selector, str) and selector != "all" else selector
            if names == "all" or (isinstance(names, list | tuple) and tool.name in names):
                metadata |= capability.metadata
    return metadata


def _live_handler(handler: EventStreamHandler[Any] | None) -> EventStreamHandler[Any]:
    """Handler that streams each event to readers, then calls the agent's own, if it has one."""

    async def tell(ctx: RunContext[Any], events: AsyncIterable[Any]) -> None:
        if handler is not None:
            await handler(ctx, _streamed_live(events))
            return
        async for _ in _streamed_live(events):
            pass

    return tell


async def _streamed_live(events: AsyncIterable[Any]) -> AsyncIterator[Any]:
    """Pass a model's stream events on, and send their texts and tool calls to live readers of the run."""
    attempt = current_attempt()
    async for event in events:
        if attempt is not None and (part := _stream_part(event)) is not None:
            attempt.tell(*part)
        yield event


def _stream_part(event: Any) -> tuple[str, dict[str, Any]] | None:
    """Kind and data of a model's stream event for live readers; None without text, thinking or a tool call."""
    if isinstance(event, messages.PartStartEvent):
        part: Any = event.part
    elif isinstance(event, messages.PartDeltaEvent):
        part = event.delta
    else:
        return None
    if isinstance(part, messages.ToolCallPart):
        return "tool_call", {"part": event.index, "tool": part.tool_name, "args": part.args}
    if isinstance(part, messages.ToolCallPartDelta):
        return "tool_call", {"part": event.index, "args": part.args_delta}
    text = getattr(part, "content_delta" if isinstance(event, messages.PartDeltaEvent) else "content", None)
    if not text:
        return None
    if isinstance(part, messages.TextPart | messages.TextPartDelta):
        return "text", {"part": event.index, "text": text}
    if isinstance(part, messages.ThinkingPart | messages.ThinkingPartDelta):
        return "thinking", {"part": event.index, "text": text}
    return None
