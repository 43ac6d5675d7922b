"""A rule that fails: whatever made it fail, nothing becomes less than what it says or what stands behind it."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.approval.condition import WALKED
from refold.core.approval.policy import UNRULED, Judgement, Policy, implies
from refold.core.approval.policy_check import judge_partially
from refold.core.events import Requirement
from tests.core.histories import examples
from tests.core.policies import CALL, TEAM, call, policy, rule

LEAD, CFOS = {"approvers": ["role:lead"]}, {"approvers": ["role:cfo"], "quorum": 2}
ANYBODY = {"approvers": ["*"], "not_requester": False}
PAID = {"items": [{"to": "XX1", "amount": 10**6}], "note": ""}
PADDED = {**PAID, "note": "x" * (WALKED + 1)}
TO_XX, MUCH = "args.items.exists(i, i.to.startsWith('XX'))", "args.items.exists(i, i.amount > 1000)"
HOME = "args.items.all(i, i.to.startsWith('DE'))"


def said(found: Policy, args: dict[str, Any]) -> tuple[str, list[str], int]:
    """What a policy says of a call, who has to agree, and how many."""
    judged = found.judge(call(args=args))
    needed = judged.requirement or Requirement([], 0)
    return judged.outcome, needed.approvers, needed.quorum


DENIED, TWO_CFOS, ONE_LEAD = ("deny", [], 0), ("require", ["role:cfo"], 2), ("require", ["role:lead"], 1)  # type: ignore[var-annotated]


@pytest.mark.parametrize(
    ("rules", "as_it_is", "padded"),
    [
        ([rule(TO_XX, deny="not there")], DENIED, DENIED),
        ([rule(TO_XX, deny="not there"), rule("true")], DENIED, DENIED),
        ([rule(MUCH, require=CFOS)], TWO_CFOS, TWO_CFOS),
        ([rule(MUCH, require=CFOS), rule("true")], TWO_CFOS, TWO_CFOS),
        ([rule(MUCH, require=CFOS), rule("true", require=ANYBODY)], TWO_CFOS, TWO_CFOS),
        ([rule(MUCH, require=CFOS), rule(HOME)], TWO_CFOS, TWO_CFOS),
        ([rule(HOME), rule("true", require=CFOS)], TWO_CFOS, TWO_CFOS),
        ([rule(HOME), rule(TO_XX, deny="not there")], DENIED, DENIED),
        ([rule(HOME, require=ANYBODY), rule("true", require=CFOS)], TWO_CFOS, TWO_CFOS),
        ([rule(HOME, require=LEAD), rule("true", deny="not there")], DENIED, DENIED),
        ([rule(HOME, require=LEAD), rule("true", require=CFOS)], TWO_CFOS, DENIED),
        ([rule(HOME), rule("args.items == []")], ("require", ["*"], 1), ("require", ["*"], 1)),
    ],
)
def test_padding_makes_nothing_weaker(rules: list[dict[str, Any]], as_it_is: Any, padded: Any) -> None:
    found = policy(*rules, fallback=ANYBODY)

    assert said(found, PAID) == as_it_is
    assert said(found, PADDED) == padded


def test_what_a_failing_rule_allows_is_for_the_fallback_and_denied_without_one() -> None:
    rules = [rule(HOME), rule("true")]

    assert said(policy(*rules, fallback=TEAM), PADDED) == ("require", ["role:oncall"], 1)
    assert said(policy(*rules), PADDED) == DENIED


def test_an_agent_that_is_denied_for_a_failure_hears_of_both() -> None:
    judged = policy(rule(TO_XX, "there", deny="not there")).judge(call(args=PADDED))

    assert judged.message.startswith("not there (the rule 'there' failed: args may have 8192 characters")


OUTCOMES: list[dict[str, Any]] = [
    {"allow": True},
    {"deny": "no"},
    *({"require": {"approvers": who, "quorum": many}} for who in (["*"], ["role:a"], ["role:b"]) for many in (1, 2)),
]
drawn = st.lists(st.tuples(st.sampled_from(["true", "false", "args.gone"]), st.sampled_from(OUTCOMES)), max_size=5)


def at_least(one: Judgement, other: Judgement) -> bool:
    if one.outcome == "deny" or other.outcome == "allow":
        return True
    if one.requirement is None or other.requirement is None:
        return False
    return other.rule == UNRULED or implies(one.requirement, other.requirement)


@examples
@given(drawn)
def test_what_fails_is_at_least_as_strict_as_if_it_held_or_did_not(rules: list[tuple[str, dict[str, Any]]]) -> None:
    def judged(*whens: str) -> Judgement:
        texts = [rule(when, str(n), **says) for n, (when, (_, says)) in enumerate(zip(whens, rules, strict=True))]
        return policy(*texts, fallback=TEAM).judge(CALL)

    found = judged(*(when for when, _ in rules))

    for whens in product(*(["true", "false"] if when == "args.gone" else [when] for when, _ in rules)):
        assert at_least(found, judged(*whens)), whens


@examples
@given(drawn, st.booleans())
def test_what_a_policy_says_is_among_what_it_may_say(rules: list[tuple[str, dict[str, Any]]], known: bool) -> None:
    """`agent` is what only the planner knows: what it says of a call with it is possible without it."""
    texts = [
        rule(f"{when} && agent == 'fixer'" if n % 2 else when, str(n), **says) for n, (when, says) in enumerate(rules)
    ]
    found = policy(*texts, fallback=TEAM)
    facts = {name: value for name, value in CALL.items() if known or name != "agent"}

    judged, may = found.judge(CALL), judge_partially(found, facts)

    assert judged.outcome != "allow" or may.allows
    assert judged.requirement is None or judged.requirement in may.requirements
    assert not may.denial or judged.outcome == "deny"
    if known and judged.outcome == "deny":
        assert may.denial
