"""Policies: ordered rules that allow, deny or send to people each proposed call. The first rule whose condition holds
decides. If a condition fails, the stricter of its rule and the later ones counts, so no author of arguments can weaken
a result. A call without a rule goes to the people of the fallback, else it is denied."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeGuard

from refold.core.approval.condition import NONE, Condition, Linked
from refold.core.errors import MalformedError, UsageError
from refold.core.events import DOUBT, Requirement
from refold.core.wire import canonical

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

REQUIREMENT_FIELDS = (
    *("approvers", "quorum", "not_requester", "expires", "on_expiry", "escalate", "valid", "message"),
    "remember",
)
DOUBT_FIELDS = ("approvers", "quorum", "not_requester", "escalate", "message")
"""Fields of the requirement for doubts: it never expires, and each call is settled by itself."""

ON_EXPIRY = ("reject", "escalate", "fail")
MAX_MESSAGE = 2_000
MAX_APPROVERS = 100
MAX_USES = 1_000
MAX_MS = 3_650 * 86_400_000
"""Ten years. A run may wait for months; a longer time is a mistake."""

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Judgement of a policy (by digest) on a call. `rule` is `fallback` if no rule held. `message`: text of `deny` for
    the agent, or the error of a rule. There is a `requirement` if and only if `outcome` is `require`."""

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
        self, content: dict[str, Any], rules: tuple[Rule, ...], fallback: Requirement | None, doubt: Requirement | None
    ) -> None:
        self.content = content
        self.digest = policy_digest(content)
        self.recheck: bool = content.get("recheck", False)
        self.rules, self.fallback, self.doubt = rules, fallback, doubt
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
        if required is None or implies(rule.requirement, required):
            return replace(self.judgements[number], message=why)
        if implies(required, rule.requirement):
            return replace(behind, message=behind.message or why)
        # Neither requirement implies the other, and no question can ask for both.
        both = f"{why}, and whom it asks are not the people of {behind.rule!r}, which may be about the call instead"
        return Judgement("deny", rule.name, self.digest, both)

    def _failing(self, number: int, error: str, variables: Mapping[str, Any]) -> Judgement:
        """Judgement if a rule's condition has no value: the strictest from there on."""
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
        return canonical.hex_digest(canonical.dumps(content))
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
        return read_requirement(content, FALLBACK)


def read_doubt(content: Any) -> Requirement:
    with within(DOUBT, rule=DOUBT):
        return read_requirement(content, fields=DOUBT_FIELDS)


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
            return Rule(name, condition, outcome, requirement=read_requirement(content[outcome]))
    if outcome == "deny":
        return Rule(name, condition, outcome, message(outcome, content[outcome]))
    if content[outcome] is not True:
        raise wrong("allow", "it is not true", "a rule that does not allow denies: deny: MESSAGE")
    return Rule(name, condition, outcome)


def read_requirement(
    content: Any, base: Requirement | None = None, *, fields: tuple[str, ...] = REQUIREMENT_FIELDS
) -> Requirement:
    """Requirement with the defaults of `base`; without it `approvers` is required. **Raises** UsageError (`field`)."""
    if not isinstance(content, dict):
        raise wrong("", "it is not an object", "require: {approvers: [role:lead]}")
    check_fields(content, fields)
    if not (base and base.approvers) and "approvers" not in content:
        raise wrong("approvers", "it is missing", "require: {approvers: [role:lead]}")
    changes: dict[str, Any] = {}
    for field, value in content.items():
        changes |= _changes(field, value)
    needed = replace(base or Requirement([]), **changes)
    _check(needed, content)
    return needed


def implies(one: Requirement, other: Requirement) -> bool:
    """True if a decision that meets one requirement meets the other."""
    people, others = {*one.approvers, *one.escalate_to}, {*other.approvers, *other.escalate_to}
    among = set(one.approvers) <= set(other.approvers) and people <= others
    requester = one.not_requester or not other.not_requester
    return ("*" in other.approvers or among) and one.quorum >= other.quorum and requester


def wrong(field: str, reason: str, hint: str = "") -> UsageError:
    return UsageError(f"{field}: {reason}" if field else reason, hint=hint, field=field)


@contextmanager
def within(place: str, **fields: Any) -> Iterator[None]:
    """Prefix the place to a UsageError raised inside."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{place}: {error.message}", hint=error.hint, **{**error.fields, **fields}) from None


def check_fields(content: Mapping[Any, Any], fields: tuple[str, ...], of: str = "") -> None:
    """Refuse unknown fields, which would be ignored silently. **Raises** UsageError."""
    for name in content:
        if name not in fields:
            raise wrong(f"{of}{name}", "there is no such field", f"the fields are {', '.join(fields)}")


def message(field: str, value: Any) -> str:
    """Validated text for people. **Raises** UsageError."""
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_MESSAGE:
        raise wrong(field, f"it is not a text of up to {MAX_MESSAGE} characters")
    return value


def duration_ms(field: str, value: Any) -> int:
    """Milliseconds of `90s`, `15m`, `2h`, `7d` or a number. **Raises** UsageError."""
    match = _DURATION.match(value) if isinstance(value, str) else None
    milliseconds = int(match[1]) * _UNITS[match[2]] if match else value
    if type(milliseconds) is not int or not 0 <= milliseconds <= MAX_MS:
        raise wrong(field, f"{value!r} is not a duration", "write 90s, 15m, 2h, 7d or milliseconds, up to 3650d")
    return milliseconds


def _approvers(field: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_APPROVERS or not all(map(_is_approver, value)):
        raise wrong(field, "it is not a list of people and roles", f"write {field}: [ada, role:lead], or ['*']")
    if len(set(value)) != len(value):
        raise wrong(field, "somebody is named twice")
    return list(value)


def _is_approver(name: Any) -> bool:
    return isinstance(name, str) and bool(name.removeprefix("role:")) and name == name.strip() and len(name) <= 200


def _escalation(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or "to" not in value:
        raise wrong(field, "it does not say to whom", "escalate: {after: 30m, to: [role:head]}")
    check_fields(value, ("after", "to"), "escalate.")
    after = duration_ms("escalate.after", value["after"]) if "after" in value else 0
    return {"escalate_to": _approvers("escalate.to", value["to"]), "escalate_ms": after}


def _remember(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value.keys() >= {"for", "uses"}:
        raise wrong(field, "it does not say for how long and how often", "remember: {for: 1h, uses: 3}")
    check_fields(value, ("for", "uses"), "remember.")
    valid_ms, uses = duration_ms("remember.for", value["for"]), value["uses"]
    if not valid_ms:
        raise wrong("remember.for", "what is remembered for no time is forgotten", "leave remember out")
    if type(uses) is not int or not 1 <= uses <= MAX_USES:
        raise wrong("remember.uses", f"it is not a number from 1 to {MAX_USES}")
    return {"remember_ms": valid_ms, "remember_uses": uses}


_PARSERS: dict[str, Callable[[str, Any], dict[str, Any]]] = {
    "approvers": lambda field, value: {field: _approvers(field, value)},
    "message": lambda field, value: {field: message(field, value)},
    **dict.fromkeys(("expires", "valid"), lambda field, value: {f"{field}_ms": duration_ms(field, value)}),
    "escalate": _escalation,
    "remember": _remember,
}


def _changes(field: str, value: Any) -> dict[str, Any]:
    """Changes of a requirement by one field of the text. **Raises** UsageError."""
    if parser := _PARSERS.get(field):
        return parser(field, value)
    if field == "quorum" and (type(value) is not int or not 1 <= value <= MAX_APPROVERS):
        raise wrong(field, f"it is not a number from 1 to {MAX_APPROVERS}")
    if field == "not_requester" and not isinstance(value, bool):
        raise wrong(field, "it is not true or false")
    if field == "on_expiry" and value not in ON_EXPIRY:
        raise wrong(field, f"it is none of {', '.join(ON_EXPIRY)}")
    return {field: value}


def _check(needed: Requirement, content: Mapping[str, Any]) -> None:
    """Refuse combinations of fields that no people can meet, or that have no effect. **Raises** UsageError."""
    people = {*needed.approvers, *needed.escalate_to}
    if needed.quorum > len(people) and not any(map(_may_be_many, people)):
        raise wrong("quorum", f"{needed.quorum} of {len(people)} people cannot agree", "name more people, or a role")
    if not needed.valid_ms:
        raise wrong("valid", "a decision that may never be used decides nothing", "write 15m, or leave it out")
    if "on_expiry" in content and not needed.expires_ms:
        raise wrong("on_expiry", "nothing expires", "write expires: 1h, or leave it out")
    _check_escalation(needed)


def _may_be_many(name: str) -> bool:
    return name == "*" or name.startswith("role:")


def _check_escalation(needed: Requirement) -> None:
    if needed.on_expiry == "escalate" and not needed.escalate_to:
        raise wrong("on_expiry", "it escalates to nobody", "escalate: {to: [role:head]}")
    if needed.escalate_to and not needed.escalate_ms and needed.on_expiry != "escalate":
        raise wrong("escalate.after", "it is missing", "escalate: {after: 30m, to: [role:head]}")
    if needed.expires_ms and needed.escalate_ms >= needed.expires_ms:
        raise wrong("escalate.after", "it has expired by then", "escalate earlier, or let it expire later")
