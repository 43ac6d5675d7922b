"""Signatures: one text for one payload, and nothing else holds."""

from __future__ import annotations

import json
import warnings
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey

from refold.core.approval.signature import ALGORITHM, TOKEN_BYTES, PublicKey, SigningKey, sign, verified
from refold.core.errors import MalformedError, UnauthorisedError, UsageError
from refold.core.wire import canonical
from tests.core.histories import examples

KEY = SigningKey("ops-1", "decision", bytes(range(32)))
OTHER = SigningKey("ops-2", "decision", bytes(32))
VOTE = SigningKey("ann-1", "vote", b"v" * 32)
KEYS = {key.kid: key.public() for key in (KEY, OTHER, VOTE)}
PAYLOAD: dict[str, Any] = {"args": {"n": 1, "name": "é"}, "issued": 1_000, "verdict": "approve"}
TOKEN = sign(PAYLOAD, KEY)
HEADER = {"alg": ALGORITHM, "kid": KEY.kid, "typ": "refold-decision+jws"}

text = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e9, 1e9)
values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=10,
)
payloads = st.builds(
    lambda more, issued: {**more, "issued": issued},
    st.dictionaries(text, values, max_size=4),
    st.integers(0, 2**53 - 1),
)


def b64(data: bytes | str) -> str:
    """The base64url of a part of a token."""
    return urlsafe_b64encode(data.encode() if isinstance(data, str) else data).rstrip(b"=").decode()


def forge(payload: str | bytes, header: str | None = None, key: SigningKey = KEY) -> str:
    """A token with a good signature over whatever it is told to sign."""
    head = json.dumps(HEADER, separators=(",", ":")) if header is None else header
    signed = f"{b64(head)}.{b64(payload)}"
    return f"{signed}.{b64(Ed25519PrivateKey.from_private_bytes(key.seed).sign(signed.encode()))}"


def reason(token: str, keys: dict[str, PublicKey] = KEYS, use: str = "decision") -> str:
    """Why a token is refused; it must be."""
    with pytest.raises(UnauthorisedError) as refused:
        verified(token, keys, use=use)
    return str(refused.value.fields["reason"])


def known(**changes: Any) -> dict[str, PublicKey]:
    """The catalog with the key of the token changed."""
    return {**KEYS, KEY.kid: replace(KEYS[KEY.kid], **changes)}


@examples
@given(payloads)
def test_what_is_signed_is_read_back(payload: dict[str, Any]) -> None:
    token = sign(payload, KEY)

    assert verified(token, KEYS, use="decision") == payload
    assert sign(dict(reversed(payload.items())), KEY) == token


def test_the_forger_of_these_tests_writes_what_sign_writes() -> None:
    assert forge(canonical.dumps(PAYLOAD)) == TOKEN


def test_another_library_reads_a_token_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        public = OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": KEYS[KEY.kid].x})
        found = jws.deserialize_compact(sign(PAYLOAD, KEY), public, algorithms=["Ed25519"])

    assert json.loads(found.payload) == PAYLOAD
    assert found.headers() == HEADER


def test_every_flipped_bit_of_the_text_is_refused() -> None:
    for index in range(len(TOKEN)):
        for bit in range(8):
            changed = TOKEN[:index] + chr(ord(TOKEN[index]) ^ 1 << bit) + TOKEN[index + 1 :]

            assert reason(changed) in ("malformed", "signature", "unknown_key", "use")


def test_every_flipped_bit_of_what_the_parts_say_is_refused() -> None:
    parts = TOKEN.split(".")
    for number, part in enumerate(parts):
        data = urlsafe_b64decode(part + "==")
        for index in range(len(data) * 8):
            flipped = bytearray(data)
            flipped[index // 8] ^= 1 << index % 8

            assert reason(".".join([*parts[:number], b64(bytes(flipped)), *parts[number + 1 :]])) != ""


def test_every_part_of_a_token_and_every_longer_one_is_refused() -> None:
    shorter = [TOKEN[:end] for end in range(len(TOKEN))] + [TOKEN[start:] for start in range(1, len(TOKEN))]
    longer = [TOKEN + more for more in ("A", "=", "==", ".", ".A", "\n", " ", "\0", TOKEN)]
    longer += [more + TOKEN for more in (" ", "\n", "A", ".", "\ufeff")]

    assert {reason(token) for token in shorter + longer} <= {"malformed", "signature"}


@examples
@given(st.text() | st.builds(".".join, st.lists(st.binary().map(b64), min_size=3, max_size=3)))
def test_no_other_text_is_a_token(token: str) -> None:
    assert reason(token) in ("malformed", "use")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_part_has_no_padding_and_no_space(number: int) -> None:
    parts = TOKEN.split(".")
    part = parts[number]

    for spelling in (part + "=", part + "==", part + "\n", " " + part, part[:4] + "\n" + part[4:], part + "A" * 4):
        assert reason(".".join([*parts[:number], spelling, *parts[number + 1 :]])) == "malformed"


@pytest.mark.parametrize("filler", ["", "x", "xx"])
def test_bits_that_base64_leaves_over_are_zero(filler: str) -> None:
    parts = forge(canonical.dumps({"issued": 1, "text": filler})).split(".")
    with_spare = [number for number, part in enumerate(parts) if len(part) % 4]
    assert 2 in with_spare

    for number in with_spare:
        part = parts[number]
        twin = part[:-1] + chr(ord(part[-1]) + 1)
        assert urlsafe_b64decode(twin + "==") == urlsafe_b64decode(part + "==")

        assert reason(".".join([*parts[:number], twin, *parts[number + 1 :]])) == "malformed"


def test_the_standard_alphabet_and_digits_of_other_scripts_are_refused() -> None:
    token = forge('{"issued":1,"text":"\u00ff\u00fe\u07ff\u07fe???>>>"}')
    assert set("-_") & set(token)

    assert reason(token.replace("-", "+").replace("_", "/")) == "malformed"
    assert reason(TOKEN[:-1] + "\u0661") == "malformed"
    assert reason(TOKEN[:-1] + "\uff21") == "malformed"


@pytest.mark.parametrize(
    "payload",
    [
        '{"issued": 1}',
        '{"issued":1}\n',
        '\ufeff{"issued":1}',
        '{"issued":1,"a":2}',
        '{"issued":1,"issued":1}',
        '{"issued":1,"\\u0069ssued":1}',
        '{"a":1.0,"issued":1}',
        '{"a":"\\u0041","issued":1}',
        '{"a":"\\/","issued":1}',
        '{"a":NaN,"issued":1}',
        '{"a":Infinity,"issued":1}',
        '{"a":"\\ud800","issued":1}',
        '{"a":9007199254740993.0,"issued":1}',
        '{"issued":1e400}',
        '{"a":' + "[" * 70 + "]" * 70 + ',"issued":1}',
        '{"issued":1}{"issued":1}',
        '{"issued":1}//',
        "{'issued':1}",
        '{"issued":1,}',
        "[1]",
        "1",
        "null",
        '"issued"',
        "",
        "{}",
        '{"issued":"1"}',
        '{"issued":1.5}',
        '{"issued":true}',
        '{"issued":null}',
        b"\xff",
        b'{"a":"\xed\xa0\x80","issued":1}',
        b'{"a":"\xc0\xaf","issued":1}',
    ],
)
def test_a_payload_that_sign_would_not_write_is_refused_though_it_is_signed(payload: str | bytes) -> None:
    assert reason(forge(payload)) == "malformed"


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ('{"alg":"none","kid":"ops-1","typ":"refold-decision+jws"}', "malformed"),
        ('{"alg":"EdDSA","kid":"ops-1","typ":"refold-decision+jws"}', "malformed"),
        ('{"alg":"ed25519","kid":"ops-1","typ":"refold-decision+jws"}', "malformed"),
        ('{"alg":["Ed25519"],"kid":"ops-1","typ":"refold-decision+jws"}', "malformed"),
        ('{"alg":"Ed25519","kid":"ops-1"}', "malformed"),
        ('{"alg":"Ed25519","typ":"refold-decision+jws"}', "malformed"),
        ('{"alg":"Ed25519","b64":true,"kid":"ops-1","typ":"refold-decision+jws"}', "malformed"),
        ('{"alg":"Ed25519","crit":["b64"],"kid":"ops-1","typ":"refold-decision+jws"}', "malformed"),
        ('{"alg":"Ed25519","jwk":{},"kid":"ops-1","typ":"refold-decision+jws"}', "malformed"),
        ('{"alg":"Ed25519","alg":"none","kid":"ops-1","typ":"refold-decision+jws"}', "malformed"),
        ('{"kid":"ops-1","alg":"Ed25519","typ":"refold-decision+jws"}', "malformed"),
        ('{"alg": "Ed25519","kid":"ops-1","typ":"refold-decision+jws"}', "malformed"),
        ('{"alg":"Ed25519","kid":1,"typ":"refold-decision+jws"}', "malformed"),
        ('{"alg":"Ed25519","kid":null,"typ":"refold-decision+jws"}', "malformed"),
        ('{"alg":"Ed25519","kid":"","typ":"refold-decision+jws"}', "malformed"),
        ('{"alg":"Ed25519","kid":["ops-1"],"typ":"refold-decision+jws"}', "malformed"),
        ('{"alg":"Ed25519","kid":"../ops-1","typ":"refold-decision+jws"}', "malformed"),
        ('{"alg":"Ed25519","kid":"ops-1\\n","typ":"refold-decision+jws"}', "malformed"),
        ('{"alg":"Ed25519","kid":"ops-1\\u0000","typ":"refold-decision+jws"}', "malformed"),
        ('{"alg":"Ed25519","kid":"ops-\u0661","typ":"refold-decision+jws"}', "malformed"),
        ('{"alg":"Ed25519","kid":"OPS-1","typ":"refold-decision+jws"}', "unknown_key"),
        ('{"alg":"Ed25519","kid":"ops-2","typ":"refold-decision+jws"}', "signature"),
        ('{"alg":"Ed25519","kid":"ann-1","typ":"refold-decision+jws"}', "use"),
        ('{"alg":"Ed25519","kid":"ops-1","typ":"refold-vote+jws"}', "use"),
        ('{"alg":"Ed25519","kid":"ops-1","typ":"REFOLD-DECISION+JWS"}', "use"),
        ('{"alg":"Ed25519","kid":"ops-1","typ":"JWT"}', "use"),
        ('{"alg":"Ed25519","kid":"ops-1","typ":null}', "use"),
        ("[]", "malformed"),
        ("", "malformed"),
    ],
)
def test_a_header_is_the_one_that_sign_writes(header: str, why: str) -> None:
    assert reason(forge(canonical.dumps(PAYLOAD), header)) == why


def test_no_other_algorithm_is_taken_even_where_its_signature_is_good() -> None:
    public = urlsafe_b64decode(KEYS[KEY.kid].x + "=")
    body = canonical.dumps(PAYLOAD)
    shared, curve = OctKey.import_key(public), ECKey.generate_key("P-256")

    for algorithm, key in (("HS256", shared), ("HS512", shared), ("ES256", curve)):
        token = jws.serialize_compact({**HEADER, "alg": algorithm}, body, key, algorithms=[algorithm])

        assert reason(token) == "malformed"
    unsigned = f"{b64(canonical.dumps({**HEADER, 'alg': 'none'}))}.{b64(body)}."
    assert reason(unsigned) == "malformed"
    assert reason(TOKEN.rpartition(".")[0] + ".") == "malformed"


def test_a_signature_by_a_shared_secret_under_the_right_name_is_no_signature() -> None:
    signed, _, _ = TOKEN.rpartition(".")
    token = jws.serialize_compact({"alg": "HS512"}, signed, OctKey.import_key(b"x" * 64), algorithms=["HS512"])

    assert reason(f"{signed}.{token.rpartition('.')[2][:86]}") in ("signature", "malformed")
    assert reason(f"{signed}.{b64(bytes(64))}") == "signature"


def test_the_second_root_of_a_signature_is_refused() -> None:
    order = 2**252 + 27742317777372353535851937790883648493
    signed, _, last = TOKEN.rpartition(".")
    signature = urlsafe_b64decode(last + "==")
    twin = signature[:32] + (int.from_bytes(signature[32:], "little") + order).to_bytes(32, "little")

    assert reason(f"{signed}.{b64(twin)}") == "signature"


def test_the_signature_of_one_payload_is_none_of_another() -> None:
    head, body, _ = sign({**PAYLOAD, "verdict": "reject"}, KEY).split(".")

    assert reason(f"{head}.{body}.{TOKEN.rpartition('.')[2]}") == "signature"


def test_a_vote_is_no_decision_and_a_decision_no_vote() -> None:
    vote = sign(PAYLOAD, VOTE)

    assert verified(vote, KEYS, use="vote") == PAYLOAD
    assert reason(vote, use="decision") == "use"
    assert reason(TOKEN, use="vote") == "use"
    assert reason(sign(PAYLOAD, replace(VOTE, use="decision"))) == "use"


def test_a_key_that_is_not_known_or_lies_under_another_name_signs_nothing() -> None:
    assert reason(TOKEN, {}) == "unknown_key"
    assert reason(TOKEN, {KEY.kid: KEYS[OTHER.kid]}) == "unknown_key"
    assert reason(TOKEN, known(x=KEYS[OTHER.kid].x)) == "signature"
    assert reason(TOKEN, known(x="AA")) == "signature"


def test_what_a_revoked_key_ever_signed_is_refused() -> None:
    assert reason(TOKEN, known(revoked=True)) == "revoked"
    assert reason(TOKEN, known(revoked=True, retired_ms=2_000)) == "revoked"


@pytest.mark.parametrize("withdrawn", [{"revoked": True}, {"retired_ms": 1}])
def test_only_what_a_withdrawn_key_did_sign_is_told_from_a_forgery(withdrawn: dict[str, Any]) -> None:
    assert reason(TOKEN, known(x=KEYS[OTHER.kid].x, **withdrawn)) == "signature"


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({"retired_ms": 1_001}, True),
        ({"retired_ms": 1_000}, False),
        ({"retired_ms": 1}, False),
        ({"not_before_ms": 1_000}, True),
        ({"not_before_ms": 1_001}, False),
    ],
)
def test_a_key_signs_from_its_beginning_until_it_retires(changes: dict[str, int], holds: bool) -> None:
    keys = known(**changes)

    if holds:
        assert verified(TOKEN, keys, use="decision") == PAYLOAD
    else:
        assert reason(TOKEN, keys) == "retired"


def test_a_token_that_is_too_large_is_not_even_looked_at() -> None:
    assert reason("A" * (TOKEN_BYTES + 1)) == "malformed"
    with pytest.raises(UsageError, match="bytes, more than"):
        sign({"issued": 1, "text": "x" * TOKEN_BYTES}, KEY)
    large = sign({"issued": 1, "text": "x" * (2 << 20)}, KEY)
    assert len(verified(large, KEYS, use="decision")["text"]) == 2 << 20


@pytest.mark.parametrize("payload", [{}, {"issued": "1"}, {"issued": 1.0}, {"issued": True}])
def test_nothing_is_signed_without_a_time(payload: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="without a time"):
        sign(payload, KEY)


@pytest.mark.parametrize("value", [float("nan"), "\ud800", [10**4_300], object(), {1: 1}])
def test_nothing_is_signed_that_has_no_json_form(value: Any) -> None:
    with pytest.raises(MalformedError):
        sign({"issued": 1, "value": value}, KEY)


@pytest.mark.parametrize("key", [replace(KEY, kid="a/b"), replace(KEY, kid=""), replace(KEY, use="both")])
def test_nothing_is_signed_with_a_key_that_nobody_would_take(key: SigningKey) -> None:
    with pytest.raises(UsageError, match="proper key"):
        sign(PAYLOAD, key)


def test_a_private_key_tells_its_seed_to_nobody() -> None:
    shown = f"{KEY!r} {KEY} {[KEY]}"

    assert repr(KEY.seed) not in shown
    assert KEY.seed.hex() not in shown
    assert "seed" not in shown


def test_a_public_key_is_read_as_it_was_written() -> None:
    key = VOTE.public(actors=("ann", "bob"), strength="oidc", not_before_ms=1, retired_ms=2, reason="rotated")

    assert PublicKey.parse(canonical.parse(canonical.dumps(key.content()))) == key


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    """A change that takes a field away."""
    return lambda content: {key: value for key, value in content.items() if key != name}


@pytest.mark.parametrize(
    "change",
    [
        *(without(name) for name in VOTE.public().content()),
        *(
            lambda content, more=more: {**content, **more}
            for more in (
                {"d": "secret"},
                *({"kid": kid} for kid in ("", "a/b", "a\n", "-a", "a" * 129, "é", 1, None)),
                *({"use": use} for use in ("sig", "", None, ["vote"])),
                *({"x": x} for x in ("", "AA", 1, None, "A" * 44, "A" * 42 + "B", "A" * 43 + "=", "+" * 43)),
                *({"actors": actors} for actors in ("ann", None, [""], [1], ["ann", None])),
                *({"not_before_ms": at} for at in (-1, 1.0, "1", True, None)),
                *({"retired_ms": at} for at in (-1, 1.0, "1", True, None)),
                *({"revoked": revoked} for revoked in (0, 1, "false", None)),
                {"strength": None},
                {"reason": 1},
                {"use": "decision", "actors": ["ann"]},
            )
        ),
        lambda _: [],
        lambda _: None,
    ],
)
def test_what_is_no_public_key_is_refused(change: Callable[[dict[str, Any]], Any]) -> None:
    with pytest.raises(UsageError):
        PublicKey.parse(change(VOTE.public().content()))
