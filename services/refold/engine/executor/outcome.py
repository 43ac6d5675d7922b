"""Result of an attempt for the planner, from the end of its tool or from its absence."""

from dataclasses import replace
from typing import NamedTuple

from refold.core.events import Failure
from refold.core.messages import ToolRequest, ToolResult
from refold.engine.ports.effects import ToolEnded

IN_DOUBT = Failure("in_doubt", "what was claimed before may have had its effect, and the tool cannot be asked")
KEY_FORGOTTEN = Failure(
    "key_window", "an earlier try may have had its effect, and the receiver may have forgotten its key by now"
)
PASSED = Failure("superseded", "a later attempt of this call has been claimed")
SETTLED = Failure("superseded", "the call is settled")


class ToolRun(NamedTuple):
    """Executor that ran the tool or its status hook, and when; after a `takeover` another may have run it before.
    **Units**: `began_ms` since 1970, by the wall clock; 0: nothing ran."""

    by: str
    takeover: bool = False
    began_ms: int = 0
    took_ms: int = 0


def timeout(request: ToolRequest) -> Failure:
    effect = "" if request.effect == "pure" else ": the effect may have happened"
    return Failure("timeout", f"no answer within {request.timeout_ms} ms{effect}")


def result_of(
    request: ToolRequest, status: str, run: ToolRun, *, failure: Failure | None = None, json: str = ""
) -> ToolResult:
    return ToolResult(
        request.call_id,
        request.run_id,
        request.step,
        request.attempt,
        status,
        json,
        failure,
        executor=run.by,
        traceparent=request.traceparent,
        again=request.again or run.takeover,
        began_ms=run.began_ms,
        took_ms=run.took_ms,
    )


def outcome_of(request: ToolRequest, ended: ToolEnded, run: ToolRun) -> ToolResult:
    """Result of an attempt by the end of its tool."""
    if ended.status == "completed":
        # An attempt of an earlier owner may be billed twice.
        return result_of(request, "completed", run, json=ended.result)
    failure = Failure(ended.code, ended.message, ended.detail)
    # The outcome of the earlier one is irrelevant without an effect, but it may be billed as well.
    takeover = run.takeover
    run = run._replace(takeover=takeover and request.effect == "pure")
    if ended.status == "broken":
        return result_of(request, "broken", run, failure=failure)
    if ended.status == "failed":
        # An earlier owner's attempt may have had its effect, whatever the result of this one.
        unknown = takeover and request.effect == "keyed"
        result = result_of(request, "unknown" if unknown else "failed", run, failure=failure)
        return replace(result, retryable=ended.retryable, retry_after_ms=ended.retry_after_ms)
    return replace(result_of(request, "unknown", run, failure=failure), retry_after_ms=ended.retry_after_ms)
