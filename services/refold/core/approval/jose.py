"""Token cryptography by joserfc, imported only for a token or a key: the import takes 50-80 ms."""

import sys
from collections.abc import Mapping
from functools import lru_cache

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey
from joserfc.jws import JWSRegistry

_REGISTRY = JWSRegistry(algorithms=["Ed25519"])
# The callers limit the length of a token; joserfc's own limit is some kilobytes.
_REGISTRY.max_header_length = _REGISTRY.max_payload_length = sys.maxsize


def serialized(header: Mapping[str, str], text: str, seed: bytes) -> str:
    return jws.serialize_compact(dict(header), text, _private(seed), registry=_REGISTRY)


@lru_cache(maxsize=128)
def verifies(token: str, x: str) -> bool:
    """True if the private half of `x` (base64url) signed the token."""
    try:
        jws.deserialize_compact(token, _public(x), registry=_REGISTRY)
    except (JoseError, ValueError):
        return False
    return True


def x_of(seed: bytes) -> str:
    return str(_private(seed).as_dict(private=False)["x"])


@lru_cache(maxsize=256)
def _public(x: str) -> OKPKey:
    return OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": x})


@lru_cache(maxsize=16)
def _private(seed: bytes) -> OKPKey:
    return OKPKey.import_key(Ed25519PrivateKey.from_private_bytes(seed))
