"""Whose word the catalog is: a root key signs its entries, and every service has the public half in its settings.

So a right to write there makes nobody an authority: neither a gap in the broker's rights, nor a super user of the
cluster, nor somebody's tool that writes what another has asked it to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any, TypeAlias

from refold.core.approval import signature
from refold.core.approval.signature import KeyRing, PublicKey, SigningKey
from refold.core.errors import UnauthorisedError, UsageError
from refold.core.messages import CatalogEntry

Trust: TypeAlias = Mapping[str, PublicKey]
"""The root keys, by id. Without any, nothing in the catalog holds."""

ROOT = "root"
NOBODY: Trust = {}


def pinned(key: PublicKey) -> str:
    """A root key as it stands in the settings of a service."""
    return f"{key.kid}:{key.x}"


def trusted(text: str, platform: str = "") -> KeyRing:
    """The root keys of a setting: `KID:X`, several with commas. **Raises** UsageError.

    `platform` is where they are trusted: an entry that they signed for another does not count there.
    """
    found = KeyRing(platform=platform)
    for part in filter(None, (each.strip() for each in text.split(","))):
        kid, _, x = part.partition(":")
        try:
            found[kid] = PublicKey.parse(PublicKey(kid, ROOT, x).content())
        except UsageError as error:
            hint = "write KID:X as `refold keys init` prints it, several with commas"
            raise UsageError(f"{part[:80]!r} is not a root key: {error.message}", hint=hint) from None
    return found


def sealed(entry: CatalogEntry, root: SigningKey, counter: int) -> CatalogEntry:
    """The entry as the root key signs it. `counter` is higher than that of all before. **Raises** UsageError."""
    numbered = replace(entry, counter=counter)
    return replace(numbered, token=signature.sign(_payload(numbered), root))


def check(entry: CatalogEntry, trust: Trust) -> None:
    """**Raises** UnauthorisedError for an entry that none of the root keys has signed as it is."""
    if signature.verified(entry.token, trust, use=ROOT) != _payload(entry):
        raise UnauthorisedError("the signature is of another entry", reason="signature")


def _payload(entry: CatalogEntry) -> dict[str, Any]:
    """What is signed. A policy is long, so its digest stands for it. Entries of before name no platform."""
    return ({"platform": entry.platform} if entry.platform else {}) | {
        "actor": entry.actor,
        "content": sha256(entry.content.encode()).hexdigest(),
        "counter": entry.counter,
        "issued": entry.at_ms,
        "kind": entry.kind,
        "name": entry.name,
    }
