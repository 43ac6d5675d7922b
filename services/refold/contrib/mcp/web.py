"""A server over HTTP: the package's transport, with a limit for bodies."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

REACH_S: Final = 30.0
"""Timeout to connect, and to send a request; answers have that of the call."""


class Web:
    def __init__(self, url: str, *, headers: Mapping[str, str], most_bytes: int) -> None:
        self._url, self._headers, self._most = url, dict(headers), most_bytes

    def last_output(self) -> str:
        return ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[TransportStreams]:
        bounded = _Bounded(httpx2.AsyncHTTPTransport(), self._most)
        timeout = httpx2.Timeout(REACH_S, read=None)
        async with (
            httpx2.AsyncClient(headers=self._headers, timeout=timeout, transport=bounded, trust_env=False) as client,
            streamable_http_client(
                self._url, http_client=client, max_sse_event_size=self._most, terminate_on_close=False
            ) as streams,
        ):
            yield streams


class _Bounded(httpx2.AsyncBaseTransport):
    def __init__(self, inner: httpx2.AsyncBaseTransport, most: int) -> None:
        self._inner, self._most = inner, most

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        # The limit counts bytes as sent, and a small packed body may unpack to gigabytes.
        request.headers["accept-encoding"] = "identity"
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.DecodingError("a packed body, of which nobody knows the size", request=request)
        # A stream of events lasts as long as its connection: the package bounds each event of it.
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream), "of an async transport"
            response.stream = _Counted(response.stream, self._most)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Counted(httpx2.AsyncByteStream):
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
