"""HTTP protocol of the server, with a time limit for headers."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_S = 10.0
"""Seconds for the headers of a request; the server itself waits for ever."""


class TimedProtocol(H11Protocol):
    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel()

    def _wait(self) -> None:
        if not self._idle:
            self._cancel()
        elif self._due is None:
            self._due = self.loop.call_later(HEADERS_S, self._end)

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _end(self) -> None:
        if self._idle:
            self.transport.close()

    def _cancel(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
