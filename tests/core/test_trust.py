"""The catalog holds what a root key has signed, and never less than it held before."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from refold.core.approval.catalog import UNREADABLE, Catalog
from refold.core.approval.policy import Policy
from refold.core.approval.signature import PublicKey, SigningKey, pinned, sealed, trusted
from refold.core.errors import UsageError
from refold.core.messages import CatalogEntry
from refold.core.wire import canonical, codec
from tests.roots import ROOT, TRUST, entry, publish

KEY = SigningKey("service-1", "decision", b"s" * 32)
NAME = f"key/{KEY.kid}"
OTHER = SigningKey("root-test", "root", b"o" * 32)
POLICY = Policy.parse({"rules": [{"name": "all", "when": "true", "allow": True}]})
LEAD = {"roles": {"lead": ["ada"]}, "revoked": ["eve"]}


def known() -> Catalog:
    """A catalog with a key, roles, and a policy that is in force."""
    found = Catalog(TRUST)
    for name, kind, content in (
        (NAME, "key", KEY.public().content()),
        ("roles", "roles", LEAD),
        (f"policy/{POLICY.digest}", "policy", POLICY.content),
        ("current", "current", POLICY.digest),
    ):
        assert publish(found, name, kind, content) == ""
    return found


def follow(catalog: Catalog, said: CatalogEntry, key: str = "") -> str:
    """A lane reads an entry; returns why it is void."""
    return catalog.follow(catalog.position, (key or said.name).encode(), codec.encode(said))


def state(catalog: Catalog) -> tuple[Any, ...]:
    """What is in force."""
    return catalog.keys, catalog.roles, catalog.policies.keys(), catalog.current


def forged(**changes: Any) -> CatalogEntry:
    """A good entry that somebody has changed since."""
    return replace(entry("roles", "roles", {"roles": {"lead": ["eve"]}}), **changes)


@pytest.mark.parametrize(
    "said",
    [
        CatalogEntry("roles", "roles", '{"roles":{"lead":["eve"]}}'),
        sealed(CatalogEntry("roles", "roles", '{"roles":{"lead":["eve"]}}'), OTHER, 1_000_000),
        forged(content='{"roles":{"lead":["mallory"]}}'),
        forged(counter=1_000_000),
        forged(actor="ada"),
        forged(at_ms=1),
        forged(kind="current"),
        forged(name="current"),
    ],
    ids=["unsigned", "another key of that id", "content", "counter", "actor", "time", "kind", "name"],
)
def test_what_no_root_key_has_signed_changes_nothing(said: CatalogEntry) -> None:
    catalog = known()
    before = state(catalog)

    assert follow(catalog, said)

    assert (state(catalog), catalog.void, catalog.closed) == (before, 1, set())


def test_without_a_pinned_key_nothing_holds() -> None:
    catalog = Catalog()

    assert "no key root-test is known" in follow(catalog, entry(NAME, "key", KEY.public().content()))

    assert catalog.keys == {}


def test_an_entry_under_another_name_is_void() -> None:
    catalog = known()

    assert "not the entry's name" in follow(catalog, entry("roles", "roles", LEAD), key="current")


def test_what_was_in_force_before_cannot_be_brought_back() -> None:
    catalog = known()
    good, bad = (entry(NAME, "key", KEY.public(revoked=revoked).content()) for revoked in (False, True))

    assert [follow(catalog, said) for said in (good, bad, bad)] == ["", "", ""]
    assert "the counter goes back" in follow(catalog, good)

    assert catalog.keys[KEY.kid].revoked


def test_partitions_that_read_the_same_entries_in_any_order_hold_the_same() -> None:
    said = [
        entry("roles", "roles", {"roles": {"lead": [name]}}, counter=n) for name, n in (("a", 1), ("b", 2), ("c", 2))
    ]
    found = []
    for order in permutations(said):
        catalog = Catalog(TRUST)
        for each in order:
            follow(catalog, each)
        found.append(catalog.roles)

    assert len({str(roles.by_role) for roles in found}) == 1
    assert "a" not in found[0].by_role["lead"]


def test_a_tombstone_takes_nothing_back() -> None:
    catalog = known()
    before = state(catalog)

    for name in (NAME, "roles", "current", f"policy/{POLICY.digest}"):
        assert "tombstone" in catalog.follow(catalog.position, name.encode(), None)

    assert state(catalog) == before


def test_of_what_is_gone_but_for_its_tombstone_nobody_may_say_that_it_never_was() -> None:
    catalog = Catalog(TRUST)

    catalog.follow(0, b"roles", None)
    catalog.follow(1, b"current", None)

    assert not catalog.roles.entitled(["*", "ada", "role:lead"], "ada", ["lead"])
    assert catalog.current == UNREADABLE


def unreadable(name: str, *, signed: bool) -> bytes:
    """What a service of a newer version has written, or nobody."""
    if not signed:
        return b"\x00\x00\x00\xff\xffwhatever"
    kind = name.partition("/")[0]
    return codec.encode(entry(name, kind, {"a field": "of tomorrow"}))


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "not even a record"])
class TestUnreadable:
    """What nobody here can read may be the word that something is taken back."""

    def test_a_key_is_of_no_use_until_it_is_published_again(self, signed: bool) -> None:
        catalog = known()
        copy = catalog.entries[NAME]

        assert catalog.follow(catalog.position, NAME.encode(), unreadable(NAME, signed=signed))
        assert (catalog.keys, catalog.closed) == ({}, {NAME})
        follow(catalog, copy)
        assert catalog.keys == {}

        publish(catalog, NAME, "key", KEY.public().content())
        assert (KEY.kid in catalog.keys, catalog.closed) == (True, set())

    def test_roles_are_nobodys(self, signed: bool) -> None:
        catalog = known()

        catalog.follow(catalog.position, b"roles", unreadable("roles", signed=signed))

        assert not catalog.roles.entitled(["*", "ada", "role:lead", "role:login"], "ada", ["login"])
        assert not catalog.roles.still("ada", "ada")

    def test_new_runs_are_judged_by_people(self, signed: bool) -> None:
        catalog = known()

        catalog.follow(catalog.position, b"current", unreadable("current", signed=signed))

        assert catalog.current == UNREADABLE
        assert catalog.policy is None

    def test_a_policy_stays_what_its_digest_says(self, signed: bool) -> None:
        catalog, name = known(), f"policy/{POLICY.digest}"

        catalog.follow(catalog.position, name.encode(), unreadable(name, signed=signed))

        assert catalog.policy is not None


def test_a_policy_is_taken_back_by_a_signed_word() -> None:
    catalog = known()

    assert publish(catalog, f"policy/{POLICY.digest}", "policy", None) == ""

    assert catalog.policies == {}


def test_a_root_key_in_the_catalog_is_no_key() -> None:
    catalog = known()

    assert publish(catalog, f"key/{OTHER.kid}", "key", OTHER.public().content())

    assert OTHER.kid not in catalog.keys


def test_a_service_is_told_whom_to_trust_in_a_line() -> None:
    second = SigningKey("root-2", "root", b"2" * 32)

    assert trusted(f" {pinned(ROOT.public())} , {pinned(second.public())},") == {
        ROOT.kid: ROOT.public(),
        second.kid: PublicKey("root-2", "root", second.public().x),
    }
    assert trusted("") == {}
    for wrong in ("root", "root:", ":abc", "root:short", canonical.dumps({"kid": 1})):
        with pytest.raises(UsageError, match="is not a root key"):
            trusted(wrong)


def of(platform: str, content: Any = LEAD, counter: int = 1) -> CatalogEntry:
    """The roles as the root key signs them for a platform."""
    return sealed(CatalogEntry("roles", "roles", canonical.dumps(content), platform=platform), ROOT, counter)


def test_what_the_root_key_has_signed_for_another_platform_does_not_hold() -> None:
    there = Catalog(trusted(pinned(ROOT.public()), "production/refold."))

    assert "staging/refold." in follow(there, of("staging/refold.", {"roles": {"lead": ["eve"]}}, 9))
    assert (there.roles.by_role, there.elsewhere) == ({}, "staging/refold.")
    assert follow(there, of("production/refold.")) == ""
    assert follow(Catalog(TRUST), of("staging/refold.")) == ""  # a reader without a name compares nothing


def test_nobody_makes_an_entry_of_another_platform_one_of_ours() -> None:
    there = Catalog(trusted(pinned(ROOT.public()), "production/refold."))

    for named in ("production/refold.", ""):
        assert follow(there, replace(of("staging/refold."), platform=named))

    assert there.entries == {}


def test_what_names_no_platform_counts_until_the_first_that_does() -> None:
    there = Catalog(trusted(pinned(ROOT.public()), "production/refold."))

    assert follow(there, of("", counter=1)) == ""
    assert follow(there, of("production/refold.", {"roles": {"lead": ["bob"]}}, 2)) == ""
    assert "no platform" in follow(there, of("", {"roles": {"lead": ["eve"]}}, 3))
    assert there.roles.by_role["lead"] == {"bob"}
