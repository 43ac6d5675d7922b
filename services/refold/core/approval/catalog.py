"""Publications of the authority, as far as it was read: policies, who may decide, and public keys.

The topic has every entry once in each partition, so that whoever serves a partition has all of it, and what counts is
a matter of the position that its lane has read to. An entry counts if a root key has signed it, and while none of its
name with a higher counter was read: who may write there can neither add anything nor bring back what was before. The
topic is never cleaned, so that what came later stays there too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from sys import intern
from typing import Any

from refold.core.approval.policy import Policy
from refold.core.approval.signature import (
    NOBODY,
    REQUEST,
    ROOT,
    KeyRing,
    PublicKey,
    Trust,
    are_names,
    check,
    platform_of,
)
from refold.core.confusables import is_clear, spelt
from refold.core.errors import FoldError, MalformedError, UnauthorisedError, UsageError
from refold.core.messages import CatalogEntry
from refold.core.wire import canonical, codec

HALT = "halt"
SCOPES = ("all", "agent", "tool", "pool", "requester")


def halt_name(scope: str, name: str = "") -> str:
    """The name of the entry that halts something. **Raises** UsageError."""
    if scope not in SCOPES or bool(name) == (scope == "all"):
        raise UsageError(f"nothing is called {scope} {name}".rstrip(), hint=f"halt one of {', '.join(SCOPES)}")
    return f"{HALT}/{scope}/{name}" if name else f"{HALT}/{scope}"


@dataclass(frozen=True, slots=True)
class Halts:
    """Why what is halted, by scope and name; nobody is told apart by how a name is spelt."""

    by_name: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def why(self, *, agent: str, tool: str, pool: str, requester: str, above: Iterable[str] = ()) -> str:
        """Why a call is halted, or nothing. `above` are the agents of the runs that wait for its run."""
        if not self.by_name:
            return ""
        who = (("agent", name) for name in (agent, *above))
        places = (("all", ""), *who, ("tool", tool), ("pool", pool), ("requester", requester))
        for scope, name in places:
            if (reason := self.by_name.get((scope, spelt(name)))) is not None:
                return " ".join(filter(None, (scope, name, "is halted:", reason)))
        return ""

    def with_entry(self, rest: str, reason: str | None) -> Halts:
        """What is halted after one more word about `SCOPE/NAME`; None: it goes on. **Raises** UsageError."""
        scope, _, name = rest.partition("/")
        halt_name(scope, name)
        kept = {place: why for place, why in self.by_name.items() if place != (scope, spelt(name))}
        return Halts(kept if reason is None else {**kept, (scope, spelt(name)): reason})


CURRENT, ROLES_ENTRY = "current", "roles"
UNREADABLE = "unreadable"
"""The policy in force where nobody can read which: no policy has that digest, so people are asked."""

ROLE, HANDED_ON = "role:", "handed:"
"""What a role begins with where approvers are named, and what says who handed a decision on and to whom."""


def is_person(name: str) -> bool:
    """True if somebody may be called so: a name that is read as something else gives nobody anything.

    A name has one spelling (`ada`, not `Ada`) and one alphabet, or one person could be two.
    """
    proper = name not in ("", "*") and not name.startswith((ROLE, HANDED_ON))
    return proper and name == spelt(name) and is_clear(name)


def no_person(name: str) -> str:
    meant = spelt(name)
    return f"{name!r} is not the name of a person" + (f", {meant} is" if is_person(meant) else "")


@dataclass(frozen=True, slots=True)
class Roles:
    """Who has which role. `revoked` people have none, whatever else is said of them.

    `lost`: there are some, and nobody can read them, so nobody is known not to be revoked. `askers` are the keys for
    requests: where there is one, who asked for a run is who has signed that, and not whoever somebody says.
    """

    by_role: Mapping[str, frozenset[str]] = field(default_factory=dict)
    revoked: frozenset[str] = frozenset()
    lost: bool = False
    askers: Mapping[str, PublicKey] = field(default_factory=dict)

    def entitled(self, approvers: Iterable[str], actor: str, claimed: Iterable[str] = ()) -> str:
        """Which of the approvers an actor is (`ada`, `role:lead`, `*`), or nothing.

        `claimed` are roles that a trusted receiver of votes has read from the actor's login. They count only for roles
        that are not kept here.
        """
        if self.lost or actor in self.revoked or not is_person(actor):
            return ""
        asked = list(approvers)
        if actor in asked:
            return actor
        claims = set(claimed)
        for name in asked:
            role = name.removeprefix(ROLE)
            if role != name and (actor in self.by_role[role] if role in self.by_role else role in claims):
                return name
        return "*" if "*" in asked else ""

    def still(self, actor: str, name: str) -> bool:
        """True if an actor is today which of the approvers they were once; a role that is not kept here is believed."""
        if self.lost or actor in self.revoked or not is_person(actor):
            return False
        role = name.removeprefix(ROLE)
        if role == name:
            return name in (actor, "*")
        return bool(role) and (role not in self.by_role or actor in self.by_role[role])

    @staticmethod
    def parse(content: Any) -> Roles:
        """`{"roles": {"lead": ["ada"]}, "revoked": ["eve"]}`. **Raises** UsageError."""
        if not isinstance(content, dict) or content.keys() - {"roles", "revoked"}:
            raise UsageError("roles are an object with roles and revoked", hint="roles: {lead: [ada]}")
        roles, revoked = content.get("roles", {}), content.get("revoked", [])
        if not isinstance(roles, dict) or not all(map(are_names, roles.values())) or not are_names(revoked):
            raise UsageError("a role is a list of names", hint="roles: {lead: [ada, bob]}")
        for name in (name for people in (*roles.values(), revoked) for name in people):
            if not is_person(name):
                raise UsageError(no_person(name), hint="name each person, not a role")
        return Roles({str(role): frozenset(people) for role, people in roles.items()}, frozenset(revoked))


HALT_ALL = halt_name("all")

COMPILED = 16
"""Policies that a process keeps compiled: 3 MiB for 1,000 rules. One that was let go is compiled again when a call is
judged by it, which takes 0.07 ms a rule."""

_KNOWN = 1_024
"""Texts whose digests are kept, in 64 bytes each: a policy that was found sound is not compiled again to find that."""


@lru_cache(COMPILED)
def _compiled(text: str) -> Policy | None:
    content = canonical.parse(text)
    return None if content is None else Policy.parse(content)


@lru_cache(_KNOWN)
def _digest_of(text: str) -> str:
    """Digest of the policy in an entry's content. **Raises** MalformedError or UsageError as `Policy.parse`."""
    policy = _compiled(text)
    return policy.digest if policy else ""


class Policies(MutableMapping[str, Policy]):
    """The policies of a catalog by digest. It keeps their texts: versions that no run names are not kept compiled."""

    def __init__(self) -> None:
        self._kept: dict[str, str | Policy] = {}

    def put(self, name: str, text: str) -> None:
        """Take an entry's content, null to take one back. **Raises** MalformedError or UsageError for no policy."""
        digest = _digest_of(text)
        if digest and name != digest:
            raise MalformedError("the name is not the policy's digest")
        if digest:
            self._kept[digest] = text
        else:
            self._kept.pop(name, None)

    def __getitem__(self, digest: str) -> Policy:
        kept = self._kept[digest]
        if isinstance(kept, Policy):
            return kept
        policy = _compiled(kept)
        assert policy is not None, "the text of one that was taken back is not kept"
        return policy

    def __setitem__(self, digest: str, policy: Policy) -> None:
        self._kept[digest] = policy

    def __delitem__(self, digest: str) -> None:
        del self._kept[digest]

    def __contains__(self, digest: object) -> bool:
        return digest in self._kept

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


class Catalog:
    """The fold of one partition of the topic. `current` is the digest of the policy that new runs get.

    `entries` has the last that counted of every name, `closed` the names under which nobody can read what came later;
    `void` counts what did not count. `lost`: records are gone, by retention, say; nothing runs, and nobody may decide,
    until the topic is made anew and published from the start. `elsewhere` is the platform of an entry that was signed
    for another than ours, `named` whether one was signed for ours: from then on one that names none is no entry.
    """

    def __init__(self, trust: Trust = NOBODY) -> None:
        self._trust = trust
        self.elsewhere = ""
        self.named = False
        self.entries: dict[str, CatalogEntry] = {}
        self.closed: set[str] = set()
        self.policies = Policies()
        self.keys: dict[str, PublicKey] = {}
        self.roles = Roles(askers=KeyRing(platform=platform_of(trust)))
        self.halts = Halts()
        self.current = ""
        self.position = 0
        self.void = 0
        self.lost = False

    def follow(self, offset: int, key: bytes | None, value: bytes | None) -> str:
        """Takes the next record, and says why it is void, or nothing.

        What was known before stays in force, unless nobody can read what should be in its place: that may be the word
        that a key is revoked, so the key is of no use until there is another entry.
        """
        self.reached(offset)
        self.position = max(self.position, offset + 1)
        name = (key or b"").decode(errors="replace")
        try:
            self._take(name, value)
        except (MalformedError, FoldError, UsageError, UnauthorisedError) as error:
            self.void += 1
            return error.message
        return ""

    def reached(self, offset: int) -> None:
        """Reading has come to this offset. The catalog is never cleaned, so of what lies before nothing may be gone."""
        if offset > self.position:
            self._lose()
        self.position = max(self.position, offset)

    @property
    def policy(self) -> Policy | None:
        """The policy that new runs get."""
        return self.policies.get(self.current)

    @property
    def counter(self) -> int:
        return max((entry.counter for entry in self.entries.values()), default=0)

    def _take(self, name: str, value: bytes | None) -> None:
        if value is None:
            if name not in self.entries:  # whatever there was, it is gone
                self._close(name)
            raise MalformedError("a tombstone takes nothing back")
        try:
            entry = codec.decode(CatalogEntry, value)
        except (MalformedError, FoldError):
            self._close(name)
            raise
        entry = replace(entry, content=intern(entry.content))  # each lane reads the same texts, and keeps them
        check(entry, self._trust)
        self._check_platform(entry.platform)
        if entry.name != name:
            raise MalformedError("the key is not the entry's name")
        if (before := self.entries.get(name)) is not None:
            if entry.token == before.token:
                return
            if (entry.counter, entry.token) <= (before.counter, before.token):
                raise MalformedError(f"the counter goes back from {before.counter} to {entry.counter}")
        self.entries[name] = entry
        try:
            self._put(entry)
        except (MalformedError, UsageError):
            self._close(name)
            raise
        self.closed.discard(name)

    def _check_platform(self, platform: str) -> None:
        """**Raises** UnauthorisedError for what the authority has published of another platform than ours."""
        ours = platform_of(self._trust)
        if ours and platform not in ("", ours):
            self.elsewhere = platform
            raise UnauthorisedError(f"signed for {platform}, and this is {ours}", reason="platform")
        if ours and self.named and not platform:
            raise UnauthorisedError(f"signed for no platform, and this is {ours}", reason="platform")
        self.named |= bool(platform)

    def _put(self, entry: CatalogEntry) -> None:
        """**Raises** MalformedError or UsageError for what was signed, and is for a service of another version."""
        kind, _, rest = entry.name.partition("/")
        if kind != entry.kind:
            raise MalformedError(f"{entry.kind} is not a kind of entry for {entry.name[:80]}")
        if kind == "policy":
            self.policies.put(rest, entry.content)
            return
        content = canonical.parse(entry.content)
        if entry.name == CURRENT and isinstance(content, str):
            self.current = content
        elif entry.name == ROLES_ENTRY:
            self.roles = replace(Roles.parse(content), askers=self.roles.askers)
        elif kind == HALT and isinstance(content, str | None):
            self.halts = self.halts.with_entry(rest, content)
        elif kind == "key":
            public = PublicKey.parse(content)
            if rest != public.kid or public.use == ROOT:
                raise MalformedError("the name is not the key's id, or it is a root key")
            self.keys[public.kid] = public
            if public.use == REQUEST:
                self._asks(public)
        else:
            raise MalformedError(f"{entry.kind} is not a kind of entry")

    def _close(self, name: str) -> None:
        """Nobody can read what is in force under this name: it is taken for the strictest that it could be."""
        self.closed.add(name)
        kind, _, rest = name.partition("/")
        if kind == "key":
            known = self.keys.pop(rest, None)
            if known is None or known.use == REQUEST:
                self._asks(PublicKey(rest, REQUEST, "", revoked=True))
        elif kind == HALT:
            with suppress(UsageError):
                self.halts = self.halts.with_entry(rest, UNREADABLE)
        elif name == CURRENT:
            self.current = UNREADABLE
        elif name == ROLES_ENTRY:
            self.roles = Roles(lost=True, askers=self.roles.askers)

    def _lose(self) -> None:
        """Records are gone that may have halted something, revoked a key or named a policy: all is shut."""
        self.lost = True
        for name in (CURRENT, ROLES_ENTRY, HALT_ALL):
            self._close(name)

    def _asks(self, public: PublicKey) -> None:
        known = self.roles.askers
        self.roles = replace(self.roles, askers=KeyRing({**known, public.kid: public}, platform_of(known)))
