"""Results of units in the log, readable by people and by budgets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
from pydantic import TypeAdapter
from pydantic_ai.durable_exec import DurableOperationId, ModelCompactMessagesId, ModelRequestId, ToolsetCallToolId
from pydantic_ai.usage import RunUsage
from pydantic_core import to_jsonable_python

from refold.core.redaction import public_url

UNIT, USAGE = "$unit", "usage"
"""Fields of a tool's result that is more than its value, and of the usage."""

_RUN_USAGE: TypeAdapter[RunUsage] = TypeAdapter(RunUsage)
_COUNTED = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def as_recorded(operation: DurableOperationId, dumped: Any, spent: RunUsage | None, model: str) -> Any:
    """Recorded result of a call: a unit's output with the usage of models in it."""
    if isinstance(operation, ModelRequestId | ModelCompactMessagesId):
        return {"response": _written(_brief(dumped)), USAGE: _used(dumped, model)}
    if not isinstance(operation, ToolsetCallToolId):
        return dumped
    if spent is not None and spent.has_values():
        return {UNIT: dumped, USAGE: _RUN_USAGE.dump_python(spent, mode="json", exclude_defaults=True)}
    if dumped["kind"] == "tool_return" and not _is_wrapped(dumped["result"]):
        return dumped["result"]
    return {UNIT: dumped}


def in_base64(said: Any) -> Any:
    """Unit's output with bytes of tools in base64, as models get them."""
    if isinstance(said, bytes):
        return to_jsonable_python(said, bytes_mode="base64")
    if isinstance(said, dict):
        return {name: in_base64(each) for name, each in said.items()}
    if isinstance(said, list | tuple) and not hasattr(said, "_fields"):
        return [in_base64(each) for each in said]
    if getattr(said, "kind", "") == "tool_return":
        return replace(said, result=in_base64(said.result))
    return said


def heard(operation: DurableOperationId, result: Any) -> tuple[Any, RunUsage | None]:
    """Output of a unit, and its usage; the result of people, or of a test, is a tool's plain value."""
    if isinstance(operation, ModelRequestId | ModelCompactMessagesId):
        return result["response"], None
    if not isinstance(operation, ToolsetCallToolId):
        return result, None
    if not _is_wrapped(result):
        return {"kind": "tool_return", "result": result}, None
    return result[UNIT], _RUN_USAGE.validate_python(result[USAGE]) if USAGE in result else None


def _brief(response: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in response.items() if value is not None}
    kept["parts"] = [{name: value for name, value in part.items() if value is not None} for part in kept["parts"]]
    kept["usage"] = {name: value for name, value in (kept.get("usage") or {}).items() if value}
    if url := kept.get("provider_url"):
        kept["provider_url"] = public_url(url)  # a base URL may have a password
    return kept


def _written(response: dict[str, Any]) -> dict[str, Any]:
    try:
        # A model may cut an emoji in half. A mark replaces the half: a paid response is not refused for that.
        orjson.dumps(response)
    except orjson.JSONEncodeError:
        found: dict[str, Any] = _mended(response)
        return found
    return response


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_mended(name): _mended(each) for name, each in value.items()}
    return [_mended(each) for each in value] if isinstance(value, list) else value


def _is_wrapped(result: Any) -> bool:
    return isinstance(result, dict) and UNIT in result


def _used(response: dict[str, Any], requested: str) -> dict[str, Any]:
    usage, provider = response.get("usage") or {}, response.get("provider_name")
    # Prices know `provider:name`. Without a provider, as of a FunctionModel, they know the model that was reserved.
    model = f"{provider}:{response.get('model_name') or ''}" if provider else requested
    return {"model": model, **{name: usage.get(name) or 0 for name in _COUNTED}, "requests": 1}
