"""What is wrong with policy files is said, each thing with its file and its rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.client.policies import dead_rules, load_files, nobody_has, problems_of
from refold.core.approval.catalog import Roles
from refold.core.approval.condition import Condition
from refold.core.approval.policy import Policy, Rule, merge
from refold.core.errors import UsageError
from tests.cli.terminal import refold
from tests.core.histories import examples

READS = "rules: [{name: reads, when: 'tool.effect == \"pure\"', allow: true}]"
REST = "rules: [{name: rest, when: 'true', require: {approvers: [role:lead], expires: 1d}}]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with a policy in two files."""
    (tmp_path / "20-rest.yml").write_text(REST)
    (tmp_path / "10-reads.yaml").write_text(READS)
    (tmp_path / "notes.txt").write_text("not a policy")
    return tmp_path


def rules(*whens: str) -> list[Rule]:
    """Rules with these conditions, named by their place."""
    return [Rule.parse({"name": str(number), "when": when, "allow": True}) for number, when in enumerate(whens)]


def dead(*whens: str) -> list[str]:
    """The places of the rules that decide no call, whatever it is."""
    return [rule.name for rule, _ in dead_rules(rules(*whens))]


@pytest.mark.parametrize("command", ["check", "publish", "show"])
def test_every_command_helps(command: str) -> None:
    result = refold("policy", command, "--help")

    assert result.exit_code == 0
    assert "--json" in result.output


@pytest.mark.parametrize("words", [("show",), ("publish", "."), ("check", ".", "--recorded"), ("show", "r/3")])
def test_where_nobody_listens_a_command_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(folder)

    result = refold("policy", *words, "--kafka", "127.0.0.1:9")

    assert (result.exit_code, result.stdout) == (5, "")
    assert "nobody listens at 127.0.0.1:9" in result.stderr


def test_a_folder_is_one_policy_in_order_of_its_files(folder: Path) -> None:
    result = refold("policy", "check", str(folder), "--json")

    found = json.loads(result.stdout)
    assert (result.exit_code, found["ok"], found["rules"], found["problems"]) == (0, True, 2, [])
    assert [Path(name).name for name in found["files"]] == ["10-reads.yaml", "20-rest.yml"]
    assert found["digest"] == Policy.parse(merge(load_files([str(folder)]))).digest
    assert found["digest"] in refold("policy", "check", str(folder)).stdout


def test_json_is_a_policy_file_too(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"rules": [{"name": "a", "when": "true", "allow": true}]}')
    (tmp_path / "a.yaml").write_text("rules:\n  - {name: a, when: 'true', allow: true}\n")

    one, other = (load_files([str(tmp_path / name)]) for name in ("a.json", "a.yaml"))

    assert Policy.parse(merge(one)).digest == Policy.parse(merge(other)).digest


@pytest.mark.parametrize(
    ("text", "rule", "reason"),
    [
        ("", "", "a policy is an object"),
        ("rules: [{name: a, when: 'tol.name == 1', allow: true}]", "a", "undeclared reference to 'tol.name'"),
        ("rules: [{name: a, when: 'true', alow: true}]", "a", "alow: there is no such field"),
        ("rules: [{when: 'true', allow: true}]", "1", "name: it is not a name"),
        ("rules: [{name: reads, when: 'agent == \"a\"', allow: true}]", "reads", "10-reads.yaml has the same name"),
        ("rules: []\nrechek: true", "", "rechek: there is no such field"),
        ("rules: []\nfallback: {approvers: [ada], quorum: 0}", "fallback", "quorum: it is not a number"),
        ("rules: [{name: a, when: 'true', deny: 2020-01-01}]", "a", "deny: it is not a text"),
        ("rules: [{name: a, when: 'agent == \"a\"', require: {approvers: [ada], quorum: 2}}]", "a", "2 of 1 people"),
    ],
)
def test_every_problem_has_its_file_its_rule_and_a_reason(folder: Path, text: str, rule: str, reason: str) -> None:
    (folder / "15-bad.yaml").write_text(text)

    result = refold("policy", "check", str(folder), "--json")

    (problem,) = json.loads(result.stdout)["problems"]
    assert result.exit_code == 1
    assert (Path(problem["file"]).name, problem["rule"]) == ("15-bad.yaml", rule)
    assert reason in problem["reason"]
    assert reason in refold("policy", "check", str(folder)).stdout


@pytest.mark.parametrize(
    ("needed", "reason"),
    [
        ("{approvers: [Role:lead], expires: 1d}", "'Role:lead' is taken for a person; a role is written role:lead"),
        ("{approvers: [role:lead], expires: 0s}", "expires: it never expires"),
        ("{approvers: [role:lead], expires: 5}", "expires: people have 5 ms"),
        (
            "{approvers: [ada], expires: 8h, on_expiry: escalate, escalate: {after: 2h, to: [bob]}}",
            "on_expiry: more people are asked once",
        ),
    ],
)
def test_a_slip_of_the_pen_is_told_and_is_a_policy_all_the_same(tmp_path: Path, needed: str, reason: str) -> None:
    (tmp_path / "a.yaml").write_text(
        f"rules: [{{name: a, when: 'agent == \"a\"', require: {needed}}}]\nfallback: {needed}"
    )

    found = problems_of(load_files([str(tmp_path)]))

    assert [(problem.rule, problem.fatal) for problem in found] == [("fallback", False), ("a", False)]
    assert all(reason in problem.reason for problem in found)


def test_a_rule_that_may_wait_for_ever_is_told(tmp_path: Path) -> None:
    needed = "{approvers: [role:lead]}"  # of a fallback that is 24 hours
    (tmp_path / "a.yaml").write_text(
        f"rules: [{{name: a, when: tool.name == 'x', require: {needed}}}]\nfallback: {needed}"
    )

    (problem,) = problems_of(load_files([str(tmp_path)]))

    assert (problem.rule, problem.fatal) == ("a", False)
    assert "it may for ever" in problem.reason


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("rules: [{name: a, when: '1', allow: true}, {name: b, when: 'true', allow: 1}]")
    (tmp_path / "b.yaml").write_text("rules: 7")

    found = problems_of(load_files([str(tmp_path)]))

    assert [(Path(problem.file).name, problem.rule) for problem in found] == [
        ("a.yaml", "a"),
        ("a.yaml", "b"),
        ("b.yaml", ""),
    ]


def test_files_that_contradict_each_other_are_a_problem(folder: Path) -> None:
    (folder / "a.yaml").write_text("{rules: [], recheck: true}")
    (folder / "b.yaml").write_text("{rules: [], recheck: false}")

    (problem,) = problems_of(load_files([str(folder)]))

    assert (Path(problem.file).name, problem.reason) == (
        "b.yaml",
        "recheck: another file says otherwise (say it in one)",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rules: [", "is not YAML"),
        ("rules: []\nrules: []", "the key 'rules' is there twice"),
        ("rules: [{name: a, when: 'true', allow: true, when: 'false'}]", "the key 'when' is there twice"),
        ("rules: [!!python/object/apply:os.getcwd []]", "is not YAML"),
        ("rules: [{name: 2020-99-99, when: 'true'}]", "is not YAML"),
        ("? [a]\n: 1", "is not YAML"),
        ("[" * 1_500, "is not YAML"),
    ],
)
def test_what_people_and_parsers_would_read_differently_is_no_policy_file(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.yaml").write_text(text)

    result = refold("policy", "check", str(tmp_path / "a.yaml"))

    assert (result.exit_code, result.stderr) == (1, "")
    assert said in result.stdout
    assert not json.loads(refold("policy", "check", str(tmp_path), "--json").stdout)["ok"]
    assert refold("policy", "publish", str(tmp_path), "--kafka", "127.0.0.1:9").exit_code == 2


def test_bytes_that_are_no_text_are_no_policy_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\xfa")

    assert "it is not UTF-8" in refold("policy", "check", str(tmp_path / "a.yaml")).stderr


def test_no_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"there is no policy file in {tmp_path}"):
        load_files([str(tmp_path)])
    assert refold("policy", "check", str(tmp_path / "nowhere.yaml")).exit_code == 2
    assert refold("policy", "publish").exit_code == 2


@pytest.mark.parametrize(
    ("whens", "expected"),
    [
        (["true", "agent == 'a'"], ["1"]),
        (["agent == 'a' || true", "agent == 'b'"], ["1"]),
        (["1 == 1", "agent == 'b'"], ["1"]),
        (["1 / 0 == 1", "agent == 'b'"], ["0", "1"]),
        (["false", "agent == 'b'"], ["0"]),
        (["true || agent == 'a'", "false"], ["1"]),
        (["agent == 'a'", "agent == 'b'"], []),
        (["agent == 'a'", "agent == 'a' && run.depth > 1"], []),
    ],
)
def test_a_rule_is_dead_only_where_that_is_certain(whens: list[str], expected: list[str]) -> None:
    assert dead(*whens) == expected


ATOMS = ("args.a == 1", "args.b == 1", "args.c", "run.depth > 0", "true", "false", "args.a == 'x'")
conditions = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: (
        st.tuples(inner, st.sampled_from([" && ", " || "]), inner).map(lambda parts: f"({''.join(parts)})")
        | st.tuples(inner, st.sampled_from(["&&", "||"]), inner).map("".join)
        | inner.map(lambda one: f"!({one})")
        | st.tuples(inner, inner).map(lambda two: f"({two[0]}) ? ({two[1]}) : true")
    ),
    max_leaves=5,
)
things: st.SearchStrategy[Any] = st.sampled_from([0, 1, True, False, "x", None])


@examples
@given(
    st.lists(conditions, min_size=2, max_size=5),
    st.lists(st.dictionaries(st.sampled_from("abc"), things), min_size=5, max_size=5),
    st.integers(0, 1),
)
def test_what_is_called_dead_never_decides(whens: list[str], calls: list[dict[str, Any]], depth: int) -> None:
    try:
        parsed = rules(*whens)
    except UsageError:
        return  # a choice between two numbers, say
    policy = Policy.parse({"rules": [{"name": str(n), "when": when, "allow": True} for n, when in enumerate(whens)]})
    allowed = {rule.name for rule, reason in dead_rules(parsed) if not reason.startswith("it fails")}

    decided = {policy.judge({"args": args, "run.depth": depth}).rule for args in calls}

    assert not decided & allowed


CUT, MIXED = "2999 / 1000 is 2", "has no value where a whole number"


@pytest.mark.parametrize(
    ("when", "told"),
    [
        ("args.amount / 1000 <= 2", MIXED),
        ("args.amount * 1.1 < 100.0", MIXED),
        ("args.amount - 1 > 5", MIXED),
        ("args.lines.exists(line, line.price / 100 > 3)", MIXED),
        ("{'total': args.price * 2} == args.wanted", MIXED),
        ("tool.name == 'pay' && (args.a == 1 || [args.b % 7] == [1])", MIXED),
        ("run.calls / 10 > 3", CUT),
        ("int(args.amount) / 1000 <= 2", CUT),
        ("double(args.amount) / 1000.0 <= 2.0", ""),
        ("double(args.a) + double(args.b) < 10.0", ""),
        ("args.amount < 100 && args.amount >= 0", ""),
        ("args.path + '/x' == 'a/x'", ""),
        ("size(args.a) + size(args.b) < 10", ""),
        ("args.text == 'args.amount / 1000'", ""),
    ],
)
def test_arithmetic_that_nobody_means_is_told(when: str, told: str) -> None:
    text = {"rules": [{"name": "small", "when": when, "allow": True}]}

    found = [problem.reason for problem in problems_of({"p.yaml": text}) if "macro" not in problem.reason]

    assert [told in reason for reason in found] == [True] * bool(told)
    assert not any(problem.fatal for problem in problems_of({"p.yaml": text}))


def test_what_is_told_of_arithmetic_is_so() -> None:
    cut, mixed = Condition("args.amount / 1000 <= 2"), Condition("args.amount * 1.1 < 100.0")
    meant = Condition("double(args.amount) / 1000.0 <= 2.0")

    assert [cut.value({"args": {"amount": amount}}) for amount in (2_000, 2_999, 3_000)] == [True, True, False]
    assert [meant.value({"args": {"amount": amount}}) for amount in (2_000, 2_999, 50.5)] == [True, False, True]
    assert mixed.value({"args": {"amount": 50.5}}) is True
    assert "matching overload" in str(mixed.value({"args": {"amount": 50}}))


def test_a_macro_over_what_somebody_chooses_is_told_unless_a_rule_before_it_judges_what_is_long() -> None:
    macro = {"name": "hosts", "when": "args.to.exists(each, each == 'mallory')", "deny": "not there"}
    size = {"name": "long", "when": "has(args.to) && size(args.to) > 50", "deny": "too many"}
    other = {"name": "chain", "when": "tool.tags.exists(tag, tag == 'pay')", "allow": True}

    (found,) = problems_of({"p.yaml": {"rules": [macro]}})

    assert (found.rule, found.fatal) == ("hosts", False)
    assert "more than 8192 characters" in found.reason
    assert problems_of({"p.yaml": {"rules": [size, macro]}}) == []
    assert len(problems_of({"p.yaml": {"rules": [macro, size]}})) == 1
    assert problems_of({"p.yaml": {"rules": [other]}}) == []


@pytest.mark.parametrize(
    ("needed", "told", "fatal"),
    [
        ({"approvers": ["role:lead"]}, "", False),
        ({"approvers": ["*"]}, "'*' lets anybody who can sign a vote send a call again", False),
        ({"approvers": ["ada"], "escalate": {"after": "1h", "to": ["*"]}}, "'*' lets anybody", False),
        ({"approvers": ["Role:lead"]}, "a role is written role:lead", False),
        ({"approvers": ["ada"], "expires": "8h"}, "expires: there is no such field", True),
        ({"approvers": ["ada"], "escalate": {"to": ["bob"]}}, "escalate.after: it is missing", True),
        ({"approvers": ["ada"], "quorum": 2}, "2 of 1 people cannot agree", True),
        ({}, "approvers: it is missing", True),
        ("ada", "it is not an object", True),
    ],
)
def test_what_is_wrong_with_who_settles_doubts_is_told(needed: Any, told: str, fatal: bool) -> None:
    reads = {"name": "reads", "when": "tool.effect == 'pure'", "allow": True}

    found = problems_of({"p.yaml": {"doubt": needed, "rules": [reads]}})

    assert [(each.rule, each.fatal) for each in found][:1] == [("doubt", fatal)] * bool(told)
    assert told in "".join(each.reason for each in found)
    assert not told or "doubt: " not in found[0].reason


def test_a_policy_that_names_nobody_for_doubts_is_told_of_the_tools_that_are_not_sent_again(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(READS)
    app = str(Path(__file__).with_name("app.py"))

    alone, with_app = (refold("policy", "check", str(tmp_path), *more) for more in ((), ("--app", app)))
    (tmp_path / "p.yaml").write_text(f"doubt: {{approvers: [role:lead]}}\n{READS}")
    named = refold("policy", "check", str(tmp_path), "--app", app)

    assert (alone.exit_code, with_app.exit_code, named.exit_code) == (0, 1, 0)
    said = " ".join(with_app.output.split())
    assert "doubt: it names nobody, so a call in doubt of fire waits for an operator, and is not tried again" in said


def test_a_role_that_nobody_has_is_told_of_doubts_too() -> None:
    policy = Policy.parse({"doubt": {"approvers": ["role:cfo"]}, "rules": []})

    assert nobody_has(policy, Roles({"lead": frozenset({"ada"})})) == ["role:cfo"]
