"""Results of units in the log, readable by people and by budgets."""

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


def in_base64(output: Any) -> Any:
    """Unit's output with bytes of tools in base64, as models get them."""
    if isinstance(output, bytes):
        return to_jsonable_python(output, bytes_mode="base64")
    if isinstance(output, dict):
        return {name: in_base64(element) for name, element in output.items()}
    if isinstance(output, list | tuple) and not hasattr(output, "_fields"):
        return [in_base64(element) for element in output]
    if getattr(output, "kind", "") == "tool_return":
        return replace(output, result=in_base64(output.result))
    return output


def loaded(operation: DurableOperationId, result: Any) -> tuple[Any, RunUsage | None]:
    """Output of a unit, and its usage; the result of people, or of a test, is a tool's plain value."""
    if isinstance(operation, ModelRequestId | ModelCompactMessagesId):
        return result["response"], None
    if not isinstance(operation, ToolsetCallToolId):
        return result, None
    if not _is_wrapped(result):
        return {"kind": "tool_return", "result": result}, None
    return result[UNIT], _RUN_USAGE.validate_python(result[USAGE]) if USAGE in result else None


def _brief(response: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in response.items() if value is not None}
    fields["parts"] = [{name: value for name, value in part.items() if value is not None} for part in fields["parts"]]
    fields["usage"] = {name: value for name, value in (fields.get("usage") or {}).items() if value}
    if url := fields.get("provider_url"):
        fields["provider_url"] = public_url(url)  # a base URL may have a password
    return fields


def _written(response: dict[str, Any]) -> dict[str, Any]:
    try:
        # A model may cut an emoji in half. A mark replaces the half: a paid response is not refused for that.
        orjson.dumps(response)
    except orjson.JSONEncodeError:
        mended: dict[str, Any] = _mended(response)
        return mended
    return response


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_mended(name): _mended(element) for name, element in value.items()}
    return [_mended(element) for element in value] if isinstance(value, list) else value


def _is_wrapped(result: Any) -> bool:
    return isinstance(result, dict) and UNIT in result


def _used(response: dict[str, Any], requested: str) -> dict[str, Any]:
    usage, provider = response.get("usage") or {}, response.get("provider_name")
    # Prices know `provider:name`. Without a provider, as of a FunctionModel, they know the model that was reserved.
    model = f"{provider}:{response.get('model_name') or ''}" if provider else requested
    return {"model": model, **{name: usage.get(name) or 0 for name in _COUNTED}, "requests": 1}
