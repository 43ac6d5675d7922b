"""Shell patterns of paths, matched name by name, so that no pattern takes long."""

import re
from collections.abc import Callable
from fnmatch import translate
from functools import lru_cache

from refold.core.errors import TerminalError

PATTERN = 300
"""Characters of a pattern."""

_ANY = "**"


def split_pattern(pattern: str) -> tuple[str, ...]:
    """Names of a pattern; `**` is any number of folders, at the end everything below. **Raises** TerminalError."""
    names = tuple(name for name in pattern.split("/") if name not in ("", "."))
    if pattern.startswith("/") or ".." in names or not names or len(pattern) > PATTERN:
        hint = "as **/*.py: * is any part of a name, ** any number of folders"
        raise TerminalError(f"{pattern[:200]!r} is not a pattern of paths below the folder", hint=hint)
    return (*names, "*") if names[-1] == _ANY else names


def fits(parts: tuple[str, ...], names: tuple[str, ...]) -> bool:
    # Positions in the pattern after each name: linear, where backtracking could take exponential time.
    reached = {0} | _over(names, 0)
    for name in parts:
        following = set[int]()
        for place in reached:
            if place < len(names) and names[place] == _ANY:
                following |= {place}
            elif place < len(names) and _fits(names[place])(name):
                following |= {place + 1}
        reached = following.union(*(_over(names, place) for place in following))
    return len(names) in reached


def _over(names: tuple[str, ...], place: int) -> set[int]:
    """Positions after `**`, which may match no folder."""
    places = set[int]()
    while place < len(names) and names[place] == _ANY:
        place += 1
        places.add(place)
    return places


@lru_cache(maxsize=256)
def _fits(name: str) -> Callable[[str], object]:
    return re.compile(translate(name)).match
