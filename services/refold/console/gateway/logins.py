"""Logins: the author of a request, by API key, token, cookie or a proxy's header, or this machine's one user."""

import asyncio
import hmac
import json
import math
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from hashlib import sha256
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request

from refold.console.gateway.apikeys import KEY_PREFIX, ApiKeys
from refold.console.gateway.oidc import TokenVerifier
from refold.console.gateway.rates import DEFAULT_LIMITS, BusyError, GatewayLimits, RateLimit
from refold.console.gateway.roles import ACCESS, PUBLIC, SAFE, may, role_of
from refold.core.approval.catalog import is_person
from refold.core.errors import UnauthorisedError, UsageError
from refold.engine.runtime import keys
from refold.engine.runtime.own_host import is_own_host
from refold.engine.runtime.settings import GatewayPart

_log = structlog.get_logger()

# With this prefix, browsers take it from this very host alone, and over https.
COOKIE = "__Host-refold"
ACTING = "refold-acting"
"""Cookie of `refold dev`: the person that the one user's pages act as. It proves nothing."""
CSRF_HEADER, SECRET_HEADER = "refold-csrf", "refold-proxy-secret"
SESSION_S = 12 * 3_600
LOGGED_A_MINUTE = 30
MOST_ROLES = 100
LONGEST_NAME = 200


class Login(NamedTuple):
    """Author of a request. `until`: seconds since 1970; `key`: prefix of the API key; `local`: the one user of this
    machine, with every right; `cookie`: of the browser's session, or for the one user the acting person."""

    actor: str
    roles: tuple[str, ...] = ()
    until: float = math.inf
    key: str = ""
    local: bool = False
    cookie: str = ""

    def may(self, role: str) -> bool:
        return self.local or may(self.roles, role)

    def has_label(self, name: str, value: str) -> bool:
        """True if the login proves a label: its name, or a role `NAME=VALUE`."""
        return self.local or value == self.actor or f"{name}={value}" in self.roles

    def most(self, rates: Mapping[str, int]) -> int:
        """Return the requests a minute that a login may make, by its API key, else its roles, else its kind."""
        program = not self.cookie and (self.local or self.key or self.until < math.inf)
        roles = [rates[role] for role in self.roles if role in rates]
        return rates.get(self.key) or max(roles, default=rates["program" if program else "person"])

    def check(self, role: str) -> None:
        if not self.may(role):
            raise UnauthorisedError(f"this needs the role {role}", hint="GET /api/login shows what you have")


class _WrongLoginError(Exception):
    """An invalid login; its message is the kind of login."""


class Logins:
    """Maps requests to logins. `actor` is the user of this machine. **Raises** UsageError for settings."""

    def __init__(self, part: GatewayPart, actor: str, limits: GatewayLimits = DEFAULT_LIMITS) -> None:
        self._part, self._actor, self._limits = part, actor, limits
        self._keys = ApiKeys(part.api_keys)
        self._keys.load()
        self._proxy_secret = keys.shared_key(part.proxy.secret).hex()
        # Without a shared key, sessions end with this process, and no other gateway takes them.
        self._session_key = keys.shared_key(part.session_key) or secrets.token_bytes(32)
        self._failing, self._logged = 0, RateLimit()
        self.local = not (part.api_keys or part.oidc.issuer or part.proxy.actor)
        self.people = part.people if self.local else {}
        if part.proxy.actor and not (self._proxy_secret or part.proxy.peers):
            hint = "set REFOLD_GATEWAY__PROXY__SECRET, REFOLD_GATEWAY__PROXY__PEERS, or both"
            raise UsageError("anybody could send the header of the proxy", hint=hint)
        if wrong := sorted(set(part.roles.values()) - set(ACCESS)):
            raise UsageError(f"{wrong[0]!r} is no role of the gateway", hint=f"they are {', '.join(ACCESS)}")
        if part.oidc.issuer:
            self._verifier = TokenVerifier(part.oidc, self._limits)

    async def admit(self, request: Request, route: str) -> Login | None:
        """Return a request's login, None only on public routes. **Raises** HTTPException 401, UnauthorisedError."""
        role = role_of(route, {request.method})
        try:
            login = await self._login(request)
        except _WrongLoginError as error:
            if role == PUBLIC:
                return None
            await self._refuse(request, str(error))
            raise _login_needed() from None
        if role == PUBLIC:
            return login
        if login is None:
            raise _login_needed()
        if login.cookie and request.method not in SAFE:
            self._check_page(request, login, form=route.endswith("_form"))
        login.check(role)
        return login

    async def proven(self, request: Request, text: str) -> Login:
        """Return the login of an API key or token. **Raises** HTTPException 401."""
        try:
            return await self._of_bearer(text)
        except _WrongLoginError as error:
            await self._refuse(request, str(error))
            raise _login_needed() from None

    def session(self, login: Login) -> tuple[str, float]:
        until = min(login.until, self._limits.clock() + SESSION_S)
        claims = {"actor": login.actor, "roles": login.roles, "until": until, "key": login.key}
        text = urlsafe_b64encode(json.dumps(claims).encode()).decode()
        return f"{text}.{self._mac('session', text)}", until

    def acting(self, name: str) -> str:
        """Return the header that sets or removes the acting person. **Raises** UnauthorisedError."""
        if name and name not in self.people:
            hint = "`refold dev` acts as the persons of the roles file beside the app's policies, and nothing else does"
            raise UnauthorisedError(f"these pages do not act as {name[:LONGEST_NAME]!r}", hint=hint)
        return f"{ACTING}={quote(name, safe='')}; Path=/; HttpOnly; SameSite=Strict{'' if name else '; Max-Age=0'}"

    def csrf(self, cookie: str) -> str:
        return self._mac("csrf", cookie)

    def holds(self, login: Login) -> bool:
        """True while a login counts: it has not expired, and its API key is unchanged."""
        if self._limits.clock() >= login.until:
            return False
        if not login.key:
            return True
        key = self._keys.named(login.key)
        return key is not None and (key.actor, key.roles) == (login.actor, login.roles)

    async def while_held(self, login: Login, chunks: AsyncIterable[Any]) -> AsyncIterator[Any]:
        """Pass on a stream while its login holds."""
        checked = time.monotonic()
        async with aclosing(chunks) as inner:  # type: ignore[type-var]
            async for chunk in inner:
                if time.monotonic() - checked > self._limits.recheck_s:
                    checked = time.monotonic()
                    if not self.holds(login):
                        return
                yield chunk

    async def _login(self, request: Request) -> Login | None:
        if self.local:
            return self._local_login(request)
        proxied = request.headers.getlist(self._part.proxy.actor) if self._part.proxy.actor else []
        bearers = request.headers.getlist("authorization")
        # With two, a proxy may have checked only the other.
        if len(proxied) + len(bearers) > 1:
            raise _WrongLoginError("twice")
        if proxied:
            return self._of_proxy(request, proxied[0])
        if bearers:
            scheme, _, text = bearers[0].partition(" ")
            if scheme.lower() != "bearer":
                raise _WrongLoginError("scheme")
            return await self._of_bearer(text)
        cookies = _cookies(request.headers.getlist("cookie"))
        if len(cookies) > 1:
            raise _WrongLoginError("cookie")
        return self._of_cookie(cookies[0]) if cookies else None

    def _local_login(self, request: Request) -> Login:
        chosen = [unquote(cookie) for cookie in _cookies(request.headers.getlist("cookie"), ACTING)]
        person = chosen[0] if len(chosen) == 1 and chosen[0] in self.people else ""
        return Login(person or self._actor, local=True, cookie=person)

    async def _of_bearer(self, text: str) -> Login:
        return self._of_key(text) if text.startswith(KEY_PREFIX) else await self._of_token(text)

    def _of_key(self, text: str) -> Login:
        if (key := self._keys.found(text)) is None:
            raise _WrongLoginError("key")
        return Login(key.actor, key.roles, key.expires_ms / 1000 if key.expires_ms else math.inf, key.prefix)

    async def _of_token(self, text: str) -> Login:
        part = self._part.oidc
        if not part.issuer or (claims := await self._verifier.claims(text)) is None:
            raise _WrongLoginError("token")
        paths = [(name,) if name in claims else name.split(".") for name in (part.actor, part.roles)]
        actor, roles = (value_at(claims, path) for path in paths)
        # Some providers let users register with any address: an unverified one is a claim of another's name.
        if part.actor == "email" and claims.get("email_verified") is not True:
            raise _WrongLoginError("token")
        listed = roles.split() if isinstance(roles, str) else roles if isinstance(roles, list) else ()
        return self._mapped_login("token", actor, listed)._replace(until=float(claims["exp"]))

    def _of_proxy(self, request: Request, actor: str) -> Login:
        part = self._part.proxy
        listed = request.headers.getlist(part.roles)
        if not self._trusts(request) or "," in actor or len(listed) > 1:
            raise _WrongLoginError("proxy")
        return self._mapped_login("proxy", actor, [group.strip() for group in "".join(listed).split(",")])

    def _trusts(self, request: Request) -> bool:
        """True if a request comes from the proxy: by its secret, its address, or both."""
        secret, peer = request.headers.getlist(SECRET_HEADER), request.client.host if request.client else ""
        if self._proxy_secret and not (len(secret) == 1 and _equals_secret(secret[0], self._proxy_secret)):
            return False
        return not self._part.proxy.peers or any(_is_in_network(peer, network) for network in self._part.proxy.peers)

    def _of_cookie(self, cookie: str) -> Login:
        text, _, mac = cookie.partition(".")
        if not _equals_secret(mac, self._mac("session", text)):
            raise _WrongLoginError("cookie")
        claims = json.loads(urlsafe_b64decode(text))
        login = Login(claims["actor"], tuple(claims["roles"]), claims["until"], claims["key"], cookie=cookie)
        if not self.holds(login):
            raise _WrongLoginError("cookie")
        return login

    def _mapped_login(self, kind: str, actor: object, groups: Iterable[object]) -> Login:
        """Return the login of a token's or proxy's name and roles. Only mapped roles open routes."""
        if not isinstance(actor, str) or len(actor) > LONGEST_NAME or not is_person(actor):
            raise _WrongLoginError(kind)
        names = [group for group in groups if isinstance(group, str) and 0 < len(group) <= LONGEST_NAME]
        mapped = self._part.roles
        # A group named like a role of the gateway opens nothing: anybody may name groups at some providers.
        rest = [group for group in names if group not in mapped and group not in ACCESS]
        roles = (mapped[group] for group in names if group in mapped)
        return Login(actor, tuple(dict.fromkeys([*roles, *rest]))[:MOST_ROLES])

    def _check_page(self, request: Request, login: Login, *, form: bool) -> None:
        """Check that a write with a cookie comes from a page of this host. **Raises** UnauthorisedError."""
        host, origins = request.headers["host"], request.headers.getlist("origin")
        own = [f"https://{host}"], [f"http://{host}"] if is_own_host(host) else []
        if not origins or origins not in own:
            raise UnauthorisedError(_FROM_PAGES, hint="send this host's Origin")
        if not form:  # a form's token is in its body, checked where forms are read
            csrf = request.headers.getlist(CSRF_HEADER)
            self.check_csrf(login, csrf[0] if len(csrf) == 1 else "")

    def check_csrf(self, login: Login, sent: str) -> None:
        """Check the token that pages send with a write by cookie. **Raises** UnauthorisedError."""
        if login.cookie and not _equals_secret(sent, self.csrf(login.cookie)):
            raise UnauthorisedError(_FROM_PAGES, hint="send in Refold-Csrf what GET /api/login has given")

    async def _refuse(self, request: Request, kind: str) -> None:
        """Log a failed login and delay its answer, against guessing. **Raises** BusyError for too many at once."""
        if not self._logged.wait_s("failed", LOGGED_A_MINUTE):
            _log.warning("gateway.login_failed", kind=kind, peer=request.client.host if request.client else "")
        if self._failing >= (most := self._limits.failing):
            raise BusyError(f"{most} logins fail at once", retry_after=self._limits.failed_s)
        self._failing += 1
        try:
            await asyncio.sleep(self._limits.failed_s)
        finally:
            self._failing -= 1

    def _mac(self, use: str, text: str) -> str:
        return hmac.new(self._session_key, f"{use}:{text}".encode(), sha256).hexdigest()


_FROM_PAGES = "a write with a cookie comes from a page of this host"


def _login_needed() -> HTTPException:
    detail = "log in with an API key or a token: Authorization: Bearer ..."
    return HTTPException(401, detail, {"WWW-Authenticate": 'Bearer realm="refold"'})


def _cookies(headers: Iterable[str], cookie: str = COOKIE) -> list[str]:
    pairs = (pair.strip().partition("=") for header in headers for pair in header.split(";"))
    return [value for name, _, value in pairs if name == cookie]


def value_at(value: Any, path: Sequence[str]) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _equals_secret(text: str, other: str) -> bool:
    # As bytes: `compare_digest` refuses texts that are not ASCII, as headers may be.
    return hmac.compare_digest(text.encode("utf-8", "replace"), other.encode())


def _is_in_network(peer: str, network: IPv4Network | IPv6Network) -> bool:
    try:
        return ip_address(peer) in network
    except ValueError:  # a socket of the file system, or no peer
        return False
