"""Results and errors of units in the log, readable by people and by budgets.

The run retries transient errors of models after the provider's delay, in attempts that survive a crash. The last error,
or a permanent one, is raised in the agent's loop as pydantic-ai's class for it, for fallbacks and hooks.
"""

import json
from dataclasses import replace
from typing import Any, cast

import orjson
from pydantic import TypeAdapter
from pydantic_ai import exceptions
from pydantic_ai.durable_exec import DurableOperationId, ModelCompactMessagesId, ModelRequestId, ToolsetCallToolId
from pydantic_ai.usage import RunUsage
from pydantic_core import to_jsonable_python

from refold.core.errors import CallFailed, RefoldError, TerminalError, TransientError, text_of
from refold.core.redaction import public_url

UNIT, USAGE = "$unit", "usage"
"""Fields of a tool's result that is more than its value, and of the usage."""

_RUN_USAGE: TypeAdapter[RunUsage] = TypeAdapter(RunUsage)
_COUNTED = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")

_HOPELESS = (exceptions.ModelRequestRejectedError, exceptions.ModelQuotaExceededError, exceptions.ModelRequestTimeout)
"""Errors that the next attempt of the same request would get, too."""

_BUSY = (408, 409, 425, 429)
"""Statuses below 500 that may pass soon."""

_LONGEST_S = 86_400.0
"""Longest delay that a provider may request: a longer one is a mistake."""

_MOST = 3_000
"""Characters of an error's data; a longer one is cut."""


def as_recorded(operation: DurableOperationId, dumped: Any, spent: RunUsage | None, model: str) -> Any:
    """Recorded result of a call: a unit's output with the usage of models in it."""
    if isinstance(operation, ModelRequestId | ModelCompactMessagesId):
        return {"response": _writable(_without_empty_fields(dumped)), USAGE: _billed_usage(dumped, model)}
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


def as_output(operation: DurableOperationId, result: Any) -> tuple[Any, RunUsage | None]:
    """Output of a unit, and its usage; the result of people, or of a test, is a tool's plain value."""
    if isinstance(operation, ModelRequestId | ModelCompactMessagesId):
        return result["response"], None
    if not isinstance(operation, ToolsetCallToolId):
        return result, None
    if not _is_wrapped(result):
        return {"kind": "tool_return", "result": result}, None
    return result[UNIT], _RUN_USAGE.validate_python(result[USAGE]) if USAGE in result else None


def _without_empty_fields(response: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in response.items() if value is not None}
    fields["parts"] = [{name: value for name, value in part.items() if value is not None} for part in fields["parts"]]
    fields["usage"] = {name: value for name, value in (fields.get("usage") or {}).items() if value}
    if url := fields.get("provider_url"):
        fields["provider_url"] = public_url(url)  # a base URL may have a password
    return fields


def _writable(response: dict[str, Any]) -> dict[str, Any]:
    try:
        # A model may cut an emoji in half. A mark replaces the half: a paid response is not refused for that.
        orjson.dumps(response)
    except orjson.JSONEncodeError:
        return cast(dict[str, Any], _without_half_characters(response))
    return response


def _without_half_characters(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_without_half_characters(name): _without_half_characters(element) for name, element in value.items()}
    return [_without_half_characters(element) for element in value] if isinstance(value, list) else value


def _is_wrapped(result: Any) -> bool:
    return isinstance(result, dict) and UNIT in result


def _billed_usage(response: dict[str, Any], requested: str) -> dict[str, Any]:
    usage, provider = response.get("usage") or {}, response.get("provider_name")
    # Prices know `provider:name`. Without a provider, as of a FunctionModel, they know the model that was reserved.
    model = f"{provider}:{response.get('model_name') or ''}" if provider else requested
    return {"model": model, **{name: usage.get(name) or 0 for name in _COUNTED}, "requests": 1}


def as_failure(error: Exception) -> RefoldError | None:
    """Error of a unit as a tool raises it; None for errors outside pydantic-ai."""
    if isinstance(error, exceptions.RetryModelRequest):
        return _terminal(error, {"retry_model": error.model if isinstance(error.model, str) else None})
    if isinstance(error, exceptions.UserError):
        return TerminalError(text_of(error), code="UserError")
    parts = list(error.exceptions) if isinstance(error, exceptions.FallbackExceptionGroup) else [error]
    failed = [part for part in parts if isinstance(part, exceptions.ModelAPIError)]
    return _model_failure(error, failed) if failed else None


def _model_failure(error: Exception, failed: list[exceptions.ModelAPIError]) -> RefoldError:
    detail: dict[str, Any] = {"errors": [_error_as_json(part) for part in failed]}
    if isinstance(error, exceptions.FallbackExceptionGroup):
        detail["group"] = error.message
    delays_s = [min(part.retry_after or 0.0, _LONGEST_S) for part in failed if _is_transient(part)]
    if not delays_s:
        return _terminal(error, detail)
    text = json.dumps(detail)
    return TransientError(text_of(error), retry_after=min(delays_s) or None, code=type(error).__name__, detail=text)


def as_raised(failed: CallFailed) -> Exception:
    """Error of pydantic-ai behind a failed unit, else the failure itself."""
    try:
        detail = json.loads(failed.fields.get("detail") or "{}")
        if "retry_model" in detail:
            return exceptions.RetryModelRequest(detail["retry_model"])
        errors = [_error_from_json(fields) for fields in detail.get("errors", ())]
    except (KeyError, TypeError, ValueError):
        return failed
    if "group" in detail:
        return exceptions.FallbackExceptionGroup(detail["group"], errors)
    return errors[0] if errors else failed


def _is_transient(error: exceptions.ModelAPIError) -> bool:
    if isinstance(error, _HOPELESS):
        return False
    return not isinstance(error, exceptions.ModelHTTPError) or error.status_code >= 500 or error.status_code in _BUSY


def _terminal(error: Exception, detail: dict[str, Any]) -> TerminalError:
    return TerminalError(text_of(error), code=type(error).__name__, detail=json.dumps(detail))


def _error_as_json(error: exceptions.ModelAPIError) -> dict[str, Any]:
    http = isinstance(error, exceptions.ModelHTTPError)
    reduce: Any = exceptions.ModelHTTPError.__reduce__ if http else type(error).__reduce__
    state = {name: value for name, value in error.__getstate__().items() if not name.startswith("_")}
    facts = {"class": type(error).__name__, "http": http, "args": list(reduce(error)[1]), "state": state}
    plain: dict[str, Any] = to_jsonable_python(facts, fallback=str)
    if len(json.dumps(plain)) > _MOST:  # a provider's response may be anything
        plain["args"] = [arg if isinstance(arg, int | float) else str(arg)[:100] for arg in plain["args"]]
        plain["state"] = {"retry_after": error.retry_after}
    return plain


def _error_from_json(facts: dict[str, Any]) -> exceptions.ModelAPIError:
    usual = exceptions.ModelHTTPError if facts["http"] else exceptions.ModelAPIError
    own = (candidate for candidate in _with_subclasses(usual) if candidate.__module__.startswith("pydantic_ai."))
    kind: Any = next((candidate for candidate in own if candidate.__name__ == facts["class"]), usual)
    error: exceptions.ModelAPIError = kind(*facts["args"])
    state = error.__getstate__() | facts["state"]
    error.__setstate__(state)
    return error


def _with_subclasses(kind: type[exceptions.ModelAPIError]) -> list[type[exceptions.ModelAPIError]]:
    return [kind, *(descendant for below in kind.__subclasses__() for descendant in _with_subclasses(below))]
