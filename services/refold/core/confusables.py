"""Detection of look-alike and invisible characters in names and texts."""

import re
import unicodedata
from functools import lru_cache
from itertools import groupby
from typing import Final

UNSEEN: Final = re.compile(  # Unicode's Default_Ignorable_Code_Point, which no standard module knows, and blank letters
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U00013441\U00013442\U00016fe4\U0001bca0-\U0001bca3\U0001d159"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

_ALPHABETS = frozenset(("ARMENIAN", "CHEROKEE", "COPTIC", "CYRILLIC", "GEORGIAN", "GREEK", "LATIN", "LISU"))
"""Scripts with letters that resemble another script's. No language mixes them in a word."""

_LIKE_LATIN = frozenset("аеіјорсухѕһԁԛԝӏАВЕІЈКМНОРСТХУЅԌԚԜοναυρκΑΒΕΖΗΙΚΜΝΟΡΤΥΧօսոհցՕՍ")
"""Letters of other scripts that look Latin."""


@lru_cache(1 << 16)
def script(char: str) -> str:
    """First word of the Unicode name of a letter (its script), mark or digit; empty for other characters."""
    counted = char.isalnum() or unicodedata.category(char)[0] == "M"
    return unicodedata.name(char, "?").partition(" ")[0] if counted else ""


def words(text: str) -> list[str]:
    """Split a text before and after each word; a word includes the marks on its letters."""
    return ["".join(part) for _, part in groupby(text, lambda char: script(char) != "" or char == "_")]


def mistaken_for(text: str) -> list[str]:
    """Scripts of a word whose letters resemble another script's; empty for a clear one."""
    letters = {char for char in text if char.isalpha()}
    scripts = sorted({script(char) for char in letters} & _ALPHABETS)
    return scripts if len(scripts) > 1 or (letters and _LIKE_LATIN.issuperset(letters)) else []


# A ballot compares each voter with the requester and with the others, so the same few names come again and again.
# Of the longest names, 256 KB each, a cache of 64 holds 32 MB.
@lru_cache(64)
def spelt(name: str) -> str:
    """Normal form of a name: case-folded NFKC without surrounding spaces."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).strip()


@lru_cache(64)
def is_clear(name: str) -> bool:
    """True if a name has no invisible characters and no letters of confusable alphabets."""
    return name.isprintable() and not UNSEEN.search(name) and not mistaken_for(name)


def is_same(one: str, other: str) -> bool:
    """True if two names denote one person; false for an ambiguous name."""
    return bool(one.strip()) and is_clear(one) and is_clear(other) and spelt(one) == spelt(other)
