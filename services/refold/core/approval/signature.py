"""Signatures of decisions, votes, requests and catalog entries: compact JWS (Ed25519) around canonical JSON."""

from __future__ import annotations

import dataclasses
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

from refold.core.errors import MalformedError, UnauthorisedError, UsageError
from refold.core.messages import CatalogEntry
from refold.core.wire import canonical

USES = ("decision", "vote", "request", "root")
REQUEST: Final = "request"

ALGORITHM: Final = "Ed25519"
"""The `alg` of every token. **Source**: RFC 9864, which deprecates `EdDSA` for naming no curve."""

TOKEN_BYTES: Final = 4 * 1024 * 1024
"""Longest token. A decision contains arguments and a result of at most 1 MiB each, and base64 adds a third."""

Reason = Literal["malformed", "signature", "unknown_key", "revoked", "retired", "use", "platform"]
"""Reason why a token is invalid, in the field `reason` of UnauthorisedError. `malformed`: not a token as `sign` writes
it. `signature`: signed by another key, or changed. `unknown_key`: not in the catalog. `revoked`: the key was.
`retired`: issued outside the key's time. `use`: for another use. `platform`: for another platform."""

_KID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
_BASE64 = re.compile(r"[A-Za-z0-9_-]*\Z")
_KEY_BYTES, _SIGNATURE_BYTES = 32, 64

_P: Final = 2**255 - 19
_D: Final = -121665 * pow(121666, -1, _P) % _P


WITHDRAWN = frozenset({"revoked", "retired"})
"""Reasons of `verified` for keys that signed and no longer may: no forgery, so people are asked again."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """Public key of the catalog, with its holders and validity."""

    kid: str
    use: str
    x: str  # base64url of its 32 bytes, as in a JWK
    actors: tuple[str, ...] = ()  # people that it may sign for; empty: any, as a gateway does
    roles: tuple[str, ...] = ()  # roles that a vote key may claim for its actors
    strength: str = ""  # its holder's method of authentication
    not_before_ms: int = 0
    retired_ms: int = 0  # earlier signatures stay valid
    revoked: bool = False  # no signature is valid
    reason: str = ""

    @staticmethod
    def parse(content: Any) -> PublicKey:
        names = [spec.name for spec in dataclasses.fields(PublicKey)]
        if not isinstance(content, dict) or content.keys() != set(names):
            raise UsageError("a public key has other fields", hint=f"they are {', '.join(names)}")
        if not are_names(content["actors"]) or not are_names(content["roles"]):
            raise UsageError("actors and roles of a key are lists of names", hint='write "actors": ["ada"]')
        if problem := _problem(content):
            raise UsageError(problem, hint="`refold keys new` makes keys")
        return PublicKey(**{**content, "actors": tuple(content["actors"]), "roles": tuple(content["roles"])})

    def signs_at(self, at_ms: int) -> bool:
        return not self.revoked and self.not_before_ms <= at_ms and not (self.retired_ms and at_ms >= self.retired_ms)

    def content(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "actors": list(self.actors), "roles": list(self.roles)}


@dataclass(frozen=True, slots=True)
class SigningKey:
    """Private key. Its seed is in no `repr`, so no log or traceback reveals it."""

    kid: str
    use: str
    seed: bytes = field(repr=False)

    def public(self, **more: Any) -> PublicKey:
        from refold.core.approval import jose

        return PublicKey(self.kid, self.use, jose.x_of(self.seed), **more)


class KeyRing(dict[str, PublicKey]):
    """Public keys by id. Tokens for another platform (`production/refold.`) are invalid; empty: none are (archives)."""

    def __init__(self, keys: Mapping[str, PublicKey] | None = None, platform: str = "") -> None:
        super().__init__(keys or {})
        self.platform = platform


def platform_of(keys: Mapping[str, PublicKey]) -> str:
    return keys.platform if isinstance(keys, KeyRing) else ""


def sign(payload: Mapping[str, Any], key: SigningKey) -> str:
    """Token of a payload, which has its time (ms) in an integer `issued`. **Raises** UsageError for a payload that
    `verified` refuses, MalformedError for one without a JSON form."""
    from refold.core.approval import jose

    text = canonical.dumps(dict(payload))
    if type(payload.get("issued")) is not int or key.use not in USES or not _KID.match(key.kid):
        raise UsageError("nothing can be signed without a time or a proper key", hint="give it an integer `issued`")
    header = {"alg": ALGORITHM, "kid": key.kid, "typ": _typ(key.use)}
    token = jose.serialized(header, text, key.seed)
    if len(token) > TOKEN_BYTES:
        raise UsageError(f"the token has {len(token)} bytes, more than {TOKEN_BYTES}", hint="sign less")
    return token


def verified(token: str, keys: Mapping[str, PublicKey], *, use: str) -> dict[str, Any]:
    """Payload of a token that one of the keys signed for this use. **Raises** UnauthorisedError with a `reason`."""
    from refold.core.approval import jose

    header_text, payload_text = _decoded(token)
    kid = _kid(header_text, use)
    payload = _canonical(payload_text, "payload")
    issued = payload.get("issued")
    if type(issued) is not int:
        raise _refused("malformed", "the payload has no time in an integer `issued`")
    key = keys.get(kid)
    if key is None or key.kid != kid:
        raise _refused("unknown_key", f"no key {kid} is known")
    if key.use != use:
        raise _refused("use", f"the key {kid} is for a {key.use}, not for a {use}")
    if not jose.verifies(token, key.x):
        raise _refused("signature", f"the key {kid} did not sign this")
    # After the signature: these two reasons prove that the key signed it, so people are asked again.
    if key.revoked:
        raise _refused("revoked", f"the key {kid} was revoked")
    if not key.signs_at(issued):
        raise _refused("retired", f"the key {kid} may not sign at {issued}")
    return payload


def content_of(token: str) -> dict[str, Any]:
    """Payload of a token that was `verified` before."""
    return _canonical(_decoded(token)[1], "payload")


def kid_of(token: str) -> str:
    header = token.partition(".")[0]
    kid: str = canonical.parse(urlsafe_b64decode(header + "=" * (-len(header) % 4)))["kid"]
    return kid


def are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def are_names(value: Any) -> bool:
    return are_texts(value) and all(value)


def _decoded(token: str) -> tuple[str, str]:
    if len(token) > TOKEN_BYTES:
        raise _refused("malformed", f"the token is longer than {TOKEN_BYTES} bytes")
    parts = token.split(".")
    if len(parts) != 3:
        raise _refused("malformed", "the token has not three parts")
    try:
        header, payload, signature = map(_bytes, parts)
        if len(signature) != _SIGNATURE_BYTES:
            raise _refused("malformed", f"the signature has not {_SIGNATURE_BYTES} bytes")
        return header.decode(), payload.decode()
    except ValueError:
        raise _refused("malformed", "a part of the token is not base64url of UTF-8") from None


def _kid(text: str, use: str) -> str:
    header = _canonical(text, "header")
    kid = header.get("kid")
    if header.keys() != {"alg", "kid", "typ"} or header["alg"] != ALGORITHM:
        raise _refused("malformed", f"the header is not one of {ALGORITHM} with kid and typ alone")
    if not isinstance(kid, str) or not _KID.match(kid):
        raise _refused("malformed", "the header names no key")
    if header["typ"] != _typ(use):
        raise _refused("use", f"the token is not for a {use}")
    return kid


def _canonical(text: str, part: str) -> dict[str, Any]:
    try:
        content = canonical.parse(text)
        same = canonical.dumps(content) == text
    except MalformedError as error:
        raise _refused("malformed", f"the {part}: {error.message}") from None
    if not same or not isinstance(content, dict):
        raise _refused("malformed", f"the {part} is not an object in canonical form")
    return content


def _problem(content: dict[str, Any]) -> str:
    if not isinstance(content["kid"], str) or not _KID.match(content["kid"]):
        return "the kid is not 1-128 letters, digits, dots, dashes and underscores"
    if content["use"] not in USES:
        return f"the use is none of {', '.join(USES)}"
    if content["actors"] and content["use"] not in ("vote", "request"):
        return "only a key for votes or requests speaks for actors"
    if content["roles"] and content["use"] != "vote":
        return "only a vote key says what roles its actors have"
    return _mistyped(content) or _unsafe(content["x"])


def _mistyped(content: dict[str, Any]) -> str:
    if not isinstance(content["strength"], str) or not isinstance(content["reason"], str):
        return "strength and reason are strings"
    if any(type(content[name]) is not int or content[name] < 0 for name in ("not_before_ms", "retired_ms")):
        return "not_before_ms and retired_ms are milliseconds since 1970"
    if type(content["revoked"]) is not bool:
        return "revoked is true or false"
    return ""


def _unsafe(x: Any) -> str:
    try:
        key = _bytes(x) if isinstance(x, str) else b""
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        return "x is not the base64url of 32 bytes"
    weak = weakness(key)
    return f"x is not a safe public key: {weak}" if weak else ""


def _bytes(text: str) -> bytes:
    """Bytes of a base64url text. **Raises** ValueError for another spelling than the one without padding."""
    if not _BASE64.match(text):
        raise ValueError("not base64url")
    raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if urlsafe_b64encode(raw).rstrip(b"=").decode() != text:
        raise ValueError("bits to spare")
    return raw


def _typ(use: str) -> str:
    return f"refold-{use}+jws"


def _refused(reason: Reason, message: str) -> UnauthorisedError:
    return UnauthorisedError(message, reason=reason)


@lru_cache(maxsize=256)
def weakness(key: bytes) -> str:
    """Reason why 32 bytes are no safe Ed25519 key, or empty. **Source**: RFC 8032, 5.1.3; Wycheproof's small orders."""
    y = int.from_bytes(key, "little") & ((1 << 255) - 1)
    if y >= _P:
        return "it is not written as it should be"
    if pow(_x2(y), (_P - 1) // 2, _P) == _P - 1:
        return "it is no point of the curve"
    # With a key whose order divides 8, a forged signature holds for one message in eight, or for all.
    for _ in range(3):  # doubled three times, a point of small order is the neutral one
        x2, y2 = _x2(y), y * y
        y = (y2 + x2) * pow(1 - _D * x2 * y2, -1, _P) % _P
    return "its order is small, so anybody could sign with it" if y == 1 else ""


def _x2(y: int) -> int:
    return (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P


Trust: TypeAlias = Mapping[str, PublicKey]
"""Root keys by id. They sign the entries of the catalog, and every service has their public halves in its settings, so
a right to write to the topic gives no authority. Without root keys no entry is valid."""

ROOT = "root"
NOBODY: Trust = {}


def pinned(key: PublicKey) -> str:
    return f"{key.kid}:{key.x}"


def trusted(text: str, platform: str = "") -> KeyRing:
    """Root keys in a setting (`KID:X,KID:X`). Entries for another `platform` do not count. **Raises** UsageError."""
    keyring = KeyRing(platform=platform)
    for part in filter(None, (root.strip() for root in text.split(","))):
        kid, _, x = part.partition(":")
        try:
            keyring[kid] = PublicKey.parse(PublicKey(kid, ROOT, x).content())
        except UsageError as error:
            hint = "write KID:X as `refold keys init` prints it, several with commas"
            raise UsageError(f"{part[:80]!r} is not a root key: {error.message}", hint=hint) from None
    return keyring


def sealed(entry: CatalogEntry, root: SigningKey, counter: int) -> CatalogEntry:
    """Entry signed by the root key. `counter` must be higher than all before. **Raises** UsageError."""
    numbered = replace(entry, counter=counter)
    return replace(numbered, token=sign(_payload(numbered), root))


def check(entry: CatalogEntry, trust: Trust) -> None:
    """Check that a root key has signed exactly this entry. **Raises** UnauthorisedError."""
    if verified(entry.token, trust, use=ROOT) != _payload(entry):
        raise UnauthorisedError("the signature is of another entry", reason="signature")


def _payload(entry: CatalogEntry) -> dict[str, Any]:
    # Entries of earlier releases name no platform.
    return ({"platform": entry.platform} if entry.platform else {}) | {
        "actor": entry.actor,
        "content": canonical.hex_digest(entry.content),
        "counter": entry.counter,
        "issued": entry.at_ms,
        "kind": entry.kind,
        "name": entry.name,
    }
