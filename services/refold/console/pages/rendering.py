"""HTML from templates, and forms of browsers. Text of models, tools and people is escaped, spelt out and cut here."""

import re
import time
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from refold.client.reading.model import json_text
from refold.client.reading.words import ago, duration, in_utc, moment, tool_name, with_ellipsis
from refold.console.gateway.site import Gateway
from refold.console.pages.panel import large_value
from refold.console.pages.wording import json_lines
from refold.core.approval.question import bound
from refold.core.errors import MalformedError
from refold.core.run.account import NANO
from refold.engine.ports.tables import ViewReader
from refold.engine.runtime.text import visible

MOST_FIELDS = 50
MOST_TEXT = 4_000
"""Characters of a text on a page; a link leads to all of it."""
REFERRER = "same-origin"
"""Referrer policy of pages. With `no-referrer` browsers send forms without the origin that writes are checked by."""
NAVIGATION = (
    ("Runs", "/"),
    ("Inbox", "/inbox"),
    ("Sessions", "/sessions"),
    ("Agents and tools", "/tools"),
    ("Schedules", "/schedules"),
    ("Dead letters", "/dead-letters"),
    ("Policies", "/policies"),
    ("Versions", "/versions"),
    ("Limits", "/limits"),
    ("Operators", "/operators"),
    ("Workers", "/workers"),
)
"""Pages in the navigation; the top bar shows the first four."""
TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}


class Asset(NamedTuple):
    content: bytes
    media_type: str
    digest: str


def _read_asset(name: str) -> Asset:
    content = files(__package__).joinpath("static", name).read_bytes()
    return Asset(content, TYPES[name.rpartition(".")[2]], blake2b(content, digest_size=8).hexdigest())


ASSETS: Mapping[str, Asset] = {name: _read_asset(name) for name in ("refold.css", "refold.js")}


def seen(text: object, limit: int = 0) -> str:
    """Return a text for one line, made visible and cut to a limit."""
    return visible(with_ellipsis(str(text), limit))


def lines(text: object, limit: int = MOST_TEXT) -> str:
    """Return a text of several lines, made visible; a long one without its middle."""
    whole = str(text)
    if len(whole) > limit:
        left = f"\n… {len(whole) - limit // 2 * 2:,} of {len(whole):,} characters are not shown here …\n"
        whole = left.join((whole[: limit // 2], whole[-(limit // 2) :]))
    return "\n".join(visible(line) for line in whole.split("\n"))


def data(value: Any, limit: int = MOST_TEXT) -> str:
    """Return a value as indented JSON with invisible characters spelled out; a long one without its middle."""
    return lines(json_lines(value), limit)


def editable(value: Any) -> str:
    return json_lines(value).encode("utf-8", "backslashreplace").decode()


def money(nano_usd: int) -> str:
    return f"${nano_usd / NANO:,.4f}" if nano_usd else "$0"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters = {
        "seen": seen,
        "lines": lines,
        "data": data,
        "took": duration,
        "at": in_utc,
        "stamp": moment,
        "event": lambda name: re.sub("(?<=.)([A-Z])", r" \1", name).capitalize(),
        "ago": lambda at_ms: ago(at_ms, int(time.time() * 1000)),
        "tool": lambda name, limit=0: seen(tool_name(name), limit),
        "dollars": money,
        "whole": str,
        "json": json_text,
        "bound": bound,
        "large": large_value,
        "editable": editable,
    }
    environment.filters.update(filters)
    environment.globals.update(assets=ASSETS, NAVIGATION=NAVIGATION)
    return environment


_TEMPLATES = _environment()
_FRAME: Mapping[str, Any] = {"lead": "", "actions": (), "people": (), "away": ""}
"""Values of the frame around every page, where a page has none of its own."""


def view_page(
    template: str, shared: Gateway, request: Request, build: Callable[[ViewReader], Mapping[str, Any]]
) -> Response:
    """Return a page from the view, or 304 for a valid `ETag`."""
    login, minute = shared.login, int(time.time() / 60)  # pages show ages
    with shared.view("") as view:
        by = (login.cookie, login.actor, login.roles) if login else ()
        of = repr((str(request.url), by, minute, sorted(view.positions().items()), view.notes()))
        tag = f'"{blake2b(of.encode("utf-8", "replace"), digest_size=16).hexdigest()}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304)
        page = html_page(template, shared, **build(view))
    page.headers["ETag"] = tag
    return page


def html_file(template: str, **values: Any) -> str:
    style = Markup(ASSETS["refold.css"].content.decode())
    blank = {**_FRAME, "place": "", "login": None, "csrf": "", "heading": values["title"]}
    return _TEMPLATES.get_template(template).render({**blank, **values}, style=style)


def html_page(template: str, shared: Gateway | None = None, status: int = 200, **values: Any) -> HTMLResponse:
    login = shared.login if shared else None
    values = {"heading": values.get("title"), **_FRAME, **values}
    values.setdefault("now_ms", int(time.time() * 1000))
    csrf = shared.logins.csrf(login.cookie) if shared and login and login.cookie else ""
    context: dict[str, Any] = {}
    if shared:
        context = {"people": (*shared.logins.people,), "address": shared.address, "away": shared.writing.away}
    html = _TEMPLATES.get_template(template).render(values, csrf=csrf, login=login, style="", **context)
    return HTMLResponse(html, status, {"Referrer-Policy": REFERRER})


def one_of(fields: Mapping[str, str], name: str, choices: Collection[str]) -> str:
    """Return the value of a form's button. **Raises** MalformedError for any other word."""
    choice = fields.get(name, "")
    if choice not in choices:
        raise MalformedError(f"{choice[:40]!r} is no {name}", hint="use a button of the page")
    return choice


async def form_of(request: Request, shared: Gateway) -> dict[str, str]:
    """Return the fields of a form. **Raises** MalformedError; UnauthorisedError for a cookie without its token."""
    try:
        pairs = parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise MalformedError("the form cannot be read", hint="load the page again") from error
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise MalformedError("the form has a field twice", hint="load the page again")
    if shared.login is not None:
        shared.logins.check_csrf(shared.login, fields.get("csrf", ""))
    return fields
