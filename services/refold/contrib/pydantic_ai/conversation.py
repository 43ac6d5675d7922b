"""A conversation in the log: each message once, however often a model is asked.

A request to a model holds all messages so far, and so would its arguments: their sum grows with the square of the
conversation. Here they hold what is new since an earlier request of the run, and name that request; what a model or a
tool has said they name by the call that has it as its result. The digest of the whole request, run context, settings
and definitions of tools included, is among the arguments: an executor that makes it whole again sees any other content.
Only requests to models are shortened. A call of a tool carries all that it acts on, as rules and people judge that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import is_
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter
from pydantic_ai.durable_exec import ModelRequestParams
from pydantic_ai.messages import ModelMessage, ModelResponse

from refold.core.errors import TerminalError
from refold.core.run.metering import tokens_of
from refold.core.wire import canonical
from refold.sdk.context import Context

Wire = dict[str, Any]
"""The arguments of a call, as JSON data."""

Before = Mapping[int, tuple[str, str]]
"""The calls on which a call builds: arguments and result, by step."""

OF_RUN = "$run"
"""What a tool is told of the run, beside its own arguments: no parameter of Python has such a name."""

ON, GONE = "on", "gone"
"""The request that this one goes on from; what its `$run` has and this one's lacks."""

SAID_BY, RESULT, AGAIN = "$said", "$result", "$instructions"
"""In place of a model's message: the call that has it as its result. In place of what a tool returned: that call. In
place of instructions: those of the request before."""

LONG = 100
"""Characters of a tool's result from which on it is named and not repeated; naming it takes some twenty."""

_MESSAGE: TypeAdapter[ModelMessage] = TypeAdapter(ModelMessage)
_DRAWN = ("timestamp", "run_id", "conversation_id")
"""Of a message and its parts: what the framework has drawn, and no model is told."""


class Prepared(NamedTuple):
    """The arguments of a call, the steps on which they build, and who is to be told its step and result."""

    arguments: Wire
    builds_on: tuple[int, ...] = ()
    settled: Callable[[int, Any], None] = lambda step, result: None


@dataclass(slots=True)
class _Request:
    """A request to a model that was answered. `length` is how many messages it had, `parameters` as they were given,
    `defined` the digest of their JSON data.
    """

    step: int
    length: int
    digest: bytes
    run: Wire
    settings: Any
    parameters: Any
    defined: bytes
    instructions: Any
    response: Wire


@dataclass(slots=True)
class _Known:
    """A message that was sent before: what it was made of then, and the digest of its text.

    `chained` is the digest of a conversation up to it, where `before` is that of what lay before it.
    """

    message: ModelMessage
    made_of: list[Any]
    digest: bytes
    before: bytes = b""
    chained: bytes = b""


@dataclass(slots=True)
class Conversations:
    """What the code of one run has asked models so far.

    `tokens` are what a request and its answer took, `sizes` the bytes of results that were named, both by step.
    `cheaper`: the run's budget has the cheaper model asked by now.
    """

    requests: dict[bytes, _Request] = field(default_factory=dict)
    results: dict[str, tuple[int, Any]] = field(default_factory=dict)
    last: dict[str, _Request] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    cheaper: bool = False
    _messages: dict[int, _Known] = field(default_factory=dict)

    def request(self, params: ModelRequestParams, run: Wire, parameters: Callable[[], Wire], settings: Any) -> Prepared:
        """The arguments of a request to a model."""
        fresh: dict[int, Wire] = {}
        digests = self._digests(params.messages, fresh)
        base = self.last.get(run["run_id"])
        if base is None or base.digest not in digests:
            base = next((found for digest in reversed(digests) if (found := self.requests.get(digest))), None)
        new = params.messages[base.length if base else 0 :]
        said, named = self._new(new, base, fresh)
        asked: Wire = {"model": params.model_id, "messages": said, OF_RUN: run}
        if base is None or base.settings != settings:
            asked["settings"] = settings
        same = base is not None and base.parameters == params.model_request_parameters
        if base is not None and same:
            defined = base.defined
        else:
            asked["parameters"] = parameters()
            defined = _digest(asked["parameters"])
        asked["digest"] = _whole_digest(digests[-1], params.model_id, run, settings, defined)
        if base is not None:
            asked |= {ON: base.step, OF_RUN: _difference(run, base.run)}
        told = (getattr(each, "instructions", None) for each in reversed(params.messages))
        instructions = next(filter(None, told), None)

        def settled(step: int, result: Any) -> None:
            made = _Request(
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
            self.requests[digests[-1]] = self.last[run["run_id"]] = made

        return Prepared(asked, tuple(sorted({*named, *([base.step] if base else [])})), settled)

    def _digests(self, messages: list[ModelMessage], fresh: dict[int, Wire]) -> list[bytes]:
        """The digests of all beginnings of a conversation. `fresh` gets the data of messages that were not known."""
        found, digest = list[bytes](), b""
        for message in messages:
            made_of = _made_of(message)
            known = self._messages.get(id(message))
            if known is None or len(known.made_of) != len(made_of) or not all(map(is_, known.made_of, made_of)):
                wire = fresh[id(message)] = dump_message(message)
                known = self._messages[id(message)] = _Known(message, made_of, _digest(wire))
            if not known.chained or known.before != digest:
                known.before, known.chained = digest, _chained(digest, known.digest)
            digest = known.chained
            found.append(digest)
        return found

    def _new(
        self, messages: list[ModelMessage], base: _Request | None, fresh: dict[int, Wire]
    ) -> tuple[list[Wire], set[int]]:
        """Messages as they stand in the arguments, and the calls that they name."""
        told, named = list[Wire](), set[int]()
        instructions = base.instructions if base else None
        for message in messages:
            wire = fresh.get(id(message)) or dump_message(message)
            if base is not None and isinstance(message, ModelResponse) and wire["parts"] == base.response["parts"]:
                other = _difference(wire, base.response)
                told.append({SAID_BY: base.step, "with": other} if other else {SAID_BY: base.step})
                continue
            if instructions is not None and wire.get("instructions") == instructions:
                wire = {**wire, AGAIN: True}
                del wire["instructions"]
            instructions = wire.get("instructions") or instructions
            wire = {**wire, "parts": [self._part(part, named) for part in wire["parts"]]}
            told.append(wire)
        return told, named

    def _part(self, part: Wire, named: set[int]) -> Wire:
        known = self.results.get(part.get("tool_call_id", "")) if part.get("part_kind") == "tool-return" else None
        if known is None or known[1] != part.get("content") or len(text := canonical.dumps(known[1])) < LONG:
            return part
        named.add(known[0])
        self.sizes[known[0]] = canonical.utf8_bytes(text)
        return {RESULT: known[0], **{name: value for name, value in part.items() if name != "content"}}


_OF: WeakKeyDictionary[Context, Conversations] = WeakKeyDictionary()


def conversations(context: Context) -> Conversations:
    """What the code of a run has asked so far: it is made again with the code, from the top."""
    if context not in _OF:
        _OF[context] = Conversations()
    return _OF[context]


def whole_request(asked: Wire, before: Before) -> Wire:
    """A request with all messages, from what its arguments name. **Raises** TerminalError: it is not what was asked."""
    try:
        chain = [asked]
        while (step := chain[-1].get(ON)) is not None:
            chain.append(canonical.parse(before[step][0]))
            if chain[-1].get(ON, -1) >= step:
                raise KeyError(step)
        whole: Wire = {"messages": [], OF_RUN: {}, "settings": None, "parameters": None}
        for each in reversed(chain):
            whole |= {name: each[name] for name in ("settings", "parameters", "model", "digest") if name in each}
            whole[OF_RUN] = _patched(whole[OF_RUN], each[OF_RUN])
            for message in each["messages"]:
                whole["messages"].append(_whole_message(message, whole["messages"], before))
        digest = b""
        for message in whole["messages"]:
            digest = _chained(digest, _digest(message))
        defined = _digest(whole["parameters"])
        found = _whole_digest(digest, whole["model"], whole[OF_RUN], whole["settings"], defined)
    except (KeyError, TypeError, ValueError) as error:
        raise _altered(f"{type(error).__name__}: {error}") from None
    if found != asked["digest"]:
        raise _altered("its digest is another")
    return whole


def dump_message(message: ModelMessage) -> Wire:
    """A message as JSON data, without what the framework has drawn."""
    return without_drawn(_MESSAGE.dump_python(message, mode="json"))


def without_drawn(message: Wire) -> Wire:
    """A message, part or event without times and ids of its making, and without what it does not have or use."""
    kept = {
        name: value
        for name, value in message.items()
        if name not in _DRAWN and (value is not None or name == "content")
    }
    for name in ("part", "result", "response"):
        if isinstance(kept.get(name), dict) and ("part_kind" in kept[name] or "kind" in kept[name]):
            kept[name] = without_drawn(kept[name])
    if isinstance(kept.get("parts"), list):
        kept["parts"] = [without_drawn(part) for part in kept["parts"]]
    if isinstance(used := kept.get("usage"), dict):
        kept["usage"] = {name: count for name, count in used.items() if count}
    return kept


def _whole_message(message: Wire, so_far: list[Wire], before: Before) -> Wire:
    if SAID_BY in message:
        said = without_drawn(canonical.parse(before[message[SAID_BY]][1])["response"])
        return _patched(said, message.get("with", {}))
    if message.get(AGAIN):
        message = {name: value for name, value in message.items() if name != AGAIN}
        message["instructions"] = next(each["instructions"] for each in reversed(so_far) if "instructions" in each)
    return {**message, "parts": [_whole_part(part, before) for part in message["parts"]]}


def _whole_part(part: Wire, before: Before) -> Wire:
    if RESULT not in part:
        return part
    kept = {name: value for name, value in part.items() if name != RESULT}
    return {**kept, "content": canonical.parse(before[part[RESULT]][1])}


def _difference(new: Wire, old: Wire) -> Wire:
    """What makes the old data the new."""
    found = {name: value for name, value in new.items() if name not in old or old[name] != value}
    if gone := sorted(old.keys() - new.keys()):
        found[GONE] = gone
    return found


def _patched(old: Wire, difference: Wire) -> Wire:
    gone = {GONE, *difference.get(GONE, ())}
    return {name: value for name, value in {**old, **difference}.items() if name not in gone}


def _made_of(message: ModelMessage) -> list[Any]:
    """The objects of which a message consists: while they are the same, so is its text, and that is not made again."""
    found = [*vars(message).values()]
    for part in message.parts:
        found += vars(part).values()
    return found


def _digest(wire: object) -> bytes:
    return blake2b(canonical.dumps(wire).encode(), digest_size=16).digest()


def _whole_digest(messages: bytes, model: object, run: Wire, settings: object, defined: bytes) -> str:
    """The digest of all that a request to a model is; `messages` and `defined` are digests of those parts."""
    return blake2b(messages + defined + _digest([model, run, settings]), digest_size=16).hexdigest()


def _chained(before: bytes, digest: bytes) -> bytes:
    return blake2b(before + digest, digest_size=16).digest()


def _altered(why: str) -> TerminalError:
    return TerminalError(f"the request is not what its arguments say ({why})", code="altered")
