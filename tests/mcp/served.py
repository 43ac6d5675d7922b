"""A server of the package's own: over HTTP in a thread of this process, or `python -m tests.mcp.served` over stdio."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import uvicorn
from mcp.server.mcpserver import Elicit, MCPServer, Resolve
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.waiting import eventually


class Branch(BaseModel):
    """What is asked for."""

    branch: str


def which() -> Elicit[Branch]:
    """Asks which branch."""
    return Elicit("which?", Branch)


def make(calls: list[str]) -> Any:
    """A server with three tools; `calls` gets what reaches them."""
    server: Any = MCPServer("served")

    @server.tool()
    def read_file(path: str) -> str:
        """Reads a file."""
        calls.append(path)
        return f"the text of {path}"

    @server.tool()
    def fail(path: str) -> str:
        """Fails."""
        calls.append(path)
        raise ValueError("no such file")

    @server.tool()
    def merge(path: str, answer: Annotated[Branch, Resolve(which)]) -> str:
        """Asks, and does it then."""
        calls.append(path)
        return f"merged {path} into {answer.branch}"

    return server


class Watched:
    """An HTTP server: its address, the calls that reached its tools, and the headers of each request."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/mcp"
        self.calls: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.forgotten: set[str] = set()

    def forget(self) -> None:
        """Loses all sessions, as a server does that is deployed anew."""
        self.forgotten |= {each["mcp-session-id"] for each in self.headers if "mcp-session-id" in each}


@contextmanager
def http(*, as_json: bool = False) -> Iterator[Watched]:
    """Serves over HTTP on loopback."""
    config = uvicorn.Config(lambda: None, port=0, log_level="critical", lifespan="on", factory=False)
    watched = Watched(0)
    inner: ASGIApp = make(watched.calls).streamable_http_app(json_response=as_json)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(Request(scope).headers)
            watched.headers.append(headers)
            if headers.get("mcp-session-id") in watched.forgotten:
                await Response(status_code=404)(scope, receive, send)
                return
        await inner(scope, receive, send)

    config.app = app
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    eventually(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    watched.url = f"http://127.0.0.1:{port}/mcp"
    try:
        yield watched
    finally:
        server.should_exit = server.force_exit = True
        thread.join(1)  # from Python 3.12 on it waits for streams that nobody closes: it is a daemon


if __name__ == "__main__":
    make([]).run()
