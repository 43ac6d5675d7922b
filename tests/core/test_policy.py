"""Policies: the first rule that holds decides, and nothing is allowed by accident."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.approval.condition import LINKED, VARIABLES, Condition
from refold.core.approval.policy import Policy
from refold.core.errors import UsageError
from refold.core.events import Requirement
from refold.core.wire import canonical
from tests.core.histories import examples
from tests.core.policies import ASKS, CALL, TEAM, call, policy, refused, rule

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(st.sampled_from(["path", "n", "x"]) | st.text(max_size=3), values, max_size=4)


def test_the_first_rule_that_holds_decides() -> None:
    found = policy(rule("false", "no"), rule("agent == 'fixer'", "first"), rule("true", "second", deny="stop"))

    assert (found.judge(CALL).outcome, found.judge(CALL).rule) == ("allow", "first")
    assert (found.judge(call(agent="x")).outcome, found.judge(call(agent="x")).message) == ("deny", "stop")


def test_the_same_tool_is_allowed_for_one_argument_and_needs_two_people_for_another() -> None:
    two = {"approvers": ["role:lead", "ada"], "quorum": 2, "message": "Look at the diff."}
    found = policy(
        rule('args.path.startsWith("sandbox/")', "inside"), rule("args.path.startsWith('/')", "outside", require=two)
    )

    outside = found.judge(call(args={"path": "/etc"}))

    assert found.judge(CALL).outcome == "allow"
    assert (outside.outcome, outside.requirement) == (
        "require",
        Requirement(["role:lead", "ada"], quorum=2, message="Look at the diff."),
    )


def test_every_field_of_a_requirement_is_read() -> None:
    text = {
        "approvers": ["role:lead", "ada"],
        "quorum": 2,
        "not_requester": False,
        "expires": "1h",
        "on_expiry": "escalate",
        "escalate": {"after": "90s", "to": ["role:head"]},
        "valid": 1_500,
        "message": "Look.",
        "remember": {"for": "1h", "uses": 3},
    }

    judged = policy(rule("true", require=text)).judge(CALL)

    assert judged.requirement == Requirement(
        ["role:lead", "ada"], 2, False, 3_600_000, "escalate", 90_000, ["role:head"], 1_500, "Look.", 3_600_000, 3
    )


def test_a_call_that_no_rule_is_about_is_denied_where_no_fallback_says_who_decides() -> None:
    judged = policy(rule("false")).judge(CALL)

    assert (judged.outcome, judged.rule, judged.requirement) == ("deny", "fallback", None)
    assert judged.message == "no rule is about it, and the policy has no fallback that says who decides"


def test_a_policy_has_a_fallback_of_its_own() -> None:
    judged, brief = policy(fallback=TEAM).judge(CALL), policy(fallback=ASKS).judge(CALL)

    assert judged.requirement == Requirement(["role:oncall"], expires_ms=7_200_000)
    assert brief.requirement == Requirement(["role:lead"], expires_ms=86_400_000)


@pytest.mark.parametrize(
    ("when", "args", "reason"),
    [
        ("args.missing == 1", {}, 'Key not found in map : "missing"'),
        ("args.path.startsWith('a')", {"path": 1}, "No matching overloads"),
        ("args.path.startsWith('a')", {"path": None}, "No matching overloads"),
        ("args.path", {"path": "yes"}, "it gives string"),
        ("args.path", {"path": 1}, "it gives int"),
        ("args.path", {"path": None}, "it gives null"),
        ("args.n > 0", {"n": 2**70}, "out of range"),
        ("args.n + 9223372036854775807 > 0", {"n": 1}, "overflow"),
        ("1 / args.n == 1", {"n": 0}, "zero"),
        ("args.s == ''", {"s": "\ud800"}, ""),
        ("args.path.matches(args.n)", {"path": "a", "n": "("}, ""),
        ("args.n.all(x, x >= 0)", {"n": list(range(100_000))}, "args may have 8192 characters for a macro"),
        ("args.n.all(x, args.s.contains(x))", {"n": ["a"], "s": "a" * 9_000}, "args may have 8192 characters"),
        ("args.n.all(x, args.n.all(y, args.n.all(z, z >= 0)))", {"n": list(range(90))}, "Iteration budget exceeded"),
        ("args.path == 'a'", {1: 1}, ""),
        ("args.path == 'a'", None, ""),
        ("args.path == 'a'", [], ""),
    ],
)
def test_a_rule_that_may_allow_and_fails_asks_people_and_says_why(when: str, args: Any, reason: str) -> None:
    found = policy(rule("false", "before"), rule(when, "broken"), rule("true", "after"), fallback=TEAM)

    judged = found.judge(call(args=args))

    assert (judged.outcome, judged.rule, judged.requirement) == ("require", "broken", found.fallback)
    assert judged.message
    assert reason in judged.message


def test_a_rule_that_holds_before_one_that_fails_decides() -> None:
    found = policy(rule("true", "first"), rule("args.missing == 1", "broken"))

    assert (found.judge(CALL).outcome, found.judge(CALL).rule) == ("allow", "first")


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_that_is_not_known_asks_people(name: str) -> None:
    kind = VARIABLES[name].partition(":")[0]
    test = {"string": "!= ''", "int": ">= 0", "double": ">= 0.0", "dyn": "!= 1"}.get(kind, "!= {'a': 'b'}")
    found = policy(rule(f"{name} {'!= []' if kind.startswith('list') else test}", "about it"), fallback=TEAM)

    assert found.needs == {name}
    assert found.judge(CALL).outcome == "allow"
    assert found.judge({key: value for key, value in CALL.items() if key != name}).outcome == "require"
    assert found.judge({**CALL, name: object()}).outcome == "require"


def test_an_input_of_none_is_a_value() -> None:
    found = policy(rule("run.input == null"))

    assert found.judge({**CALL, "run.input": None}).outcome == "allow"


def test_only_what_the_rules_name_is_looked_at() -> None:
    found = policy(rule("tool . name == 'args' && agent != \"tool.effect\" // run.cost"))

    assert found.needs == {"tool.name", "agent"}
    assert found.judge({"tool.name": "args", "agent": "a"}).outcome == "allow"


@pytest.mark.parametrize("name", VARIABLES)
def test_no_text_in_a_condition_looks_like_a_reference(name: str) -> None:
    as_field = "".join(f"\\x{byte:02x}" for byte in bytes((10, len(name))) + name.encode())
    as_entry = "".join(f"\\x{byte:02x}" for byte in bytes((18, len(name) + 2, 10, len(name))) + name.encode())
    texts = (name, as_field, as_entry, f"\\x12{as_entry}" * 3)

    for text in texts:
        assert Condition(f"'{text}' != environment + '{text}'").needs == {"environment"}


@examples
@given(st.text(max_size=30), st.sampled_from(sorted(VARIABLES)), st.integers(0, 200))
def test_no_text_in_a_condition_hides_a_reference(text: str, name: str, repeated: int) -> None:
    literal = canonical.dumps(text) if text.isprintable() else "'x'"
    condition = f"[{literal}, '{'y' * repeated}'] == [{literal}] || [dyn({name})].exists(agents, agents == {literal})"

    assert Condition(condition).needs == {name}


@pytest.mark.parametrize(
    ("when", "needs"),
    [
        ("true", set()),
        (".agent == 'a'", {"agent"}),
        ("run.input.agent == 'a'", {"run.input"}),
        ("has(run.input.x) && run.labels['actor'] == 'b'", {"run.input", "run.labels"}),
        ("{'agent': actor}.agent == args.run", {"actor", "args"}),
        ("args[environment] == 1 || agent in tool.tags", {"args", "environment", "agent", "tool.tags"}),
        ("tool.tags.exists(tag, tag == tool.name)", {"tool.tags", "tool.name"}),
        (" || ".join(f"{name} == dyn(1)" for name in VARIABLES), set(VARIABLES)),
    ],
)
def test_a_condition_needs_what_it_names(when: str, needs: set[str]) -> None:
    assert Condition(when).needs == needs


@pytest.mark.parametrize("when", ["true) ? 0 : (true", "true)//", "(true", "true : 1", '"', '"""', "true ? 1", "true,"])
def test_half_an_expression_is_refused(when: str) -> None:
    assert refused({"rules": [rule("true"), rule(when, "half")]}).fields["rule"] == "half"


@pytest.mark.parametrize("when", ["true // ) ? 0 :", "true\n//", "true || '\\'' == '(' // '", "{'a)': true}['a)']"])
def test_no_rule_reaches_out_of_itself(when: str) -> None:
    found = policy(rule("agent == 'nobody'", "before"), rule(when, "tricky", deny="no"), rule("true", "after"))

    assert found.judge(CALL).rule == "tricky"
    assert found.judge(call(agent="nobody")).rule == "before"


def test_five_hundred_rules_are_judged_as_one_by_one() -> None:
    found = policy(*(rule(f"run.calls == {n}", str(n)) for n in range(500)))

    judged = [found.judge({"run.calls": n}).rule for n in range(501)]

    assert judged == [*map(str, range(500)), "fallback"]


@pytest.mark.parametrize("depth", [1, 15, 16, 17, 20, 25, 28, 29, 30])
def test_a_rule_may_be_nested_as_deep_as_the_parser_takes_wherever_it_stands(depth: int) -> None:
    deep = "(" * depth + "agent == 'fixer'" + ")" * depth
    rules = [rule(f"run.calls == {n}", str(n)) for n in range(LINKED)]

    found = policy(*rules[:5], rule(deep, "deep"), *rules[5:])

    assert found.judge(call(run_calls=99)).rule == "deep"
    assert found.judge(call(run_calls=15)).rule == "deep"
    assert found.judge(call(run_calls=15, agent="x")).rule == "15"
    assert found.judge({"run.calls": 99}).rule == "deep"


def test_a_rule_that_is_nested_deeper_is_refused() -> None:
    assert "recursion" in refused({"rules": [rule("(" * 1_000 + "true" + ")" * 1_000, "deep")]}).message


def test_arguments_may_be_as_deep_as_json_is_read() -> None:
    deep = canonical.parse("[" * 63 + "]" * 63)

    assert policy(rule("args.x == args.x")).judge(call(args={"x": deep})).outcome == "allow"


def test_rules_that_walk_too_far_only_together_are_asked_singly() -> None:
    far = "args.l.exists(x, args.l.exists(y, x + y == {}))"
    found = policy(*(rule(far.replace("{}", str(-n)), str(n)) for n in range(1, 6)), rule("true", "last", deny="x"))

    assert found.judge(call(args={"l": list(range(70))})).rule == "last"


def test_a_macro_walks_through_nothing_large_and_other_conditions_still_look_at_it() -> None:
    found = policy(
        rule("tool.name == 'copy' && args.files.exists(f, f.startsWith('/etc'))", "walks", deny="no"),
        rule("args.text.startsWith('hello')", "looks"),
    )
    large = {"files": ["a"], "text": "hello" * 2_000}

    assert found.judge(call(tool_name="write", args=large)).rule == "looks"
    assert found.judge(call(tool_name="copy", args=large)).outcome == "deny"
    assert found.judge(call(tool_name="copy", args={"files": ["/etc/x"]})).rule == "walks"


def test_threads_judge_alike() -> None:
    found = policy(*(rule(f"args.n == {n}", str(n)) for n in range(20)), rule("args.missing == 1", "broken"))
    calls = [call(args={"n": n % 21}) for n in range(2_000)]

    with ThreadPoolExecutor(8) as threads:
        judged = [each.rule for each in threads.map(found.judge, calls)]

    assert judged == [str(n % 21) if n % 21 < 20 else "broken" for n in range(2_000)]


def test_an_explanation_has_every_rule_with_its_value_and_what_it_looked_at() -> None:
    found = policy(rule("agent == 'x'", "no"), rule("args.gone == 1", "broken", deny="no"), rule("true", "late"))

    rows = found.explain(CALL)

    assert [(row.rule, row.fired) for row in rows] == [("no", False), ("broken", True), ("late", False)]
    assert (rows[0].value, rows[0].values) == (False, {"agent": "fixer"})
    assert isinstance(rows[1].value, str)
    assert (rows[2].when, rows[2].value, rows[2].values) == ("true", True, {})


CONDITIONS = ("true", "false", "args.n == 1", "args.x", "args.path.startsWith('a')", "size(args) > 1", "args.n > 2.5")


def expected(rules: list[dict[str, Any]], variables: Mapping[str, Any]) -> tuple[str, str, bool]:
    """Outcome and rule as each rule by itself says, and whether a rule does: the words of the contract."""
    for number, each in enumerate(rules):
        (alone,) = policy(each).explain(variables)
        outcome = next(outcome for outcome in ("allow", "deny", "require") if outcome in each)
        if alone.value is True:
            return outcome, each["name"], True
        if alone.value is not False:
            behind = expected(rules[number + 1 :], variables)
            stricter = outcome != "deny" and behind[2] and behind[0] == "deny"
            asked = outcome == "allow" and behind[2] and behind[0] == "require"
            # What fails to allow is left to the fallback, unless a rule behind it asks or denies.
            left = "deny" if outcome == "deny" else "require", each["name"], outcome != "allow"
            return behind if stricter or asked else left
    return "require", "fallback", False


ruled = st.lists(
    st.tuples(st.sampled_from(CONDITIONS), st.sampled_from([{"allow": True}, {"deny": "no"}, {"require": ASKS}])),
    max_size=6,
).map(lambda drawn: [rule(when, str(n), **outcome) for n, (when, outcome) in enumerate(drawn)])


@examples
@given(ruled, arguments)
def test_the_first_match_wins_and_a_failure_before_it_makes_it_no_weaker(
    rules: list[dict[str, Any]], args: dict[str, Any]
) -> None:
    judged = policy(*rules, fallback=TEAM).judge(call(args=args))

    assert (judged.outcome, judged.rule) == expected(rules, call(args=args))[:2]


@examples
@given(ruled, arguments)
def test_judging_changes_nothing_and_says_the_same_again(rules: list[dict[str, Any]], args: dict[str, Any]) -> None:
    found, variables = policy(*rules), call(args=args)
    before = copy.deepcopy(variables)

    first = found.judge(variables)

    assert first == found.judge(variables) == policy(*rules).judge(before)
    assert repr(variables) == repr(before)


@examples
@given(ruled, arguments)
def test_an_explanation_agrees_with_the_judgement(rules: list[dict[str, Any]], args: dict[str, Any]) -> None:
    found, variables = policy(*rules, fallback=TEAM), call(args=args)

    fired = [row for row in found.explain(variables) if row.fired]

    judged = found.judge(variables)
    assert [row.rule for row in fired] == ([] if judged.rule == "fallback" else [judged.rule])
    assert all(row.value is True or str(row.value) in judged.message for row in fired)


@examples
@given(values | arguments, st.sampled_from(["args.n == 1", "args.x", "args.path.startsWith('a')", "args.n > 2.5"]))
def test_whatever_the_arguments_are_a_failure_never_becomes_an_allowance(args: Any, when: str) -> None:
    found = policy(rule(when, "first", deny="no"), rule("true", "rest"))

    judged = found.judge(call(args=args))

    (alone, _) = found.explain(call(args=args))
    assert judged.outcome == ("deny" if alone.value else "allow")
    assert judged.message.encode() is not None


@examples
@given(values)
def test_whatever_a_file_holds_it_is_a_policy_or_refused(content: Any) -> None:
    for given_content in (content, {"rules": content}, {"rules": [content]}, {"rules": [], "fallback": content}):
        with suppress(UsageError):
            assert Policy.parse(given_content).judge(CALL).outcome in ("deny", "require")


WHENS = [
    'tool.name == "push"',
    'tool.name == "push" && args.n > 1',
    'args.n > 1 && tool.effect == "once"',
    'has(args.n) || agent == "other"',
    'run.labels.team == "a" ? tool.name == "push" : environment == "prod"',
    'environment == "prod" ? true : run.calls > 3',
    '["a", "b"].exists(t, t in tool.tags && args.n == 1)',
    "tool.tags.all(t, t == args.n)",
    '!(tool.name == "push") || run.depth > 0',
    "size(tool.tags) > run.calls",
    'agent == "other" || args.gone',
]


@examples
@given(
    st.lists(st.sampled_from(WHENS), min_size=1, max_size=6, unique=True),
    st.sampled_from(["push", "pull"]),
    st.sampled_from(["prod", "dev"]),
    st.sampled_from([{}, {"n": 1}, {"n": 2}, {"n": "a"}]),
    st.lists(st.sampled_from(["a", "b"]), max_size=2),
    st.integers(0, 4),
)
def test_what_is_known_of_a_kind_of_calls_never_changes_a_verdict(
    whens: list[str], tool: str, environment: str, args: dict[str, Any], tags: list[str], calls: int
) -> None:
    rules = [{"name": when, "when": when, "deny": "no"} for when in whens]
    fixed = {"tool.name": tool, "tool.effect": "once", "tool.tags": tags, "agent": "one", "environment": environment}
    labels = {"team": "a"} if calls % 2 else {}
    given = {**fixed, "args": args, "run.labels": labels, "run.calls": calls, "run.depth": 0}
    found = Policy.parse({"rules": rules})

    first, second = found.judge(given), found.judge(given)

    fired = next((each for each in found.explain(given) if each.fired), None)
    assert first == second
    assert (first.rule, first.outcome) == (fired.rule if fired else "fallback", "deny")
