"""Requests to models, whose arguments would grow with the square of a conversation: they name an earlier request and
have the messages since. An executor restores the whole request and compares its digest. Other calls are not shortened,
as rules and people judge all of their arguments."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from operator import is_
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter
from pydantic_ai.durable_exec import ModelCompactMessagesParams, ModelRequestParams
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model
from pydantic_core import to_jsonable_python

from refold.core.run.account import Reserve, tokens_of
from refold.core.wire import canonical
from refold.core.wire.conversation import (
    AGAIN,
    GONE,
    OF_RUN,
    ON,
    RESULT,
    SAID_BY,
    Wire,
    chained,
    json_digest,
    whole_digest,
    without_drawn,
)
from refold.sdk.context import Context

LONG = 100
"""Characters of a tool's result from which it is named instead; a name takes some twenty."""

MOST_OUTPUT = 4_096
"""Tokens of an answer, if the settings have no `max_tokens`."""

BYTES_A_TOKEN = 2
"""Fewer than any tokenizer makes of text, so that the estimate is too large. Pictures count as their base64."""

_MESSAGE: TypeAdapter[ModelMessage] = TypeAdapter(ModelMessage)


class Prepared(NamedTuple):
    """Arguments of a call, the steps they build on, and a callback for its step and result."""

    arguments: Wire
    builds_on: tuple[int, ...] = ()
    settled: Callable[[int, Any], None] = lambda step, result: None


@dataclass(slots=True)
class _Request:
    """An answered request to a model. `length` counts its messages, `defined` is the digest of its `parameters`."""

    step: int
    length: int
    digest: bytes
    run: Wire
    settings: Any
    parameters: Any
    defined: bytes
    instructions: Any
    response: Wire


class _CachedMessage(NamedTuple):
    """A message with its digest, valid while it is made of the same objects."""

    message: ModelMessage
    made_of: list[Any]
    digest: bytes


@dataclass(slots=True)
class Conversations:
    """Requests to models in one run so far. By step: `tokens` of a request and its answer, `sizes` in bytes of named
    results. `cheaper`: the budget requires the cheaper model."""

    requests: dict[bytes, _Request] = field(default_factory=dict)
    results: dict[str, tuple[int, Any]] = field(default_factory=dict)
    last: dict[str, _Request] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    cheaper: bool = False
    _messages: dict[int, _CachedMessage] = field(default_factory=dict)
    _cached: dict[str, tuple[list[_CachedMessage], list[bytes]]] = field(default_factory=dict)

    def request(self, params: ModelRequestParams, run: Wire, parameters: Callable[[], Wire], settings: Any) -> Prepared:
        """Arguments of a request: its difference from an answered one with the same beginning."""
        fresh: dict[int, Wire] = {}
        digests = self._digests(run["run_id"], params.messages, fresh)
        base = self._longest_answered(run["run_id"], digests)
        new = params.messages[base.length if base else 0 :]
        messages, named = self._shortened(new, base, fresh)
        fields: Wire = {"model": params.model_id, "messages": messages, OF_RUN: run}
        if base is None or base.settings != settings:
            fields["settings"] = settings
        same = base is not None and base.parameters == params.model_request_parameters
        if base is not None and same:
            defined = base.defined
        else:
            fields["parameters"] = parameters()
            defined = json_digest(fields["parameters"])
        fields["digest"] = whole_digest(digests[-1], params.model_id, run, settings, defined)
        if base is not None:
            fields |= {ON: base.step, OF_RUN: _changed_fields(run, base.run)}
        earlier = (getattr(message, "instructions", None) for message in reversed(params.messages))
        instructions = next(filter(None, earlier), None)

        def settled(step: int, result: Any) -> None:
            recorded = _Request(
                step=step,
                length=len(params.messages),
                digest=digests[-1],
                run=run,
                settings=settings,
                parameters=params.model_request_parameters,
                defined=defined,
                instructions=instructions,
                response=without_drawn(result["response"]),
            )
            self.tokens[step] = tokens_of(result.get("usage") or {}) or 0
            self.requests[digests[-1]] = self.last[run["run_id"]] = recorded

        return Prepared(fields, tuple(sorted({*named, *([base.step] if base else [])})), settled)

    def _longest_answered(self, run: str, digests: list[bytes]) -> _Request | None:
        last = self.last.get(run)
        if last is not None and last.digest in digests:
            return last
        return next(filter(None, map(self.requests.get, reversed(digests))), None)

    def _digests(self, run: str, messages: list[ModelMessage], fresh: dict[int, Wire]) -> list[bytes]:
        """Digests of all beginnings of a conversation. `fresh` gets the data of new messages."""
        earlier, earlier_digests = self._cached.get(run, ((), ()))
        # Nearly always the messages of the run's last request are unchanged.
        if not _begins_unchanged(messages, earlier):
            earlier, earlier_digests = (), ()
        cached, digests = [*earlier], [*earlier_digests]
        digest = digests[-1] if digests else b""
        for message in messages[len(cached) :]:
            row = self._messages.get(id(message))
            if row is None or not _begins_unchanged([message], [row]):
                wire = fresh[id(message)] = dump_message(message)
                row = self._messages[id(message)] = _CachedMessage(message, _objects_of([message]), json_digest(wire))
            digest = chained(digest, row.digest)
            cached.append(row)
            digests.append(digest)
        self._cached[run] = cached, digests
        return digests

    def _shortened(
        self, messages: list[ModelMessage], base: _Request | None, fresh: dict[int, Wire]
    ) -> tuple[list[Wire], set[int]]:
        """Messages as JSON data, steps in place of recorded answers and long results; steps of those results."""
        wires, named = list[Wire](), set[int]()
        instructions = base.instructions if base else None
        for message in messages:
            wire = fresh.get(id(message)) or dump_message(message)
            if base is not None and isinstance(message, ModelResponse) and wire["parts"] == base.response["parts"]:
                other = _changed_fields(wire, base.response)
                wires.append({SAID_BY: base.step, "with": other} if other else {SAID_BY: base.step})
                continue
            if instructions is not None and wire.get("instructions") == instructions:
                wire = {**wire, AGAIN: True}
                del wire["instructions"]
            instructions = wire.get("instructions") or instructions
            wire = {**wire, "parts": [self._shortened_part(part, named) for part in wire["parts"]]}
            wires.append(wire)
        return wires, named

    def _shortened_part(self, part: Wire, named: set[int]) -> Wire:
        result = self.results.get(part.get("tool_call_id", "")) if part.get("part_kind") == "tool-return" else None
        if result is None or result[1] != part.get("content") or len(text := canonical.dumps(result[1])) < LONG:
            return part
        named.add(result[0])
        self.sizes[result[0]] = canonical.utf8_bytes(text)
        return {RESULT: result[0], **{name: value for name, value in part.items() if name != "content"}}


_OF: WeakKeyDictionary[Context, Conversations] = WeakKeyDictionary()


def conversations(context: Context) -> Conversations:
    """Conversations of a run, from the beginning of its code's execution."""
    return _OF.setdefault(context, Conversations())


def dump_message(message: ModelMessage) -> Wire:
    """Message as JSON data, without the framework's drawn ids and times."""
    return without_drawn(_MESSAGE.dump_python(message, mode="json"))


def _changed_fields(new: Wire, old: Wire) -> Wire:
    changed = {name: value for name, value in new.items() if name not in old or old[name] != value}
    if gone := sorted(old.keys() - new.keys()):
        changed[GONE] = gone
    return changed


def _begins_unchanged(messages: list[ModelMessage], cached: Sequence[_CachedMessage]) -> bool:
    first, before = messages[: len(cached)], [row.made_of for row in cached]
    made_of = _objects_of(first)
    same = len(made_of) == sum(map(len, before)) and all(map(is_, made_of, chain.from_iterable(before)))
    return same and len(first) == len(cached) and all(map(is_, first, [row.message for row in cached]))


def _objects_of(messages: list[ModelMessage]) -> list[Any]:
    """Objects that messages are made of: while they are the same, so is the text."""
    objects: list[Any] = []
    for message in messages:
        objects += vars(message).values()
        for part in message.parts:
            objects += vars(part).values()
    return objects


def facts_digest(facts: Any) -> str:
    """Digest of settings, equal in every process. Values without a JSON form count by their type."""
    plain = to_jsonable_python(facts, fallback=lambda other: type(other).__name__, inf_nan_mode="strings")
    return blake2b(canonical.dumps(plain).encode(), digest_size=8).hexdigest()


ModelAsked = ModelRequestParams | ModelCompactMessagesParams


def most_of(params: ModelAsked, model: str, prepared: Prepared, text: str, so_far: Conversations) -> Reserve:
    """Reservation for each attempt of a request: tokens of the one that it continues, and bytes of the new `text`."""
    request = params if isinstance(params, ModelRequestParams) else params.request_context
    counted = max((so_far.tokens.get(step, 0) for step in prepared.builds_on), default=0)
    own_bytes = canonical.utf8_bytes(text) - canonical.utf8_bytes(canonical.dumps(prepared.arguments[OF_RUN]))
    new = own_bytes + sum(so_far.sizes.get(step, 0) for step in prepared.builds_on)
    most = (request.model_settings or {}).get("max_tokens") or MOST_OUTPUT
    return Reserve(model, counted + new // BYTES_A_TOKEN, most, cheap=so_far.cheaper)


@dataclass(frozen=True, slots=True)
class Models:
    """Models of an agent by the names in requests; `cheaper` is for runs whose budget degrades."""

    models: Mapping[str, Model]
    usual: Callable[[], str | None]
    cheaper: str = ""

    def identity(self, model_id: str | None) -> str:
        """Id of a model, with a digest of any settings; an executor whose own one differs refuses the request."""
        model = self.models.get(model_id or "default")
        if model is None:
            return model_id or self.usual() or ""
        settings = [member.settings for member in (model, *getattr(model, "models", ())) if member.settings]
        return f"{model.model_id}+{facts_digest(settings)}" if settings else model.model_id

    def name(self, model_id: str | None) -> str:
        """Name of a model in prices, `provider:name`; of several fallbacks the first."""
        model = self.models.get(model_id or "default")
        while model is not None and getattr(model, "models", None):
            model = cast(Any, model).models[0]
        return model.model_id if model is not None else model_id or self.usual() or ""
