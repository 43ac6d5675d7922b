"""Which rules no call can reach: what can be proved from the conditions as they are written.

A rule is reached only when every one before it said no. So it is dead when one of them always holds, or when whatever
makes it hold makes one of them hold too: each of its ways to hold (`a && b` in `a && b || c`) has all the parts of a
way of theirs. A part that fails changes nothing: beside a part that is false it counts as false, in CEL as here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from refold.core.approval.policy import Rule

Way = frozenset[str]
"""The parts that have to be true together."""

_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*)
    | \"\"\".*?\"\"\" | \'\'\'.*?\'\'\' | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*'
    | \w+ | && | \|\| | [<>=!]= | .""",
    re.VERBOSE | re.DOTALL,
)
_RAW_STRING = re.compile(r"""(?i)\b(?:r|rb|br)["']""")


def unreachable(rules: Sequence[Rule]) -> Iterator[tuple[Rule, str]]:
    """The rules that no call can reach or that never hold, with the reason."""
    always = ""
    before: list[tuple[str, frozenset[Way]]] = []
    for rule in rules:
        constant, ways = _constant(rule), _ways_of(rule.when.source)
        covers = [next((name for name, others in before if _covered(way, others)), "") for way in ways]
        if always:
            yield rule, f"the rule {always!r} before it decides every call"
        elif constant is False:
            yield rule, "it never holds"
        elif all(covers):
            names = " and ".join(repr(name) for name in sorted(set(covers)))
            yield rule, f"it never decides: whatever it is about is decided by {names} before it"
        elif isinstance(constant, str):
            yield rule, f"it fails for every call: {constant}"
        if constant is True or isinstance(constant, str):
            always = always or rule.name
        before.append((rule.name, ways))


def _constant(rule: Rule) -> bool | str | None:
    """What a condition says whatever the call is; None when that depends.

    Asked without any variable it has a value only if none matters: `||` and `&&` pass over what fails.
    """
    value = rule.when.value({})
    return None if isinstance(value, str) and rule.when.needs else value


def _covered(way: Way, others: frozenset[Way]) -> bool:
    return any(other <= way for other in others)


@cache
def _ways_of(source: str) -> frozenset[Way]:
    if _RAW_STRING.search(source):
        return frozenset({frozenset({source})})  # their backslashes have rules of their own
    tokens = [match[0] for match in _TOKEN.finditer(source) if match["skip"] is None]
    return _ways(tokens)


def _ways(tokens: Sequence[str]) -> frozenset[Way]:
    while _is_wrapped(tokens):
        tokens = tokens[1:-1]
    if len(_split(tokens, "?")) == 1:
        if len(parts := _split(tokens, "||")) > 1:
            return frozenset[Way]().union(*(_ways(part) for part in parts))
        if len(parts := _split(tokens, "&&")) > 1:
            return frozenset({frozenset[str]().union(*(_together(part) for part in parts))})
    return frozenset({frozenset({" ".join(tokens)})})


def _together(tokens: Sequence[str]) -> Way:
    """The parts of what has one way to hold; a choice is a part itself."""
    ways = _ways(tokens)
    return next(iter(ways)) if len(ways) == 1 else frozenset({" ".join(tokens)})


def _split(tokens: Sequence[str], at: str) -> list[Sequence[str]]:
    """The pieces between an operator, outside all brackets."""
    found: list[Sequence[str]] = []
    start = depth = 0
    for place, token in enumerate(tokens):
        depth += (token in "([{") - (token in ")]}")
        if token == at and depth == 0:
            found.append(tokens[start:place])
            start = place + 1
    return [*found, tokens[start:]]


def _is_wrapped(tokens: Sequence[str]) -> bool:
    if not tokens or tokens[0] != "(":
        return False
    depth = 0
    for place, token in enumerate(tokens):
        depth += (token in "([{") - (token in ")]}")
        if depth == 0:
            return place == len(tokens) - 1
    return False
