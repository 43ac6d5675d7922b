"""Connection of a process to an MCP server. Only executors import it, at first use, as the package is large."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import structlog
from mcp.client import Transport
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import TypeAdapter, ValidationError

from mcp import Client, types
from refold.contrib.mcp.manifest import Manifest, OutgoingCall, ToolList, finite, tool_list
from refold.contrib.mcp.transports import Guard, Pipes, Web
from refold.core.errors import MalformedError, NotDone, RefoldError, TerminalError, UsageError, text_of
from refold.core.redaction import HIDDEN

AGREE_S: Final = 30.0
"""Timeout to start or reach a server, and to agree on a protocol version."""

MOST_PAGES: Final = 100
MOST_TOOLS: Final = 1_000
MOST_OF_LIST: Final = 4 << 20
MOST_WORDS: Final = 20_000
"""Characters of a server's instructions."""

MODES: Final = {"auto": "auto", "session": "legacy", "stateless": LATEST_MODERN_VERSION}

KEY_IN_META: Final = "refold/idempotency-key"
"""Place of the idempotency key in the `_meta` of a call."""

_Result = types.CallToolResult | types.InputRequiredResult
_RESULT: TypeAdapter[_Result] = TypeAdapter(_Result)

_log = structlog.get_logger()

Way = Pipes | Web
"""Transport to a server. `last_output` is a server's text beside the protocol. The package itself raises errors with
`own_codes`, after which a call may have happened; any other error is an answer."""


def way_to(command: Sequence[str], url: str, *, settings: Mapping[str, str], cwd: str, most_bytes: int) -> Way:
    if command:
        return Pipes(command, env=settings, cwd=cwd, most_bytes=most_bytes)
    return Web(url, headers=settings, most_bytes=most_bytes)


class UnansweredError(RefoldError, code="unanswered"):
    """A call was sent and not answered: it may have happened."""


class ServerLink:
    """Connection to one server by a transport, `way`, opened by a call, also after a loss, and held by its own task.
    `hidden` are credentials. **Units**: `give_up_s`, the timeout of a list of tools."""

    def __init__(self, name: str, way: Way, *, mode: str, give_up_s: float, hidden: frozenset[str]) -> None:
        self._name, self._way, self._mode = name, way, MODES[mode]
        self._give_up_s, self._hidden = give_up_s, hidden
        self._ready: asyncio.Future[Client] | None = None
        self._guard = Guard()
        self._holders: set[asyncio.Task[None]] = set()
        self._under_way = 0
        self._retired = False

    async def list(self) -> ToolList:
        """Request the list of tools. **Raises** NotDone without an answer, TerminalError if it is too large."""
        return (await self._connect_and_list())[1]

    async def call(self, outgoing: OutgoingCall) -> dict[str, Any]:
        """Send a call and return the answer. **Raises** NotDone and TerminalError if nothing was sent."""
        client, listing = await self._connect_and_list()
        self._refuse_changed(outgoing, next((tool for tool in listing["tools"] if tool["name"] == outgoing.tool), None))
        request, guard = _protocol_request(outgoing), self._guard
        # A call that is lost once it was sent may be a question to people: nothing is sent on a lost connection.
        if guard.over.is_set():
            raise NotDone(f"{self._name} was lost before the call was sent")
        self._under_way += 1
        try:
            # Not `call_tool`: it runs the server's output schema, of which one pattern can hold up all tools for ages.
            return cast(dict[str, Any], self._hide(_recorded(await client.session.send_request(request, _RESULT))))
        except MCPError as error:
            if error.code in self._way.own_codes:
                raise UnansweredError(f"{self._name} did not answer: {self._error_text(error)}") from None
            failure = {"content": [{"type": "text", "text": error.message}], "failed": True, "code": error.code}
            return cast(dict[str, Any], self._hide(failure))
        except ValidationError as error:
            raise UnansweredError(f"{self._name} answered what nobody can read: {self._error_text(error)}") from None
        finally:
            self._under_way -= 1
            if self._retired and not self._under_way:
                self._disconnect()

    def retire(self) -> None:
        """Close the connection after its last running call; it gets no new ones."""
        self._retired = True
        if not self._under_way:
            self._disconnect()

    def _refuse_changed(self, outgoing: OutgoingCall, live: Manifest | None) -> None:
        """**Raises** TerminalError if the server's present tool, `live`, is not the called one."""
        if live is None:
            message = f"{self._name} has no tool {outgoing.tool} any more"
            raise TerminalError(message, code="tool_gone", hint="ask for its tools again")
        if live["digest"] != outgoing.digest:
            message = f"{self._name} says something else of {outgoing.tool} than when the call was made"
            raise TerminalError(message, code="manifest_changed", hint="ask for its tools again, and call it anew")

    async def _connect_and_list(self) -> tuple[Client, ToolList]:
        """Client of an open connection, and the present tools. **Raises** NotDone, TerminalError."""
        # Twice: a server that ended, or forgot its session, since the last call shows it only at the next request.
        for last in (False, True):
            client = await self._client()
            try:
                async with asyncio.timeout(self._give_up_s):
                    return client, await self._list_pages(client)
            except (MCPError, ValidationError, TimeoutError, MalformedError) as error:
                lost = self._guard.over.is_set()
                # A session that the server has forgotten is never found again. Other errors may pass, and a server with
                # a running call may be one that handles one request at a time.
                forgotten = isinstance(error, MCPError) and error.code == INVALID_REQUEST
                if forgotten or not self._under_way:
                    self._disconnect()
                if last or not (lost or forgotten):
                    raise NotDone(f"{self._name} does not say what tools it has: {self._error_text(error)}") from None
        raise AssertionError("the last try returns or raises")

    def _disconnect(self) -> None:
        self._guard.over.set()

    async def _client(self) -> Client:
        if self._ready is None or self._guard.over.is_set():
            guard = self._guard = Guard()
            ready = self._ready = asyncio.get_running_loop().create_future()
            ready.add_done_callback(lambda future: future.cancelled() or future.exception())  # its waiter may have left
            holder = asyncio.create_task(self._hold_open(guard, ready), name=f"mcp {self._name}")
            self._holders.add(holder)
            holder.add_done_callback(self._holders.discard)
        try:
            # Shared by all calls: a call that is stopped must not cancel the connection of the others.
            return await asyncio.shield(self._ready)
        except Exception as error:  # noqa: BLE001 - whatever a transport raises; nothing was sent but a greeting
            hint = self._hide(self._way.last_output())
            raise NotDone(f"cannot connect to {self._name}: {self._error_text(error)}", hint=hint) from None

    async def _hold_open(self, guard: Guard, ready: asyncio.Future[Client]) -> None:
        """Task of a connection: open it for `ready`, and close it once the guard is over."""
        try:
            # The task that opened the connection must close it, and calls come and go.
            async with asyncio.timeout(AGREE_S) as limit:
                transport = cast(Transport, guard.around(self._way.open()))
                # Without the package's cache: a list that a server lets clients keep would hide a changed tool.
                async with Client(transport, mode=self._mode, cache=None) as client:
                    limit.reschedule(None)
                    ready.set_result(client)
                    await guard.over.wait()
        except Exception as error:  # noqa: BLE001 - whatever a transport raises, and groups of it
            if not ready.done():
                ready.set_exception(error)
        finally:
            guard.over.set()
            if not ready.done():
                ready.cancel()
            _log.info("mcp.closed", server=self._name, words=self._hide(self._way.last_output()))

    async def _list_pages(self, client: Client) -> ToolList:
        tools: list[dict[str, Any]] = []
        size, cursor = 0, None
        for _ in range(MOST_PAGES):
            page = await client.session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
            for tool in page.tools:
                text = tool.model_dump_json(by_alias=True, exclude_none=True)
                size += len(text)
                tools.append(json.loads(text))
            if len(tools) > MOST_TOOLS or size > MOST_OF_LIST:
                break
            if (cursor := page.next_cursor) is None:
                protocol, instructions = client.protocol_version, self._hide((client.instructions or "")[:MOST_WORDS])
                return tool_list(self._hide(tools), server=self._name, protocol=protocol, instructions=instructions)
        most = f"{MOST_TOOLS:,} tools, {MOST_OF_LIST:,} characters or {MOST_PAGES} pages"
        raise TerminalError(f"the list of {self._name} has more than {most}", code="too_large")

    def _error_text(self, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return cast(str, self._hide(f"{type(error).__name__}: {text_of(error)}"))

    def _hide(self, value: Any) -> Any:
        # Servers have credentials, and their answers are recorded.
        if isinstance(value, str):
            for secret in self._hidden:
                value = value.replace(secret, HIDDEN)
            return value
        if isinstance(value, Mapping):
            return {self._hide(key): self._hide(item) for key, item in value.items()}
        return [self._hide(item) for item in value] if isinstance(value, list) else value


def _protocol_request(outgoing: OutgoingCall) -> types.CallToolRequest:
    meta = {KEY_IN_META: outgoing.key}
    params: dict[str, Any] = {"name": outgoing.tool, "arguments": outgoing.arguments, "_meta": meta}
    if outgoing.answers is not None:
        params["inputResponses"] = outgoing.answers
    if outgoing.state is not None:
        params["requestState"] = outgoing.state
    try:
        return types.CallToolRequest(params=types.CallToolRequestParams.model_validate(params, by_name=False))
    except ValidationError as error:
        raise UsageError(f"the call cannot be sent: {text_of(error)}") from None


def _recorded(result: _Result) -> dict[str, Any]:
    """Answer of a server, or its questions, as the result of a call."""
    fields = finite(result.model_dump(by_alias=True, mode="json", exclude_none=True))
    if isinstance(result, types.InputRequiredResult):
        return {"asks": fields.get("inputRequests") or {}, "state": fields.get("requestState")}
    recorded = {"content": fields["content"], "failed": result.is_error}
    if result.structured_content is not None:
        recorded["structured"] = fields["structuredContent"]
    return recorded
