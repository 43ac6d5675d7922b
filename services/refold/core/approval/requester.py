"""Signed requester of a run. The request's token is passed with the run and its children into every question, where the
counter of votes verifies it by the catalog instead of trusting the planner."""

import dataclasses
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Mapping, Set
from typing import Any, Final, TypeVar

from refold.core.approval import signature
from refold.core.approval.signature import PublicKey, SigningKey, platform_of
from refold.core.confusables import is_clear, spelt
from refold.core.errors import MalformedError, UnauthorisedError, UsageError
from refold.core.events import Spendable
from refold.core.ids import root_of
from refold.core.messages import ApprovalRequest, RunRequest, RunSignal
from refold.core.wire import canonical

TOKEN_CHARS: Final = 4_096
"""Longest token: every living run keeps its own in memory, and every question contains it."""

FRESH_MS: Final = 24 * 3_600_000
"""Lifetime of a request's signature: an older copy of a request starts nothing."""

_VOUCHED: Final = "vouched"
"""Field of a token with the labels that its signer verified."""

Keys = Mapping[str, PublicKey]
_M = TypeVar("_M", RunRequest, RunSignal)


def signed(message: _M, key: SigningKey, now_ms: int, platform: str = "", *, labels: Iterable[str] | None = None) -> _M:
    """Request or signal with a token of the key's holder, for one platform. If `labels` are given, limits may count by
    these alone. **Raises** UsageError if names are too long."""
    where = {"platform": platform} if platform else {}
    vouched = {_VOUCHED: sorted(labels)} if labels is not None else {}
    token = signature.sign({**_claims_of(message), **where, **vouched, "issued": now_ms}, key)
    if len(token) > TOKEN_CHARS:
        raise UsageError(f"the token has {len(token)} characters, more than {TOKEN_CHARS}", hint="use shorter names")
    return dataclasses.replace(message, token=token)


def check_token(message: RunRequest | RunSignal) -> None:
    """Check that a token belongs to this message, without its signature. **Raises** MalformedError."""
    if len(message.token) > TOKEN_CHARS:
        raise MalformedError(f"the token has {len(message.token):,} characters, more than {TOKEN_CHARS:,}")
    if message.token and _without_metadata(_parsed(message.token)) not in (_claims_of(message), _identity(message)):
        raise MalformedError("the token is of another message: sign this one, or send it without")


def why_refused(request: RunRequest, keys: Keys, at_ms: int, labels: Set[str]) -> str:
    """Reason why a request starts nothing; empty if it does. While the catalog has keys for requests, limits by these
    `labels` count only signed values."""
    if request.token and not -FRESH_MS <= at_ms - int(_parsed(request.token).get("issued", 0)) <= FRESH_MS:
        return "its token is of another day: sign it again"
    limiting = sorted(labels - {""})
    if not keys or not limiting:
        return ""
    claims = _vouched(request.token, request.requester, keys) or {}
    vouched = claims.get(_VOUCHED, list(request.labels)) if "labels" in claims else []
    vouched = vouched if signature.are_names(vouched) else []
    if limited := sorted((request.labels.keys() & limiting).difference(vouched)):
        return f"limits count by its label {limited[0]}, and no key of the catalog vouches for that: sign the request"
    if not claims:
        return f"without the label {limiting[0]} it counts for its requester, for whom no key vouches: sign the request"
    return ""


def vouches(token: str, requester: str, keys: Keys) -> bool:
    return _vouched(token, requester, keys) is not None


def is_verified(request: ApprovalRequest, keys: Keys) -> bool:
    """True if a signature proves the requester, the only author of the arguments."""
    # The token does not cover arguments that others wrote.
    return not request.writers and _is_signed(request, keys)


def _is_signed(request: ApprovalRequest, keys: Keys) -> bool:
    claims = _vouched(request.token, request.requester, keys)
    if claims is None or "agent" not in claims:  # a signed signal is no request
        return False
    # Children carry the token of their family's root, and have its requester.
    root = root_of(request.run_id)
    return claims.get("run") == root and (root != request.run_id or claims.get("agent") == request.agent)


def quorum_of(request: ApprovalRequest, askers: Keys) -> int:
    """Votes needed. Without `askers` (the catalog's keys for requests) an unambiguous name is believed."""
    needed = request.requirement
    named = bool(request.requester.strip()) and is_clear(request.requester)
    certain = _is_signed(request, askers) if askers else named
    # One more, as an excluded requester of uncertain name may be among the voters.
    return max(1, needed.quorum) + (needed.not_requester and not certain)


def signed_ms(signal: RunSignal, keys: Keys) -> int | None:
    """Signature time of a signal; None unless a key of the catalog vouches for its sender."""
    claims = _vouched(signal.token, signal.actor, keys)
    if claims is None or _without_metadata(claims) != _claims_of(signal):
        return None
    return int(claims["issued"])


def _vouched(token: str, name: str, keys: Keys) -> dict[str, Any] | None:
    """Claims of a token that a catalog key signed for this person, else None."""
    if not token or not name.strip() or not is_clear(name):
        return None
    try:
        claims = signature.verified(token, keys, use=signature.REQUEST)
    except UnauthorisedError:
        return None
    if claims.get("requester") != name:
        return None
    platform, meant = platform_of(keys), claims.get("platform", "")
    if platform and meant not in ("", platform):
        return None
    actors = keys[signature.kid_of(token)].actors
    return claims if not actors or name in actors else None


def _claims_of(message: RunRequest | RunSignal) -> dict[str, Any]:
    if isinstance(message, RunRequest):
        budget = message.budget
        rest: dict[str, Any] = {"labels": dict(message.labels), "sessions": list(message.sessions)}
        rest |= {"deadline": str(message.deadline_ms), "not_before": str(message.not_before_ms)}
        return _identity(message) | rest | ({"budget": _budget(budget)} if budget else {})
    return _identity(message)


def _identity(message: RunRequest | RunSignal) -> dict[str, Any]:
    if isinstance(message, RunRequest):
        about = {"agent": message.agent, "input": canonical.hex_digest(message.input), "requester": message.requester}
    else:
        about = {"kind": message.kind, "data": canonical.hex_digest(message.data), "requester": message.actor}
    return {"run": message.run_id, **about}


def _budget(budget: Spendable) -> dict[str, str]:
    # As texts: canonical JSON has no whole number above 2^53, and a request may.
    return {name: str(value) for name, value in dataclasses.asdict(budget).items()}


def _without_metadata(claims: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in claims.items() if name not in ("issued", "platform", _VOUCHED)}


def _parsed(token: str) -> dict[str, Any]:
    parts = token.split(".")
    try:
        claims = canonical.parse(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        if isinstance(claims, dict) and isinstance(claims.get("issued"), int):
            return claims
    except (IndexError, ValueError, MalformedError):
        pass
    raise MalformedError("the token is not one that `refold run start` makes")


def has_asked(request: ApprovalRequest, actor: str) -> bool:
    """True if `actor` could be the requester (unsigned: a client's claim) or an author of the call's arguments."""
    # `ada` and `ada@corp.example` may be one person; if they are two, one person too many is excluded.
    return any(_may_be(name, actor) for name in (request.requester, *request.writers))


def _may_be(asker: str, actor: str) -> bool:
    requester, voter = spelt(asker), spelt(actor)
    if "@" in requester and "@" in voter:
        return requester == voter
    return requester.partition("@")[0] == voter.partition("@")[0]
