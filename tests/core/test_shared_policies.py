"""A process compiles a policy once, whatever number of lanes reads it, and keeps few of those that it compiled."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

from refold.core.approval.catalog import COMPILED, Catalog
from refold.core.approval.policy import Policy
from tests.roots import TRUST, publish


def policy(number: int) -> Policy:
    """One of many policies."""
    return Policy.parse({"rules": [{"name": f"shared {number}", "when": "args.n > 1", "allow": True}]})


def lanes(*policies: Policy, count: int = 3) -> list[Catalog]:
    """Catalogs of so many partitions, each of which has read these."""
    found = [Catalog(TRUST) for _ in range(count)]
    for each in policies:
        assert [publish(lane, f"policy/{each.digest}", "policy", each.content) for lane in found] == [""] * count
    return found


def same(values: list[Any]) -> bool:
    """True if all of these are one object."""
    return len({id(value) for value in values}) == 1


def test_lanes_share_the_compiled_policy_and_its_text() -> None:
    made = policy(1)

    found = lanes(made)

    assert same([lane.policies[made.digest] for lane in found])
    assert same([lane.entries[f"policy/{made.digest}"].content for lane in found])


def test_a_version_that_nobody_names_is_let_go_and_is_there_when_somebody_does() -> None:
    old = policy(2)
    lane, *_ = lanes(old)
    kept = ref(lane.policies[old.digest])

    for number in range(COMPILED + 1):
        each = policy(100 + number)
        publish(lane, f"policy/{each.digest}", "policy", each.content)
    gc.collect()

    assert kept() is None
    assert old.digest in lane.policies
    assert lane.policies[old.digest].digest == old.digest
    assert lane.policies.get("none") is None


def test_what_no_policy_is_counts_in_no_lane() -> None:
    wrong, found = {"rules": [{"name": "all", "when": "nobody ==", "allow": True}]}, lanes()

    said = [publish(lane, f"policy/{policy(3).digest}", "policy", wrong) for lane in found]

    assert all("when" in why for why in said)
    assert [(len(lane.policies), lane.void, len(lane.closed)) for lane in found] == [(0, 1, 1)] * 3


def test_a_policy_that_is_taken_back_is_gone() -> None:
    made = policy(4)
    lane, *_ = lanes(made)

    publish(lane, f"policy/{made.digest}", "policy", None)

    assert made.digest not in lane.policies
