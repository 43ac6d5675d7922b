"""Reads policy files, and finds all of their problems."""

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from refold.core.approval.catalog import ROLE, Roles, is_person, no_person
from refold.core.approval.condition import WALKED
from refold.core.approval.decision import ToolFacts
from refold.core.approval.policy import UNRULED, Policy, Rule, check_shape, merge, read_doubt, read_fallback
from refold.core.approval.signature import PublicKey
from refold.core.errors import MalformedError, UsageError
from refold.core.events import DOUBT, Requirement

CHOSEN = frozenset({"args", "run.input", "run.labels"})
"""Variables whose size a model or a client chooses."""

_SIZE = re.compile(r"\bsize\s*\(|\.\s*size\s*\(")
SUFFIXES = (".yaml", ".yml", ".json")


class Problem(NamedTuple):
    """Fault of a rule or file. `fatal`: there is no policy; else a rule is of no use."""

    file: str
    rule: str
    reason: str
    fatal: bool = True


class _Loader(yaml.SafeLoader):
    """YAML without duplicate keys: YAML silently keeps the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in keys:
                reason = f"the key {key!r} is there twice"
                raise yaml.constructor.ConstructorError(None, None, reason, key_node.start_mark)
            keys.add(key if isinstance(key, Hashable) else None)
        return super().construct_mapping(node, deep)


def load_files(paths: Sequence[str]) -> dict[str, Any]:
    """Load policy files by name, also those in folders. **Raises** as `load_file`."""
    files = {str(path): load_file(path) for name in paths for path in _files(Path(name))}
    if not files:
        raise UsageError(
            f"there is no policy file in {', '.join(paths)}",
            hint="put a *.yaml file there, or name other files or folders",
        )
    return files


def merged_policy(content: dict[str, Any]) -> Policy:
    return Policy.parse(merge(content))


def load_file(path: Path) -> Any:
    """Load a YAML or JSON file. **Raises** UsageError if it cannot be read, MalformedError for other content."""
    try:
        return load_text(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "") or "it is not UTF-8"
        raise UsageError(f"cannot read {path}: {why}", hint="name files or folders with *.yaml") from None


def load_text(text: str, name: str, *, aliases: bool = True) -> Any:
    """Parse a policy file. **Raises** MalformedError, without `aliases` also for aliases."""
    try:
        # Ten lines of aliases can stand for more data than fits into memory.
        if not aliases and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise yaml.YAMLError("aliases are for files alone")
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:300]
        raise MalformedError(f"{name} is not YAML: {why}", hint="mend it; `refold policy check` checks it") from None


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    return [path]


def nobody_has(policy: Policy | None, roles: Roles) -> list[str]:
    """Required roles that no actor has in the catalog. A login may still claim them."""
    if policy is None:
        return []
    requirements = [policy.fallback, policy.doubt, *(rule.requirement for rule in policy.rules)]
    named = {name for needed in requirements if needed for name in (*needed.approvers, *needed.escalate_to)}
    has = {f"role:{role}" for role, people in roles.by_role.items() if people - roles.revoked}
    return sorted(name for name in named - has if name.startswith("role:"))


def unknown_roles(policy: Policy, roles: Roles, keys: Iterable[PublicKey]) -> list[str]:
    """Required roles that neither the catalog nor a vote key names."""
    claimed = {f"role:{role}" for key in keys if key.use == "vote" and not key.revoked for role in key.roles}
    in_catalog = {f"role:{role}" for role in roles.by_role}
    return [name for name in nobody_has(policy, roles) if name not in in_catalog | claimed]


def problems_of(files: Mapping[str, Any]) -> list[Problem]:
    rules: list[tuple[str, Rule]] = []
    problems: list[Problem] = []
    for file, content in sorted(files.items()):
        problems += _problems_of_file(file, content, rules)
    # Problems of all files together: two that contradict each other, or values that JSON lacks.
    if not any(problem.fatal for problem in problems):
        try:
            Policy.parse(merge(files))
        except UsageError as error:
            problems.append(Problem(error.fields.get("file", ""), error.fields.get("rule", ""), _error_text(error)))
    places = {id(rule): file for file, rule in rules}
    dead = dead_rules([rule for _, rule in rules])
    return problems + [Problem(places[id(rule)], rule.name, reason, fatal=False) for rule, reason in dead]


def _problems_of_file(file: str, content: Any, rules: list[tuple[str, Rule]]) -> Iterator[Problem]:
    """Problems of a file, whose rules are added to those of the files before."""
    try:
        check_shape(content)
    except UsageError as error:
        yield Problem(file, "", _error_text(error))
        return
    yield from _problems_of_part(file, content, "fallback", UNRULED)
    yield from _problems_of_part(file, content, "doubt", DOUBT)
    for number, text in enumerate(content["rules"], 1):
        try:
            rule = Rule.parse(text, number)
        except UsageError as error:
            yield Problem(file, error.fields["rule"], _error_text(error))
            continue
        if same := [place for place, earlier in rules if earlier.name == rule.name]:
            yield Problem(file, rule.name, f"another rule in {same[0]} has the same name")
        if rule.requirement:
            yield from _requirement_slips(file, rule.name, rule.requirement, text["require"])
        traps = _condition_traps(rule, [earlier for _, earlier in rules])
        yield from (Problem(file, rule.name, reason, fatal=False) for reason in traps)
        rules.append((file, rule))


def _problems_of_part(file: str, content: Mapping[str, Any], part: str, rule: str) -> list[Problem]:
    if part not in content:
        return []
    try:
        if part == "doubt":
            return _doubt_slips(file, read_doubt(content[part]))
        return _requirement_slips(file, rule, read_fallback(content[part]), content[part])
    except UsageError as error:
        return [Problem(file, rule, _error_text(error))]


def sent_once(policy: Policy, tools: Iterable[ToolFacts]) -> list[Problem]:
    """Problem of a policy without `doubt`, if tools have the effect `once`."""
    names = sorted(tool.name for tool in tools if tool.effect == "once") if policy.doubt is None else []
    text = f"it names nobody, so a call in doubt of {', '.join(names)} waits for an operator, and is not tried again"
    return [Problem("", DOUBT, text, fatal=False)] if names else []


def dead_rules(rules: Iterable[Rule]) -> Iterator[tuple[Rule, str]]:
    """Rules that decide no call, with the reason."""
    always = ""
    for rule in rules:
        # Without variables it has a value only if none matters: || and && skip operands that fail.
        value = rule.when.value({})
        constant = None if isinstance(value, str) and rule.when.needs else value
        if always:
            yield rule, f"the rule {always!r} before it decides every call"
        elif constant is False:
            yield rule, "it never holds"
        elif isinstance(constant, str):
            yield rule, f"it fails for every call: {constant}"
        if constant is True or isinstance(constant, str):
            always = always or rule.name


def _condition_traps(rule: Rule, before: Iterable[Rule]) -> Iterator[str]:
    """Differences of a condition from its apparent meaning, as texts."""
    yield from rule.when.pitfalls()
    chosen = rule.when.needs & CHOSEN
    guarded = any(_SIZE.search(earlier.when.source) and earlier.when.needs & chosen for earlier in before)
    if rule.when.walks and chosen and not guarded:
        harm = f"whoever chooses {' and '.join(sorted(chosen))} makes it fail by more than {WALKED} characters"
        yield f"{harm}: put a rule before it that judges what is long, with size(...) and no macro"


def _requirement_slips(file: str, rule: str, needed: Requirement, text: Mapping[str, Any]) -> list[Problem]:
    reasons = _misnamed_approvers(needed)
    if "expires" in text and needed.expires_ms < 1_000:
        left = f"people have {needed.expires_ms} ms" if needed.expires_ms else "it never expires"
        reasons.append(f"expires: {left} (write 90s, 15m, 2h or 7d)")
    elif not needed.expires_ms:
        reasons.append(
            "expires: without it nobody is told that the run waits, and it may for ever (write 90s, 15m, 2h or 7d)"
        )
    if needed.on_expiry == "escalate" and needed.escalate_ms:
        reasons.append("on_expiry: more people are asked once, by escalate.after (leave out one of the two)")
    return [Problem(file, rule, reason, fatal=False) for reason in reasons]


def _doubt_slips(file: str, needed: Requirement) -> list[Problem]:
    reasons = _misnamed_approvers(needed)
    if "*" in (*needed.approvers, *needed.escalate_to):
        reasons.append("'*' lets anybody who can sign a vote send a call again of which nobody knows what came of it")
    return [Problem(file, DOUBT, reason, fatal=False) for reason in reasons]


def _misnamed_approvers(needed: Requirement) -> list[str]:
    named = (*needed.approvers, *needed.escalate_to)
    roles = [name for name in named if name[:5].lower() == "role:" != name[:5]]
    reasons = [f"{name!r} is taken for a person; a role is written role:{name[5:]}" for name in roles]
    people = (name for name in named if name != "*" and not name.lower().startswith(ROLE))
    return reasons + [f"{no_person(name)}: nobody can vote so" for name in people if not is_person(name)]


def _error_text(error: UsageError) -> str:
    message = error.message
    for place in (error.fields.get("file", ""), f"rule {error.fields.get('rule', '')!r}", "fallback", DOUBT):
        message = message.removeprefix(f"{place}: ")
    return f"{message} ({error.hint})" if error.hint else message
