"""Pages to log in and out, and the files that pages name."""

from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from refold.console.gateway.guard import is_page
from refold.console.gateway.routes.logins import cookie_of, no_cookie
from refold.console.gateway.site import Site
from refold.console.pages.rendering import ASSETS, form_of, html_page
from refold.core.errors import NotFoundError

FOR_EVER = "public, max-age=31536000, immutable"
"""Cache header of a file named by its digest."""


def page_of(address: str) -> str:
    """Return an address if it is a page of this site, else `/`."""
    parts = urlsplit(address)
    local = not parts.scheme and not parts.netloc and address.startswith("/") and is_page(parts.path)
    return address if local and parts.path not in ("/login", "/logout", "/acting") else "/"


def site_pages(site: APIRouter) -> None:
    @site.get("/login", response_class=HTMLResponse)
    def login_page(shared: Site, to: str = "/") -> Response:
        if shared.login is not None:
            return RedirectResponse(page_of(to), 303)
        return html_page("login.html", shared, place="/login", to=page_of(to))

    @site.post("/login", response_class=HTMLResponse)
    async def login_form(shared: Site, request: Request) -> Response:
        fields = await form_of(request, shared)
        login = await shared.logins.proven(request, fields.get("key", "").strip())
        return RedirectResponse(page_of(fields.get("to", "")), 303, {"Set-Cookie": cookie_of(shared, login)[0]})

    @site.post("/logout", response_class=HTMLResponse)
    async def logout_form(shared: Site, request: Request) -> Response:
        await form_of(request, shared)
        return RedirectResponse("/login", 303, {"Set-Cookie": no_cookie()})

    @site.post("/acting", response_class=HTMLResponse)
    async def acting_form(shared: Site, request: Request) -> Response:
        fields = await form_of(request, shared)
        cookie = shared.logins.acting(fields.get("person", ""))
        return RedirectResponse(page_of(fields.get("to", "")), 303, {"Set-Cookie": cookie})

    @site.get("/static/{name}")
    def static_file(name: str, request: Request) -> Response:
        if (asset := ASSETS.get(name)) is None:
            raise NotFoundError(f"there is no file {name[:80]!r}")
        tag = f'"{asset.digest}"'
        headers = {"ETag": tag, "Cache-Control": FOR_EVER if request.url.query == asset.digest else "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.content, media_type=asset.media_type, headers=headers)
