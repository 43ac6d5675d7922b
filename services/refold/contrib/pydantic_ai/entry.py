"""An agent of pydantic-ai as an agent of an app: `durable(app, agent)`."""

from __future__ import annotations

import copy
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from functools import cached_property
from hashlib import blake2b
from math import inf
from types import FunctionType
from typing import Any, Optional, cast

from pydantic import TypeAdapter
from pydantic_ai.agent import Agent, ModelRequestNode
from pydantic_ai.capabilities.abstract import leaf_capabilities
from pydantic_ai.capabilities.combined import CombinedCapability
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelRequest, RetryPromptPart, UserContent, UserPromptPart
from pydantic_ai.run import AgentRun
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset
from pydantic_ai.usage import RunUsage, UsageLimits
from pydantic_graph import End
from typing_extensions import TypedDict, Unpack

from refold.contrib.pydantic_ai import outside
from refold.contrib.pydantic_ai.approvals import RefoldApprovals
from refold.contrib.pydantic_ai.conversation import dump_message
from refold.contrib.pydantic_ai.durability import RefoldDurability
from refold.contrib.pydantic_ai.run_context import dump_deps
from refold.core.errors import ChildFailed, TerminalError, UsageError
from refold.core.ids import parent_of
from refold.core.wire import canonical
from refold.core.wire.canonical import utf8_bytes
from refold.sdk import loop
from refold.sdk.agent import AgentDef
from refold.sdk.app import App
from refold.sdk.budget import Budget
from refold.sdk.context import Context, started
from refold.sdk.determinism import scan
from refold.sdk.json_codec import JsonCodec
from refold.sdk.source import code_version

GOES_ON = "refold.goes-on"
"""Patch since which conversations continue in a child; older histories are replayed unchanged."""

REQUESTS = 200
"""Requests to models in one run: a replay repeats all of them, each with all earlier messages."""

MOST_CARRIED, CARRIED_BYTES = 200, 48 * 1024
"""Messages, and their bytes, that a session carries to its next generation."""

MOST_TOLD = 512 * 1024
"""Bytes of messages up to which a conversation continues in a child, as one input in one record."""


class DurableOptions(TypedDict, total=False):
    """Options of `durable` that any agent has; see `AgentDef`."""

    name: str
    version: str
    retention: timedelta | None
    budget: Budget | None


def durable(
    app: App,
    agent: Agent[Any, Any],
    durability: RefoldDurability[Any] | None = None,
    *,
    usage_limits: UsageLimits | None = None,
    requests: int = REQUESTS,
    sessions: bool = False,
    **options: Unpack[DurableOptions],
) -> AgentDef:
    """Make an agent of pydantic-ai one of an app, once all its tools are there: `durable(app, agent)`.

    Its runs are started on an object with `prompt` and, if the agent has them, `deps` and `message_history`. Its result
    is its output. `durability` has the options of models and tools, if the agent was not made with one already;
    `usage_limits` are for each run (50 requests by default), and a `budget` holds over all that it starts. After this
    number of `requests` to models a conversation goes on in a child of the run, which bounds the cost of replays. In
    the code of another agent, `await agent.run(...)` is durable as well. With `sessions` a run is a conversation that
    lives on: each update `message` is a user's prompt, answered by the output. **Raises** UsageError, by name, for deps
    without a JSON form or an unknown option of a tool.
    """
    if type(requests) is not int or requests < 1:
        raise UsageError(f"requests={requests!r}", hint="give the requests that one run may have, from 1 up")
    version = options.get("version", "")
    called, bound = _bind_durability(agent, durability, options.get("name", ""), version)
    if f"{bound.name}__model.request" in app.tools:
        hint = 'give one another name, or each version of one agent its version="..."'
        raise UsageError(f"app {app.name} has two agents of pydantic-ai that are called {bound.name}", hint=hint)
    bound.check_toolsets()
    if not any(isinstance(leaf, RefoldApprovals) for leaf in leaf_capabilities(agent.root_capability)):
        agent._root_capability = CombinedCapability([RefoldApprovals[Any](), *agent.root_capability.capabilities])
    tools = [*bound.operation_tools()]
    for tool in tools:
        app.add_tool(tool)
    for source in bound.get_durable_operation_backend().sources:
        app.include(source)
    body = _session(agent, usage_limits) if sessions else _entry(agent, called, usage_limits, requests)
    named: Any = {**options, "name": called}
    return app.add_agent(ThinkingAgent(agent, body, bound.definition(tools), **named))


def _bind_durability(
    agent: Agent[Any, Any], durability: RefoldDurability[Any] | None, name: str, version: str
) -> tuple[str, RefoldDurability[Any]]:
    try:
        bound = RefoldDurability.from_agent(agent)
        called = name or (bound or durability or agent).name or agent.name or ""
        return called, bound or _attach_durability(agent, durability or RefoldDurability(), called, version)
    except UserError as error:
        raise UsageError(f"agent {name or agent.name} cannot be durable: {error}") from None


def _attach_durability(
    agent: Agent[Any, Any], durability: RefoldDurability[Any], called: str, version: str
) -> RefoldDurability[Any]:
    durability = copy.copy(durability)
    # Each version of an agent has tools of its own, as a handler belongs to one name.
    durability.name = durability.name or (f"{called}.{version}" if called and version else called)
    bound = durability.for_agent(agent)
    agent._root_capability = CombinedCapability([*agent.root_capability.capabilities, bound])
    attached = RefoldDurability.from_agent(agent)
    assert attached is not None, "it was put there"
    return attached


class ThinkingAgent(AgentDef):
    """An agent of pydantic-ai in an app. Its code is the functions that run in the planner: prompts, validators."""

    def __init__(self, agent: Agent[Any, Any], body: FunctionType, definition: dict[str, str], **options: Any) -> None:
        """`body` is the loop of a run; `definition` identifies model, settings, prompt and tools in `code`."""
        self.agent = agent
        super().__init__(body, **options)
        self.definition = definition
        self.description = str(agent.description or "")
        _ = self.code

    def open(self, input_json: str, context: Context) -> Coroutine[Any, Any, Any]:
        """As `AgentDef.open`. **Raises** UsageError if the conversation of a run without a parent is too long."""
        if not parent_of(context.run_id)[0]:
            outside.check_length(input_json)
        return super().open(input_json, context)

    @property
    def instrumented(self) -> bool:
        durability = RefoldDurability.from_agent(self.agent)
        return durability is not None and durability.instrumented

    @cached_property
    def code(self) -> str:
        """Digest of the agent's code, model, settings, prompt and tools."""
        functions = sorted(set(_planner_functions(self.agent)), key=lambda unit: (unit.__module__, unit.__qualname__))
        for function in functions:
            scan.check(function, f"agent {self.name}")
        content = canonical.dumps(self.definition)
        return blake2b(f"{code_version([self.function, *functions])} {content}".encode(), digest_size=8).hexdigest()


class SoFar(TypedDict):
    """State of a conversation for the run that continues it, beside its messages."""

    usage: RunUsage
    conversation_id: str


def _entry(agent: Agent[Any, Any], name: str, limits: UsageLimits | None, most: int) -> FunctionType:
    async def run(
        ctx: Context,
        prompt: str | list[UserContent] | None = None,
        deps: Any = None,
        message_history: list[ModelMessage] | None = None,
        so_far: SoFar | None = None,
    ) -> Any:
        if not parent_of(ctx.run_id)[0]:
            prompt = outside.prompt_of(prompt)
            message_history = await outside.history_of(agent, message_history, deps)
            so_far = None
        before: Any = so_far or {}
        given = {"message_history": message_history, "usage_limits": limits, **before}
        async with agent.iter(prompt, deps=deps, **given) as begun:
            node, left = begun.next_node, float(most)
            while begun.result is None and not isinstance(node, End):
                if isinstance(node, ModelRequestNode):
                    if left <= 0 and _says_all(begun, node.request):
                        if told := goes_on(ctx, begun, node.request):
                            break
                        left = inf
                    left -= 1
                node = await begun.next(node)
            if begun.result is not None:
                return begun.result.output
            with_it = SoFar(usage=begun.usage, conversation_id=begun.conversation_id)
        given = {
            "message_history": told,
            "deps": dump_deps(dumped, deps),
            "so_far": TypeAdapter(SoFar).dump_python(with_it, mode="json", exclude_defaults=True),
        }
        try:
            return await loop.step(started(ctx.run_id, ctx.find_agent(name), given, "cancel", typed=True))
        except ChildFailed as failed:
            raise TerminalError(failed.fields["message"] or failed.message, code=failed.fields["code"]) from None

    def goes_on(ctx: Context, begun: AgentRun[Any, Any], request: ModelRequest) -> list[Any]:
        """Messages for a child that continues the conversation; empty if this run does."""
        messages = [dump_message(message) for message in (*begun.all_messages(), request)]
        # A child begins with the newest version, which is to be this one: it has the model of the run.
        same = getattr(ctx.find_agent(name), "agent", None) is agent or GOES_ON in ctx._recorded
        return messages if same and len(canonical.dumps(messages)) <= MOST_TOLD and ctx.patched(GOES_ON) else []

    dumped = JsonCodec(Optional[agent.deps_type], f"deps of agent {name}")  # noqa: UP045 - the type is a value here
    return _typed(run, agent, agent.output_type)


def _session(agent: Agent[Any, Any], limits: UsageLimits | None) -> FunctionType:
    async def run(ctx: Context, deps: Any = None, message_history: list[ModelMessage] | None = None) -> Any:
        if ctx.generation == 1:
            message_history = await outside.history_of(agent, message_history, deps)
        while not ctx.should_continue:
            message = await ctx.wait_for("message")
            try:
                prompt = outside.prompt_of(prompts.validate_python(message.data))
                done = await agent.run(prompt, deps=deps, message_history=message_history, usage_limits=limits)
                ctx.answer(message, outputs.dump_python(done.output, mode="json"))
            except Exception as error:  # noqa: BLE001 - the user sees why, and the conversation goes on
                ctx.answer(message, error)
            else:
                message_history = done.all_messages()
        return ctx.continue_as({"deps": dump_deps(dumped, deps), "message_history": _carried(message_history or [])})

    prompts: TypeAdapter[Any] = TypeAdapter(str | list[UserContent])
    outputs: TypeAdapter[Any] = TypeAdapter(agent.output_type if isinstance(agent.output_type, type) else Any)
    dumped = JsonCodec(Optional[agent.deps_type], f"deps of agent {agent.name}")  # noqa: UP045 - it is a value here
    return _typed(run, agent)


def _typed(run: Any, agent: Agent[Any, Any], output: Any = None) -> FunctionType:
    """Give a loop the types of its agent's deps and output."""
    types = {"deps": Optional[agent.deps_type]}  # noqa: UP045 - the type is a value here
    run.__annotations__ |= types | ({"return": output} if isinstance(output, type) else {})
    return cast(FunctionType, run)


def _carried(history: list[ModelMessage]) -> list[Any]:
    """The latest messages, from a user's prompt on, that fit into the input of the next generation."""
    starts = [n for n, each in enumerate(history) if any(isinstance(part, UserPromptPart) for part in each.parts)]
    for start in starts:
        kept = [dump_message(message) for message in history[start:]]
        if len(kept) <= MOST_CARRIED and utf8_bytes(canonical.dumps(kept)) <= CARRIED_BYTES:
            return kept
    return []


def _says_all(begun: AgentRun[Any, Any], request: ModelRequest) -> bool:
    """True if another loop may continue from this request: only this loop has the counts of tools' retries."""
    again = (isinstance(part, RetryPromptPart) or getattr(part, "outcome", "") == "retried" for part in request.parts)
    return bool(request.parts) and not any(again) and not begun.pending_messages


def _planner_functions(agent: Agent[Any, Any]) -> Iterator[FunctionType]:
    """Author's functions that run in the planner."""
    roots = [agent._instructions, agent._system_prompt_functions, agent._output_validators, agent.output_type]
    roots += [agent.model_settings, *leaf_capabilities(agent.root_capability)]
    for toolset in agent.toolsets:
        roots += [tool.prepare for tool in getattr(toolset, "tools", {}).values()]
        leaves = list[AbstractToolset[Any]]()
        toolset.apply(leaves.append)
        # One that is made for each step is made by executors.
        roots += [leaf.toolset_func for leaf in leaves if isinstance(leaf, DynamicToolset) and not leaf.per_run_step]
    for function in _functions_in(roots):
        if not function.__module__.startswith("pydantic_ai"):
            yield function


def _functions_in(holder: Any) -> Iterator[FunctionType]:
    if isinstance(holder, FunctionType):
        yield holder
    elif isinstance(holder, list | tuple):
        for element in holder:
            yield from _functions_in(element)
    elif not isinstance(holder, str | type) and holder is not None:
        for name in ("function", "instruction", "output_function", "processor"):
            yield from _functions_in(getattr(holder, name, None))
