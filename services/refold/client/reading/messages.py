"""Messages of requests to models, rebuilt from the log without their framework."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from refold.client.reading.model import ReadModel, json_text
from refold.core.errors import BlobError, MalformedError, NotFoundError, TerminalError
from refold.core.events import CallCompleted
from refold.core.run.building import calls_before
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.core.wire.blobs import is_pointer
from refold.core.wire.conversation import ON, SAID_BY, whole_request

MOST_SHOWN = 200
"""Characters of `ModelTurn.last`."""


class ModelMessages(ReadModel):
    """The request to a model that a step made.

    `verified`: the messages have the digest that the request was recorded with. Otherwise `why` is the reason, and
    there are messages only if the request was recorded whole.
    """

    run_id: str
    step: int
    call_id: str
    tool: str
    model: str
    digest: str
    verified: bool
    why: str
    settings: Any
    messages: list[dict[str, Any]]


class ModelTurn(ReadModel):
    """A request to a model that waits for its answer: how many messages it has, and the beginning of the last one."""

    step: int
    tool: str
    model: str
    digest: str
    verified: bool
    messages: int
    last: str


class SaidTurn(NamedTuple):
    """A request to a model: the messages that it adds, its answer if any, and its check."""

    step: int
    digest: str
    verified: bool
    why: str
    messages: list[dict[str, Any]]
    answer: Any


def inline_text(text: str) -> str:
    """Return a text of the log. **Raises** BlobError for a pointer: no store is set."""
    if is_pointer(text):
        raise BlobError(f"{text} lies in the blob store, and none is set", code="blob_missing")
    return text


def messages_of(state: RunState, step: int, text_of: Callable[[str], str] = inline_text) -> ModelMessages:
    """Request of a step to a model; `text_of` resolves pointers. **Raises** NotFoundError for another kind of step."""
    if not 1 <= step <= len(state.steps):
        hint = f"its steps are 1 to {len(state.steps)}" if state.steps else "it has none"
        raise NotFoundError(f"run {state.run_id} has no step {step}", hint=hint)
    request, why = _model_request(state, step, text_of) if state.is_call(step) else (None, "")
    if request is None and not why:
        hint = f"`refold run show {state.run_id}` lists its steps"
        raise NotFoundError(f"step {step} of run {state.run_id} is no request to a model", hint=hint)
    call, whole = state.call(step), request or {}
    if not why and "digest" in whole:
        try:
            # A request of pydantic-ai has a digest, and only the messages since an earlier one.
            before = {past.step: (text_of(past.args), text_of(past.result)) for past in calls_before(state, call)}
            whole = whole_request(whole, before)
        except (TerminalError, BlobError) as error:
            whole, why = {**whole, "messages": []}, error.message
    elif not why:
        why = "it was recorded without a digest"
    return ModelMessages(
        run_id=state.run_id,
        step=step,
        call_id=state.call_id(step),
        tool=call.tool,
        model=_text(whole.get("model")),
        digest=_text(whole.get("digest")),
        verified=not why,
        why=why,
        settings=whole.get("settings"),
        messages=whole.get("messages", []),
    )


def turns_of(state: RunState, text_of: Callable[[str], str] = inline_text) -> list[ModelTurn]:
    """Requests of a run to models that have no answer so far, by step."""
    turns = []
    for step in state.open_calls():
        try:
            messages = messages_of(state, step, text_of)
        except NotFoundError:
            continue
        last = canonical.dumps(_last_content(messages.messages[-1])) if messages.messages else ""
        turn = {name: getattr(messages, name) for name in ("step", "tool", "model", "digest", "verified")}
        turns.append(ModelTurn(**turn, messages=len(messages.messages), last=last[:MOST_SHOWN]))
    return turns


def conversation_of(state: RunState, text_of: Callable[[str], str] = inline_text) -> list[SaidTurn]:
    """Requests of a run to models, by step, each with the messages that earlier ones lack, and its answer."""
    calls = [step for step in range(1, len(state.steps) + 1) if state.is_call(step)]
    requests = {step: request for step in calls if (request := _model_request(state, step, text_of)[0])}
    turns = dict[int, SaidTurn]()
    # From the last request back: each conversation is then rebuilt and checked once.
    while requests:
        step = next(reversed(requests))
        messages = messages_of(state, step, text_of)
        end = len(messages.messages)
        while step in requests:
            request = requests.pop(step)
            start = max(0, end - len(request["messages"]))
            pairs = zip(request["messages"], messages.messages[start:end], strict=False)
            # A message that names its step is the answer of that one, which has it already.
            new = [message for named, message in pairs if SAID_BY not in named]
            about = _text(request.get("digest")), messages.verified, messages.why
            turns[step] = SaidTurn(step, *about, new, _answer(state, step, text_of))
            end, step = start, _step_before(request, step) if messages.verified else 0
    return list(_without_repeats(state, [turns[step] for step in sorted(turns)]))


def _step_before(request: dict[str, Any], step: int) -> int:
    """Step whose request this one continues; 0 without one."""
    before = request.get(ON)
    return before if isinstance(before, int) and before < step else 0


def _without_repeats(state: RunState, turns: list[SaidTurn]) -> Iterator[SaidTurn]:
    """Drop messages that requests without a digest repeat from earlier ones."""
    before: dict[str, list[dict[str, Any]]] = {}
    for turn in turns:
        tool = state.call(turn.step).tool
        old = [] if turn.digest else before.get(tool, [])
        before[tool] = turn.messages
        yield turn._replace(messages=turn.messages[len(old) :]) if turn.messages[: len(old)] == old else turn


def _answer(state: RunState, step: int, text_of: Callable[[str], str]) -> Any:
    outcome = state.outcomes.get(step, (0, None))[1]
    if not isinstance(outcome, CallCompleted):
        return None
    try:
        return json_text(text_of(outcome.result))
    except BlobError:
        return json_text(outcome.result)


def _model_request(state: RunState, step: int, text_of: Callable[[str], str]) -> tuple[dict[str, Any] | None, str]:
    """Arguments of a call that requests a model; None for other calls, and, with the reason, for unreadable ones."""
    try:
        request = canonical.parse(text_of(state.call(step).args))
    except (BlobError, MalformedError) as error:
        return None, error.message
    named = isinstance(request, dict) and isinstance(request.get("messages"), list)
    return (request, "") if named and all(isinstance(message, dict) for message in request["messages"]) else (None, "")


def _last_content(message: dict[str, Any]) -> Any:
    parts = message.get("parts")
    last = parts[-1] if isinstance(parts, list) and parts and isinstance(parts[-1], dict) else message
    return last.get("content", last.get("args", last))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
