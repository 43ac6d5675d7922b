"""Tokens of an OpenID provider, verified by its published keys."""

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException, HTTPMessage
from typing import IO, Any
from urllib.request import HTTPRedirectHandler, Request, build_opener

from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key
from joserfc.jwt import JWTClaimsRegistry

from refold.console.gateway.rates import GatewayLimits
from refold.core.errors import UnreachableError, UsageError
from refold.engine.runtime.addresses import is_here
from refold.engine.runtime.outages import OUTAGES
from refold.engine.runtime.settings import OidcPart

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
"""Asymmetric algorithms only: with a shared key, every verifier could sign."""
MOST_TOKEN = 8_192
FETCH_S = 5.0
LEEWAY_S = 30
PUBLIC_KINDS = ("RSA", "EC", "OKP")
"""Kinds of keys with a public half, unlike shared secrets."""


# The keys come from the configured address, and from no other.
class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


class TokenVerifier:
    """Verifies tokens of one issuer for one audience, on one event loop."""

    def __init__(self, part: OidcPart, limits: GatewayLimits) -> None:
        if not part.audience or not part.jwks:
            hint = "set REFOLD_GATEWAY__OIDC__AUDIENCE and __JWKS, the `jwks_uri` of its openid-configuration"
            raise UsageError("an issuer of tokens has an audience and keys", hint=hint)
        if not part.jwks.startswith("https://") and not (part.jwks.startswith("http://") and is_here(part.jwks)):
            raise UsageError(f"{part.jwks[:200]!r} is no https URL", hint="anybody on the way could replace the keys")
        self._url, self._limits = part.jwks, limits
        self._registry = jws.JWSRegistry(algorithms=ALGORITHMS)
        self._claims = JWTClaimsRegistry(
            leeway=LEEWAY_S,
            iss={"essential": True, "value": part.issuer},
            aud={"essential": True, "value": part.audience},
            exp={"essential": True},
        )
        self._keys: Mapping[str, Key] = {}
        self._read = self._tried = float("-inf")
        self._lock = asyncio.Lock()

    async def claims(self, token: str) -> dict[str, Any] | None:
        """Return the claims of a valid token, or None. **Raises** UnreachableError without keys."""
        with suppress(JoseError, ValueError, TypeError, RecursionError):
            if len(token) > MOST_TOKEN:
                return None
            header = jws.extract_compact(token.encode(), registry=self._registry).headers()
            alg, kid = header.get("alg"), header.get("kid")
            key = await self._key_of(kid) if alg in ALGORITHMS and isinstance(kid, str) else None
            if key is not None:
                decoded = jwt.decode(token, key, registry=self._registry).claims
                self._claims.validate(decoded)
                return decoded
        return None

    async def _key_of(self, kid: str) -> Key | None:
        now, limits = time.monotonic(), self._limits
        cached = kid in self._keys and now - self._read < limits.jwks_kept_s
        due = now - self._read > limits.jwks_fresh_s or not cached
        # Tokens with an unknown key wait for a fetch that is under way, and begin no other.
        if due and (now - self._tried > limits.refetch_s or (self._lock.locked() and not cached)):
            async with self._lock:
                if time.monotonic() - self._tried > limits.refetch_s:
                    await self._refresh_keys()
        if time.monotonic() - self._read > limits.jwks_kept_s:
            raise UnreachableError("the keys of the token's issuer cannot be read", hint="ask again in a moment")
        return self._keys.get(kid)

    async def _refresh_keys(self) -> None:
        # Before the answer: a provider that is away is not asked again for each token.
        self._tried = time.monotonic()
        try:
            self._keys = await asyncio.get_running_loop().run_in_executor(
                None, _fetch_keys, self._url, self._limits.jwks_bytes
            )
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            OUTAGES.failed("gateway.issuer_unread", url=self._url, reason=str(error)[:200] or type(error).__name__)
        else:
            self._read = time.monotonic()


def _fetch_keys(url: str, most: int) -> dict[str, Key]:
    with build_opener(_NoRedirects).open(url, timeout=FETCH_S) as answer:
        text = answer.read(most + 1)
    if len(text) > most:
        raise ValueError(f"the keys have more than {most} bytes")
    content = json.loads(text)
    listed = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(listed, list):
        raise ValueError("it has no keys")
    keys: dict[str, Key] = {}
    for jwk in listed:
        if not isinstance(jwk, dict) or jwk.get("kty") not in PUBLIC_KINDS:
            continue
        if isinstance(kid := jwk.get("kid"), str):
            with suppress(JoseError, ValueError, TypeError):
                keys[kid] = JWKRegistry.import_key(jwk)
    return keys
