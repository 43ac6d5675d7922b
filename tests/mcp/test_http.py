"""Servers that are reached by HTTP, of the package's own and of those that mean no good; and the package's by stdio."""

from __future__ import annotations

import gzip
import json
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from refold import App, Context, Secret
from refold.contrib.mcp import MCPServer, ToolFailure
from refold.core.wire import canonical
from refold.testing import answer, run
from tests.mcp.scripts import Workbench
from tests.mcp.served import Watched, http
from tests.tidy.repository import ROOT

QUESTIONS: dict[str, Any] = {
    "rules": [
        {"name": "questions", "when": 'tool.name == "mcp.served.input"', "require": {"approvers": ["ada"]}},
        {"name": "rest", "when": "true", "allow": True},
    ]
}
ERAS = ("session", "stateless")


@pytest.fixture(scope="module", params=[False, True], ids=["events", "json"])
def served(request: pytest.FixtureRequest) -> Iterator[Watched]:
    with http(as_json=request.param) as watched:
        yield watched


@contextmanager
def bench(url: str, **options: Any) -> Iterator[Workbench]:
    app = App("web", secrets=lambda name: f"value-of-{name}")
    app.include(MCPServer("served", url=url, **{"timeout": timedelta(seconds=20), **options}))
    bench = Workbench(app)
    yield bench
    bench.box.close()


def desk(server: MCPServer) -> App:
    app = App("web")
    app.include(server)

    @app.agent
    async def use(ctx: Context, tool: str) -> list[Any]:
        tools = await server.tools(ctx)
        output = await tools[tool](path="a")
        return [sorted(tools), isinstance(output, ToolFailure), output.text]

    return app


@pytest.mark.parametrize("era", [*ERAS, "auto"])
def test_a_server_is_listed_and_called_in_both_eras(served: Watched, era: Any) -> None:
    app = desk(MCPServer("served", url=served.url, protocol=era))

    result = run(app, "use", tool="read_file")

    assert result.value == [["fail", "merge", "read_file"], False, "the text of a"]


@pytest.mark.parametrize("era", ERAS)
def test_a_tool_that_raises_there_is_a_failure_here(served: Watched, era: Any) -> None:
    served.calls.clear()

    result = run(desk(MCPServer("served", url=served.url, protocol=era)), "use", tool="fail")

    assert result.value[1:] == [True, "Error executing tool fail"]
    assert served.calls == ["a"]


def test_a_question_goes_to_people_and_its_answer_to_the_server(served: Watched) -> None:
    said = {"mcp.served.input": answer({"branch": "main"})}

    result = run(desk(MCPServer("served", url=served.url)), "use", policy=QUESTIONS, decisions=said, tool="merge")

    assert result.value[1:] == [False, "merged a into main"]


def test_a_server_of_the_old_era_cannot_ask() -> None:
    with http() as served:
        server = MCPServer("served", url=served.url, protocol="session")
        result = run(desk(server), "use", policy=QUESTIONS, tool="merge")

    assert result.value[1] is True
    assert "licitation" in result.value[2]


def test_credentials_go_with_each_request_and_stand_in_no_history(served: Watched) -> None:
    served.headers.clear()
    with bench(served.url, headers={"authorization": Secret("web"), "x-team": "ops"}) as at:
        digest = at.digest("read_file", "served")
        ended = at.run("served.read_file", arguments={"path": "value-of-web"}, manifest=digest)

    assert {each["authorization"] for each in served.headers} == {"value-of-web"}
    assert {each["x-team"] for each in served.headers} == {"ops"}
    assert canonical.parse(ended.result)["content"][0]["text"] == "the text of [redacted]"


def test_a_server_that_forgets_its_sessions_is_greeted_again() -> None:
    with http() as first:
        with bench(first.url, protocol="session") as at:
            at.digest("read_file", "served")
            first.forget()

            ended = at.run("served.read_file", arguments={"path": "a"}, manifest=at.digest("read_file", "served"))

        assert ended.status == "completed"
        assert first.calls == ["a"]


def test_nobody_at_the_address_is_nothing_sent() -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as unused:
        url = f"http://127.0.0.1:{unused.server_address[1]}/mcp"
    with bench(url) as at:
        ended = at.run("mcp.served.tools")

    assert (ended.status, ended.code, ended.retryable) == ("failed", "not_done", True)


Says = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


@contextmanager
def evil(does: Says) -> Iterator[str]:
    """A server of the new era that lists one tool, and answers a call as it likes."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            common = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
            if asked["method"] == "tools/list":
                tool = {"name": "read_file", "inputSchema": {"type": "object"}}
                reply(self, asked, {"tools": [tool], **common})
            elif asked["method"] == "tools/call":
                does(self, asked)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
    server.shutdown()
    server.server_close()


def reply(handler: BaseHTTPRequestHandler, asked: dict[str, Any], result: dict[str, Any], **headers: str) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode()
    send(handler, 200, body, **headers)


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    given = {"content-type": "application/json", "content-length": str(len(body))}
    for name, value in {**given, **{name.replace("_", "-"): value for name, value in headers.items()}}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def large(handler: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
    send(handler, 200, large_answer(asked))


def large_answer(asked: dict[str, Any]) -> bytes:
    result = {"resultType": "complete", "content": [{"type": "text", "text": "x" * 3_000_000}]}
    return json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode()


def packed(handler: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
    send(handler, 200, gzip.compress(large_answer(asked)), content_encoding="gzip")


def large_event(handler: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
    send(handler, 200, b"event: message\ndata: " + large_answer(asked) + b"\n\n", content_type="text/event-stream")


def bad_gateway(handler: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
    send(handler, 502, b"<html>")


def nonsense(handler: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
    send(handler, 200, b'{"jsonrpc": "2.0"')


def no_result(handler: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
    reply(handler, asked, {"resultType": "complete", "content": "?"})


def accepted(handler: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
    send(handler, 202, b"")


def moved(handler: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
    send(handler, 307, b"", location="http://localhost:1/mcp")


@pytest.mark.parametrize(
    "does", [large, packed, large_event, bad_gateway, nonsense, no_result, accepted, moved], ids=lambda d: d.__name__
)
def test_what_is_no_answer_leaves_the_outcome_unknown(does: Says) -> None:
    with evil(does) as url, bench(url, protocol="stateless", most_bytes=1_000_000) as at:
        digest = at.digest("read_file", "served")

        ended = at.run("served.read_file", arguments={}, manifest=digest)

        assert (ended.status, ended.code) == ("unknown", "unanswered")
        assert at.listed("served")["tools"]


def test_an_error_that_only_the_server_can_have_said_is_an_answer() -> None:
    def refuses(handler: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
        error = {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32602, "message": "path is missing"}}
        send(handler, 400, json.dumps(error).encode())

    with evil(refuses) as url, bench(url, protocol="stateless") as at:
        ended = at.run("served.read_file", arguments={}, manifest=at.digest("read_file", "served"))

    assert ended.status == "completed"
    assert canonical.parse(ended.result) == {
        "code": -32602,
        "content": [{"type": "text", "text": "path is missing"}],
        "failed": True,
    }


def test_an_answer_that_drips_is_stopped_with_its_call() -> None:
    begun, held = threading.Event(), threading.Event()

    def drips(handler: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
        begun.set()
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.end_headers()
        while not held.wait(0.01):
            handler.wfile.write(b": \n")

    with evil(drips) as url, bench(url, protocol="stateless") as at:
        digest = at.digest("read_file", "served")
        number = at.begin("served.read_file", arguments={}, manifest=digest)
        assert begun.wait(60)
        at.stop(number)
        ended = at.ended.get(timeout=60)
        held.set()

    assert ended.status == "unknown"


@pytest.mark.parametrize("era", ERAS)
def test_a_server_of_the_packages_own_speaks_by_stdio(era: Any) -> None:
    server = MCPServer("served", command=[sys.executable, "-m", "tests.mcp.served"], cwd=str(ROOT), protocol=era)

    result = run(desk(server), "use", tool="read_file")

    assert result.value[1:] == [False, "the text of a"]
