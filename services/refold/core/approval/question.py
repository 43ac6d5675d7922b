"""Questions to people: content, digest, id, and validation. Service, client and CLI read requests with `received`
alone, so voters see exactly the requests that the service accepts."""

import dataclasses
from contextlib import suppress
from functools import cache
from typing import Any, get_args, get_origin

from refold.core.approval.policy import MAX_MS
from refold.core.approval.requester import TOKEN_CHARS
from refold.core.errors import MalformedError
from refold.core.events import DOUBT, CallProposed
from refold.core.ids import approval_id, home, parse_approval_id, parse_call_id
from refold.core.messages import ApprovalRequest
from refold.core.run.fold import TOLD, TOLD_CHARS
from refold.core.wire import canonical, codec
from refold.core.wire.canonical import hex_digest, idempotency_key

CONTEXT = "context"
_UNBOUND = ("approval_id", "question", "traceparent")
"""Fields that follow from the digest, and one that is not displayed."""

_OTHER_CONTEXT = "an edit changes arguments, and nothing that begins with $: that is the context of the call"


def context_of(args: str) -> dict[str, Any]:
    """Arguments named with `$`: run data, which no edit changes."""
    arguments = canonical.parse(args)
    return {name: arguments[name] for name in arguments if name.startswith("$")} if isinstance(arguments, dict) else {}


def context_digest(args: str) -> str:
    """Digest of the `$` arguments of a call; empty if it has none, or unreadable arguments."""
    with suppress(MalformedError):
        if context := context_of(args):
            return hex_digest(canonical.dumps(context))
    return ""


def context_edited(request: ApprovalRequest, args: str) -> str:
    """Error text if the edited arguments change the context of the call; empty if they do not."""
    return "" if context_of(args) == context_of(request.args) else _OTHER_CONTEXT


def in_context(args: str, before: str) -> str:
    """Edited arguments in the call's context, which they may leave out. **Raises** MalformedError for another one."""
    context = context_of(before)
    if context_of(args) not in ({}, context):
        raise MalformedError(_OTHER_CONTEXT, code="edit")
    return canonical.dumps({**canonical.parse(args), **context}) if context else args


def proposal_digest(call: CallProposed) -> str:
    return hex_digest(canonical.dumps(dataclasses.asdict(call)))


def bound(request: ApprovalRequest) -> dict[str, Any]:
    """Content of a question as its digest covers it and a decision contains it, with arguments by digest."""
    left_out = _UNBOUND if request.writers else (*_UNBOUND, "writers")  # as in questions of earlier releases
    fields = {name: value for name, value in dataclasses.asdict(request).items() if name not in left_out}
    proposed = request.proposed_args
    digests = {"args": hex_digest(request.args), "proposed_args": hex_digest(proposed) if proposed else ""}
    # Separate from the digest of the arguments: an edit changes those, and has to leave the context alone.
    return {**fields, **digests, CONTEXT: context_digest(request.args)}


def digest(content: dict[str, Any]) -> str:
    """Digest of the content from `bound`. **Raises** MalformedError if it has no JSON form."""
    return hex_digest(canonical.dumps(content))


def question_digest(request: ApprovalRequest) -> str:
    """Digest of all that a person agrees to, including the other approvers; a vote names it."""
    return digest(bound(request))


def bound_request(content: Any) -> ApprovalRequest:
    """Question of a `bound` content: without its id, and with digests for arguments. **Raises** MalformedError."""
    if not isinstance(content, dict) or content.keys() & set(_UNBOUND) or type(content.get(CONTEXT)) is not str:
        raise MalformedError("the question is not an object of its fields")
    fields = {"writers": [], **{name: value for name, value in content.items() if name != CONTEXT}}
    request: ApprovalRequest = _shaped(ApprovalRequest, {**fields, **dict.fromkeys(_UNBOUND, "")})
    return request


def _shaped(cls: Any, content: Any) -> Any:
    hints = _hints(cls)
    if not isinstance(content, dict) or content.keys() != hints.keys():
        raise MalformedError(f"a {cls.__name__} has other fields")
    return cls(**{name: _typed(hint, content[name]) for name, hint in hints.items()})


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return {spec.name: spec.type for spec in dataclasses.fields(cls)}


def _typed(hint: Any, value: Any) -> Any:
    if type(value) is hint:
        return value
    if get_origin(hint) is list and type(value) is list:
        (item,) = get_args(hint)
        return [_typed(item, child) for child in value]
    if dataclasses.is_dataclass(hint):
        return _shaped(hint, value)
    raise MalformedError("a field of the question has another type")


def named(request: ApprovalRequest) -> ApprovalRequest:
    """Question with the digest and id of its content."""
    question = question_digest(request)
    return dataclasses.replace(request, question=question, approval_id=approval_id(request.call_id, question))


def _wrong_attempts(request: ApprovalRequest) -> dict[str, bool]:
    """True for each inconsistent part of a question: its attempt numbers, subject and earlier outcomes."""
    past, doubt = request.history, request.about == DOUBT
    last = past[-1] if past else None
    return {
        # More than one would turn a single vote into a right to act again after every unknown outcome.
        "number of attempts": request.covers < request.attempt
        or ((request.effect == "once" or doubt) and request.covers != request.attempt),
        "subject": request.about not in ("", DOUBT) or doubt != (request.rule == DOUBT),
        "doubt": doubt and (last is None or (last.what, last.attempt) != ("doubt", request.attempt - 1)),
        "history": len(past) > TOLD or any(len(earlier.words + earlier.by) > 2 * TOLD_CHARS for earlier in past),
    }


def received(
    key: bytes | None, value: bytes, *, partition: int, partitions: int, environment: str = ""
) -> ApprovalRequest:
    """Request in a record of `approval-requested`. An empty `environment` accepts any, for voters that do not know
    theirs. **Raises** MalformedError if the request is inconsistent."""
    request = codec.decode_message(ApprovalRequest, value)
    canonical.dumps(dataclasses.asdict(request))
    run, seq, _ = parse_approval_id(request.approval_id)
    of_call = idempotency_key(
        environment=request.environment, run=request.run_id, step=request.step, tool=request.tool, args=request.args
    )
    texts = [request.args, *filter(None, [request.proposed_args])]
    wrong = {
        "key": key != request.approval_id.encode(),
        "call": (run, seq) != parse_call_id(request.call_id),
        "run": run != request.run_id,
        "partition": home(run, partitions) != partition,
        "environment": request.environment != (environment or request.environment),
        "arguments' text": any(canonical.dumps(canonical.parse(text)) != text for text in texts),
        "idempotency key": request.key != of_call,
        "time that a decision is valid": not 0 < request.requirement.valid_ms <= MAX_MS,
        # A planner that leaves it out would keep an old vote alive.
        "expiry": bool(request.requirement.expires_ms) and not request.expires_ms,
        **_wrong_attempts(request),
        "token": len(request.token) > TOKEN_CHARS,
        "question": request.question != question_digest(request),
        "name": request.approval_id != approval_id(request.call_id, request.question),
    }
    for part, is_wrong in wrong.items():
        if is_wrong:
            raise MalformedError(f"the request has another {part} than it should")
    return request
