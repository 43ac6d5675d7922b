"""Which points are public keys. Libraries that verify take any 32 bytes for one, and for some a forgery is easy.

**Source**: RFC 8032, 5.1.3 (decoding), and Wycheproof's `eddsa_verify` (keys of small order).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_P: Final = 2**255 - 19
_D: Final = -121665 * pow(121666, -1, _P) % _P


@lru_cache(maxsize=256)
def weakness(key: bytes) -> str:
    """Why these 32 bytes are no public key of Ed25519, or nothing.

    With a key whose order divides 8 a signature that nobody made holds for one message in eight, or for all.
    """
    y = int.from_bytes(key, "little") & ((1 << 255) - 1)
    if y >= _P:
        return "it is not written as it should be"
    if pow(_x2(y), (_P - 1) // 2, _P) == _P - 1:
        return "it is no point of the curve"
    for _ in range(3):  # doubled three times, a point of small order is the neutral one
        x2, y2 = _x2(y), y * y
        y = (y2 + x2) * pow(1 - _D * x2 * y2, -1, _P) % _P
    return "its order is small, so anybody could sign with it" if y == 1 else ""


def _x2(y: int) -> int:
    """The square that x has to have where the curve is as high as y."""
    return (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
