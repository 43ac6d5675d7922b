"""What a screen would hide or show as something else, spelt out, so that people agree to what is there."""

from __future__ import annotations

import re
import unicodedata
from itertools import groupby

_BLANKS = 20
"""Equal blanks in a row that stand as they are: more than an indentation, fewer than push text off a screen."""

_MARKS = 2
"""Combining marks that one letter may carry: two are in use (Thai, Vietnamese), a pile covers the lines around it."""

_IGNORABLE = re.compile(  # Unicode's Default_Ignorable_Code_Point, which no standard module knows
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_SHAPELESS = "\u2800\U00013441\U00013442\U00016fe4\U0001d159"
"""What has a shape by its category, and none on a screen."""

_ALPHABETS = frozenset(("ARMENIAN", "CHEROKEE", "COPTIC", "CYRILLIC", "GEORGIAN", "GREEK", "LATIN", "LISU"))
"""Scripts with letters that look like those of another one. No language mixes them in a word."""

_LIKE_LATIN = frozenset("аеіјорсухѕһԁԛԝӏАВЕІЈКМНОРСТХУЅԌԚԜοναυρκΑΒΕΖΗΙΚΜΝΟΡΤΥΧօսոհցՕՍ")
"""Letters of other scripts that are taken for Latin ones: a word of nothing else may be read as another."""

_REPEATED = re.compile(rf"(<U\+[0-9A-F]{{4,6}}>)\1{{{_BLANKS},}}")


def visible(text: str) -> str:
    """The text with everything spelt out that is not to be seen, or that makes the rest look otherwise."""
    if not (text.isascii() and text.isprintable()):
        text = _isolated("".join(map(_flagged, _words(_spelt(text)))))
        text = _REPEATED.sub(lambda run: f"<{len(run[0]) // len(run[1])} times {run[1][1:]}", text)
    return re.sub(f" {{{_BLANKS + 1},}}", lambda run: f"<{len(run[0])} spaces>", text)


def _spelt(text: str) -> str:
    shown: list[str] = []
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char)[0] == "M" else 0
        shown.append(char if marks <= _MARKS and _plain(char) else f"<U+{ord(char):04X}>")
    return "".join(shown)


def _plain(char: str) -> bool:
    if char.isascii():
        return char.isprintable()
    category = unicodedata.category(char)
    if category[0] not in "LNPSM" or char in _SHAPELESS or _IGNORABLE.match(char):
        return False
    if category == "Me" or unicodedata.combining(char) == 1:  # drawn around or over a letter: it strikes the letter out
        return False
    # Another spelling of an ASCII letter or digit (full width, bold, a ligature) is taken for it.
    return not (char.isalpha() or category == "Nd") or not unicodedata.normalize("NFKC", char).isascii()


def _words(text: str) -> list[str]:
    """The text cut before and after each of its words, which the marks on their letters belong to."""
    return ["".join(part) for _, part in groupby(text, lambda char: _script(char) != "" or char == "_")]


def _script(char: str) -> str:
    """The first word of a letter's name, which is its script; something for digits and marks, too."""
    kept = char.isalnum() or unicodedata.category(char)[0] == "M"
    return unicodedata.name(char, "?").partition(" ")[0] if kept else ""


def _flagged(word: str) -> str:
    """A word whose letters are taken for those of another script is followed by the scripts that they are of."""
    letters = {char for char in word if char.isalpha()}
    scripts = sorted({_script(char) for char in letters} & _ALPHABETS)
    if len(scripts) > 1 or (letters and _LIKE_LATIN.issuperset(letters)):
        return f"{word}<{' and '.join(script.title() for script in scripts)} letters>"
    return word


def _isolated(text: str) -> str:
    """Letters from right to left in isolates: they stand where they are, and reorder nothing around them."""
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
