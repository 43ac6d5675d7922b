"""The login of a request, and the cookie that browsers have for it."""

import math
import time

from fastapi import APIRouter, Response

from refold.client.reading.api import LoggedIn
from refold.console.gateway.logins import COOKIE, Login
from refold.console.gateway.site import Gateway, Site
from refold.core.errors import UsageError

_COOKIE = f"{COOKIE}={{}}; Path=/; Max-Age={{}}; Secure; HttpOnly; SameSite=Lax"


def login_routes(site: APIRouter) -> None:
    @site.get("/api/login", summary="Show the login")
    def show_login(shared: Site) -> LoggedIn:
        """Return your name and roles, and with a cookie the required value of `Refold-Csrf`."""
        assert shared.login is not None, "nobody else gets here"
        return _shown(shared, shared.login, shared.login.cookie)

    @site.post("/api/login", summary="Log in")
    def log_in(shared: Site, response: Response) -> LoggedIn:
        """Set a cookie for the API key or token of `Authorization`, for browsers.

        It lasts 12 hours, or as long as the key or token. Every write with the cookie needs this host's `Origin`, and
        `csrf` of the answer in `Refold-Csrf`.
        """
        assert shared.login is not None, "nobody else gets here"
        response.headers["Set-Cookie"], cookie = cookie_of(shared, shared.login)
        return _shown(shared, shared.login, cookie)

    @site.post("/api/logout", summary="Log out", status_code=204)
    def logout() -> Response:
        """Remove the cookie from the browser. If it was stolen, revoke the API key."""
        return Response(status_code=204, headers={"Set-Cookie": no_cookie()})


def cookie_of(shared: Gateway, login: Login) -> tuple[str, str]:
    """Return the header that sets a cookie for a login, and the cookie. **Raises** UsageError for a proxy's login."""
    if login.until == math.inf and not login.key:  # it would outlive the proxy's no
        raise UsageError("your login is no key and no token", hint="ask without a cookie: you are known already")
    cookie, until = shared.logins.session(login)
    return _COOKIE.format(cookie, max(0, int(until - time.time()))), cookie


def no_cookie() -> str:
    return _COOKIE.format("", 0)


def _shown(shared: Gateway, login: Login, cookie: str) -> LoggedIn:
    csrf = shared.logins.csrf(cookie) if cookie else ""
    return LoggedIn(actor=login.actor, roles=["admin"] if login.local else list(login.roles), csrf=csrf)
