"""What stands in no tracked file: places of one machine, hosts of package registries, leftovers."""

from __future__ import annotations

import ast
import re

import pytest

from refold.cli.commands import COMMANDS
from tests.tidy.repository import text, tracked

# `~` breaks the words, so that this file does not hold what it looks for.
BANNED = {
    what: re.compile(pattern.replace("~", ""))
    for what, pattern in {
        "a path of one machine": r"/(?:wo~rk|ro~ot|ho~me|Use~rs)/[\w.-]+",
        "a host of a package registry": r"(?i)\b[\w.-]*(?:py~pi|rep~o1|artif~actory|nex~us|dev~pi)\.[a-z]{2,}\b",
        "an address of a package index": r"--(?:extra-)?index-~url\b|\bPIP_INDEX_~URL\b",
        "something left to do": r"\b(?:TO~DO|FIX~ME|XX~X|HA~CK)\b",
        "a conflict that was not resolved": r"(?m)^(?:<{7}|>{7}) ",
        "a secret": r"-----BEGIN [A-Z ]*PRIVATE ~KEY|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36}\b",
        "how the work is organised": r"(?i)\b(?:co-auth~ored-by|my bri~ef|the le~ad (?:said|wrote|wants))\b",
    }.items()
}


def found(source: str) -> dict[str, str]:
    """The banned things in a text, each with the first place where it stands."""
    matches = {what: pattern.search(source) for what, pattern in BANNED.items()}
    return {what: match[0] for what, match in matches.items() if match}


def test_no_file_holds_and_no_path_names_what_is_banned() -> None:
    assert {str(path): what for path in tracked() if (what := found(f"{path}\n{text(path) or ''}"))} == {}


@pytest.mark.parametrize(
    "planted",
    [
        "/wo~rk/main/x",
        "see /ho~me/ann/notes",
        "https://py~pi.o~rg/sim~ple",
        "mirror.artif~actory.example",
        "pip --index-~url x",
        "# TO~DO: later",
        "<<<<~<<< HEAD",
        "-----BEGIN PRIVATE ~KEY-----",
        "what the le~ad said",
    ],
)
def test_each_of_them_would_be_seen(planted: str) -> None:
    assert found(planted.replace("~", ""))


def causes(source: str) -> list[int]:
    """The lines of hints that are made of an exception: a cause belongs into the message, `next` is what to do."""
    found = []
    for handler in ast.walk(ast.parse(source)):
        if isinstance(handler, ast.ExceptHandler) and handler.name:
            hints = [node for node in ast.walk(handler) if isinstance(node, ast.keyword) and node.arg == "hint"]
            for hint in hints:
                passed_on = {id(node.value) for node in ast.walk(hint.value) if isinstance(node, ast.Attribute)}
                names = [
                    node for node in ast.walk(hint.value) if isinstance(node, ast.Name) and id(node) not in passed_on
                ]
                found += [hint.value.lineno for name in names if name.id == handler.name]
    return found


def test_no_hint_is_a_cause() -> None:
    code = {path: text(path) or "" for path in tracked() if path.suffix == ".py" and path.parts[0] == "services"}

    assert {str(path): lines for path, source in code.items() if (lines := causes(source))} == {}


@pytest.mark.parametrize(
    ("hint", "seen"), [("str(error)", True), ('f"write it ({error})"', True), ("error.hint", False), ('"do"', False)]
)
def test_a_hint_that_is_a_cause_would_be_seen(hint: str, seen: bool) -> None:
    source = f"try:\n    f()\nexcept ValueError as error:\n    raise UsageError('no', hint={hint}) from None\n"

    assert bool(causes(source)) is seen


COINED = re.compile(
    r"(?i)\b(?:glyphs?|hindsight|purses?|recount|revived|revivals?|shelf|shelves|spoilt|tally|tangled?|tellers?|tidings"
    r"|unsent|urging|uttered|vouching)\b"
)
"""Words of ours that no page and no help may have: the field has others. In code a figure of the house counts them."""
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)


def coined(prose: str) -> list[str]:
    """The coined words of a text, without its code."""
    return COINED.findall(CODE.sub("", prose))


def test_no_page_and_no_help_has_a_word_that_the_field_has_another_for() -> None:
    pages = [path for path in tracked() if path.suffix == ".md" and path.parts[:2] != ("docs", "adr")]
    prose = {str(path): text(path) or "" for path in pages}
    prose |= {" ".join(words): f"{verb.summary} {verb.function.__doc__}" for words, verb in COMMANDS.walk()}

    assert {place: words for place, content in prose.items() if (words := coined(content))} == {}


def test_a_coined_word_would_be_seen_but_in_code() -> None:
    assert coined("The Purse of `reservation`, and tangled") == ["Purse", "tangled"]
