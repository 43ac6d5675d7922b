"""What a policy may hold, and how files become one."""

from __future__ import annotations

from typing import Any

import pytest

from refold.core.approval.policy import Policy, merge
from refold.core.errors import UsageError
from refold.core.wire import canonical
from tests.core.policies import ASKS, CALL, TEAM, policy, refused, rule

NEVER_WHOLE: list[tuple[Any, str, str]] = [
    ([], "", "a policy is an object"),
    ({}, "rules", "no list of rules"),
    ({"rules": [], "rule": []}, "rule", "no such field"),
    ({"rules": [], "recheck": 1}, "recheck", "not true or false"),
    ({"rules": [], "fallback": {"aprovers": []}}, "aprovers", "no such field"),
    ({"rules": [], "fallback": None}, "", "not an object"),
    ({"rules": [rule("true")] * 2}, "name", "2 rules have it"),
    ({"rules": [rule("true", str(n)) for n in range(1_001)]}, "rules", "more than 1000"),
    ({"rules": [{**rule("true"), True: 1}]}, "True", "no such field"),
    ({"rules": ["true"]}, "", "not an object"),
    ({"rules": [{"name": "x", "allow": True}]}, "when", "not a text"),
    ({"rules": [{"name": "x", "when": True, "allow": True}]}, "when", "not a text"),
    ({"rules": [{"when": "true", "allow": True}]}, "name", "not a name"),
    ({"rules": [rule("true", "fallback")]}, "name", "not a name"),
    ({"rules": [{"name": "x", "when": "true"}]}, "", "one outcome"),
    ({"rules": [rule("true", allow=True, deny="no")]}, "allow/deny", "one outcome"),
    ({"rules": [rule("true", allow=False)]}, "allow", "not true"),
    ({"rules": [rule("true", allow=1)]}, "allow", "not true"),
    ({"rules": [rule("true", deny="")]}, "deny", "not a text"),
    ({"rules": [rule("true", deny=True)]}, "deny", "not a text"),
    ({"rules": [rule("", "x")]}, "when", "Syntax error"),
    ({"rules": [rule("1 +", "x")]}, "when", "Syntax error"),
    ({"rules": [rule("nobody == 1", "x")]}, "when", "undeclared reference to 'nobody'"),
    ({"rules": [rule("tool.nme == 'a'", "x")]}, "when", "undeclared reference"),
    ({"rules": [rule("1", "x")]}, "when", "it gives int"),
    ({"rules": [rule("agent", "x")]}, "when", "it gives string"),
    ({"rules": [rule("run.cost > 1", "x")]}, "when", "no matching overload"),
    ({"rules": [rule("true" + " " * 4_000, "x")]}, "when", "longer than 4000"),
    ({"rules": [rule("\ud800", "x")]}, "when", ""),
]


@pytest.mark.parametrize(("content", "field", "reason"), NEVER_WHOLE)
def test_what_is_no_policy_is_refused_with_its_field(content: Any, field: str, reason: str) -> None:
    error = refused(content)

    assert reason in error.message
    assert error.fields["field"] == field


@pytest.mark.parametrize(
    ("requirement", "field"),
    [
        ({}, "approvers"),
        ([], ""),
        ({"approvers": []}, "approvers"),
        ({"approvers": "ada"}, "approvers"),
        ({"approvers": [""]}, "approvers"),
        ({"approvers": ["role:"]}, "approvers"),
        ({"approvers": [" ada"]}, "approvers"),
        ({"approvers": [{"role": "lead"}]}, "approvers"),
        ({"approvers": ["ada", "ada"]}, "approvers"),
        ({"approvers": ["ada"], "quorum": 2}, "quorum"),
        ({"approvers": ["ada"], "quorum": 3, "escalate": {"after": "1h", "to": ["bob"]}}, "quorum"),
        ({**ASKS, "quorum": 0}, "quorum"),
        ({**ASKS, "quorum": True}, "quorum"),
        ({**ASKS, "quorum": "2"}, "quorum"),
        ({**ASKS, "not_requester": "no"}, "not_requester"),
        ({**ASKS, "expires": "1w"}, "expires"),
        ({**ASKS, "expires": "-1s"}, "expires"),
        ({**ASKS, "expires": "1.5h"}, "expires"),
        ({**ASKS, "expires": -1}, "expires"),
        ({**ASKS, "expires": 1.5}, "expires"),
        ({**ASKS, "expires": True}, "expires"),
        ({**ASKS, "expires": "99999999999999d"}, "expires"),
        ({**ASKS, "expires": "\u0661h"}, "expires"),
        ({**ASKS, "valid": 0}, "valid"),
        ({**ASKS, "on_expiry": "allow", "expires": "1h"}, "on_expiry"),
        ({**ASKS, "on_expiry": ["fail"], "expires": "1h"}, "on_expiry"),
        ({**ASKS, "on_expiry": "fail"}, "on_expiry"),
        ({**ASKS, "on_expiry": "escalate", "expires": "1h"}, "on_expiry"),
        ({**ASKS, "escalate": {"to": ["ada"]}}, "escalate.after"),
        ({**ASKS, "escalate": {"after": "1h", "to": ["ada"]}, "expires": "1h"}, "escalate.after"),
        ({**ASKS, "escalate": {"after": "1h"}}, "escalate"),
        ({**ASKS, "escalate": {"after": "1h", "to": []}}, "escalate.to"),
        ({**ASKS, "escalate": {"after": "1h", "to": ["ada"], "by": 1}}, "escalate.by"),
        ({**ASKS, "message": ""}, "message"),
        ({**ASKS, "remember": True}, "remember"),
        ({**ASKS, "remember": {"for": "1h"}}, "remember"),
        ({**ASKS, "remember": {"for": 0, "uses": 1}}, "remember.for"),
        ({**ASKS, "remember": {"for": "1h", "uses": 0}}, "remember.uses"),
        ({**ASKS, "remember": {"for": "1h", "uses": 1_001}}, "remember.uses"),
        ({**ASKS, "remember": {"for": "1h", "uses": 1, "scopes": ["session"]}}, "remember.scopes"),
        ({**ASKS, "message": "x" * 2_001}, "message"),
        ({**ASKS, "quorom": 1}, "quorom"),
    ],
)
def test_a_requirement_that_nobody_can_meet_or_read_is_refused(requirement: Any, field: str) -> None:
    for content in ({"rules": [rule("true", "x", require=requirement)]}, {"rules": [], "fallback": requirement}):
        if content["rules"] == [] and requirement == {**ASKS, "on_expiry": "fail"}:
            continue  # a fallback expires already
        error = refused(content)
        assert error.fields["field"] == field
        assert error.fields["rule"] == ("x" if content["rules"] else "fallback")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("5ms", 5), ("90s", 90_000), ("15m", 900_000), ("2h", 7_200_000), ("7d", 604_800_000), (7, 7)],
)
def test_a_duration_has_a_unit_or_is_in_milliseconds(text: Any, milliseconds: int) -> None:
    judged = policy(rule("true", require={**ASKS, "expires": text})).judge(CALL)

    assert judged.requirement is not None
    assert judged.requirement.expires_ms == milliseconds


def test_the_digest_is_that_of_the_content_however_it_was_written() -> None:
    one = Policy.parse(canonical.parse('{"rules": [{"when": "true", "name": "a", "allow": true}], "recheck": true}'))
    same = Policy.parse(canonical.parse('{"recheck":true,"rules":[{"allow":true,"name":"a","when":"true"}]}'))
    other = Policy.parse({**one.content, "recheck": False})

    assert (one.digest, len(one.digest), one.recheck) == (same.digest, 64, True)
    assert other.digest != one.digest
    assert Policy.parse(canonical.parse(canonical.dumps(one.content))).digest == one.digest
    assert one.judge(CALL).policy == one.digest


def test_files_are_merged_in_order_of_their_names() -> None:
    merged = merge({"b": {"rules": [rule("true", "2")], "recheck": True}, "a": {"rules": [rule("true", "1")]}})

    assert merged == {"recheck": True, "rules": [rule("true", "1"), rule("true", "2")]}
    assert merge({}) == {"rules": []}


@pytest.mark.parametrize(
    "bad", [None, {"rules": 1}, {"rules": [], "x": 1}, {"rules": [], "recheck": True}, {"rules": [], "fallback": ASKS}]
)
def test_files_that_cannot_be_one_policy_are_named(bad: Any) -> None:
    with pytest.raises(UsageError, match="b.yaml") as error:
        merge({"a.yaml": {"rules": [], "recheck": False, "fallback": TEAM}, "b.yaml": bad})

    assert error.value.fields["file"] == "b.yaml"
