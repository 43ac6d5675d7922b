"""Policies: ordered rules that allow, deny or send to people each proposed call. The first rule whose condition holds
decides. If a condition fails, the stricter of its rule and the later ones counts, so no author of arguments can weaken
a result. A call without a rule goes to the people of the fallback, else it is denied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Literal, NamedTuple, TypeGuard

from refold.core.approval import requirement
from refold.core.approval.condition import NONE, VARIABLES, Condition, Linked
from refold.core.approval.requirement import DOUBT_FIELDS, check_fields, within, wrong
from refold.core.errors import MalformedError, UsageError
from refold.core.events import DOUBT, Requirement
from refold.core.wire import canonical

__all__ = ["FALLBACK", "VARIABLES", "Explanation", "Judgement", "Policy", "Rule", "merge"]

RuleOutcome = Literal["allow", "deny", "require"]
OUTCOMES: tuple[RuleOutcome, ...] = ("allow", "deny", "require")
POLICY_FIELDS = ("recheck", "fallback", "doubt", "rules")
MAX_RULES = 1_000
MAX_KINDS = 1_000
"""Cached kinds of calls, tools by agents; an app has tens."""

FIXED = ("agent", "environment", "tool.effect", "tool.name", "tool.tags", "tool.version")
"""Variables that are equal for all calls of a tool by an agent. Most rules read no others."""

UNRULED = "fallback"
"""Rule name of a judgement without a rule."""

FALLBACK = Requirement([], expires_ms=86_400_000)
"""Defaults of a fallback: people have a day."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Judgement of a policy on a call.

    **Shape**: `rule` is `fallback` if no rule held. `message` is the text for the agent (of `deny`), or the error of a
    rule. `policy` is a digest. There is a `requirement` if and only if `outcome` is `require`.
    """

    outcome: RuleOutcome
    rule: str
    policy: str
    message: str = ""
    requirement: Requirement | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule of a policy. `message` belongs to `deny`, `requirement` to `require`."""

    name: str
    when: Condition
    outcome: RuleOutcome
    message: str = ""
    requirement: Requirement | None = None

    @staticmethod
    def parse(content: Any, number: int = 1) -> Rule:
        """Parse the `number`th rule of a file. **Raises** UsageError with the fields `rule` and `field`."""
        name = content.get("name") if isinstance(content, dict) else None
        called = f"rule {name!r}" if isinstance(name, str) and name else f"rule {number}"
        with within(called, rule=name if isinstance(name, str) else str(number)):
            return _rule(content)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Result of a rule for a call: true, false, or the error. `values` are the variables that it read."""

    rule: str
    when: str
    value: bool | str
    fired: bool
    values: Mapping[str, Any]


class Residual(NamedTuple):
    """Rules left to evaluate for calls of a kind, by number, and the judgement if none of them holds."""

    rules: tuple[int, ...]
    linked: Linked
    else_: Judgement


class Policy:
    """Compiled policy. `recheck`: calls judged by another policy are judged again before they run. `needs` are the
    variables of its rules. `doubt` is the requirement to settle calls of unknown outcome."""

    def __init__(
        self,
        content: dict[str, Any],
        rules: tuple[Rule, ...],
        fallback: Requirement | None,
        doubt: Requirement | None = None,
    ) -> None:
        self.content = content
        self.digest = policy_digest(content)
        self.recheck: bool = content.get("recheck", False)
        self.rules = rules
        self.fallback = fallback
        self.doubt = doubt
        self.needs = frozenset[str]().union(*(rule.when.needs for rule in rules))
        self._left_to_fallback = {UNRULED, *(rule.name for rule in rules if rule.outcome == "allow")}
        self._residuals: dict[tuple[str, ...], Residual] = {}
        self.judgements = [
            Judgement(rule.outcome, rule.name, self.digest, rule.message, rule.requirement) for rule in rules
        ]
        self.unruled = self.by_fallback(UNRULED, "no rule is about it")

    @staticmethod
    def parse(content: Any) -> Policy:
        """Parse the content of a policy file. **Raises** UsageError with the fields `rule` and `field`."""
        check_shape(content)
        fallback = read_fallback(content["fallback"]) if "fallback" in content else None
        doubt = read_doubt(content["doubt"]) if "doubt" in content else None
        rules = tuple(Rule.parse(rule, number) for number, rule in enumerate(content["rules"], 1))
        for name, count in Counter(rule.name for rule in rules).items():
            if count > 1:
                message = f"rule {name!r}: name: {count} rules have it"
                raise UsageError(message, hint="rename one", rule=name, field="name")
        return Policy(content, rules, fallback, doubt)

    def judge(self, variables: Mapping[str, Any]) -> Judgement:
        """Judge a call. Never raises: an error in a rule never weakens the result."""
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
        return self._failing(rule, error, variables) if error else self.judgements[rule]

    def by_fallback(self, rule: str, why: str) -> Judgement:
        """Judgement of a call left to the fallback's people; `deny` without a fallback."""
        if self.fallback is None:
            return Judgement("deny", rule, self.digest, f"{why}, and the policy has no fallback that says who decides")
        return Judgement("require", rule, self.digest, why, self.fallback)

    def failed(self, number: int, error: str, behind: Judgement) -> Judgement:
        """Stricter of a failed rule's judgement and the one `behind` it."""
        rule = self.rules[number]
        why = f"the rule {rule.name!r} failed: {error}"
        if rule.outcome == "deny":
            return replace(self.judgements[number], message=f"{rule.message} ({why})")
        # A fallback is for calls without a rule, so it is never the stricter of two.
        ruled = behind.outcome == "allow" or behind.rule not in self._left_to_fallback
        required = behind.requirement if ruled else None
        if behind.outcome == "deny" and ruled:
            return behind
        if rule.requirement is None:
            return replace(behind, message=behind.message or why) if required else self.by_fallback(rule.name, why)
        if required is None or requirement.implies(rule.requirement, required):
            return replace(self.judgements[number], message=why)
        if requirement.implies(required, rule.requirement):
            return replace(behind, message=behind.message or why)
        # Neither requirement implies the other, and no question can ask for both.
        both = f"{why}, and whom it asks are not the people of {behind.rule!r}, which may be about the call instead"
        return Judgement("deny", rule.name, self.digest, both)

    def _failing(self, number: int, error: str, variables: Mapping[str, Any]) -> Judgement:
        failures, judgement = [(number, error)], self.unruled
        for index in range(number + 1, len(self.rules)):
            value = self.rules[index].when.value(variables)
            if value is True:
                judgement = self.judgements[index]
                break
            if value is not False:
                failures.append((index, value))
        for index, why in reversed(failures):
            judgement = self.failed(index, why, judgement)
        return judgement

    def _residual(self, variables: Mapping[str, Any]) -> Residual:
        # A value that exists without the missing variables is final: && and || pass over missing operands.
        fixed = {name: variables[name] for name in FIXED if name in variables}
        left, otherwise = list[int](), self.unruled
        for number, rule in enumerate(self.rules):
            value = rule.when.value(fixed)
            if value is True:
                otherwise = self.judgements[number]
                break
            if value is not False:
                left.append(number)
        return Residual(tuple(left), Linked([self.rules[index].when for index in left]), otherwise)

    def explain(self, variables: Mapping[str, Any]) -> list[Explanation]:
        """Result of each rule, in order. At most one has fired, which determined the judgement."""
        explanations: list[Explanation] = []
        judged = self.judge(variables).rule
        for rule in self.rules:
            value, fired = rule.when.value(variables), rule.name == judged
            values = {name: variables[name] for name in sorted(rule.when.needs) if name in variables}
            explanations.append(Explanation(rule.name, rule.when.source, value, fired, values))
        return explanations


def policy_digest(content: Any) -> str:
    """Digest of a policy's content. **Raises** UsageError if it has no JSON form."""
    try:
        return sha256(canonical.dumps(content).encode()).hexdigest()
    except MalformedError as error:
        raise UsageError("the policy holds what JSON does not", hint=error.hint) from None


def check_shape(content: Any) -> None:
    """Check the shape of a policy, without its rules and fallback. **Raises** UsageError."""
    if not isinstance(content, dict):
        raise wrong("", "a policy is an object with rules", "rules: [{name: ..., when: ..., allow: true}]")
    check_fields(content, POLICY_FIELDS)
    if not isinstance(content.get("recheck", False), bool):
        raise wrong("recheck", "it is not true or false")
    if not isinstance(content.get("rules"), list):
        raise wrong("rules", "there is no list of rules", "rules: [{name: ..., when: ..., allow: true}]")
    if len(content["rules"]) > MAX_RULES:
        raise wrong("rules", f"there are more than {MAX_RULES}", "say it with fewer")


def read_fallback(content: Any) -> Requirement:
    with within("fallback", rule=UNRULED):
        return requirement.read_requirement(content, FALLBACK)


def read_doubt(content: Any) -> Requirement:
    with within(DOUBT, rule=DOUBT):
        return requirement.read_requirement(content, fields=DOUBT_FIELDS)


def merge(files: Mapping[str, Any]) -> Any:
    """Content of several policy files as one, with their rules in order of file names. **Raises** UsageError with the
    field `file` if one is invalid or two differ in a single-valued field."""
    merged: dict[str, Any] = {}
    rules: list[Any] = []
    for name, content in sorted(files.items()):
        with within(name, file=name):
            check_shape(content)
        for field in ("recheck", "fallback", "doubt"):
            if field in content and merged.setdefault(field, content[field]) != content[field]:
                raise UsageError(f"{name}: {field}: another file says otherwise", hint="say it in one", file=name)
        rules += content["rules"]
    return {**merged, "rules": rules}


def _is_rule_name(name: Any) -> TypeGuard[str]:
    return isinstance(name, str) and 0 < len(name.strip()) <= len(name) <= 200 and name not in (UNRULED, DOUBT)


def _rule(content: Any) -> Rule:
    if not isinstance(content, dict):
        raise wrong("", "it is not an object", "{name: ..., when: ..., allow: true}")
    check_fields(content, ("name", "when", *OUTCOMES))
    name, when = content.get("name"), content.get("when")
    if not _is_rule_name(name):
        raise wrong("name", f"it is not a name of up to 200 characters, other than {UNRULED} and {DOUBT}")
    if not isinstance(when, str):
        raise wrong("when", "it is not a text", "write an expression in CEL; for every call: when: 'true'")
    kinds = [outcome for outcome in OUTCOMES if outcome in content]
    if len(kinds) != 1:
        raise wrong("/".join(kinds), "a rule has one outcome", "allow: true, deny: MESSAGE or require: {approvers: []}")
    with within("when", field="when"):
        condition = Condition(when)
    outcome = kinds[0]
    if outcome == "require":
        with within("require"):
            return Rule(name, condition, outcome, requirement=requirement.read_requirement(content[outcome]))
    if outcome == "deny":
        return Rule(name, condition, outcome, requirement.message(outcome, content[outcome]))
    if content[outcome] is not True:
        raise wrong("allow", "it is not true", "a rule that does not allow denies: deny: MESSAGE")
    return Rule(name, condition, outcome)
