"""Tool lists of servers in the log: bounded, each tool with a digest of its description."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, cast

from refold.core.wire import canonical
from refold.sdk.tool import EffectClass, ToolDef


@dataclass(frozen=True, slots=True)
class OutgoingCall:
    """A call to a server. `answers` and `state` belong to its questions."""

    tool: str
    digest: str
    arguments: dict[str, Any]
    answers: dict[str, Any] | None
    state: str | None
    key: str


class Manifest(TypedDict):
    """A tool as its server describes it, with a digest of the other fields."""

    name: str
    title: str
    description: str
    schema: dict[str, Any]
    output: dict[str, Any] | None
    annotations: dict[str, Any]
    digest: str


class LeftOut(TypedDict):
    """Tool that agents cannot call, with the reason."""

    name: str
    why: str


class ToolList(TypedDict):
    """Result of a list call: the tools at that time, and the server's instructions for a model."""

    protocol: str
    instructions: str
    tools: list[Manifest]
    left_out: list[LeftOut]


def manifest_of(tool: Mapping[str, Any]) -> Manifest:
    facts = {
        "name": tool["name"],
        "title": tool.get("title") or "",
        "description": tool.get("description") or "",
        "schema": finite(tool["inputSchema"]),
        "output": finite(tool.get("outputSchema")),
        "annotations": finite(tool.get("annotations") or {}),
    }
    digest = canonical.hex_digest(canonical.dumps(facts))
    return cast(Manifest, {**facts, "digest": digest})


def tool_list(listed: Iterable[Mapping[str, Any]], *, server: str, protocol: str, instructions: str) -> ToolList:
    """Recorded form of a list of tools: the first of equal names, and the reason for each omission."""
    tools: dict[str, Manifest] = {}
    left_out: list[LeftOut] = []
    for tool in listed:
        name = tool["name"]
        if name in tools:
            left_out.append(LeftOut(name=name, why="the server has two tools of this name"))
        elif not ToolDef.pattern.match(f"{server}.{name}"):
            left_out.append(LeftOut(name=name[:200], why="no tool of Refold can have this name"))
        else:
            tools[name] = manifest_of(tool)
    return ToolList(protocol=protocol, instructions=instructions, tools=list(tools.values()), left_out=left_out)


def stricter(configured: EffectClass, annotations: Mapping[str, Any]) -> EffectClass:
    """Effect class of a tool: the server's hints make it stricter, never laxer."""
    writes = annotations.get("readOnlyHint") is False or annotations.get("destructiveHint") is True
    repeats = annotations.get("idempotentHint") is False
    return "once" if (configured == "pure" and writes) or (configured == "keyed" and repeats) else configured


def finite(value: Any) -> Any:
    """Replace NaN and infinities, which lax parsers accept, by texts."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
