"""Attacks with a right to write the catalog that nobody should have: by a slip in the ACLs, say, or a super user."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from refold.core.approval.signature import SigningKey, sealed
from refold.core.messages import CatalogEntry
from refold.core.wire import canonical
from tests.roots import ROOT, entry
from tests.security.hijack import Hijack, Outcome, ask_for
from tests.security.plays import Play
from tests.security.unsigned import OWN, forged
from tests.waiting import eventually

LOST = SigningKey("lost-1", "decision", b"l" * 32)
"""It was in force, and is revoked."""


def plays() -> Iterator[Play]:
    """The attacks."""
    yield Play("a right to the catalog: a key of one's own", own_key)
    yield Play("the same, signed by a root key of one's own", own_root)
    yield Play("a right to the catalog: a key that was revoked is back", revoked_key)
    yield Play("the same, and the executor reads all of it anew", revoked_key_anew)
    yield Play("a right to the catalog: roles of one's own", own_roles)
    yield Play("a right to the catalog: no roles any more", no_roles)


def own_key(hijack: Hijack) -> Outcome:
    return used(hijack, CatalogEntry(f"key/{OWN.kid}", "key", canonical.dumps(OWN.public().content())), OWN)


def own_root(hijack: Hijack) -> Outcome:
    said = CatalogEntry(f"key/{OWN.kid}", "key", canonical.dumps(OWN.public().content()))
    return used(hijack, sealed(said, dataclasses.replace(ROOT, seed=b"e" * 32), 1_000_000), OWN)


def revoked_key(hijack: Hijack) -> Outcome:
    name = f"key/{LOST.kid}"
    before = entry(name, "key", LOST.public().content())
    hijack.stage.slip(before)
    hijack.stage.publish(name, "key", LOST.public(revoked=True).content())
    return used(hijack, before, LOST)


def revoked_key_anew(hijack: Hijack) -> Outcome:
    hijack.stage.crash("executor-default")
    call = hijack.call()
    return hijack.refused(call, forged(call, LOST))


def own_roles(hijack: Hijack) -> Outcome:
    hijack.stage.slip(CatalogEntry("roles", "roles", '{"roles":{"lead":["eve"]},"revoked":[]}'))
    return by_eve(hijack)


def no_roles(hijack: Hijack) -> Outcome:
    """Where no roles are kept, those count that somebody's login tells."""
    hijack.stage.slip_tombstone("roles")
    return by_eve(hijack, roles=("lead",))


def by_eve(hijack: Hijack, roles: tuple[str, ...] = ()) -> Outcome:
    """Eve decides, and it is used."""
    asked = ask_for(call := hijack.call())
    hijack.ask(asked)
    hijack.stage.vote(asked, "eve", roles=roles)
    return hijack.use(call, asked, by="unentitled")


def used(hijack: Hijack, said: CatalogEntry, key: SigningKey) -> Outcome:
    """An entry is written, and a decision of its key is used, when the executor has read the entry."""
    hijack.stage.slip(said)
    call = hijack.call()
    found = hijack.refused(call, forged(call, key))
    told = eventually(lambda: hijack.stage.void("executor-default", said.name), what="an alarm of the executor")
    return Outcome(found.stopped, f"{found.where}; {told[-1]}")
