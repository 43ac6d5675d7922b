"""Agents in memory: the whole run is one `pure` call, and the log has only its outcome. It starts from the top if its
process dies, so it may call only `pure` tools, and wait only for time."""

from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from hashlib import blake2b
from types import FunctionType
from typing import Any, NamedTuple, cast

from refold.core.approval.decision import ToolFacts
from refold.core.errors import CallFailed, RefoldError, UsageError
from refold.core.ids import AGENT_TOOL_NAME, agent_tool
from refold.core.run.account import Reserve
from refold.core.wire import canonical
from refold.sdk.agent import AgentDef
from refold.sdk.context import Context
from refold.sdk.determinism import scan
from refold.sdk.json_codec import JsonCodec
from refold.sdk.retry import Retry
from refold.sdk.source import code_version
from refold.sdk.tool import ToolDef

TIMEOUT = timedelta(minutes=1)
"""Default timeout of a run: a longer one loses more than logged steps would cost."""

ONE_TRY = Retry(attempts=1)
"""An agent that raises has failed; a process that dies under it is no attempt."""

IN_THE_LOG = ("wait_for", "callback", "run", "start", "publish", "signal", "answer", "on", "submit", "continue_as")
"""Members of a context that only a recorded history can answer."""

LOG_IT = 'leave durability="memory" out: then each of its steps is in the log'


class WholeCall(NamedTuple):
    """Options of a run's call, as of `ToolDef`; None means the default. `reserve` is each attempt's share of budgets
    and limits: without one no call in it may cost."""

    timeout: timedelta | None = None
    retry: Retry | None = None
    pool: str = "default"
    reserve: Reserve | None = None


class MemoryAgent(AgentDef):
    """An agent whose code runs in an executor; the planner sees one call of its own `tool`, with the options `whole`.
    `tools` are the app's: it may call tools of its pool."""

    def __init__(
        self, function: FunctionType, tools: Callable[[], Collection[ToolDef]], whole: WholeCall, **options: Any
    ) -> None:
        super().__init__(function, **options)
        self._tools = tools
        self.tool = AgentTool(self, self._result, whole)
        self._check(scan.check(function, f"agent {self.name}"))

    def open(self, input_json: str, context: Context) -> Coroutine[Any, Any, Any]:
        """Return a planner's coroutine, one call of `tool`. **Raises** UsageError if the input does not fit."""
        _ = self.code
        self._read(input_json)
        return self._delegated(context, canonical.parse(input_json))

    def begin(self, input_json: str, context: Context) -> Coroutine[Any, Any, Any]:
        """Return an executor's coroutine, the agent's own. **Raises** UsageError if the input does not fit."""
        return super().open(input_json, context)

    def refusal(self, tool: ToolDef) -> UsageError | None:
        """Error for a tool that the agent may not call, with a remedy; None if it may."""
        if isinstance(tool, AgentTool):
            return self.refused(f"{tool.agent.name} is an agent as well")
        if tool.effect != "pure":
            return self.refused(f"{tool.name} is {tool.effect}, and would be called again after a crash")
        if tool.approval == "required":
            return self.refused(f"{tool.name} never runs without a decision, which nobody can ask for there")
        if tool.reserve is not None and self.tool.reserve is None:
            return self.unmetered(tool.name)
        if tool.pool != self.tool.pool:
            return self.refused(f"{tool.name} is a tool of pool {tool.pool}", f"give the agent pool={tool.pool!r}")
        return None

    def unmetered(self, tool: str) -> UsageError:
        hint = f"say what all of it may take, reserve=Reserve(usd=...), or {LOG_IT}"
        return self.refused(f"{tool} costs, which no budget and no limit would see there", hint)

    def refused(self, why: str, hint: str = LOG_IT) -> UsageError:
        return UsageError(f"agent {self.name} runs in memory, and {why}", hint=hint)

    @cached_property
    def code(self) -> str:
        # With all tools that it may call: a history has only the one call.
        may = sorted((tool.name, tool.version) for tool in self._tools() if not self.refusal(tool))
        own = code_version(self._functions)
        return blake2b(f"{own} {may}".encode(), digest_size=8).hexdigest()

    @cached_property
    def _functions(self) -> list[FunctionType]:
        functions = scan.check(self.function, f"agent {self.name}")
        # Again, as the app may have got tools since its declaration.
        self._check(functions)
        return functions

    async def _delegated(self, context: Context, payload: Any) -> Any:
        try:
            return await context.call(self.tool.function, payload)
        except CallFailed as failed:
            # As its run would have failed with each step in the log.
            raise RefoldError(failed.fields["message"], code=failed.fields["code"]) from None

    def _check(self, functions: list[FunctionType]) -> None:
        tools = {tool.function: tool for tool in self._tools()}
        for named in scan.tools_named(functions):
            if (tool := tools.get(named)) and (refused := self.refusal(tool)):
                raise refused
        for function in functions:
            contexts = _names_of_contexts(function, first=function is self.function)
            for name in scan.attributes_of(function, contexts):
                if name in IN_THE_LOG:
                    raise self.refused(f"{function.__qualname__} uses ctx.{name}")


class AgentTool(ToolDef):
    """Tool that runs an agent in memory, under a reserved name."""

    pattern = AGENT_TOOL_NAME

    def __init__(self, agent: MemoryAgent, result: JsonCodec, whole: WholeCall) -> None:
        # Only the signature counts: it gives the schema of the arguments. Executors run the agent's own function.
        async def run(input: Any) -> Any:  # noqa: A002 - as policies and people read it
            raise UsageError(f"agent {agent.name} is run by an executor", hint="start a run of it")

        self.agent = agent
        name = agent_tool(agent.name, agent.declared)
        timeout = TIMEOUT if whole.timeout is None else whole.timeout
        retry = ONE_TRY if whole.retry is None else whole.retry
        body = cast(FunctionType, run)
        super().__init__(body, name=name, effect="pure", timeout=timeout, retry=retry, pool=whole.pool)
        self.result, self.description, self.reserve = result, agent.description, whole.reserve

    @cached_property
    def facts(self) -> ToolFacts:
        return replace(super().facts, version=self.agent.code)


def _names_of_contexts(function: FunctionType, *, first: bool) -> set[str]:
    names = function.__code__.co_varnames[:1] if first else ()
    typed = (name for name, kind in function.__annotations__.items() if kind is Context or kind == "Context")
    return {*names, *typed}
