"""What became of a step that code does not ask for as history has it: the change, by its name.

Of both lists one step more is looked at: what history has next, and what the code asks for next. That tells a step that
was added from one that was removed, and two that were reordered; it is what it looks like, and no proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from refold.core.run.intents import Intent, words_of
from refold.core.run.state import Step


class Change(NamedTuple):
    """`name`: `added`, `removed`, `reordered`, `renamed`, `arguments` or `replaced`; `words` are for people."""

    name: str
    words: str


def change_at(
    asked: Sequence[Intent],
    *,
    here: Step | None,
    then: Step | None,
    earlier: Step | None,
    ask_on: Callable[[], Sequence[Intent]],
) -> Change:
    """The change at a step.

    `asked` is what the code asks for there and after it in the same turn, `ask_on` what it asks for once it has the
    outcome of the step that history has next. History has `here` there, `then` next, and `earlier` before it.
    """
    if not asked:
        return Change("removed", f"{words_of(here)} was removed" if here else "a step was removed")
    found = asked[0]
    if here is None:
        return Change("added", f"{found.words} was added")
    skips = then is not None and found.agrees(then)
    after = [*asked[1:], *(ask_on() if skips and len(asked) == 1 else ())]
    comes = bool(after) and after[0].agrees(here)
    if skips and comes:
        return Change("reordered", f"{words_of(here)} and {found.words} were reordered")
    if skips:
        return Change("removed", f"{words_of(here)} was removed")
    if comes:
        return Change("added", f"{found.words} was added")
    if name := found.differs(here):
        told = {"arguments": f"the arguments of {found.title} were changed", "renamed": f"it is {found.title} by now"}
        return Change(name, told[name])
    if earlier is not None and found.agrees(earlier):
        return Change("added", f"{found.words} was added once more")
    return Change("replaced", "it was replaced, or something was added before it")
