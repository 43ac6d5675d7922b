"""Limits on a server's messages, between its transport and the protocol's code."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self

from mcp.client._transport import ReadStream, TransportStreams, WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import CLIENT_CAPABILITIES_META_KEY, JSONRPCError, JSONRPCRequest, JSONRPCResponse

MOST_UNANSWERED: Final = 100
"""Requests of a server whose answers it has not read: each waits as a task. More end the connection."""

UNASKED_A_S: Final = 500
MOST_UNASKED: Final = 5_000
"""Messages of a server that are no answers: the average a second, and the largest burst. Each delays all tools of the
process; more end the connection."""

CAN: Final[dict[str, object]] = {"form": {}}
"""Kinds of a server's questions that reach people: forms, and no addresses to open."""


Opened = AbstractAsyncContextManager[TransportStreams]


class Guard:
    """Message limits of one connection. `over` is set at its end, `stateless` once it is one of the new era."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self._unanswered = 0
        self.stateless = False
        self._burst_left, self._since = float(MOST_UNASKED), time.monotonic()

    @asynccontextmanager
    async def around(self, opened: Opened) -> AsyncIterator[TransportStreams]:
        try:
            async with opened as (reads, writes):
                yield _GuardedReads(self, reads), _GuardedWrites(self, writes)
        finally:
            self.over.set()

    def count_received(self, item: SessionMessage | Exception) -> bool:
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


class _GuardedStream:
    def __init__(self, guard: Guard, inner: Any) -> None:
        self._guard, self._inner = guard, inner

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        leaves: bool | None = await self._inner.__aexit__(kind, error, trace)
        return leaves


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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._guard.over.set()
        return await super().__aexit__(kind, error, trace)


class _GuardedWrites(_GuardedStream):
    _inner: WriteStream[SessionMessage]

    async def send(self, item: SessionMessage, /) -> None:
        message = item.message
        if isinstance(message, JSONRPCRequest):
            meta = (message.params or {}).get("_meta") or {}
            if (able := meta.get(CLIENT_CAPABILITIES_META_KEY)) is not None:
                # The package declares only its callbacks, and a callback would hold a call open while people think.
                meta[CLIENT_CAPABILITIES_META_KEY] = {**able, "elicitation": CAN}
                self._guard.stateless = True
        await self._inner.send(item)
        self._guard.count_sent(item)
