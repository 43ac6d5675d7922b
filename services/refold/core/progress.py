"""How far a run is: what its agent says of that, and when it stops to wait for time or others and goes on."""

# No `from __future__ import annotations` here: the schema export reads the types of the fields, not their names.

from dataclasses import dataclass

from refold.core.parts import Failure


@dataclass(frozen=True, slots=True)
class CheckpointReached:
    """The agent says how far it has come: a step, as a note is."""

    step: int
    name: str


@dataclass(frozen=True, slots=True)
class StatusSet:
    """What the agent says that it does now; the last one holds. No step: no replay compares it or writes it again."""

    text: str


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task of the agent's failed, and nobody awaited it. No step: it changes nothing."""

    task: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class RunSuspended:
    """All that the run waits for is time or others, from the end of this entry on.

    `reason`: `paused`, `approval`, `doubt`, `held`, `callback`, `wait`, `child`, `backoff` or `sleep`; `blocked_by`
    names what is waited for: who has paused it, the approval, the call, the callback, the signal, the run or the time.
    Of several what others do comes before what time does, and then the first that was asked for.
    """

    reason: str
    blocked_by: str


@dataclass(frozen=True, slots=True)
class RunResumed:
    """The run goes on, at the end of this entry.

    `by` names what woke it, as `blocked_by` does, or who has ended a pause; `code` is code that was held.
    """

    by: str
