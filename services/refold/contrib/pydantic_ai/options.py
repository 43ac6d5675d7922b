"""Options of the calls of an agent's units: `metadata={"refold": CallOptions(effect="keyed")}`."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal, cast, get_args

from pydantic_ai import durable_exec as durable

from refold.core.errors import UsageError
from refold.sdk.app import MODEL_POOL
from refold.sdk.tool import CallOptions

WORD = "refold"
"""Refold's key in a tool's metadata."""

MODEL_TIMEOUT = timedelta(minutes=10)
"""Default timeout of a model call: providers may take minutes."""

ToolEffect = Literal["pure", "keyed", "once"]

_PURE = (
    durable.ModelRequestId,
    durable.ModelCompactMessagesId,
    durable.ToolsetGetToolsId,
    durable.ToolsetGetInstructionsId,
    durable.ToolsetValidateToolArgumentsId,
    durable.EventStreamHandlerId,
)


def checked_options(options: Mapping[str, Any] | None, subject: str) -> CallOptions:
    """Check options. **Raises** UsageError, by name: an unknown word, or an effect of another kind."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise UsageError(f"{subject}: {options!r} are no options of a call", hint="write CallOptions(effect=...)")
    names = ", ".join(CallOptions.__annotations__)
    if unknown := ", ".join(sorted(map(str, options.keys() - CallOptions.__annotations__.keys()))):
        raise UsageError(f"{subject}: {unknown} is no option of a call", hint=f"there is {names}")
    if (effect := options.get("effect", "once")) not in get_args(ToolEffect):
        hint = "use pure, keyed or once; a tool with a probe is one of Refold's own"
        raise UsageError(f"{subject}: effect={effect!r} is not for a tool of pydantic-ai", hint=hint)
    return cast(CallOptions, dict(options))


def default_options(operation: durable.DurableOperationId, model: CallOptions, tools: CallOptions) -> CallOptions:
    """Default options of a unit; an unknown unit may have acted on the world."""
    if isinstance(operation, durable.ModelRequestId | durable.ModelCompactMessagesId):
        return {"effect": "pure", "pool": MODEL_POOL, "timeout": MODEL_TIMEOUT, **model}
    if isinstance(operation, durable.ModelCancelSuspendedResponseId):
        return {"pool": MODEL_POOL, "timeout": MODEL_TIMEOUT, **model, "effect": "keyed", "keyed_by": "arguments"}
    if isinstance(operation, _PURE):
        return {**_options_without(tools, *_OF_EFFECT, "approval"), "effect": "pure"}
    return tools


def with_own_options(base: CallOptions, own: CallOptions) -> CallOptions:
    """Options with a tool's own in front. Another effect class drops the options of the former one."""
    rest = _options_without(base, *_OF_EFFECT) if "effect" in own else base
    return {**rest, **own}


_OF_EFFECT = ("effect", "key_window", "keyed_by")


def _options_without(options: CallOptions, *names: str) -> CallOptions:
    return cast(CallOptions, {name: value for name, value in options.items() if name not in names})
