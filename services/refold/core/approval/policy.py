"""Policies: rules that say of every proposed call whether it is allowed, denied, or needs people.

The first rule whose condition holds decides. Nothing is allowed by accident: a condition that fails (an argument that
is not there, a tool that nobody knows) and a call for which no rule holds need people, as the policy's fallback says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, NamedTuple

from refold.core.approval import requirement
from refold.core.approval.condition import NONE, VARIABLES, Condition, Linked
from refold.core.approval.requirement import known, within, wrong
from refold.core.errors import MalformedError, UsageError
from refold.core.events import Requirement
from refold.core.wire import canonical

__all__ = ["FALLBACK", "VARIABLES", "Explanation", "Judgement", "Policy", "Rule", "merge"]

RuleOutcome = Literal["allow", "deny", "require"]
OUTCOMES: tuple[RuleOutcome, ...] = ("allow", "deny", "require")
POLICY_FIELDS = ("recheck", "fallback", "rules")
MAX_RULES = 1_000
MAX_KINDS = 1_000
"""Kinds of calls whose rules are kept: tools by agents, of which an app has tens."""

FIXED = ("agent", "environment", "tool.effect", "tool.name", "tool.tags", "tool.version")
"""Variables that are the same for all calls of a tool by an agent. Most rules look at nothing else."""

UNRULED = "fallback"
"""The rule of a judgement that no rule has made."""

FALLBACK = Requirement(["*"], expires_ms=86_400_000, on_expiry="reject")
"""What a call needs that no rule judges, in a policy that does not say: anybody but the requester, within a day."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a policy says of a call.

    **Shape**: `rule` is `fallback` where no rule held. `message` is what the agent is told (of `deny`), or what went
    wrong in the rule. `policy` is a digest; there is a `requirement` if and only if the outcome is `require`.
    """

    outcome: RuleOutcome
    rule: str
    policy: str
    message: str = ""
    requirement: Requirement | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. `message` is that of `deny`, `requirement` that of `require`."""

    name: str
    when: Condition
    outcome: RuleOutcome
    message: str = ""
    requirement: Requirement | None = None

    @staticmethod
    def parse(content: Any, number: int = 1) -> Rule:
        """A rule, the `number`th of its file. **Raises** UsageError with the fields `rule` and `field`."""
        name = content.get("name") if isinstance(content, dict) else None
        called = f"rule {name!r}" if isinstance(name, str) and name else f"rule {number}"
        with within(called, rule=name if isinstance(name, str) else str(number)):
            return _rule(content)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What became of a rule for a call. `value`: true, false, or why it has none. `values` are what it looked at."""

    rule: str
    when: str
    value: bool | str
    fired: bool
    values: Mapping[str, Any]


class Residual(NamedTuple):
    """The rules that have to be asked for calls of a kind, by number, and what holds when none of them says yes."""

    rules: tuple[int, ...]
    linked: Linked
    else_: Judgement


class Policy:
    """A policy, compiled.

    `recheck`: calls that another policy has judged are judged again before they run. `needs` are the variables that
    its rules name.
    """

    def __init__(self, content: dict[str, Any], rules: tuple[Rule, ...], fallback: Requirement) -> None:
        self.content = content
        self.digest = policy_digest(content)
        self.recheck: bool = content.get("recheck", False)
        self.rules = rules
        self.fallback = fallback
        self.needs = frozenset[str]().union(*(rule.when.needs for rule in rules))
        self._residuals: dict[tuple[str, ...], Residual] = {}
        self._judgements = [
            Judgement(rule.outcome, rule.name, self.digest, rule.message, rule.requirement) for rule in rules
        ]
        self._unruled = Judgement("require", UNRULED, self.digest, "no rule is about it", fallback)

    @staticmethod
    def parse(content: Any) -> Policy:
        """The policy of a file's content. **Raises** UsageError with the fields `rule` and `field`."""
        check_shape(content)
        fallback = read_fallback(content["fallback"]) if "fallback" in content else FALLBACK
        rules = tuple(Rule.parse(rule, number) for number, rule in enumerate(content["rules"], 1))
        for name, count in Counter(rule.name for rule in rules).items():
            if count > 1:
                message = f"rule {name!r}: name: {count} rules have it"
                raise UsageError(message, hint="rename one", rule=name, field="name")
        return Policy(content, rules, fallback)

    def judge(self, variables: Mapping[str, Any]) -> Judgement:
        """What is to be done with a call. Never raises: what goes wrong in a rule is a reason to ask people."""
        kind = tuple([repr(variables[name]) if name in variables else "" for name in FIXED])
        part = self._residuals.get(kind)
        if part is None:
            if len(self._residuals) >= MAX_KINDS:
                self._residuals.clear()
            part = self._residuals[kind] = self._residual(variables)
        number, error = part.linked.first(variables)
        if number == NONE:
            return part.else_
        rule = part.rules[number]
        if error:
            return Judgement("require", self.rules[rule].name, self.digest, error, self.fallback)
        return self._judgements[rule]

    def _residual(self, variables: Mapping[str, Any]) -> Residual:
        # What has a value without the rest has it whatever the rest is: && and || pass over what is missing.
        fixed = {name: variables[name] for name in FIXED if name in variables}
        left, otherwise = list[int](), self._unruled
        for number, rule in enumerate(self.rules):
            value = rule.when.value(fixed)
            if value is True:
                otherwise = self._judgements[number]
                break
            if value is not False:
                left.append(number)
        return Residual(tuple(left), Linked([self.rules[each].when for each in left]), otherwise)

    def explain(self, variables: Mapping[str, Any]) -> list[Explanation]:
        """What became of each rule, in order. One at most has fired: it held, or failed, before all others."""
        found: list[Explanation] = []
        decided = False
        for rule in self.rules:
            value = rule.when.value(variables)
            fired = not decided and value is not False
            decided = decided or fired
            values = {name: variables[name] for name in sorted(rule.when.needs) if name in variables}
            found.append(Explanation(rule.name, rule.when.source, value, fired, values))
        return found


def policy_digest(content: Any) -> str:
    """The name of a policy's content. **Raises** UsageError when it has no JSON form."""
    try:
        return sha256(canonical.dumps(content).encode()).hexdigest()
    except MalformedError as error:
        raise UsageError("the policy holds what JSON does not", hint=error.hint) from None


def check_shape(content: Any) -> None:
    """**Raises** UsageError when the content is no policy, whatever its rules and its fallback are."""
    if not isinstance(content, dict):
        raise wrong("", "a policy is an object with rules", "rules: [{name: ..., when: ..., allow: true}]")
    known(content, POLICY_FIELDS)
    if not isinstance(content.get("recheck", False), bool):
        raise wrong("recheck", "it is not true or false")
    if not isinstance(content.get("rules"), list):
        raise wrong("rules", "there is no list of rules", "rules: [{name: ..., when: ..., allow: true}]")
    if len(content["rules"]) > MAX_RULES:
        raise wrong("rules", f"there are more than {MAX_RULES}", "say it with fewer")


def read_fallback(content: Any) -> Requirement:
    """The fallback of a policy. **Raises** UsageError."""
    with within("fallback", rule=UNRULED):
        return requirement.read_requirement(content, FALLBACK)


def merge(files: Mapping[str, Any]) -> Any:
    """The content of several policy files as one: their rules in order of the files' names.

    **Raises** UsageError with the field `file` when one is no policy, or when two differ in what there is once.
    """
    merged: dict[str, Any] = {}
    rules: list[Any] = []
    for name, content in sorted(files.items()):
        with within(name, file=name):
            check_shape(content)
        for field in ("recheck", "fallback"):
            if field in content and merged.setdefault(field, content[field]) != content[field]:
                raise UsageError(f"{name}: {field}: another file says otherwise", hint="say it in one", file=name)
        rules += content["rules"]
    return {**merged, "rules": rules}


def _rule(content: Any) -> Rule:
    if not isinstance(content, dict):
        raise wrong("", "it is not an object", "{name: ..., when: ..., allow: true}")
    known(content, ("name", "when", *OUTCOMES))
    name, when = content.get("name"), content.get("when")
    if not isinstance(name, str) or not name.strip() or len(name) > 200 or name == UNRULED:
        raise wrong("name", f"it is not a name of up to 200 characters, other than {UNRULED}")
    if not isinstance(when, str):
        raise wrong("when", "it is not a text", "write an expression in CEL; for every call: when: 'true'")
    said = [outcome for outcome in OUTCOMES if outcome in content]
    if len(said) != 1:
        raise wrong("/".join(said), "a rule has one outcome", "allow: true, deny: MESSAGE or require: {approvers: []}")
    with within("when", field="when"):
        condition = Condition(when)
    outcome = said[0]
    if outcome == "require":
        with within("require"):
            return Rule(name, condition, outcome, requirement=requirement.read_requirement(content[outcome]))
    if outcome == "deny":
        return Rule(name, condition, outcome, requirement.message(outcome, content[outcome]))
    if content[outcome] is not True:
        raise wrong("allow", "it is not true", "a rule that does not allow denies: deny: MESSAGE")
    return Rule(name, condition, outcome)
