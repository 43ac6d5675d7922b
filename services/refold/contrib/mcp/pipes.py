"""A server as a subprocess, one line per message. Unlike the package's transport, this one bounds a line, returns the
last output of a dead server, and on Linux no server outlives its executor."""

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from refold.engine.runtime import launch

GRACE_S: Final = 2.0
"""Time for a server to end after its input is closed, and again after it is terminated."""

_Replies = MemoryObjectSendStream[SessionMessage | Exception]
_POLL_S: Final = 0.05
_TAIL_BYTES: Final = 2_000
"""Bytes of a server's last output on its standard error."""


class Pipes:
    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: str, most_bytes: int) -> None:
        self._command, self._cwd, self._most = list(command), cwd or None, most_bytes
        # The executor's environment (its passwords, say) must not reach a server.
        self._env = {**get_default_environment(), **env}
        self._tail: deque[bytes] = deque()

    def last_output(self) -> str:
        return b"".join(self._tail)[-_TAIL_BYTES:].decode(errors="replace").strip()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[TransportStreams]:
        process = await self._start()
        replies, reads = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        writes, requests = anyio.create_memory_object_stream[SessionMessage](0)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._read, process, replies)
                group.start_soon(_write, process, requests, replies)
                group.start_soon(self._listen, process)
                group.start_soon(_watch, process, replies)
                try:
                    yield reads, writes
                finally:
                    group.cancel_scope.cancel()
        finally:
            for stream in (replies, reads, writes, requests):
                stream.close()
            # A cancelled connection would otherwise leave its server running.
            with anyio.CancelScope(shield=True):
                await _end(process)

    async def _start(self) -> asyncio.subprocess.Process:
        command = self._command
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *command]
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            limit=self._most,
            env=self._env,
            cwd=self._cwd,
            # A group of its own: the signals at the end reach all processes of the server, and not the executor.
            start_new_session=True,
        )

    async def _read(self, process: asyncio.subprocess.Process, replies: _Replies) -> None:
        assert process.stdout is not None, "it was asked for"
        async with replies:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
                while line := await self._line(process.stdout):
                    await replies.send(_message(line))

    async def _line(self, output: asyncio.StreamReader) -> bytes:
        try:
            return await output.readline()
        except ValueError:
            self._tail.append(f"\n(a message has more than {self._most:,} bytes)".encode())
            return b""

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None, "it was asked for"
        while chunk := await process.stderr.read(_TAIL_BYTES):
            self._tail.append(chunk)
            while len(self._tail) > 1 and sum(map(len, self._tail)) - len(self._tail[0]) > _TAIL_BYTES:
                self._tail.popleft()


async def _watch(process: asyncio.subprocess.Process, replies: _Replies) -> None:
    await _over(process)
    await asyncio.sleep(_POLL_S)  # for its last words to be read
    replies.close()


async def _write(
    process: asyncio.subprocess.Process,
    requests: MemoryObjectReceiveStream[SessionMessage],
    replies: _Replies,
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


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    for number in (0, signal.SIGTERM):
        if number:
            _signal(process, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await _over(process)
                break
    # Also after a clean end: processes that the server has started may live on in its group.
    _signal(process, signal.SIGKILL)
    await _over(process)
    # A subprocess may have left its group with the pipes open; no public method releases them here.
    process._transport.close()  # type: ignore[attr-defined]


async def _over(process: asyncio.subprocess.Process) -> None:
    # Not `process.wait()`: it also waits for the ends of the pipes, which a subprocess may hold open.
    while process.returncode is None:  # noqa: ASYNC110 - no event is about the process alone
        await asyncio.sleep(_POLL_S)


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
