"""What a record of an input topic says, or why it says nothing that the planner can use."""

from __future__ import annotations

from hashlib import blake2b

from refold.core import headers, wire
from refold.core.decide import Input, Start
from refold.core.errors import FoldError, MalformedError
from refold.core.ids import parse_call_id, run_id
from refold.core.messages import RunRequest, RunSignal, ToolResult
from refold.ports.log import Record

REQUESTED, SIGNALLED, COMPLETED = "run-requested", "run-signalled", "tool-completed"
TOPICS = (REQUESTED, SIGNALLED, COMPLETED)


def read(record: Record, max_bytes: int) -> tuple[str, Input]:
    """The run that a record is about, and the input. **Raises** MalformedError for what belongs to the dead letters."""
    value = record.value
    if value is None:
        raise MalformedError("a tombstone is not an input", hint="use `refold run` to cancel a run")
    if len(value) > max_bytes:
        raise MalformedError(
            f"the value has {len(value)} bytes, more than {max_bytes}", hint="REFOLD_MAX_PAYLOAD_BYTES"
        )
    if record.topic == COMPLETED:
        result = _tool_result(value)
        if parse_call_id(result.call_id)[0] != result.run_id:
            raise MalformedError("the call is not of the run that the result names")
        return result.run_id, result
    if record.topic == SIGNALLED:
        signal = wire.decode_input(RunSignal, value, json_fields=("data",))
        _check_key(record, f"{signal.run_id}/{signal.signal_id}")
        return run_id(signal.run_id), signal
    request = wire.decode_input(RunRequest, value, json_fields=("input",))
    _check_key(record, request.run_id)
    return run_id(request.run_id), _start(request, record)


def _tool_result(value: bytes) -> ToolResult:
    try:
        return wire.decode(ToolResult, value)
    except FoldError as error:
        raise MalformedError(error.message, hint=error.hint) from None


def _start(request: RunRequest, record: Record) -> Start:
    found = record.read_headers()
    if headers.size(found) > headers.MAX_BYTES:
        raise MalformedError(f"the headers have more than {headers.MAX_BYTES} bytes", hint="send less with the request")
    content = f"{len(request.agent)}:{request.agent}{request.input}"
    digest = blake2b(content.encode(), digest_size=16).hexdigest()
    return Start(request, digest, seed="", traceparent=headers.traceparent(found))


def _check_key(record: Record, expected: str) -> None:
    if record.key and record.key != expected.encode():
        raise MalformedError(f"the key is not {expected!r}", hint="key the record by what it is about")
