"""Transports to a server, a subprocess or HTTP, with limits on its messages before the protocol's code gets them."""

import asyncio
import os
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final, Self, cast

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import ReadStream, TransportStreams, WriteStream
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    JSONRPCError,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from refold.engine.runtime import launch

MOST_UNANSWERED: Final = 100
"""Requests of a server whose answers it has not read: each waits as a task. More end the connection."""

UNASKED_A_S: Final = 500
MOST_UNASKED: Final = 5_000
"""Messages of a server that are no answers: the average a second, and the largest burst. Each delays all tools of the
process; more end the connection."""

CAN: Final[dict[str, object]] = {"form": {}}
"""Kinds of a server's questions that reach people: forms, and no addresses to open."""

REACH_S: Final = 30.0
"""Timeout to connect, and to send a request; answers have that of the call."""

GRACE_S: Final = 2.0
"""Time for a server to end after its input is closed, and again after it is terminated."""

_Replies = MemoryObjectSendStream[SessionMessage | Exception]
_POLL_S: Final = 0.05
_TAIL_BYTES: Final = 2_000
"""Bytes of a server's last output on its standard error."""


class Guard:
    """Message limits of one connection. `over` is set at its end, `stateless` for the protocol without sessions."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self._unanswered = 0
        self.stateless = False
        self._burst_left, self._since = float(MOST_UNASKED), time.monotonic()

    @asynccontextmanager
    async def around(self, opened: AbstractAsyncContextManager[TransportStreams]) -> AsyncIterator[TransportStreams]:
        try:
            async with opened as (reads, writes):
                yield _GuardedReads(self, reads), _GuardedWrites(self, writes)
        finally:
            self.over.set()

    def count_received(self, item: SessionMessage | Exception) -> bool:
        """Count a message of the server; return False if it is one too many."""
        message = item.message if isinstance(item, SessionMessage) else item
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            if self.stateless and isinstance(message, JSONRPCResponse):
                message.result.setdefault("resultType", "complete")  # optional in the protocol, required by the package
            return True
        now = time.monotonic()
        self._burst_left, self._since = min(MOST_UNASKED, self._burst_left + (now - self._since) * UNASKED_A_S) - 1, now
        self._unanswered += isinstance(message, JSONRPCRequest)
        return self._burst_left >= 0 and self._unanswered <= MOST_UNANSWERED

    def count_sent(self, item: SessionMessage) -> None:
        if isinstance(item.message, JSONRPCResponse | JSONRPCError):
            self._unanswered -= 1

    def declare_forms(self, request: JSONRPCRequest) -> None:
        """Add forms to the client capabilities of a request, if any: only the stateless protocol has them there."""
        meta = (request.params or {}).get("_meta") or {}
        if (able := meta.get(CLIENT_CAPABILITIES_META_KEY)) is not None:
            # The package declares only its callbacks, and a callback would hold a call open while people think.
            meta[CLIENT_CAPABILITIES_META_KEY] = {**able, "elicitation": CAN}
            self.stateless = True


class _GuardedStream:
    """Base of the guarded streams in both directions of a connection, which count their messages in `guard`."""

    def __init__(self, guard: Guard, inner: Any) -> None:
        self._guard, self._inner = guard, inner

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        return cast(bool | None, await self._inner.__aexit__(*error))


class _GuardedReads(_GuardedStream):
    _inner: ReadStream[SessionMessage | Exception]

    @property
    def last_context(self) -> Any:
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        return await self._inner.receive()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        item = await self._inner.__anext__()
        if not self._guard.count_received(item):
            raise StopAsyncIteration  # ends the connection
        return item

    async def __aexit__(self, *error: Any) -> bool | None:
        self._guard.over.set()
        return await super().__aexit__(*error)


class _GuardedWrites(_GuardedStream):
    _inner: WriteStream[SessionMessage]

    async def send(self, item: SessionMessage, /) -> None:
        if isinstance(item.message, JSONRPCRequest):
            self._guard.declare_forms(item.message)
        await self._inner.send(item)
        self._guard.count_sent(item)


class Web:
    """A server over HTTP: the package's transport, with a limit for bodies."""

    own_codes = frozenset({-32000, -32001, -32600, -32603, -32700})  # closed, timed out, and any refusal

    def __init__(self, url: str, *, headers: Mapping[str, str], most_bytes: int) -> None:
        self._url, self._headers, self._most = url, dict(headers), most_bytes

    def last_output(self) -> str:
        return ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[TransportStreams]:
        """Open the server over HTTP as two message streams, closed at the end."""
        bounded = _Bounded(self._most)
        timeout = httpx2.Timeout(REACH_S, read=None)
        async with (
            httpx2.AsyncClient(headers=self._headers, timeout=timeout, transport=bounded, trust_env=False) as client,
            streamable_http_client(
                self._url, http_client=client, max_sse_event_size=self._most, terminate_on_close=False
            ) as streams,
        ):
            yield streams


class _Bounded(httpx2.AsyncHTTPTransport):
    """HTTP transport that refuses packed responses, and bodies of more than `most` bytes."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        # The limit counts bytes as sent, and a small packed body may unpack to gigabytes.
        request.headers["accept-encoding"] = "identity"
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.DecodingError("a packed body, of which nobody knows the size", request=request)
        # A stream of events lasts as long as its connection: the package bounds each event of it.
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream), "of an async transport"
            counted, facts = _Counted(response.stream, self._most), response.extensions
            return httpx2.Response(response.status_code, headers=response.headers, stream=counted, extensions=facts)
        return response


class _Counted(httpx2.AsyncByteStream):
    """Body of a response that fails after `most` bytes."""

    def __init__(self, inner: httpx2.AsyncByteStream, most: int) -> None:
        self._inner, self._left, self._most = inner, most, most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            self._left -= len(chunk)
            if self._left < 0:
                raise httpx2.ReadError(f"a body has more than {self._most:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


class Pipes:
    """A server as a subprocess, one line per message. Unlike the package's transport, this one bounds a line, returns
    the last output of a dead server, and on Linux no server outlives its executor."""

    own_codes = frozenset({-32000, -32001})  # closed, timed out

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: str, most_bytes: int) -> None:
        self._command, self._cwd, self._most = list(command), cwd or None, most_bytes
        # The executor's environment (its passwords, say) must not reach a server.
        self._env = {**get_default_environment(), **env}
        self._tail: deque[bytes] = deque()

    def last_output(self) -> str:
        return b"".join(self._tail)[-_TAIL_BYTES:].decode(errors="replace").strip()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[TransportStreams]:
        """Start the server's process, and yield streams of its messages; at the end, terminate it."""
        process = await self._start()
        replies, reads = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        writes, requests = anyio.create_memory_object_stream[SessionMessage](0)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._receive_replies, process, replies)
                group.start_soon(_send_requests, process, requests, replies)
                group.start_soon(self._collect_errors, process)
                group.start_soon(_close_after_exit, process, replies)
                try:
                    yield reads, writes
                finally:
                    group.cancel_scope.cancel()
        finally:
            for stream in (replies, reads, writes, requests):
                stream.close()
            # A cancelled connection would otherwise leave its server running.
            with anyio.CancelScope(shield=True):
                await _terminate(process)

    async def _start(self) -> asyncio.subprocess.Process:
        command = self._command
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *command]
        options: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
        # A group of its own: the signals at the end reach all processes of the server, and not the executor.
        options |= {"limit": self._most, "env": self._env, "cwd": self._cwd, "start_new_session": True}
        return await asyncio.create_subprocess_exec(*command, **options)

    async def _receive_replies(self, process: asyncio.subprocess.Process, replies: _Replies) -> None:
        assert process.stdout is not None, "it was asked for"
        async with replies:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
                while line := await self._read_line(process.stdout):
                    await replies.send(_parsed(line))

    async def _read_line(self, output: asyncio.StreamReader) -> bytes:
        try:
            return await output.readline()
        except ValueError:
            self._tail.append(f"\n(a message has more than {self._most:,} bytes)".encode())
            return b""

    async def _collect_errors(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None, "it was asked for"
        while chunk := await process.stderr.read(_TAIL_BYTES):
            self._tail.append(chunk)
            while len(self._tail) > 1 and sum(map(len, self._tail)) - len(self._tail[0]) > _TAIL_BYTES:
                self._tail.popleft()


async def _close_after_exit(process: asyncio.subprocess.Process, replies: _Replies) -> None:
    await _wait_for_exit(process)
    await asyncio.sleep(_POLL_S)  # for its last words to be read
    replies.close()


async def _send_requests(
    process: asyncio.subprocess.Process, requests: MemoryObjectReceiveStream[SessionMessage], replies: _Replies
) -> None:
    assert process.stdin is not None, "it was asked for"
    try:
        async with requests:
            async for item in requests:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()
    except OSError:
        replies.close()  # the server reads no requests, so no answers come: fail the waiting ones


def _parsed(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


async def _terminate(process: asyncio.subprocess.Process) -> None:
    """End a server: close its input, then SIGTERM, then SIGKILL its group."""
    if process.stdin is not None:
        process.stdin.close()
    for number in (0, signal.SIGTERM):
        if number:
            _signal_group(process, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await _wait_for_exit(process)
                break
    # Also after a clean end: processes that the server has started may live on in its group.
    _signal_group(process, signal.SIGKILL)
    await _wait_for_exit(process)
    # A subprocess may have left its group with the pipes open; no public method releases them here.
    process._transport.close()  # type: ignore[attr-defined]


async def _wait_for_exit(process: asyncio.subprocess.Process) -> None:
    # Not `process.wait()`: it also waits for the ends of the pipes, which a subprocess may hold open.
    while process.returncode is None:  # noqa: ASYNC110 - no event is about the process alone
        await asyncio.sleep(_POLL_S)


def _signal_group(process: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
