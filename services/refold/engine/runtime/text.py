"""Visible spelling of hidden and deceptive characters, so that people approve the real text."""

import codecs
import json
import re
import unicodedata
from functools import lru_cache

from refold.core.confusables import UNSEEN, mistaken_for, words

ESCAPED = "refold.escaped"
"""Error handler of streams that are not UTF-8: escapes of JSON, so that JSON stays JSON."""

codecs.register_error(ESCAPED, lambda error: (json.dumps(error.object[error.start : error.end])[1:-1], error.end))  # type: ignore[attr-defined]

_BLANKS = 20
"""Equal blanks in a row that stay: more than an indentation, too few to push text off a screen."""

_MARKS = 2
"""Combining marks per letter: two are in use (Thai, Vietnamese), a pile covers the lines around it."""

_REPEATED = re.compile(rf"(<U\+[0-9A-F]{{4,6}}>)\1{{{_BLANKS},}}")


def visible(text: str) -> str:
    """Spell out invisible characters, and those that change the look of others."""
    if not (text.isascii() and text.isprintable()):
        text = _escaped(text)
        text = text if text.isascii() else _isolated("".join(map(_with_scripts, words(text))))
        text = _REPEATED.sub(lambda run: f"<{len(run[0]) // len(run[1])} times {run[1][1:]}", text)
    return re.sub(f" {{{_BLANKS + 1},}}", lambda run: f"<{len(run[0])} spaces>", text)


def _escaped(text: str) -> str:
    shown: list[str] = []
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char)[0] == "M" else 0
        shown.append(char if marks <= _MARKS and _is_harmless(char) else f"<U+{ord(char):04X}>")
    return "".join(shown)


@lru_cache(1 << 16)
def _is_harmless(char: str) -> bool:
    if char.isascii():
        return char.isprintable()
    category = unicodedata.category(char)
    if category[0] not in "LNPSM" or UNSEEN.match(char):
        return False
    if category == "Me" or unicodedata.combining(char) == 1:  # drawn around or over a letter: it strikes the letter out
        return False
    # Another spelling of an ASCII letter or digit (full width, bold, a ligature) is mistaken for it.
    return not (char.isalpha() or category == "Nd") or not unicodedata.normalize("NFKC", char).isascii()


def _with_scripts(token: str) -> str:
    scripts = " and ".join(script.title() for script in mistaken_for(token))
    return f"{token}<{scripts} letters>" if scripts else token


def _isolated(text: str) -> str:
    """Isolate right-to-left letters, so that they reorder nothing around them."""
    if not any(unicodedata.bidirectional(char) in ("R", "AL", "AN") for char in set(text)):
        return text
    shown: list[str] = []
    inside = False
    for char in text:
        kind = unicodedata.bidirectional(char)
        backwards = kind in ("R", "AL", "AN") or (inside and kind == "NSM")
        if backwards != inside:
            shown.append("\u2067" if backwards else "\u2069")
        shown.append(char)
        inside = backwards
    return "".join(shown) + "\u2069" * inside
