"""Rebuild a model request from its call's arguments and earlier calls. The arguments contain the new parts, references
to results by step, and a digest of the whole, so any reader of the log can verify the request."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from refold.core.errors import MalformedError, TerminalError
from refold.core.wire import canonical

Wire = dict[str, Any]
"""Arguments of a call, as JSON data."""

Before = Mapping[int, tuple[str, str]]
"""Calls on which a call builds: arguments and result, by step."""

OF_RUN = "$run"
"""Name of a tool's run data among its own arguments: no Python parameter has such a name."""

ON, GONE = "on", "gone"
"""Names of the request that this one extends, and of that one's `$run` entries that this one lacks."""

SAID_BY, RESULT, AGAIN = "$said", "$result", "$instructions"
"""Placeholders: for a model's message or tool's result (by its call), and instructions of the previous request."""

_DRAWN = ("timestamp", "run_id", "conversation_id")
"""Fields of messages and parts that the framework generates, and no model gets."""


def whole_request(request: Wire, before: Before) -> Wire:
    """Request with all messages, rebuilt from its arguments. **Raises** TerminalError if its digest differs."""
    try:
        chain = [request]
        while (step := chain[-1].get(ON)) is not None:
            chain.append(canonical.parse(before[step][0]))
            if chain[-1].get(ON, -1) >= step:
                raise KeyError(step)
        whole: Wire = {"messages": [], OF_RUN: {}, "settings": None, "parameters": None}
        for link in reversed(chain):
            whole |= {name: link[name] for name in ("settings", "parameters", "model", "digest") if name in link}
            whole[OF_RUN] = _patched(whole[OF_RUN], link[OF_RUN])
            for message in link["messages"]:
                whole["messages"].append(_whole_message(message, whole["messages"], before))
        digest = b""
        for message in whole["messages"]:
            digest = chained(digest, json_digest(message))
        defined = json_digest(whole["parameters"])
        computed = whole_digest(digest, whole["model"], whole[OF_RUN], whole["settings"], defined)
    except (AttributeError, KeyError, MalformedError, StopIteration, TypeError, ValueError) as error:
        raise _altered(f"{type(error).__name__}: {error}") from None
    if computed != request["digest"]:
        raise _altered("its digest is another")
    return whole


def without_drawn(message: Wire) -> Wire:
    """Message, part or event without generated times and ids, and without empty fields."""
    plain = {
        name: value
        for name, value in message.items()
        if name not in _DRAWN and (value is not None or name == "content")
    }
    for name in ("part", "result", "response"):
        if isinstance(plain.get(name), dict) and ("part_kind" in plain[name] or "kind" in plain[name]):
            plain[name] = without_drawn(plain[name])
    if isinstance(plain.get("parts"), list):
        plain["parts"] = [without_drawn(part) for part in plain["parts"]]
    if isinstance(used := plain.get("usage"), dict):
        plain["usage"] = {name: count for name, count in used.items() if count}
    return plain


def _whole_message(message: Wire, so_far: list[Wire], before: Before) -> Wire:
    if SAID_BY in message:
        response = without_drawn(canonical.parse(before[message[SAID_BY]][1])["response"])
        return _patched(response, message.get("with", {}))
    if message.get(AGAIN):
        message = {name: value for name, value in message.items() if name != AGAIN}
        message["instructions"] = next(old["instructions"] for old in reversed(so_far) if "instructions" in old)
    return {**message, "parts": [_whole_part(part, before) for part in message["parts"]]}


def _whole_part(part: Wire, before: Before) -> Wire:
    if RESULT not in part:
        return part
    rest = {name: value for name, value in part.items() if name != RESULT}
    return {**rest, "content": canonical.parse(before[part[RESULT]][1])}


def _patched(old: Wire, difference: Wire) -> Wire:
    gone = {GONE, *difference.get(GONE, ())}
    return {name: value for name, value in {**old, **difference}.items() if name not in gone}


def json_digest(wire: object) -> bytes:
    return blake2b(canonical.dumps(wire).encode(), digest_size=16).digest()


def whole_digest(messages: bytes, model: object, run: Wire, settings: object, defined: bytes) -> str:
    """Digest of a whole request to a model; `messages` and `defined` are digests of those parts."""
    return blake2b(messages + defined + json_digest([model, run, settings]), digest_size=16).hexdigest()


def chained(before: bytes, digest: bytes) -> bytes:
    return blake2b(before + digest, digest_size=16).digest()


def _altered(why: str) -> TerminalError:
    return TerminalError(f"the request is not what its arguments say ({why})", code="altered")
