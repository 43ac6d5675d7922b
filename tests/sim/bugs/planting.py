"""What a planted bug is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from unittest.mock import patch

from tests.sim.bugs.places import PLACES

Patch = tuple[str, object]
"""What is patched, by its name in `PLACES`, and what is put there."""


@dataclass(frozen=True, slots=True)
class Bug:
    """What is put in the place of what, and where it should show.

    The scenarios of `where` are run with every single fault, with one of a kind at every boundary, or with all pairs of
    two kinds, as `faults` says; before them so many `seeds` of a planner that lies, from `start` on, where a rare one
    is known to show, or so many random `programs`, or `minds`: agents whose models err, or so many random `schedules`
    beside which views are kept. `after`: faults of all these kinds strike one after another, and the first has to have
    brought this about, by the name of its count; most cost those behind it for nothing.
    """

    where: tuple[str, ...]
    patches: tuple[Patch, ...]
    faults: tuple[str, ...] = ()
    seeds: int = 0
    start: int = 0
    programs: int = 0
    minds: int = 0
    schedules: int = 0
    after: str = ""


def located(name: str) -> tuple[Any, str]:
    """The module or class that has a name of `PLACES`, and what it calls it. **Raises** where it is no more."""
    module, _, path = PLACES[name].partition(":")
    *above, attribute = path.split(".")
    holder: Any = import_module(module)
    for each in above:
        holder = getattr(holder, each)
    getattr(holder, attribute)
    return holder, attribute


@contextmanager
def applied(patches: Iterable[Patch]) -> Iterator[None]:
    """The services have a bug in them while the block lasts."""
    with ExitStack() as stack:
        for patched, thing in patches:
            stack.enter_context(patch.object(*located(patched), thing))
        yield


def wrapped(name: str, wrap: Callable[[Any], object]) -> Patch:
    """A patch that has the original in it."""
    return name, wrap(getattr(*located(name)))
