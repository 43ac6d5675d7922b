"""Checks before every request (origin, size, time), and the security headers of every answer."""

import asyncio
import re
import time
from collections.abc import Iterable

import structlog
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from refold.client.reading.api import HttpProblem
from refold.console.gateway.rates import DEFAULT_LIMITS
from refold.console.gateway.roles import SAFE
from refold.engine.runtime.own_host import is_own_host

_log = structlog.get_logger()

MOST_BODY = 2 << 20

_PORT = re.compile(r":[0-9]{1,5}\Z")
_FORM = "application/x-www-form-urlencoded"
_PAGES = re.compile(
    r"/((runs|approvals|calls|dead-letters|static)/.*|inbox|sessions|tools|schedules|dead-letters|policies|versions|limits"
    r"|operators|health|workers|start|login|logout|acting)?",
    re.DOTALL,
)
_JSON = re.compile(r"application/([a-z0-9.-]+\+)?json\s*(;.*)?", re.IGNORECASE)

_SOURCES = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = [
    (b"content-security-policy", _SOURCES),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


def is_page(path: str) -> bool:
    """True for paths of pages, which take forms."""
    return _PAGES.fullmatch(path) is not None


class SiteGuard:
    """Refuses requests of other sites, and too large or slow ones. Pure ASGI, so that streams are not delayed."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = (), body_s: float = DEFAULT_LIMITS.body_s) -> None:
        self._app, self._hosts = app, frozenset(_PORT.sub("", host).lower() for host in hosts)
        self._body_s = body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, answer = Headers(scope=scope), _Answer(send)
        # A name of an attacker may point at this machine. A page of another site must not write, nor learn from the
        # loading of answers that it cannot read (how long a search takes); its links may be followed.
        refused = self._refused_host(_joined(headers, "host"))
        refused = refused or _refused_page(headers, unsafe=scope["method"] not in SAFE)
        refused = refused or _refused_body(headers, forms=is_page(scope["path"]))
        if refused is not None:
            await _send_problem(answer, refused)
            return
        try:
            await self._app(scope, _Body(receive, answer, self._body_s), answer)
        # The boundary of HTTP handlers: nothing but a problem goes out.
        except Exception as error:
            if answer.begun:
                raise
            _log.exception("gateway.failed", path=scope["path"], error=type(error).__name__)
            detail = "the gateway failed; its log has the reason"
            problem = HttpProblem(title="Service Unavailable", status=503, detail=detail, code="internal")
            await _send_problem(answer, problem, (b"retry-after", b"5"))

    def _refused_host(self, host: str) -> HttpProblem | None:
        if is_own_host(host) or _PORT.sub("", host).lower() in self._hosts:
            return None
        detail = f"{host[:200]!r} is no name of this {'gateway' if self._hosts else 'machine'}"
        return HttpProblem(title="Misdirected Request", status=421, detail=detail, code="other_host")


def _joined(headers: Headers, name: str) -> str:
    """Return a header's value; a client may repeat it."""
    return ", ".join(headers.getlist(name))


class _Answer:
    """Wrapper of `send`, which adds headers. `begun`: no other answer can be sent."""

    def __init__(self, send: Send) -> None:
        self._send, self.begun = send, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            present = {name.lower() for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(header for header in HEADERS if header[0] not in present)]
            if message["status"] in (408, 413):  # the rest of the body is not waited for
                message["headers"].append((b"connection", b"close"))
        await self._send(message)


class _Body:
    """Wrapper of `receive`, with limits of size and time."""

    def __init__(self, receive: Receive, answer: _Answer, limit_s: float) -> None:
        self._receive, self._answer, self._size, self._whole = receive, answer, 0, False
        self._limit_s, self._until = limit_s, time.monotonic() + limit_s

    async def __call__(self) -> Message:
        if self._whole:  # the next message is the end of the connection; streams wait for it
            return await self._receive()
        try:
            # Not 0: received bytes are taken even if they are read late, as by a stream that begins slowly.
            message = await asyncio.wait_for(self._receive(), max(0.01, self._until - time.monotonic()))
        except TimeoutError:
            if self._answer.begun:  # a stream, which ignores the body of its request
                return {"type": "http.disconnect"}
            raise HTTPException(408, f"the body did not come within {self._limit_s:g} s") from None
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._whole = not message.get("more_body", False)
            if self._size > MOST_BODY:
                raise HTTPException(413, f"a body has {MOST_BODY} bytes at most")
        return message


def _refused_page(headers: Headers, *, unsafe: bool) -> HttpProblem | None:
    """Return the 403 for a request that another site's page has made, None for any other."""
    host = _joined(headers, "host")
    crossed = any(site not in ("same-origin", "none") for site in headers.getlist("sec-fetch-site"))
    loads = unsafe or _joined(headers, "sec-fetch-mode") != "navigate"
    foreign = any(origin.partition("://")[2] != host for origin in headers.getlist("origin"))
    if (crossed and loads) or (foreign and unsafe):
        detail = "a page of another site may not use this"
        return HttpProblem(title="Forbidden", status=403, detail=detail, code="other_origin")
    return None


def _refused_body(headers: Headers, *, forms: bool) -> HttpProblem | None:
    length = _joined(headers, "content-length") or "0"
    # `int` raises for thousands of digits.
    if not length.isdecimal() or len(length) > 18 or int(length) > MOST_BODY:
        detail = f"a body has {MOST_BODY} bytes at most"
        return HttpProblem(title="Content Too Large", status=413, detail=detail, code="too_large")
    encoding, kind = _joined(headers, "content-encoding"), _joined(headers, "content-type")
    has_body = length != "0" or "transfer-encoding" in headers
    takes = kind == _FORM if forms else _JSON.fullmatch(kind)
    if encoding.lower() not in ("", "identity") or (has_body and not takes):
        detail = f"content-type {kind[:80]!r}, content-encoding {encoding[:80]!r}"
        hint = "send application/json, not compressed"
        return HttpProblem(title="Unsupported Media Type", status=415, detail=detail, code="media_type", hint=hint)
    return None


async def _send_problem(answer: _Answer, problem: HttpProblem, *more: tuple[bytes, bytes]) -> None:
    body = problem.model_dump_json().encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode()), *more]
    await answer({"type": "http.response.start", "status": problem.status, "headers": headers})
    await answer({"type": "http.response.body", "body": body})


class TimedProtocol(H11Protocol):
    """HTTP protocol of the server, with a time limit for headers."""

    headers_s = 10.0
    """Seconds for the headers of a request; the server itself waits for ever."""
    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit_header_time()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_header_time()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel_limit()

    def _limit_header_time(self) -> None:
        if not self._idle:
            self._cancel_limit()
        elif self._due is None:
            self._due = self.loop.call_later(self.headers_s, self._close_if_idle)

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _close_if_idle(self) -> None:
        if self._idle:
            self.transport.close()

    def _cancel_limit(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
