"""What a planted bug is."""

from __future__ import annotations

from dataclasses import dataclass

Patch = tuple[object, str, object]


@dataclass(frozen=True, slots=True)
class Bug:
    """What is put in the place of what, and where it should show.

    The scenarios of `where` are run with every single fault, with one of a kind at every boundary, or with all pairs of
    two kinds, as `faults` says; before them so many `seeds` of a planner that lies, from `start` on, where a rare one
    is known to show, or so many random `programs`, or `minds`: agents whose models err. `after`: the first of two
    faults has to have brought this about, by the name of its count, and most cost the second for nothing.
    """

    where: tuple[str, ...]
    patches: tuple[Patch, ...]
    faults: tuple[str, ...] = ()
    seeds: int = 0
    start: int = 0
    programs: int = 0
    minds: int = 0
    after: str = ""
