"""Waits in an agent of pydantic-ai: `RequestInput`, and `wait_for_external_event` in a capability. A wait is a callback
of the run: the holder of its token answers once, with the client or `refold run callback`. An executor hands the token
out, in a call."""

import inspect
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from functools import partial
from types import FunctionType
from typing import Any, cast

from pydantic import JsonValue, TypeAdapter
from pydantic_ai.capabilities import AbstractCapability, RequestInput
from pydantic_ai.durable_exec import ExternalEventError, ExternalEventWaiter
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults

from refold.contrib.pydantic_ai.operations import OperationTool
from refold.contrib.pydantic_ai.options import overridden
from refold.contrib.pydantic_ai.run_context import ContextCodec
from refold.core.errors import CallbackError, UsageError
from refold.core.wire import canonical
from refold.core.wire.conversation import OF_RUN, Before, Wire
from refold.sdk import loop
from refold.sdk.context import Callback, Context
from refold.sdk.tool import CallOptions

AskFunction = Callable[[str], Awaitable[JsonValue]]

# The token, an argument, is the same each time, so a receiver that gets it twice has one token.
_HANDS_OUT: CallOptions = {"effect": "keyed", "keyed_by": "arguments"}

_REQUESTS: TypeAdapter[DeferredToolRequests] = TypeAdapter(DeferredToolRequests)
_RESULTS: TypeAdapter[DeferredToolResults] = TypeAdapter(DeferredToolResults)


class RefoldWaiter(ExternalEventWaiter):
    """Waits of a run. Two of one name have tokens of their own, in order of their beginning."""

    def __init__(self, context: Context, contexts: ContextCodec) -> None:
        self._context, self._contexts = context, contexts

    async def wait(self, name: str, *, ask: AskFunction, timeout: timedelta | None) -> JsonValue:  # noqa: ASYNC109 - its face
        """Return the answer of `ask`, or else of the token's holder. **Raises** ExternalEventError; UsageError."""
        function = _ask_function(ask)
        schema = DeferredToolResults if isinstance(function, partial) else None
        waiting: Callback[Any] = self._context.callback(name, schema=schema, timeout=timeout)
        try:
            answer = await self._ask(function, waiting.token)
        except BaseException:
            waiting.cancel()
            raise
        if answer is not None:
            waiting.cancel()
            return cast(JsonValue, answer)
        try:
            result = await waiting
        except TimeoutError:
            raise ExternalEventError(f"No resolution arrived within {timeout}.") from None
        except CallbackError as failed:
            raise ExternalEventError(failed.message) from None
        return cast(JsonValue, _RESULTS.dump_python(result, mode="json") if schema else result)

    async def _ask(self, function: Any, token: str) -> Any:
        if not isinstance(function, partial):
            return await self._context.call(function, token)
        ctx, requests = function.args
        tool = self._context.find(ask_tool(self._contexts.name, cast(Any, function.func).__self__))
        arguments = {"token": token, "requests": _REQUESTS.dump_python(requests, mode="json")}
        text = canonical.dumps({**arguments, OF_RUN: self._contexts.dump(ctx)})
        return await loop.step(tool.call(text, label=token))


def ask_tools(
    contexts: ContextCodec, leaves: list[AbstractCapability[Any]], options: CallOptions
) -> Iterator[OperationTool]:
    for leaf in leaves:
        # They may run twice, as `RequestInput` documents.
        if isinstance(leaf, RequestInput):
            handler, call_options = partial(_hand_out, contexts, leaf), overridden(options, _HANDS_OUT)
            function = leaf.ask if isinstance(leaf.ask, FunctionType) else None
            yield OperationTool(ask_tool(contexts.name, leaf), handler, call_options, function=function)


def ask_tool(agent: str, capability: RequestInput[Any]) -> str:
    return f"{agent}__external_event.{capability.name}.ask"


async def _hand_out(contexts: ContextCodec, capability: RequestInput[Any], arguments: Wire, before: Before) -> Any:
    requests = _REQUESTS.validate_python(arguments["requests"])
    return await capability._ask(contexts.load(arguments[OF_RUN]), requests, arguments["token"])


def _ask_function(ask: AskFunction) -> Any:
    """Function that hands out the token of a wait, unwrapped."""
    inner = inspect.getclosurevars(ask).nonlocals.get("ask", ask)
    if isinstance(inner, partial) and isinstance(getattr(inner.func, "__self__", None), RequestInput):
        return inner
    if isinstance(inner, FunctionType):
        return inner  # it has to be a tool: the look-up raises otherwise
    raise UsageError(f"{inner!r} asks for what a run waits for", hint="give a function that is a tool: @app.tool")
