"""Logins: keys, tokens, cookies and proxies, and everything that is passed off as one of them."""

from __future__ import annotations

import asyncio
import base64
import hmac
import html
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey
from starlette.testclient import TestClient

from refold.console.gateway import apikeys, logins, oidc
from refold.console.gateway.apikeys import ApiKeys, new_api_key
from refold.console.gateway.logins import COOKIE, Login, Logins
from refold.console.gateway.rates import DEFAULT_LIMITS, GatewayLimits, RateLimit
from refold.core.errors import UsageError
from refold.engine.runtime.settings import GatewayPart, OidcPart, ProxyPart
from tests.cli.terminal import refold
from tests.gateway.test_reading import Bench

HOUR_MS = 3_600_000
SECRET = "5e" * 32
SITE = "https://127.0.0.1:8321"


class Keys:
    """A file of API keys."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, ApiKeys(str(path))

    def new(self, actor: str, *roles: str, expires_ms: int = 0) -> str:
        text, key = new_api_key(actor, roles, expires_ms)
        self.file.change(lambda there: there.update({key.prefix: key}))
        return text

    def revoke(self, text: str) -> None:
        self.file.change(lambda there: there.__delitem__(text[4:16]))


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "api.json")


@contextmanager
def serving(part: GatewayPart, **limits: Any) -> Iterator[TestClient]:
    with Bench(part=part, **limits).http as http:
        yield http


def limits_of(http: TestClient) -> GatewayLimits:
    """The limits of a gateway, which a test may change."""
    limits: GatewayLimits = http.app_state["gateway"].limits
    return limits


@pytest.fixture
def http(keys: Keys) -> Iterator[TestClient]:
    keys.new("nobody", "viewer")
    with serving(GatewayPart(api_keys=str(keys.path), session_key=SECRET)) as http:
        yield http


def status(http: TestClient, **headers: str) -> int:
    return http.get(
        "/api/login", headers={name.replace("_", "-"): value for name, value in headers.items()}
    ).status_code


class TestKeys:
    def test_a_key_speaks_for_its_actor_with_its_roles(self, http: TestClient, keys: Keys) -> None:
        found = http.get("/api/login", headers=bearer(keys.new("ada", "approver", "lead")))

        assert found.json() == {"actor": "ada", "roles": ["approver", "lead"], "csrf": ""}

    def test_a_key_counts_until_it_expires_or_is_revoked(self, http: TestClient, keys: Keys) -> None:
        now_ms = int(time.time() * 1000)
        over, later = (keys.new("ada", "viewer", expires_ms=now_ms + each) for each in (-1, HOUR_MS))

        assert status(http, **bearer(over)) == 401
        assert status(http, **bearer(later)) == 200
        keys.revoke(later)
        assert status(http, **bearer(later)) == 401

    def test_a_part_of_a_key_is_no_key(self, http: TestClient, keys: Keys) -> None:
        ada, eve = keys.new("ada", "admin"), keys.new("eve", "viewer")
        forged = [
            ada[:17] + eve[17:],  # the prefix of another
            ada[:-1],
            ada + "A",
            ada.upper(),
            f" {ada}",
            f"{ada}, Bearer {eve}",
            ada[:17],
            json.loads(keys.path.read_text())[1]["digest"],
            "rfk_" + "\u0660" * 12 + ada[16:],
        ]

        assert status(http, **bearer(ada)) == 200
        for each in forged:
            found = http.get("/api/login", headers={b"Authorization": f"Bearer {each}".encode()})
            assert found.status_code == 401, each

    def test_the_file_has_no_key_in_it_and_is_its_owner_s(self, keys: Keys) -> None:
        text = keys.new("ada", "viewer")

        assert text[17:] not in keys.path.read_text()
        assert keys.path.stat().st_mode & 0o777 == 0o600

    def test_a_file_that_cannot_be_read_lets_nobody_in(self, http: TestClient, keys: Keys) -> None:
        ada = keys.new("ada", "viewer")
        whole = keys.path.read_text()
        assert status(http, **bearer(ada)) == 200

        for broken in ("{", "[{}]", "null", whole[:-5]):
            keys.path.write_text(broken)
            assert status(http, **bearer(ada)) == 401, broken
        keys.path.write_text(whole)
        assert status(http, **bearer(ada)) == 200
        keys.path.chmod(0o644)
        keys.path.write_text(whole + " ")
        assert status(http, **bearer(ada)) == 401
        keys.path.unlink()
        assert status(http, **bearer(ada)) == 401
        keys.path.write_text(whole)
        keys.path.chmod(0o644)
        with pytest.raises(UsageError, match="may be read by others"):
            Logins(GatewayPart(api_keys=str(keys.path)), "ann")

    def test_keys_that_are_made_at_once_are_all_kept(self, keys: Keys) -> None:
        made: list[str] = []
        makers = [threading.Thread(target=lambda: made.append(Keys(keys.path).new("ada", "viewer"))) for _ in range(20)]
        for each in makers:
            each.start()
        for each in makers:
            each.join()

        assert set(keys.file.load()) == {each[4:16] for each in made}
        assert len(made) == 20

    def test_a_header_that_is_sent_twice_is_refused(self, http: TestClient, keys: Keys) -> None:
        ada, eve = keys.new("ada", "admin"), keys.new("eve", "viewer")
        twice = [("Authorization", f"Bearer {ada}"), ("authorization", f"Bearer {eve}")]

        assert http.get("/api/login", headers=twice).status_code == 401
        assert http.get("/api/login", headers=[twice[0], twice[0]]).status_code == 401


class TestCookies:
    @pytest.fixture
    def page(self, http: TestClient, keys: Keys) -> dict[str, str]:
        """The headers that a page of this host sends with a write."""
        self.key = keys.new("ada", "operator")
        found = http.post("/api/login", headers=bearer(self.key))
        self.attributes = found.headers["set-cookie"]
        http.cookies.clear()  # the client would keep it back: it is for https
        cookie = self.attributes.partition(";")[0]
        return {"Cookie": cookie, "Origin": SITE, "Refold-Csrf": found.json()["csrf"]}

    def write(self, http: TestClient, headers: dict[str, str]) -> int:
        """A write that comes as far as its body."""
        return http.post("/api/runs", headers=headers).status_code

    def test_a_cookie_is_for_this_host_and_no_script(self, page: dict[str, str]) -> None:
        name, *rest = self.attributes.split("; ")

        assert name.startswith("__Host-refold=")
        assert rest == ["Path=/", "Max-Age=43200", "Secure", "HttpOnly", "SameSite=Lax"] or rest == [
            *("Path=/", "Max-Age=43199", "Secure", "HttpOnly", "SameSite=Lax")
        ]
        assert self.key not in self.attributes

    def test_a_page_reads_and_writes_with_it(self, http: TestClient, page: dict[str, str]) -> None:
        shown = http.get("/api/login", headers={"Cookie": page["Cookie"]}).json()

        assert shown == {"actor": "ada", "roles": ["operator"], "csrf": page["Refold-Csrf"]}
        assert self.write(http, page) == 422
        assert self.write(http, page | {"Origin": "http://127.0.0.1:8321"}) == 422
        assert http.post("/api/logout", headers=page).headers["set-cookie"].startswith(f"{COOKIE}=; Path=/; Max-Age=0;")

    @pytest.mark.parametrize(
        "wrong",
        [
            {"Origin": ""},
            {"Origin": "null"},
            {"Origin": "https://evil.example"},
            {"Origin": "https://127.0.0.1"},
            {"Origin": f"{SITE}.evil.example"},
            {"Origin": "ftp://127.0.0.1:8321"},
            {"Refold-Csrf": ""},
            {"Refold-Csrf": "0" * 64},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ],
        ids=str,
    )
    def test_no_other_page_writes_with_it(self, http: TestClient, page: dict[str, str], wrong: dict[str, str]) -> None:
        sent = {name: value for name, value in (page | wrong).items() if value}

        assert self.write(http, sent) == 403
        sent.pop("Origin", None)
        assert self.write(http, sent) == 403

    def test_the_token_of_another_session_is_no_token_of_this_one(
        self, http: TestClient, keys: Keys, page: dict[str, str]
    ) -> None:
        other = http.post("/api/login", headers=bearer(keys.new("eve", "viewer"))).json()["csrf"]
        http.cookies.clear()

        assert self.write(http, page | {"Refold-Csrf": other}) == 403

    def test_a_cookie_that_was_changed_is_none(self, http: TestClient, page: dict[str, str]) -> None:
        name, _, value = page["Cookie"].partition("=")
        text, _, mac = value.partition(".")
        said = json.loads(base64.urlsafe_b64decode(text))
        admin = base64.urlsafe_b64encode(json.dumps(said | {"roles": ["admin"], "key": ""}).encode()).decode()
        plain = hmac.new(b"", f"session:{admin}".encode(), sha256).hexdigest()
        other = Logins(GatewayPart(api_keys="", session_key="ab" * 32), "x").session(Login("ada", ("admin",)))[0]
        csrf = Logins(GatewayPart(session_key=SECRET), "x").csrf(text)

        for each in (
            *(f"{admin}.{mac}", f"{admin}.{plain}", f"{admin}.", admin, f"{text}.{mac}.", f"{text}.{mac.upper()}"),
            *("", ".", other, f"{text}.{csrf}", f"{text}.\u00e9", "x" * 5_000),
        ):
            found = http.get("/api/login", headers={b"Cookie": f"{name}={each}".encode()})
            assert found.status_code == 401, each
        twice = f"{page['Cookie']}; {page['Cookie']}"
        assert http.get("/api/login", headers={"Cookie": twice}).status_code == 401
        assert http.get("/api/login", headers={"Cookie": f"a=b; {page['Cookie']};c"}).status_code == 200

    def test_any_gateway_takes_it_and_one_with_another_key_does_not(
        self, keys: Keys, http: TestClient, page: dict[str, str]
    ) -> None:
        for session_key, expected in ((SECRET, 200), ("ab" * 32, 401), ("", 401)):
            with serving(GatewayPart(api_keys=str(keys.path), session_key=session_key)) as other:
                assert status(other, Cookie=page["Cookie"]) == expected

    def test_it_ends_with_its_key(self, http: TestClient, keys: Keys, page: dict[str, str]) -> None:
        assert status(http, Cookie=page["Cookie"]) == 200
        keys.revoke(self.key)
        assert status(http, Cookie=page["Cookie"]) == 401

    def test_it_ends_when_its_key_has_other_roles(self, http: TestClient, keys: Keys, page: dict[str, str]) -> None:
        prefix = self.key[4:16]
        keys.file.change(lambda there: there.update({prefix: there[prefix].model_copy(update={"roles": ("viewer",)})}))

        assert status(http, Cookie=page["Cookie"]) == 401

    def test_it_is_never_longer_than_what_it_was_made_of(
        self, http: TestClient, keys: Keys, page: dict[str, str]
    ) -> None:
        soon = int(time.time() * 1000) + 100_000
        found = http.post("/api/login", headers=bearer(keys.new("bob", "viewer", expires_ms=soon)))
        http.cookies.clear()
        again = http.post("/api/login", headers=page)
        http.cookies.clear()

        assert 0 < int(found.headers["set-cookie"].partition("Max-Age=")[2].partition(";")[0]) <= 100
        assert again.status_code == 200
        ends = [
            json.loads(base64.urlsafe_b64decode(each.partition("=")[2].partition(".")[0]))["until"]
            for each in (page["Cookie"], again.headers["set-cookie"].partition(";")[0])
        ]
        assert ends[0] == ends[1]
        now = time.time()
        limits_of(http).clock = lambda: now + 13 * 3_600
        assert status(http, Cookie=page["Cookie"]) == 401

    def test_a_key_in_the_header_counts_before_a_cookie(
        self, http: TestClient, keys: Keys, page: dict[str, str]
    ) -> None:
        viewer = keys.new("bob", "viewer")

        assert http.get("/api/login", headers=page | bearer(viewer)).json()["actor"] == "bob"
        assert status(http, Cookie=page["Cookie"], Authorization="Bearer rfk_x") == 401

    def test_where_there_is_one_user_nobody_logs_in(self) -> None:
        with serving(GatewayPart()) as http:
            assert http.get("/api/login", headers=bearer("rfk_x")).json() == {
                "actor": "ada",
                "roles": ["admin"],
                "csrf": "",
            }
            assert http.post("/api/login").status_code == 422


class Provider:
    """A real HTTP server with the keys of an issuer."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = []
        self.status, self.asked, self.to = 200, 0, ""
        self.open = threading.Event()
        self.open.set()
        provider = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked += 1
                provider.open.wait(30)
                body = json.dumps({"keys": provider.keys}).encode()
                self.send_response(provider.status)
                if provider.to:
                    self.send_header("Location", provider.to)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server.server_port}/keys"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def part(self, **more: Any) -> GatewayPart:
        told = OidcPart(issuer="https://id.example", audience="refold", jwks=self.url, **more.pop("oidc", {}))
        roles = {"sre": "operator", "boss": "approver"}
        return GatewayPart(oidc=told, roles=roles, session_key=SECRET, **more)


@pytest.fixture(scope="module")
def rsa() -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": "k1", "use": "sig"}, private=True)


@pytest.fixture
def provider(rsa: RSAKey) -> Iterator[Provider]:
    made = Provider()
    made.keys = [rsa.as_dict(private=False), {"kty": "oct", "kid": "shared", "k": "c2VjcmV0"}, {"kid": "odd"}]
    yield made
    made.server.shutdown()
    made.server.server_close()


def claims(**more: Any) -> dict[str, Any]:
    now = int(time.time())
    known = {"iss": "https://id.example", "aud": "refold", "sub": "ada", "exp": now + 600, "roles": ["sre", "lead"]}
    return {name: value for name, value in (known | more).items() if value is not None}


def token(key: Any, said: dict[str, Any] | None = None, **header: Any) -> str:
    head = {"alg": "RS256", "kid": "k1"} | header
    return jwt.encode(head, claims() if said is None else said, key, algorithms=[head["alg"]])


def raw(header: dict[str, Any], said: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(said).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(each).rstrip(b"=").decode() for each in parts)


class TestTokens:
    def test_a_token_is_mapped_to_an_actor_and_roles(self, provider: Provider, rsa: RSAKey) -> None:
        with serving(provider.part()) as http:
            found = http.get("/api/login", headers=bearer(token(rsa)))
            session = http.post("/api/login", headers=bearer(token(rsa, claims(exp=int(time.time()) + 50))))

        assert found.json() == {"actor": "ada", "roles": ["operator", "lead"], "csrf": ""}
        assert int(session.headers["set-cookie"].partition("Max-Age=")[2].partition(";")[0]) <= 50

    def test_a_role_that_settings_do_not_name_opens_nothing(self, provider: Provider, rsa: RSAKey) -> None:
        with serving(provider.part()) as http:
            for told in (["admin"], "admin approver", [["sre"]], {"sre": 1}, 5, None, ["SRE"]):
                assert status(http, **bearer(token(rsa, claims(roles=told)))) == 403, told
            assert status(http, **bearer(token(rsa, claims(roles="x sre")))) == 200

    @pytest.mark.parametrize(
        "wrong",
        [
            {"iss": "https://evil.example"}, {"iss": None}, {"iss": ["https://id.example"]},
            {"aud": "other"}, {"aud": None}, {"aud": ["other", "third"]}, {"aud": {"refold": 1}}, {"aud": "refold2"},
            {"exp": 0}, {"exp": None}, {"exp": "9999999999"}, {"exp": True}, {"exp": int(time.time()) - 60},
            {"nbf": int(time.time()) + 36_000}, {"iat": int(time.time()) + 36_000},
            {"sub": None}, {"sub": ""}, {"sub": "*"}, {"sub": "role:lead"}, {"sub": "handed:x"}, {"sub": ["ada"]},
            {"sub": "ada\n"}, {"sub": "a\x00da"}, {"sub": "ada\u202e"}, {"sub": "Ada"}, {"sub": "\u0430da"},
            {"sub": "a" * 201}, {"sub": 7},
        ],
        ids=lambda wrong: next(iter(wrong)),
    )  # fmt: skip
    def test_claims_that_do_not_fit_are_refused(self, provider: Provider, rsa: RSAKey, wrong: dict[str, Any]) -> None:
        with serving(provider.part()) as http:
            assert status(http, **bearer(token(rsa, claims(**wrong)))) == 401
            assert status(http, **bearer(token(rsa, claims(aud=["other", "refold"])))) == 200

    def test_no_signature_but_the_issuer_s_is_one(self, provider: Provider, rsa: RSAKey) -> None:
        pem = rsa.as_pem(private=False)
        public = json.dumps(rsa.as_dict(private=False)).encode()
        eve = RSAKey.generate_key(2048, private=True)
        curve = ECKey.generate_key("P-256", private=True)
        good = token(rsa)
        head, body, signature = good.split(".")
        admin = raw({}, claims(roles=["boss"])).split(".")[1]

        def mac(key: bytes, **more: Any) -> str:
            start = raw({"alg": "HS256", "kid": "k1"} | more, claims()).rpartition(".")[0]
            made = hmac.new(key, start.encode(), sha256).digest()
            return start + "." + base64.urlsafe_b64encode(made).rstrip(b"=").decode()

        forged = [
            raw({"alg": "none", "kid": "k1"}, claims()),
            raw({"alg": "None", "kid": "k1"}, claims()),
            raw({"alg": "RS256", "kid": "k1"}, claims()),
            raw({"alg": ["RS256"], "kid": "k1"}, claims(), b"x"),
            raw({"kid": "k1"}, claims(), b"x"),
            mac(pem), mac(public), mac(b"secret", kid="shared"), mac(b""),
            jwt.encode({"alg": "HS256", "kid": "shared"}, claims(), OctKey.import_key("secret" * 8)),
            token(eve), token(eve, jwk=eve.as_dict(private=False)), token(eve, jku="https://evil.example/keys"),
            token(curve, alg="ES256"),
            token(rsa, kid="../../k1"), token(rsa, kid="k1\x00"), token(rsa, kid=""), token(rsa, kid="shared"),
            f"{head}.{admin}.{signature}", f"{head}.{body}.", f"{head}.{body}", f"{good}.{good}", f"{good}.",
            raw({"alg": "RS256", "kid": "k1", "crit": ["x"], "x": 1}, claims(), b"x"),
            raw({"alg": "RS256", "kid": "k1", "b64": False, "crit": ["b64"]}, claims(), b"x"),
            "a.b.c", "..", "", "." * 100, "\u00e9.b.c",
            base64.urlsafe_b64encode(b"[" * 5_000).decode() + ".e30.x",
            base64.urlsafe_b64encode(b'{"alg":"RS256","kid":' + b"[" * 4_000).decode() + ".e30.x",
        ]  # fmt: skip
        with serving(provider.part()) as http:
            assert status(http, **bearer(good)) == 200
            for each in forged:
                found = http.get("/api/login", headers={b"Authorization": f"Bearer {each}".encode()})
                assert found.status_code == 401, each[:200]
            huge = token(rsa, claims(more="x" * 9_000))
            assert status(http, **bearer(huge)) == 401
        assert provider.asked == 1

    def test_a_key_for_one_algorithm_is_for_no_other(self, provider: Provider, rsa: RSAKey) -> None:
        provider.keys = [
            rsa.as_dict(private=False) | {"alg": "PS256"},
            rsa.as_dict(private=False) | {"kid": "e", "use": "enc"},
        ]
        with serving(provider.part()) as http:
            assert status(http, **bearer(token(rsa))) == 401
            assert status(http, **bearer(token(rsa, alg="PS256"))) == 200
            assert status(http, **bearer(token(rsa, kid="e"))) == 401

    def test_an_address_that_nobody_has_verified_is_nobody_s(self, provider: Provider, rsa: RSAKey) -> None:
        part = provider.part(oidc={"actor": "email", "roles": "realm_access.roles"})
        told = {"email": "ada@corp.example", "realm_access": {"roles": ["sre"]}, "roles": None}
        with serving(part) as http:
            for verified, expected in ((True, 200), (False, 401), (None, 401), ("true", 401)):
                assert status(http, **bearer(token(rsa, claims(**told, email_verified=verified)))) == expected
            assert status(http, **bearer(token(rsa, claims(realm_access="sre", email="a", email_verified=True)))) == 403

    def test_unknown_keys_have_the_issuer_asked_once_in_a_while(self, provider: Provider, rsa: RSAKey) -> None:
        new = RSAKey.generate_key(2048, {"kid": "k2"}, private=True)
        with serving(provider.part()) as http:
            for number in range(50):
                assert status(http, **bearer(token(new, kid=f"k{number + 2}"))) == 401
            assert provider.asked == 1
            provider.keys.append(new.as_dict(private=False))
            assert status(http, **bearer(token(new, kid="k2"))) == 401
            limits_of(http).refetch_s = 0.0
            assert status(http, **bearer(token(new, kid="k2"))) == 200
            assert provider.asked == 2

    def test_whoever_comes_while_keys_are_fetched_waits_for_them(self, provider: Provider, rsa: RSAKey) -> None:
        provider.open.clear()

        async def ask() -> Any:
            verifier = oidc.TokenVerifier(provider.part().oidc, DEFAULT_LIMITS)
            asking = [asyncio.create_task(verifier.claims(token(rsa))) for _ in range(5)]
            while not provider.asked:  # noqa: ASYNC110 - a thread counts
                await asyncio.sleep(0.001)
            provider.open.set()
            return await asyncio.gather(*asking)

        assert [found["sub"] for found in asyncio.run(ask())] == ["ada"] * 5
        assert provider.asked == 1

    def test_keys_outlive_the_issuer_for_an_hour(self, provider: Provider, rsa: RSAKey) -> None:
        with serving(provider.part(), refetch_s=0.0, jwks_fresh_s=0.0) as http:
            assert status(http, **bearer(token(rsa))) == 200
            provider.status = 500
            assert status(http, **bearer(token(rsa))) == 200
            assert provider.asked == 2
            limits_of(http).jwks_kept_s = 0.0
            found = http.get("/api/login", headers=bearer(token(rsa)))
            assert (found.status_code, found.json()["code"]) == (503, "unreachable")
            provider.status, provider.keys = 200, []
            limits_of(http).jwks_kept_s = 3_600.0
            assert status(http, **bearer(token(rsa))) == 401

    @pytest.mark.parametrize("spoilt", ["elsewhere", "large", "no_json", "away"])
    def test_what_is_no_list_of_keys_verifies_nobody(self, provider: Provider, rsa: RSAKey, spoilt: str) -> None:
        other = Provider()
        other.keys = provider.keys
        if spoilt == "elsewhere":
            provider.status, provider.to = 302, other.url
        elif spoilt == "no_json":
            provider.keys = "no list"  # type: ignore[assignment]
        else:
            provider.server.shutdown()
            provider.server.server_close()
        with serving(provider.part(), jwks_bytes=10 if spoilt == "large" else DEFAULT_LIMITS.jwks_bytes) as http:
            assert status(http, **bearer(token(rsa))) == 503
        assert other.asked == 0
        other.server.shutdown()
        other.server.server_close()

    def test_keys_come_from_https_alone(self) -> None:
        for url in ("http://id.example/keys", "file:///etc/passwd", "ftp://x", "", "http://127.0.0.1.evil.example/"):
            with pytest.raises(UsageError):
                Logins(GatewayPart(oidc=OidcPart(issuer="i", audience="a", jwks=url)), "ann")
        with pytest.raises(UsageError):
            Logins(GatewayPart(oidc=OidcPart(issuer="i", jwks="https://id.example/keys")), "ann")


class TestProxy:
    HEADERS: ClassVar = {"X-Forwarded-User": "ada", "X-Forwarded-Groups": "sre, lead", "Refold-Proxy-Secret": SECRET}

    def proxied(self, peer: str, **more: Any) -> TestClient:
        proxy = ProxyPart.model_validate({"actor": "X-Forwarded-User", **more})
        part = GatewayPart(proxy=proxy, roles={"sre": "operator"})
        bench = Bench(part=part)
        return TestClient(bench.http.app, base_url=str(bench.http.base_url), client=(peer, 5))

    def test_its_word_is_taken(self) -> None:
        with self.proxied("10.0.0.7", secret=SECRET, peers=("10.0.0.0/24",)) as http:
            found = http.get("/api/login", headers=self.HEADERS)

            assert found.json() == {"actor": "ada", "roles": ["operator", "lead"], "csrf": ""}
            assert status(http) == 401
            refused = http.post("/api/login", headers=self.HEADERS)
            assert (refused.status_code, "set-cookie" in refused.headers) == (422, False)

    @pytest.mark.parametrize("peer", ["10.0.1.7", "127.0.0.1", "::1", "testclient", ""])
    def test_nobody_else_s_is(self, peer: str) -> None:
        with self.proxied(peer, secret=SECRET, peers=("10.0.0.0/24",)) as http:
            assert http.get("/api/login", headers=self.HEADERS).status_code == 401
            assert http.get("/api/login", headers=self.HEADERS | {"X-Forwarded-For": "10.0.0.7"}).status_code == 401

    @pytest.mark.parametrize(
        "sent",
        [
            {"Refold-Proxy-Secret": ""},
            {"Refold-Proxy-Secret": "00" * 32},
            {"Refold-Proxy-Secret": SECRET[:-1]},
            {"X-Forwarded-User": "ada, bob"},
            {"X-Forwarded-User": ""},
            {"X-Forwarded-User": "role:lead"},
            {"X-Forwarded-User": "ada\x7f"},
            {"X-Forwarded-User": "Ada"},
            {"Authorization": "Bearer rfk_x"},
        ],
        ids=str,
    )
    def test_what_it_would_not_send_is_refused(self, sent: dict[str, str]) -> None:
        with self.proxied("10.0.0.7", secret=SECRET) as http:
            assert http.get("/api/login", headers=self.HEADERS | sent).status_code == 401

    def test_a_header_that_is_sent_twice_is_refused(self) -> None:
        with self.proxied("10.0.0.7", secret=SECRET) as http:
            for name in self.HEADERS:
                twice = [*self.HEADERS.items(), (name.lower(), self.HEADERS[name])]
                assert http.get("/api/login", headers=twice).status_code == 401, name
            spelt = {name.replace("-", "_"): value for name, value in self.HEADERS.items()}
            assert http.get("/api/login", headers=spelt).status_code == 401

    @pytest.mark.parametrize(
        "page", [{"Origin": "null"}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
    )
    def test_no_other_site_writes_through_it(self, page: dict[str, str]) -> None:
        with self.proxied("10.0.0.7", secret=SECRET) as http:
            assert http.post("/api/runs", headers=self.HEADERS).status_code == 422
            assert http.post("/api/runs", headers=self.HEADERS | page).status_code == 403

    def test_without_a_proxy_its_headers_mean_nothing(self, http: TestClient, keys: Keys) -> None:
        ada = keys.new("ada", "viewer")

        assert status(http, **self.HEADERS) == 401
        assert (
            http.get("/api/login", headers=self.HEADERS | {"X-Forwarded-User": "eve"} | bearer(ada)).json()["actor"]
            == "ada"
        )

    def test_a_proxy_is_known_by_something(self) -> None:
        with pytest.raises(UsageError, match="anybody could send"):
            Logins(GatewayPart(proxy=ProxyPart(actor="X")), "ann")
        for peer in ("x", "10.0.0.7/8", ""):
            with pytest.raises(ValueError, match="valid IPv4 or IPv6 network"):
                ProxyPart.model_validate({"actor": "X", "peers": [peer]})
        with pytest.raises(UsageError, match="is no role"):
            Logins(GatewayPart(roles={"sre": "root"}), "ann")


class TestHosts:
    def test_a_gateway_with_logins_answers_by_its_names(self, keys: Keys) -> None:
        ada = keys.new("ada", "viewer")
        part = GatewayPart(api_keys=str(keys.path), hosts=("Refold.example", "other.example:8443"))
        with serving(part) as http:
            for host in ("refold.example", "REFOLD.example:443", "other.example", "127.0.0.1:8321"):
                assert status(http, Host=host, **bearer(ada)) == 200, host
            for host in ("evil.example", "refold.example.evil.example", "refold.example@evil", "x.refold.example", ""):
                assert status(http, Host=host, **bearer(ada)) == 421, host

    def test_without_logins_this_machine_alone_is_a_name(self) -> None:
        with serving(GatewayPart(hosts=("refold.example",))) as http:
            assert status(http, Host="refold.example") == 421

    def test_a_page_of_the_host_s_own_writes_and_one_of_plain_http_does_not(self, keys: Keys) -> None:
        ada = keys.new("ada", "operator")
        with serving(GatewayPart(api_keys=str(keys.path), hosts=("refold.example",))) as http:
            host = {"Host": "refold.example"}
            found = http.post("/api/login", headers=host | bearer(ada))
            http.cookies.clear()
            page = host | {"Cookie": found.headers["set-cookie"].partition(";")[0], "Refold-Csrf": found.json()["csrf"]}
            for origin, expected in (("https://refold.example", 422), ("http://refold.example", 403)):
                assert http.post("/api/runs", headers=page | {"Origin": origin}).status_code == expected


def test_failed_logins_wait_and_good_ones_do_not(keys: Keys) -> None:
    ada = keys.new("ada", "viewer")
    bench = Bench(part=GatewayPart(api_keys=str(keys.path)), failed_s=30.0, failing=3)

    async def ask() -> list[int]:
        app: Any = bench.http.app
        async with app.router.lifespan_context(app) as state:
            transport = httpx.ASGITransport(app=_with(app, state))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8321") as http:
                waiting = [asyncio.ensure_future(http.get("/api/runs", headers=bearer(f"x{n}"))) for n in range(3)]
                while bench.gateway.logins._failing < 3:  # noqa: ASYNC110 - the gateway tells nobody
                    await asyncio.sleep(0.001)
                begun = time.monotonic()
                found = [await http.get("/api/runs", headers=bearer(each)) for each in ("y", ada)]
                assert time.monotonic() - begun < 5.0
                for each in waiting:
                    assert not each.done()
                    each.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
                return [each.status_code for each in found]

    assert asyncio.run(ask()) == [429, 200]
    assert bench.gateway.logins._failing == 0


def _with(app: Any, state: dict[str, Any]) -> Callable[..., Any]:
    async def call(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await app({**scope, "state": dict(state)}, receive, send)

    return call


def test_no_more_writes_are_under_way_than_there_is_room_for(keys: Keys) -> None:
    tokens = [keys.new(f"actor-{number}", "operator") for number in range(3)]
    bench = Bench(part=GatewayPart(api_keys=str(keys.path)))
    with bench.http as http, ExitStack() as under_way:
        for number in range(64):
            under_way.enter_context(bench.gateway.by(Login(f"other-{number}")).room("writes"))
        busy = [http.post("/api/runs", headers=bearer(each)) for each in tokens]
        under_way.close()
        after = http.post("/api/runs", headers=bearer(tokens[0]))

    assert [(each.status_code, each.json()["code"]) for each in busy] == [(429, "busy")] * 3
    assert after.status_code == 422


def test_a_stream_ends_soon_after_its_key(keys: Keys) -> None:
    ada = keys.new("ada", "viewer")
    held = Logins(GatewayPart(api_keys=str(keys.path)), "x", GatewayLimits(recheck_s=0.0))
    login = Login("ada", ("viewer",), key=ada[4:16])
    closed: list[bool] = []

    async def endless() -> AsyncIterator[int]:
        try:
            for number in range(1_000):
                yield number
        finally:
            closed.append(True)

    async def follow() -> list[int]:
        seen: list[int] = []
        async for number in held.while_held(login, endless()):
            seen.append(number)
            if number == 4:
                keys.revoke(ada)
        return seen

    assert asyncio.run(follow()) == [0, 1, 2, 3, 4]
    assert closed == [True]


def test_no_login_is_logged(keys: Keys, http: TestClient, capsys: pytest.CaptureFixture[str]) -> None:
    ada = keys.new("ada", "viewer")
    for _ in range(200):
        status(http, **bearer(ada[:-1] + "!"))
        status(http, Cookie=f"{COOKIE}=forged-{ada}")

    logged = capsys.readouterr()
    assert ada[17:-1] not in logged.out + logged.err
    assert 0 < (logged.out + logged.err).count("gateway.login_failed") <= logins.LOGGED_A_MINUTE


def test_what_is_remembered_of_actors_is_bounded() -> None:
    limit = RateLimit(names=10)
    for number in range(1_000):
        limit.wait_s(f"actor-{number}", 1)

    assert len(limit._times) == 10
    assert limit.wait_s("actor-999", 2) == 0
    assert 0 < limit.wait_s("actor-999", 2) <= 60


def test_a_prefix_is_long_enough_to_be_one_key_s() -> None:
    text, key = new_api_key("ada", ("viewer",), 0)

    assert text.startswith(f"{apikeys.KEY_PREFIX}{key.prefix}_")
    assert len(text) == 4 + 12 + 1 + 43


class TestActing:
    """Pages of `refold dev`, whose one user acts as the persons of the roles file."""

    PEOPLE = GatewayPart(people={"ada": "ada.json", "bob": "bob.json"}, session_key=SECRET)
    FROM: ClassVar = {"Content-Type": "application/x-www-form-urlencoded", "Origin": "http://127.0.0.1"}

    def act(self, http: TestClient, person: str, **more: str) -> Any:
        """Chooses a person, as a page of this host does."""
        body = urlencode({"person": person, "to": "/inbox?show=all", **more})
        headers = self.FROM | {"Origin": str(http.base_url).rstrip("/")}
        return http.post("/acting", content=body, headers=headers, follow_redirects=False)

    def test_the_choice_is_a_cookie_that_no_other_site_and_no_script_sends(self) -> None:
        with serving(self.PEOPLE) as http:
            chosen = self.act(http, "ada")
            cookie = chosen.headers["set-cookie"]

            assert (chosen.status_code, chosen.headers["location"]) == (303, "/inbox?show=all")
            assert cookie == "refold-acting=ada; Path=/; HttpOnly; SameSite=Strict"
            assert http.get("/api/login").json()["actor"] == "ada"
            assert "acting as ada" in http.get("/health").text

            csrf = http.get("/api/login").json()["csrf"]
            assert self.act(http, "bob").status_code == 403, "a form without what its page had"
            assert self.act(http, "bob", csrf=csrf).status_code == 303
            csrf = http.get("/api/login").json()["csrf"]
            assert "Max-Age=0" in self.act(http, "", csrf=csrf).headers["set-cookie"]

    def test_nobody_is_acted_as_whom_the_roles_file_does_not_name(self) -> None:
        with serving(self.PEOPLE) as http:
            myself = http.get("/api/login").json()["actor"]
            assert self.act(http, "eve").status_code == 403
            for cookie in ("refold-acting=eve", "refold-acting=ada; refold-acting=bob", "refold-acting="):
                http.cookies.clear()
                assert http.get("/api/login", headers={"Cookie": cookie}).json()["actor"] == myself

    def test_where_people_log_in_nobody_acts_as_another(self, keys: Keys) -> None:
        viewer = bearer(keys.new("eve", "viewer"))
        with serving(self.PEOPLE.model_copy(update={"api_keys": str(keys.path)})) as http:
            answer = http.get("/api/login", headers=viewer | {"Cookie": "refold-acting=ada"})
            assert answer.json()["actor"] == "eve"
            assert http.get("/api/login", headers={"Cookie": "refold-acting=ada"}).status_code == 401
            refused = http.post("/acting", content=urlencode({"person": "ada"}), headers=self.FROM | viewer)
            assert refused.status_code == 403

    def test_a_gateway_that_refold_dev_has_not_started_refuses_to_start(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("REFOLD_GATEWAY__PEOPLE", '{"ada": "ada.json"}')
        monkeypatch.setenv("REFOLD_KAFKA__BOOTSTRAP", "127.0.0.1:9")
        (tmp_path / "lock").write_text(f"{os.getppid()}\n")  # which nobody holds

        done = refold("serve", "gateway", "--data", str(tmp_path))
        assert done.exit_code == 2
        assert "pages act as other persons under `refold dev` alone" in done.output


@pytest.mark.parametrize(
    ("wanted", "leads_to"),
    [
        ("/runs/r-1?seq=3&at=2", "/runs/r-1?seq=3&at=2"),
        *(
            (away, "/")
            for away in ("//evil.example/runs/", "https://evil.example/", "/\\evil.example", "/api/runs", "x")
        ),
    ],
)
def test_a_login_leads_back_to_the_page_that_was_asked_for(keys: Keys, wanted: str, leads_to: str) -> None:
    ada = keys.new("ada", "viewer")
    with serving(GatewayPart(api_keys=str(keys.path))) as http:
        if leads_to == wanted:
            asked = http.get(wanted, follow_redirects=False)
            wanted = parse_qs(urlsplit(asked.headers["location"]).query)["to"][0]
            assert f'name="to" value="{html.escape(leads_to)}"' in http.get(asked.headers["location"]).text
        origin = {"Origin": str(http.base_url).rstrip("/"), "Content-Type": "application/x-www-form-urlencoded"}
        body = urlencode({"key": ada, "to": wanted})
        done = http.post("/login", content=body, headers=origin, follow_redirects=False)

        assert (done.status_code, done.headers["location"]) == (303, leads_to)
