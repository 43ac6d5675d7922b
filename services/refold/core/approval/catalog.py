"""What operators publish, as far as it was read: policies, who may decide, and public keys.

The topic has every entry once in each partition, so that whoever serves a partition has all of it, and what counts is
a matter of the position that its lane has read to. Only the operator may write there: a planner that could would
write itself a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from refold.core.approval.people import is_clear, spelt
from refold.core.approval.policy import Policy
from refold.core.approval.signature import PublicKey, are_names
from refold.core.errors import FoldError, MalformedError, UsageError
from refold.core.messages import CatalogEntry
from refold.core.wire import canonical, codec

CURRENT, ROLES_ENTRY = "current", "roles"
ROLE, HANDED_ON = "role:", "handed:"
"""What a role begins with where approvers are named, and what says who handed a decision on and to whom."""


def is_person(name: str) -> bool:
    """Whether somebody may be called so: a name that is read as something else gives nobody anything.

    A name has one spelling (`ada`, not `Ada`) and one alphabet, or one person could be two.
    """
    proper = name not in ("", "*") and not name.startswith((ROLE, HANDED_ON))
    return proper and name == spelt(name) and is_clear(name)


def no_person(name: str) -> str:
    """What is wrong with a name that is none."""
    meant = spelt(name)
    return f"{name!r} is not the name of a person" + (f", {meant} is" if is_person(meant) else "")


@dataclass(frozen=True, slots=True)
class Roles:
    """Who has which role. `revoked` people have none, whatever else is said of them."""

    by_role: Mapping[str, frozenset[str]] = field(default_factory=dict)
    revoked: frozenset[str] = frozenset()

    def entitled(self, approvers: Iterable[str], actor: str, claimed: Iterable[str] = ()) -> str:
        """Which of the approvers an actor is (`ada`, `role:lead`, `*`), or nothing.

        `claimed` are roles that a trusted receiver of votes has read from the actor's login. They count only for roles
        that are not kept here.
        """
        if actor in self.revoked or not is_person(actor):
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
        """Whether an actor is today which of the approvers they were once; a role that is not kept here is believed."""
        if actor in self.revoked or not is_person(actor):
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


class Catalog:
    """The fold of one partition of the topic. `current` is the digest of the policy that new runs get."""

    def __init__(self) -> None:
        self.policies: dict[str, Policy] = {}
        self.keys: dict[str, PublicKey] = {}
        self.roles = Roles()
        self.current = ""
        self.position = 0
        self.void = 0

    def follow(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Takes the next record. What is no entry is void: what was known before it stays in force."""
        self.position = max(self.position, offset + 1)
        name = (key or b"").decode(errors="replace")
        try:
            if value is None:
                self._drop(name)
            else:
                self._take(name, codec.decode(CatalogEntry, value))
        except (MalformedError, FoldError, UsageError):
            self.void += 1

    def reached(self, offset: int) -> None:
        """Reading has come to this offset, though the records before it may be gone by compaction."""
        self.position = max(self.position, offset)

    @property
    def policy(self) -> Policy | None:
        """The policy that new runs get."""
        return self.policies.get(self.current)

    def _take(self, name: str, entry: CatalogEntry) -> None:
        content = canonical.parse(entry.content)
        if entry.name != name:
            raise MalformedError("the key is not the entry's name")
        if entry.kind == "policy":
            policy = Policy.parse(content)
            if name != f"policy/{policy.digest}":
                raise MalformedError("the name is not the policy's digest")
            self.policies[policy.digest] = policy
        elif entry.kind == "current" and isinstance(content, str):
            self.current = content
        elif entry.kind == "roles":
            self.roles = Roles.parse(content)
        elif entry.kind == "key":
            public = PublicKey.parse(content)
            if name != f"key/{public.kid}":
                raise MalformedError("the name is not the key's id")
            self.keys[public.kid] = public
        else:
            raise MalformedError(f"{entry.kind} is not a kind of entry")

    def _drop(self, name: str) -> None:
        kind, _, rest = name.partition("/")
        if kind == "policy":
            self.policies.pop(rest, None)
        elif kind == "key":
            self.keys.pop(rest, None)
        elif name == CURRENT:
            self.current = ""
        elif name == ROLES_ENTRY:
            self.roles = Roles()
