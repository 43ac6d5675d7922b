"""What stands before every request: whose it may be, how large it is, and what every answer says to browsers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

from refold.client.addresses import is_here
from refold.views.api import HttpProblem

AsgiScope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
Asgi = Callable[[AsgiScope, Receive, Send], Awaitable[None]]

MOST_BODY = 2 << 20
BODY_S = 10.0
"""How long the body of a request may take to arrive."""

_SOURCES = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = [
    (b"content-security-policy", _SOURCES),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]


class SiteGuard:
    """Refuses requests of other sites, and those that are too large or too slow. Pure ASGI: streams are not held up.

    Browsers name the host that a page has asked for: a name that an attacker has pointed at this machine is refused.
    They name the origin of a page, too: a page of another site writes nothing.
    """

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refused = _refused(headers, unsafe=scope["method"] not in ("GET", "HEAD", "OPTIONS"))
        if refused is not None:
            await _answer(send, refused)
            return
        await self._app(scope, _Body(receive), _adding(send))


class _Body:
    """A body as it arrives, up to a size and a time."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._size, self._whole = receive, 0, False

    async def __call__(self) -> AsgiMessage:
        if self._whole:  # what comes now is the end of the connection, which streams wait for
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), BODY_S)
        except TimeoutError:
            raise HTTPException(408, f"the body did not come within {BODY_S:g} s") from None
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._whole = not message.get("more_body", False)
            if self._size > MOST_BODY:
                raise HTTPException(413, f"a body has {MOST_BODY} bytes at most")
        return message


def _refused(headers: dict[str, str], *, unsafe: bool) -> HttpProblem | None:
    host = headers.get("host", "")
    if not is_here(host):
        detail = f"{host[:200]!r} is no name of this machine"
        return HttpProblem(title="Misdirected Request", status=421, detail=detail, code="other_host")
    origin = headers.get("origin")
    crossed = headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
    if unsafe and (crossed or (origin is not None and origin.partition("://")[2] != host)):
        detail = "a page of another site may not write here"
        return HttpProblem(title="Forbidden", status=403, detail=detail, code="other_origin")
    return None


def _adding(send: Send) -> Send:
    async def sends(message: AsgiMessage) -> None:
        if message["type"] == "http.response.start":
            known = {name.lower() for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(each for each in HEADERS if each[0] not in known)]
        await send(message)

    return sends


async def _answer(send: Send, problem: HttpProblem) -> None:
    body = problem.model_dump_json().encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode()), *HEADERS]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
