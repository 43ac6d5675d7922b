"""What holds a run because somebody wants it to, and what lets it go on."""

# No `from __future__ import annotations` here: the schema export reads the types of the fields, not their names.

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunPaused:
    """No code of the run is run and nothing new goes out, until all who have paused it let it go on.

    `role` is that of the actor: `operator`, `requester`, or `parent`, where the run that has started this one is
    paused. `said_ms` and `offset` tell when and where the word lay in its topic, `signed_ms` when it was signed. Of a
    parent there is the `seq` up to which its history was known.
    """

    actor: str
    reason: str = ""
    role: str = "operator"
    said_ms: int = 0
    offset: int = 0
    signed_ms: int = 0
    seq: int = 0


@dataclass(frozen=True, slots=True)
class RunUnpaused:
    """A pause is over, that of a parent or (any other `role`) the run's own. For the rest see `RunPaused`."""

    actor: str
    role: str = "operator"
    said_ms: int = 0
    offset: int = 0
    signed_ms: int = 0
    seq: int = 0
