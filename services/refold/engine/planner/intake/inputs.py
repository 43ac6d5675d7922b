"""Decoding and checks of input records."""

import dataclasses

from refold.core import topics
from refold.core.approval.requester import check_token
from refold.core.errors import MalformedError, UsageError
from refold.core.events import CallProposed, Failure
from refold.core.ids import RunId, parse_approval_id, parse_call_id, parse_callback_token, run_id
from refold.core.messages import ApprovalDecision, RunOperation, RunRequest, RunSignal, ToolResult
from refold.core.planning.family import request_digest
from refold.core.planning.verdict import Decided, Input, Start, UnreadableResult
from refold.core.planning.waiting import check_name
from refold.core.run.state import RunState
from refold.core.wire import codec, headers, sizes
from refold.engine.ports.log import Record

FROM_USERS = frozenset({topics.RUN_REQUESTED, topics.RUN_SIGNALLED})
"""Topics that any client may write."""

FROM_PEOPLE = FROM_USERS | {topics.RUN_OPERATED}
"""Topics that people write, into any partition; services write to a run's home only."""


def read(record: Record, max_bytes: int) -> tuple[RunId, Input]:
    """The run of a record, and the input. **Raises** MalformedError for a record that belongs to the dead letters.
    **Units**: `max_bytes` of an input's JSON text in UTF-8."""
    value, answers = record.value, topics.kind_of(record.topic) == topics.TOOL_COMPLETED
    assert value is not None, "a tombstone is no input"
    # Plain JSON may have spaces and escapes, and a decision has its payload in base64, and the votes.
    most = (1 if answers else 2) * max_bytes + sizes.ENVELOPE_BYTES
    sizes.check_size("value", len(value), most)
    if answers:
        result = codec.decode_message(ToolResult, value)
        if parse_call_id(result.call_id)[0] != result.run_id:
            raise MalformedError("the call is not of the run that the result names")
        return result.run_id, result
    if record.topic == topics.APPROVAL_DECIDED:
        message = codec.decode_message(ApprovalDecision, value)
        run, _, _ = parse_approval_id(message.approval_id)
        if run != message.run_id:
            raise MalformedError("the approval is not of the run that the decision names")
        return run, Decided(run, message.approval_id, message.token)
    if headers.size(record.read_headers()) > headers.MAX_HEADER_BYTES:
        raise MalformedError(f"the headers have more than {headers.MAX_HEADER_BYTES} bytes", hint="send less with it")
    return (_read_request if record.topic == topics.RUN_REQUESTED else _read_signal)(record, value, max_bytes)


def _read_signal(record: Record, value: bytes, max_bytes: int) -> tuple[RunId, RunSignal | RunOperation]:
    kind: type[RunSignal | RunOperation] = RunOperation if record.topic == topics.RUN_OPERATED else RunSignal
    signal = codec.decode_input(kind, value, json_fields=("data",))
    sizes.check_input(signal, max_bytes)
    if isinstance(signal, RunSignal):
        signal = _normalized(signal)
    if not (isinstance(signal, RunSignal) and record.key and record.key == signal.callback.encode()):
        _check_key(record, f"{signal.run_id}/{signal.signal_id}")
    return run_id(signal.run_id), signal


def _read_request(record: Record, value: bytes, max_bytes: int) -> tuple[RunId, Start]:
    request = codec.decode_input(RunRequest, value, json_fields=("input",), pointed="input")
    sizes.check_input(request, max_bytes)
    check_token(request)
    _check_key(record, request.run_id)
    # Only accepted entries start children: a request for one could act in its parent's name.
    if "." in request.run_id:
        raise MalformedError(f"{request.run_id[:80]!r} is the id of a child, which only its parent starts")
    if "+" in request.run_id:
        raise MalformedError(f"{request.run_id[:80]!r} is the id of a generation, which only the one before starts")
    trace = headers.traceparent(record.read_headers())
    return run_id(request.run_id), Start(request, request_digest(request), seed="", traceparent=trace)


def _normalized(signal: RunSignal) -> RunSignal:
    """Add the run of a callback's token, and check names."""
    check_token(signal)
    if signal.kind == "callback":
        run = parse_callback_token(signal.callback)
        if signal.run_id not in ("", run):
            raise MalformedError("the token is of another run", hint="leave run_id out: it follows from the token")
        return dataclasses.replace(signal, run_id=run)
    for name in ("run_id", "signal_id"):
        if not getattr(signal, name):
            raise MalformedError(f"the field {name!r} is missing")
    if signal.kind == "signal":
        try:
            check_name(signal.name)
        except UsageError as error:
            raise MalformedError(f"the name of a signal: {error.message}", hint=error.hint) from None
    return signal


def unreadable_result(record: Record, error: MalformedError) -> UnreadableResult | None:
    """The call of an unreadable result, by its key."""
    if topics.kind_of(record.topic) != topics.TOOL_COMPLETED or record.key is None:
        return None
    try:
        run, seq = parse_call_id(record.key.decode())
    except (MalformedError, UnicodeDecodeError):
        return None
    code = "too_large" if error.fields.get("limit") else "unreadable"
    return UnreadableResult(run, seq, Failure(code, f"what the executor sent cannot be used: {error.message}"))


def of_other_pool(record: Record, state: RunState, message: Input | None) -> str:
    """Reason why a result is not of its call's pool; empty: it is."""
    if not isinstance(message, (ToolResult, UnreadableResult)):
        return ""
    step = state.step_of(message.seq if isinstance(message, UnreadableResult) else parse_call_id(message.call_id)[1])
    proposed, pool = state.steps[step - 1] if step else None, topics.pool_of(record.topic)
    if not isinstance(proposed, CallProposed) or proposed.pool == pool:
        return ""
    return f"the call is of pool {proposed.pool}, and pool {pool} has nothing to say of it"


def _check_key(record: Record, expected: str) -> None:
    # An empty key is shared by all such records: compaction keeps the last of them, and no erasure finds it.
    if record.key is not None and record.key != expected.encode():
        raise MalformedError(f"the key is not {expected!r}", hint="key the record by what it is about")
