"""An agent's view of a server: listed tools, calls of them, and their outcomes."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, cast

from refold.contrib.mcp.manifest import Manifest, ToolList, stricter
from refold.core.errors import CallFailed
from refold.core.wire import canonical
from refold.sdk import loop
from refold.sdk.context import Context
from refold.sdk.tool import EffectClass, ToolDef

MOST_ROUNDS: Final = 10
"""Answers to one call that are questions, or requests to repeat it."""

MOST_QUESTIONS: Final = 10
MOST_ASKED_CHARS: Final = 65_536
"""Limits of one answer: questions for people, and characters of these and of its state."""

FIRST_WAIT_S: Final = 2.0
"""First wait before a server's request is repeated without answers; it doubles each time."""


@dataclass(frozen=True)
class ToolOutput:
    """Result of a tool: `content` is a list of the protocol's blocks, `structured` the same as data."""

    content: list[dict[str, Any]]
    structured: Any = None

    @property
    def text(self) -> str:
        """Texts of its blocks, one below the other."""
        return "\n".join(block["text"] for block in self.content if block.get("type") == "text")


@dataclass(frozen=True)
class ToolFailure(ToolOutput):
    """Failure reported by the server: a final answer, for the agent."""


class Configured(Protocol):
    """A server of remote tools. `tool` declares a tool of any valid name, even if the server lacks it; else None."""

    @property
    def name(self) -> str: ...

    @property
    def questions(self) -> str:
        """Name of the tool that asks people."""
        ...

    def tool(self, name: str) -> ToolDef | None: ...


@dataclass(frozen=True)
class RemoteTool:
    """A tool of a server, as listed for the run. `effect` is the class of its calls."""

    server: Configured = field(repr=False)
    ctx: Context = field(repr=False)
    declared: ToolDef = field(repr=False)
    manifest: Manifest = field(repr=False)
    name: str
    effect: EffectClass

    @property
    def description(self) -> str:
        """The server's description. It may be written to mislead a model."""
        return self.manifest["description"]

    @property
    def schema(self) -> dict[str, Any]:
        return self.manifest["schema"]

    async def __call__(self, arguments: Mapping[str, Any] | None = None, /, **named: Any) -> ToolOutput | ToolFailure:
        """Call it: `await tools["read_file"](path="a.txt")`, or with its arguments as one mapping.

        When the server asks for input, people are asked, and their answers go back with another call. **Raises**
        CallFailed as `ctx.call` does; with the code `manifest_changed` or `tool_gone` when the server now describes the
        tool otherwise: nothing was sent then.
        """
        fields: dict[str, Any] = {"arguments": {**(arguments or {}), **named}, "manifest": self.manifest["digest"]}
        result = await self._call_server(fields)
        for round_ in range(MOST_ROUNDS):
            if "asks" not in result:
                kind = ToolFailure if result["failed"] else ToolOutput
                return kind(result["content"], result.get("structured"))
            if unanswerable := _unanswerable(result):
                return _failure(f"{self.server.name} asks for {unanswerable}, which nobody gives it")
            if result["asks"]:
                fields["answers"] = await self._answers(result["asks"])
            else:
                fields.pop("answers", None)
                # A timer of the run, as each sleep of an agent: it outlives the process.
                await asyncio.sleep(FIRST_WAIT_S * 2**round_)
            result = await self._call_server({**fields, "state": result["state"]})
        return _failure(f"{self.server.name} has asked {MOST_ROUNDS} times, and gives no result")

    async def _call_server(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        call = self.declared.call(self.declared.canonical_args(**fields))
        call = replace(call, effect=self.effect, read=self.declared.read_plain, means=None)
        return cast(dict[str, Any], await loop.step(call))

    async def _answers(self, questions: Mapping[str, Any]) -> dict[str, Any]:
        answers = await asyncio.gather(*(self._answer(questions[key]["params"]) for key in sorted(questions)))
        return dict(zip(sorted(questions), answers, strict=True))

    async def _answer(self, params: Mapping[str, Any]) -> dict[str, Any]:
        text, form = params.get("message", ""), params.get("requestedSchema") or {}
        try:
            content = await self.ctx.call(self.server.questions, tool=self.name, message=text, form=form)
        except CallFailed as failed:
            if failed.fields["code"] == "rejected":
                return {"action": "decline"}
            if failed.fields["code"] == "approval_expired":
                return {"action": "cancel"}
            raise
        return {"action": "accept", "content": content}


class RemoteTools(Mapping[str, RemoteTool]):
    """Tools of a server, by their names there. `instructions` are the server's, for a model."""

    def __init__(self, server: Configured, ctx: Context, listing: ToolList, effects: Mapping[str, EffectClass]) -> None:
        self.instructions = listing["instructions"]
        self.left_out = listing["left_out"]
        self._tools: dict[str, RemoteTool] = {}
        for manifest in listing["tools"]:
            name = manifest["name"]
            if (declared := server.tool(f"{server.name}.{name}")) is not None:
                effect = stricter(effects.get(name, "once"), manifest["annotations"])
                self._tools[name] = RemoteTool(server, ctx, declared, manifest, name, effect)

    def __getitem__(self, name: str) -> RemoteTool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)


def _unanswerable(result: Mapping[str, Any]) -> str:
    questions: Mapping[str, Any] = result["asks"]
    for question in questions.values():
        if question.get("method") != "elicitation/create":
            return str(question.get("method"))
        if (mode := question.get("params", {}).get("mode", "form")) != "form":
            return f"an elicitation by {mode}"
    if len(questions) > MOST_QUESTIONS or len(canonical.dumps([questions, result["state"]])) > MOST_ASKED_CHARS:
        return f"more than {MOST_QUESTIONS} questions, or {MOST_ASKED_CHARS:,} characters of them"
    return ""


def _failure(text: str) -> ToolFailure:
    return ToolFailure([{"type": "text", "text": text}])
