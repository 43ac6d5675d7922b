"""Connections to the real server: slow ones are ended, and what has left leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import pytest
import uvicorn

from refold.console.gateway.app import build_api
from refold.console.gateway.guard import TimedProtocol
from refold.console.gateway.site import SentFile
from tests.gateway.test_reading import Bench
from tests.gateway.test_streams import halves
from tests.waiting import eventually

HOST = b"Host: 127.0.0.1\r\n"
POST = b"POST /api/runs HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"


class Hasty(TimedProtocol):
    headers_s = 0.3


class Served:
    """A server with its bench, which waits 0.3 s for headers and bodies."""

    def __init__(self) -> None:
        self.bench = Bench(body_s=0.3)
        config = uvicorn.Config(build_api(self.bench.gateway), port=0, log_config=None, http=Hasty)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        eventually(lambda: self.server.started)
        self.port: int = self.server.servers[0].sockets[0].getsockname()[1]

    def connected(self, request: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.sendall(request)
        return connection

    def answer(self, request: bytes) -> bytes:
        """All that the server sends until it ends the connection."""
        with closing(self.connected(request)) as connection:
            found = b""
            while part := connection.recv(65_536):
                found += part
            return found


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.server.should_exit = True
    served.thread.join(30)


@pytest.mark.parametrize("begun", [b"", b"GET /", b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-Slow: "])
def test_headers_that_never_end_are_not_waited_for(served: Served, begun: bytes) -> None:
    assert served.answer(begun) == b""


@pytest.mark.parametrize("body", [b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"])
def test_a_body_that_never_ends_is_408_and_ends_the_connection(served: Served, body: bytes) -> None:
    head, _, rest = served.answer(POST + body).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"content-type: application/problem+json" in head
    assert b'"code":"slow_body"' in rest


def test_what_is_no_request_of_this_site_reaches_no_route(served: Served) -> None:
    close = b"Connection: close\r\n\r\n"

    assert served.answer(b"GET http://evil.example/api/runs HTTP/1.1\r\n" + HOST + close).startswith(b"HTTP/1.1 404 ")
    assert served.answer(b"GET /healthz HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 421 ")
    assert served.answer(b"GET /healthz HTTP/1.1\r\n" + close).startswith(b"HTTP/1.1 400 ")
    assert served.answer(b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\n" + HOST + close).startswith(b"HTTP/1.1 400 ")
    assert (
        b"X-Evil" not in served.answer(b"GET /api/runs/a%0d%0aX-Evil:%201 HTTP/1.1\r\n" + HOST + close).split(b"{")[0]
    )


def test_listeners_that_go_away_are_forgotten(served: Served) -> None:
    before, _, _ = halves("sad")
    for key, value in before[:2]:
        served.bench.log.write(key, value)
    served.bench.catch_up()
    streams = served.bench.gateway.streams
    request = b"GET /api/runs/sad/stream HTTP/1.1\r\n" + HOST + b"\r\n"

    for _ in range(3):
        listeners = [served.connected(request) for _ in range(20)]
        eventually(lambda: streams.count == 20)
        for each in listeners:
            each.close()
        eventually(lambda: streams.count == 0)

    assert not streams._listeners


def test_what_makes_a_file_is_closed_with_its_connection() -> None:
    """At once, and not when the garbage collector comes by: it may hold one of a few places."""
    ended = list[bool]()

    def parts() -> Generator[bytes]:
        try:
            while True:
                yield b"x"
        finally:
            ended.append(True)

    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def never(message: Any) -> None:
        await asyncio.sleep(60)

    gc.disable()
    try:
        made = parts()
        asyncio.run(SentFile(made, "text/plain")({"type": "http", "asgi": {"spec_version": "2.3"}}, gone, never))
        assert ended == [True]
    finally:
        gc.enable()
