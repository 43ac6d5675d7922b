"""Keys that anybody could sign with are no keys, and signatures have one spelling: Wycheproof's rules, own cases."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import replace
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from refold.core.approval.signature import PublicKey, SigningKey, sign, verified, weakness
from refold.core.errors import UnauthorisedError, UsageError
from refold.core.wire import canonical

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
SIGN = 1 << 255
EIGHTH = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
"""How high two of the points of order 8 are; the two others are as far below."""
SMALL = (0, 1, P - 1, EIGHTH, P - EIGHTH)
KEY = SigningKey("gateway", "vote", bytes(range(32)))


def little(number: int) -> bytes:
    return number.to_bytes(32, "little")


def text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def unread(spelt: str) -> bytes:
    return urlsafe_b64decode(spelt + "=" * (-len(spelt) % 4))


def content(raw: bytes) -> dict[str, Any]:
    return {**KEY.public().content(), "x": text(raw)}


def forged(issued: int) -> str:
    """A vote that nobody signed: a neutral R and an S of zero."""
    header = {"alg": "Ed25519", "kid": "gateway", "typ": "refold-vote+jws"}
    parts = [canonical.dumps(part).encode() for part in (header, {"issued": issued})]
    return ".".join([*map(text, parts), text(little(1) + little(0))])


def test_the_library_takes_a_forgery_by_a_key_of_small_order() -> None:
    Ed25519PublicKey.from_public_bytes(little(1)).verify(little(1) + little(0), b"whatever")
    weak = replace(KEY.public(), x=text(little(1)))

    assert verified(forged(7), {"gateway": weak}, use="vote") == {"issued": 7}


@pytest.mark.parametrize("y", [*SMALL, *(each + SIGN for each in SMALL)])
def test_a_key_of_small_order_is_no_key(y: int) -> None:
    with pytest.raises(UsageError, match="order is small"):
        PublicKey.parse(content(little(y)))


@pytest.mark.parametrize("y", [P, P + 1, 2**255 - 1, P + SIGN, P + 1 + SIGN, 2**256 - 1])
def test_a_key_has_one_spelling(y: int) -> None:
    with pytest.raises(UsageError, match="not written as it should be"):
        PublicKey.parse(content(little(y)))


@pytest.mark.parametrize("y", [2, 7, P - 2, 2 + SIGN])
def test_a_key_off_the_curve_is_no_key(y: int) -> None:
    with pytest.raises(UsageError, match="no point of the curve"):
        PublicKey.parse(content(little(y)))


@given(st.binary(min_size=32, max_size=32))
def test_every_key_that_somebody_has_is_one(seed: bytes) -> None:
    public = SigningKey("gateway", "vote", seed).public()

    assert PublicKey.parse(public.content()) == public
    assert weakness(unread(public.x)) == ""


def changed_s(signature: bytes) -> bytes:
    return signature[:32] + little((int.from_bytes(signature[32:], "little") + ORDER) % 2**256)


@pytest.mark.parametrize(
    "change",
    [
        changed_s,
        lambda _: bytes(64),
        lambda _: little(1) + little(0),
        lambda _: b"\xff" * 64,
        lambda signature: signature[:32] + bytes(32),
        lambda signature: bytes(32) + signature[32:],
        lambda signature: signature[32:] + signature[:32],
        lambda signature: signature[:63],
        lambda signature: signature + b"\0",
        lambda _: b"",
        lambda signature: bytes([signature[0] ^ 1]) + signature[1:],
        lambda signature: signature[:31] + bytes([signature[31] ^ 0x80]) + signature[32:],
    ],
    ids=[
        *("s beyond the order", "zeros", "neutral", "ones", "no s", "no r", "turned round", "short", "long", "none"),
        *("one bit", "sign of r"),
    ],
)
def test_a_signature_has_one_spelling(change: Any) -> None:
    token = sign({"issued": 7}, KEY)
    head, payload, signature = token.split(".")
    other = ".".join([head, payload, text(change(unread(signature)))])

    assert verified(token, {"gateway": KEY.public()}, use="vote") == {"issued": 7}
    with pytest.raises(UnauthorisedError):
        verified(other, {"gateway": KEY.public()}, use="vote")


def test_a_good_key_takes_no_forgery() -> None:
    with pytest.raises(InvalidSignature):
        Ed25519PublicKey.from_public_bytes(unread(KEY.public().x)).verify(little(1) + little(0), b"whatever")
