"""Fold of the catalog topic: policies, roles, public keys, halts. Each partition has every entry. An entry counts if a
root key signed it, until a later one of its name has a higher counter: without the key none is added or restored."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from sys import intern
from typing import Any

from refold.core.approval.policy import Policy
from refold.core.approval.signature import NOBODY, REQUEST, ROOT, KeyRing, PublicKey, are_names, check, platform_of
from refold.core.confusables import is_clear, spelt
from refold.core.errors import FoldError, MalformedError, UnauthorisedError, UsageError
from refold.core.messages import CatalogEntry
from refold.core.wire import canonical, codec

HALT = "halt"
SCOPES = ("all", "agent", "tool", "pool", "requester")

HALT_ALL = f"{HALT}/all"

COMPILED = 16
"""Compiled policies per process: 3 MiB for 1,000 rules. An evicted one is compiled again at use, 0.07 ms a rule."""

_MOST_COMPILED = 1_024
"""Cached digests of valid policies, 64 bytes each."""


CURRENT, ROLES_ENTRY = "current", "roles"
UNREADABLE = "unreadable"
"""Digest of an unreadable policy in force. No policy has it, so calls are left to people."""

ROLE, HANDED_ON = "role:", "handed:"
"""Prefix of a role among approvers; prefix of a delegation in `Cast.via`."""


def halt_name(scope: str, name: str = "") -> str:
    """Name of a halt entry. **Raises** UsageError for an unknown scope."""
    if scope not in SCOPES or bool(name) == (scope == "all"):
        raise UsageError(f"nothing is called {scope} {name}".rstrip(), hint=f"halt one of {', '.join(SCOPES)}")
    return f"{HALT}/{scope}/{name}" if name else f"{HALT}/{scope}"


@dataclass(frozen=True, slots=True)
class Halts:
    """Reasons of the halts in force, by scope and normalised name."""

    by_name: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def why(self, *, agent: str, tool: str, pool: str, requester: str, above: Iterable[str] = ()) -> str:
        """Reason why a call is halted; empty if it is not. `above` are the agents of the runs that wait for its run."""
        if not self.by_name:
            return ""
        who = (("agent", name) for name in (agent, *above))
        places = (("all", ""), *who, ("tool", tool), ("pool", pool), ("requester", requester))
        for scope, name in places:
            if (reason := self.by_name.get((scope, spelt(name)))) is not None:
                return " ".join(filter(None, (scope, name, "is halted:", reason)))
        return ""

    def with_entry(self, rest: str, reason: str | None) -> Halts:
        """Copy with an entry for `SCOPE/NAME` added; None ends the halt. **Raises** UsageError."""
        scope, _, name = rest.partition("/")
        halt_name(scope, name)
        others = {place: why for place, why in self.by_name.items() if place != (scope, spelt(name))}
        return Halts(others if reason is None else {**others, (scope, spelt(name)): reason})


def is_person(name: str) -> bool:
    # One spelling (`ada`, not `Ada`) and one alphabet, or one person could vote as two.
    proper = name not in ("", "*") and not name.startswith((ROLE, HANDED_ON))
    return proper and name == spelt(name) and is_clear(name)


def no_person(name: str) -> str:
    meant = spelt(name)
    return f"{name!r} is not the name of a person" + (f", {meant} is" if is_person(meant) else "")


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles of people. `revoked` people have none. `lost`: the entry is unreadable, so everyone counts as revoked.
    `askers` are the keys for requests: if there are any, only a signature identifies the requester of a run."""

    by_role: Mapping[str, frozenset[str]] = field(default_factory=dict)
    revoked: frozenset[str] = frozenset()
    lost: bool = False
    askers: Mapping[str, PublicKey] = field(default_factory=dict)

    def entitled(self, approvers: Iterable[str], actor: str, claimed: Iterable[str] = ()) -> str:
        """Approver that an actor matches (`ada`, `role:lead`, `*`), or empty. `claimed`: roles from the login."""
        if self.lost or actor in self.revoked or not is_person(actor):
            return ""
        names = list(approvers)
        if actor in names:
            return actor
        claims = set(claimed)
        for name in names:
            role = name.removeprefix(ROLE)
            # A login adds no person to a role that the catalog defines.
            if role != name and (actor in self.by_role[role] if role in self.by_role else role in claims):
                return name
        return "*" if "*" in names else ""

    def still(self, actor: str, name: str) -> bool:
        """True if an actor still matches an approver; a role that the catalog does not define is believed."""
        if self.lost or actor in self.revoked or not is_person(actor):
            return False
        role = name.removeprefix(ROLE)
        if role == name:
            return name in (actor, "*")
        return bool(role) and (role not in self.by_role or actor in self.by_role[role])

    @staticmethod
    def parse(content: Any) -> Roles:
        """Parse `{"roles": {"lead": ["ada"]}, "revoked": ["eve"]}`. **Raises** UsageError."""
        if not isinstance(content, dict) or content.keys() - {"roles", "revoked"}:
            raise UsageError("roles are an object with roles and revoked", hint="roles: {lead: [ada]}")
        roles, revoked = content.get("roles", {}), content.get("revoked", [])
        if not isinstance(roles, dict) or not all(map(are_names, roles.values())) or not are_names(revoked):
            raise UsageError("a role is a list of names", hint="roles: {lead: [ada, bob]}")
        for name in chain(*roles.values(), revoked):
            if not is_person(name):
                raise UsageError(no_person(name), hint="name each person, not a role")
        return Roles({str(role): frozenset(people) for role, people in roles.items()}, frozenset(revoked))


@lru_cache(COMPILED)
def _compiled(text: str) -> Policy | None:
    content = canonical.parse(text)
    return None if content is None else Policy.parse(content)


@lru_cache(_MOST_COMPILED)
def _digest_of(text: str) -> str:
    policy = _compiled(text)
    return policy.digest if policy else ""


class Policies(UserDict[str, Policy]):
    """Policies of a catalog by digest, stored as texts so that unused versions do not stay compiled."""

    data: dict[str, Any]

    def put(self, name: str, text: str) -> None:
        digest = _digest_of(text)
        if digest and name != digest:
            raise MalformedError("the name is not the policy's digest")
        if digest:
            self.data[digest] = text
        else:
            self.data.pop(name, None)

    def __getitem__(self, digest: str) -> Policy:
        entry = self.data[digest]
        if isinstance(entry, Policy):
            return entry
        policy = _compiled(entry)
        assert policy is not None, "the text of one that was taken back is not kept"
        return policy


class Catalog:
    """Policies, roles, keys and halts: fold of one partition of the topic `catalog`."""

    def __init__(self, trust: Mapping[str, PublicKey] = NOBODY) -> None:
        self._trust = trust
        self.elsewhere = ""  # another platform, found in a signed entry
        self.named = False  # an entry named this platform, so entries without one are void
        self.entries: dict[str, CatalogEntry] = {}  # the last valid one of each name
        self.closed: set[str] = set()  # names with a later unreadable entry
        self.policies = Policies()
        self.keys: dict[str, PublicKey] = {}
        self.roles = Roles(askers=KeyRing(platform=platform_of(trust)))
        self.halts = Halts()
        self.current = ""  # digest of the policy for new runs
        self.position = 0
        self.void = 0  # number of void records
        self.lost = False  # records are missing, so nothing proceeds until the topic is published again

    def follow(self, offset: int, key: bytes | None, value: bytes | None) -> str:
        """Read the next record; return the reason if it is void, else an empty text. A void record changes nothing,
        except that an unreadable one closes the entry of its name."""
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
        """Note a record's offset; a gap means lost records."""
        # The topic is never cleaned, so a gap means lost records.
        if offset > self.position:
            # The lost records may have halted something, revoked a key or named a policy.
            self.lost = True
            for name in (CURRENT, ROLES_ENTRY, HALT_ALL):
                self._close(name)
        self.position = max(self.position, offset)

    @property
    def policy(self) -> Policy | None:
        return self.policies.get(self.current)

    @property
    def counter(self) -> int:
        return max((entry.counter for entry in self.entries.values()), default=0)

    def _take(self, name: str, value: bytes | None) -> None:
        if value is None:
            if name not in self.entries:  # an earlier entry of this name is lost
                self._close(name)
            raise MalformedError("a tombstone takes nothing back")
        try:
            entry = codec.decode(CatalogEntry, value)
        except (MalformedError, FoldError):
            self._close(name)
            raise
        entry = replace(entry, content=intern(entry.content))  # all lanes keep the same texts
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
        """Check the platform of an entry. **Raises** UnauthorisedError if it was published for another one."""
        own = platform_of(self._trust)
        if own and platform not in ("", own):
            self.elsewhere = platform
            raise UnauthorisedError(f"signed for {platform}, and this is {own}", reason="platform")
        if own and self.named and not platform:
            raise UnauthorisedError(f"signed for no platform, and this is {own}", reason="platform")
        self.named |= bool(platform)

    def _put(self, entry: CatalogEntry) -> None:
        """Apply a signed entry. **Raises** MalformedError or UsageError if this version cannot read it."""
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
            self._put_key(rest, PublicKey.parse(content))
        else:
            raise MalformedError(f"{entry.kind} is not a kind of entry")

    def _put_key(self, kid: str, public: PublicKey) -> None:
        if kid != public.kid or public.use == ROOT:
            raise MalformedError("the name is not the key's id, or it is a root key")
        self.keys[kid] = public
        if public.use == REQUEST:
            self._add_asker(public)

    def _close(self, name: str) -> None:
        """Replace an unreadable entry by its strictest possible meaning."""
        self.closed.add(name)
        kind, _, rest = name.partition("/")
        if kind == "key":
            key = self.keys.pop(rest, None)
            if key is None or key.use == REQUEST:
                self._add_asker(PublicKey(rest, REQUEST, "", revoked=True))
        elif kind == HALT:
            with suppress(UsageError):
                self.halts = self.halts.with_entry(rest, UNREADABLE)
        elif name == CURRENT:
            self.current = UNREADABLE
        elif name == ROLES_ENTRY:
            self.roles = Roles(lost=True, askers=self.roles.askers)

    def _add_asker(self, public: PublicKey) -> None:
        askers = self.roles.askers
        self.roles = replace(self.roles, askers=KeyRing({**askers, public.kid: public}, platform_of(askers)))
