"""What lets a failed run go on, or a call wait before it fails."""

# No `from __future__ import annotations` here: the schema export reads the types of the fields, not their names.

from dataclasses import dataclass, field

from refold.core.parts import Failure


@dataclass(frozen=True, slots=True)
class RunRetried:
    """A failed run goes on, see `core.run.redrive`. What is not 0 is a limit of the run from now on.

    **Units**: billionths of a dollar.
    """

    actor: str
    reason: str = ""
    from_step: int = 0
    again: list[int] = field(default_factory=list)
    edit: str = ""
    steps: int = 0
    history_bytes: int = 0
    deadline_ms: int = 0
    children: int = 0
    tokens: int = 0
    nano_usd: int = 0
    calls: int = 0


@dataclass(frozen=True, slots=True)
class CallRenewed:
    """A call is asked for anew under its key: its id has the seq of this event, its attempts begin at 1."""

    step: int


@dataclass(frozen=True, slots=True)
class CallHeld:
    """A call has used up its attempts, and waits for an operator, as it was to: `DoubtResolved` is their word.

    Here `did_not_happen` gives it as many attempts anew, `happened` a result in its place, `give_up` lets it fail.
    """

    step: int
    attempt: int
    failure: Failure
