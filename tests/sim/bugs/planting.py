"""What a planted bug is."""

from __future__ import annotations

from dataclasses import dataclass

Patch = tuple[object, str, object]


@dataclass(frozen=True, slots=True)
class Bug:
    """What is put in the place of what, and where it should show.

    The scenarios of `where` are run with every single fault, or with all `pairs` of two kinds of faults; before them so
    many `seeds` of a planner that lies.
    """

    where: tuple[str, ...]
    patches: tuple[Patch, ...]
    pairs: tuple[str, str] | None = None
    seeds: int = 0
