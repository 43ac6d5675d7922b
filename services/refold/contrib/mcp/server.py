"""Configuration of one server, the tools of Refold that it makes, and an agent's view of them."""

import asyncio
import copy
import importlib.util
from collections import UserDict
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property, lru_cache, partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from weakref import WeakKeyDictionary

from refold.contrib.mcp.manifest import Manifest, OutgoingCall, ToolList, stricter
from refold.core.errors import CallFailed, TerminalError, UsageError
from refold.core.wire import canonical
from refold.sdk import loop
from refold.sdk.context import Context
from refold.sdk.heartbeat import Heartbeat
from refold.sdk.json_codec import Arguments
from refold.sdk.retry import Retry
from refold.sdk.secret import Secret, Secrets
from refold.sdk.tool import FILLED, Body, EffectClass, ToolDef

if TYPE_CHECKING:
    from refold.contrib.mcp.link import ServerLink

Protocol = Literal["auto", "session", "stateless"]
Value = str | int | float | bool | list[str] | None

MOST_KNOWN: Final = 4_096
"""Tools of a server that are cached by name; made-up names only evict others."""

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


class MCPServer:
    """A server and the effects of its tools: `app.include(MCPServer("files", command=["files-server", "/srv"]))`.

    Either `command` starts it (its environment is a short default and `env`), or it is at `url`, and `headers` go with
    each request; values of `env` and `headers` may be a `Secret`. `effects` gives the class of tools by the server's
    own names: `pure`, or `keyed` if the server deduplicates on the key in the `_meta` of a call; all others are `once`.
    `required` are tools that never run without a decision. `timeout` is for one attempt of a call, with the list of the
    tools before it. `protocol` names the server's era, if detecting it takes too long. **Units**: `most_bytes` of one
    message of the server.
    """

    def __init__(
        self,
        name: str,
        *,
        command: Sequence[str] = (),
        url: str = "",
        effects: Mapping[str, EffectClass] | None = None,
        required: Collection[str] = (),
        env: Mapping[str, str | Secret] | None = None,
        headers: Mapping[str, str | Secret] | None = None,
        cwd: str = "",
        pool: str = "mcp",
        timeout: timedelta = timedelta(minutes=1),
        retry: Retry | None = None,
        tags: Collection[str] = (),
        protocol: Protocol = "auto",
        most_bytes: int = 16 << 20,
    ) -> None:
        if isinstance(command, str):
            raise UsageError(f"MCP server {name!r}: command={command!r}", hint="write it as a list of words")
        self.name, self.prefix, self.command, self.url, self.cwd = name, f"{name}.", tuple(command), url, cwd
        self.effects, self.required = dict(effects or {}), frozenset(required)
        self.given = dict(env or {}) if command else dict(headers or {})
        self.protocol, self.most_bytes, self.timeout = protocol, most_bytes, timeout
        self._check_configuration(unfit=env if url else headers)
        retry = retry or Retry()
        self._options: dict[str, Any] = {"pool": pool, "timeout": timeout, "retry": retry, "tags": tags}
        where = [name, *self.command, url, cwd, *sorted(f"{key}={value!r}" for key, value in self.given.items())]
        # The scope of a decision: another command, address or credential is another server.
        self._options["version"] = canonical.hex_digest(canonical.dumps(where))[:16]
        self._tool = lru_cache(MOST_KNOWN)(self._make_tool)
        self._links: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[list[str], ServerLink]]
        self._links = WeakKeyDictionary()
        self._listed: WeakKeyDictionary[Context, dict[str, str]] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"MCPServer({self.name!r})"  # the other fields may hold credentials

    @property
    def lister(self) -> str:
        """Name of the tool that lists the server's tools."""
        return f"mcp.{self.name}.tools"

    @property
    def questions(self) -> str:
        """Name of the tool that people answer in place of the server's questions."""
        return f"mcp.{self.name}.input"

    async def tools(self, ctx: Context) -> "RemoteTools":
        """Return the server's tools, for a run: `tools = await files.tools(ctx)`.

        The list is in the run's history; tools gone or changed since the last one are in a note `mcp.tools` of the run.
        **Raises** CallFailed if the server does not answer.
        """
        listing: ToolList = await ctx.call(self.lister)
        now, before = {tool["name"]: tool["digest"] for tool in listing["tools"]}, self._listed.get(ctx, {})
        self._listed[ctx] = now
        gone = sorted(before.keys() - now.keys())
        changed = sorted(name for name in before.keys() & now.keys() if before[name] != now[name])
        if gone or changed:
            ctx.note("mcp.tools", {"server": self.name, "gone": gone, "changed": changed})
        return RemoteTools(self, ctx, listing)

    def declared(self) -> Sequence[ToolDef]:
        """Return the tools that do not depend on the server's list."""

        async def tools() -> dict[str, Any]:
            raise UsageError(f"{self.name} is asked by an executor")

        async def input(tool: str, message: str, form: dict[str, Any]) -> dict[str, Value]:  # noqa: A001 - as policies read it
            raise TerminalError(f"a question of {self.name} is answered, not allowed", hint="refold approval answer")

        pure: dict[str, Any] = {**self._options, "effect": "pure"}
        lister = ServerTool(self, partial(_list_body, self), cast(FunctionType, tools), name=self.lister, **pure)
        asker = ToolDef(cast(FunctionType, input), name=self.questions, approval="required", **pure)
        named = (self.tool(f"{self.name}.{name}") for name in sorted({*self.effects, *self.required}))
        return lister, asker, *(tool for tool in named if tool is not None)

    def tool(self, name: str) -> ToolDef | None:
        """Return the tool of a name, whether the server has it or not; None for an invalid name."""
        return self._tool(name) if ToolDef.pattern.match(name) else None

    async def link(self, credentials: Mapping[str, Secret]) -> "ServerLink":
        """Return the connection of this executor; new credentials make another one."""
        # Lazy: only executors need connections. In a thread: the import takes a second, in which the loop of the tools
        # would stand still.
        module: Any = await asyncio.to_thread(importlib.import_module, "refold.contrib.mcp.link")
        here = asyncio.get_running_loop()
        revealed = {key: value.reveal() for key, value in credentials.items()}
        values, link = self._links.get(here, ([], None))
        if link is None or values != list(revealed.values()):
            if link is not None:
                link.retire()
            settings = {key: revealed.get(key, str(value)) for key, value in self.given.items()}
            way = module.way_to(self.command, self.url, settings=settings, cwd=self.cwd, most_bytes=self.most_bytes)
            # Half: a list that hangs fails as unsent, before the timeout of the attempt makes the outcome unknown.
            give_up_s, hidden = self.timeout.total_seconds() / 2, frozenset(filter(None, revealed.values()))
            link = module.ServerLink(self.name, way, mode=self.protocol, give_up_s=give_up_s, hidden=hidden)
            self._links[here] = list(revealed.values()), link
        return link

    @cached_property
    def _common_tool(self) -> "ServerTool":
        async def call(
            arguments: dict[str, Any], manifest: str, answers: dict[str, Any] | None = None, state: str | None = None
        ) -> dict[str, Any]:
            raise UsageError(f"a tool of {self.name} is called by an executor", hint='write `await tools["NAME"](...)`')

        # Common parts of all of its tools, cached: they take milliseconds to make.
        return ServerTool(self, partial(_call_body, self, ""), cast(FunctionType, call), **self._options)

    def _make_tool(self, name: str) -> ToolDef:
        tool, own = copy.copy(self._common_tool), name.removeprefix(self.prefix)
        tool.name, tool.effect = name, self.effects.get(own, "once")
        tool.approval = "required" if own in self.required else "policy"
        tool.body_with = partial(_call_body, self, own)
        return tool

    def _check_configuration(self, *, unfit: Mapping[str, str | Secret] | None) -> None:
        name = f"MCP server {self.name!r}"
        if not isinstance(self.name, str) or not ToolDef.pattern.match(f"mcp.{self.name}.tools") or "." in self.name:
            raise UsageError(f"{name}: that is no name", hint="use letters, digits, underscore and dash")
        if self.name == "mcp":
            raise UsageError(f"{name}: its tools would be called like Refold's own", hint="give it another name")
        if bool(self.command) == bool(self.url):
            raise UsageError(f"{name} is a command or has a url", hint='command=["files-server"], or url="https://..."')
        if unfit:
            raise UsageError(f"{name}: env= is for a command, headers= for a url", hint="say how it is to get them")
        if self.protocol not in ("auto", "session", "stateless"):
            raise UsageError(f"{name}: protocol={self.protocol!r}", hint="use auto, session or stateless")
        if wrong := [name for name, effect in self.effects.items() if effect not in ("pure", "keyed", "once")]:
            raise UsageError(f"{name}: the class of {wrong[0]}", hint="use pure, keyed or once: a server has no probes")
        if importlib.util.find_spec("mcp") is None:
            raise UsageError(f"{name} needs mcp, which is not installed", hint="pip install 'refold[mcp]'")


@dataclass(frozen=True)
class RemoteTool:
    """A tool of a server, as listed for the run. `effect` is the class of its calls."""

    server: MCPServer = field(repr=False)
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
                fields["answers"] = await self._people_answers(result["asks"])
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

    async def _people_answers(self, questions: Mapping[str, Any]) -> dict[str, Any]:
        answers = await asyncio.gather(*(self._people_answer(questions[key]["params"]) for key in sorted(questions)))
        return dict(zip(sorted(questions), answers, strict=True))

    async def _people_answer(self, params: Mapping[str, Any]) -> dict[str, Any]:
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


class RemoteTools(UserDict[str, RemoteTool]):
    """Tools of a server, by their names there. `instructions` are the server's, for a model."""

    def __init__(self, server: MCPServer, ctx: Context, listing: ToolList) -> None:
        super().__init__()
        self.instructions = listing["instructions"]
        self.left_out = listing["left_out"]
        for manifest in listing["tools"]:
            name = manifest["name"]
            if (declared := server.tool(f"{server.name}.{name}")) is not None:
                effect = stricter(server.effects.get(name, "once"), manifest["annotations"])
                self.data[name] = RemoteTool(server, ctx, declared, manifest, name, effect)


BodyFactory = Callable[[Mapping[str, Secret]], Callable[..., Coroutine[Any, Any, Any]]]
"""Maker of a tool's body for one attempt, from the server's credentials."""


class ServerTool(ToolDef):
    """A tool of an MCP server, or their lister. Each attempt has a body with the credentials."""

    def __init__(self, server: MCPServer, body_with: BodyFactory, function: FunctionType, **options: Any) -> None:
        self.server, self.body_with = server, body_with
        super().__init__(function, **options)
        # Earlier output of the server is no argument of the call, so it cannot be edited.
        beside = ("manifest", "answers", "state")
        self.arguments = Arguments(function, f"tool {self.name}", leave=FILLED, context=beside)

    def run(
        self, args_json: str, *, idempotency_key: str, heartbeat: Heartbeat, secrets: Secrets | None = None
    ) -> Body:
        """As `ToolDef.run`; looks up the server's credentials for each attempt, and hides them from its errors."""
        if self.scripted:
            return super().run(args_json, idempotency_key=idempotency_key, heartbeat=heartbeat, secrets=secrets)
        settings = self.server.given
        credentials = {key: Secret(value.name) for key, value in settings.items() if isinstance(value, Secret)}
        if credentials and secrets is None:
            raise UsageError(f"{self.name} needs credentials", hint="only an executor has them")
        for secret in credentials.values():
            cast(Secrets, secrets).note(secret)
        body = self.acted_by(self.body_with(credentials))
        return body.run(args_json, idempotency_key=idempotency_key, heartbeat=heartbeat, secrets=secrets)


def _list_body(server: MCPServer, credentials: Mapping[str, Secret]) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def tools() -> Any:
        return await (await server.link(credentials)).list()

    return tools


def _call_body(server: MCPServer, name: str, credentials: Mapping[str, Secret]) -> Callable[..., Any]:
    async def call(
        arguments: dict[str, Any],
        manifest: str,
        answers: dict[str, Any] | None,
        state: str | None,
        *,
        idempotency_key: str,
    ) -> Any:
        link = await server.link(credentials)
        return await link.call(OutgoingCall(name, manifest, arguments, answers, state, key=idempotency_key))

    return call


def _unanswerable(result: Mapping[str, Any]) -> str:
    """Part of a server's questions that no people can answer; empty without any."""
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
