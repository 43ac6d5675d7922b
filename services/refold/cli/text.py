"""What a terminal would hide, spelt out."""

from __future__ import annotations

import unicodedata


def visible(text: str) -> str:
    """The text with everything spelt out that is not to be seen, or that makes the rest look otherwise."""
    return "".join(char if _plain(char) else f"<U+{ord(char):04X}>" for char in text)


def _plain(char: str) -> bool:
    return char == " " or (char.isascii() and char.isprintable()) or unicodedata.category(char)[0] in "LNPSM"
