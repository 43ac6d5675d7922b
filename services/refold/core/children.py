"""What happens to a run that starts others: they are its children, or somebody's who waits for what it tells of."""

# No `from __future__ import annotations` here: the schema export reads the types of the fields, not their names.

from dataclasses import dataclass

from refold.core.parts import Failure, Used


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """The agent starts another run, which is named after this step (`core.ids.child_id`).

    `outlives`: nothing that becomes of this run reaches it.
    """

    step: int
    agent: str
    input: str
    outlives: bool = False


@dataclass(frozen=True, slots=True)
class ChildCompleted:
    """How a run ended that this one had started. `status`: completed (with a result), failed or cancelled.

    `used` is what it has taken with all below it, if that counts for this one.
    """

    step: int
    status: str
    result: str = "null"
    failure: Failure | None = None
    used: Used | None = None


@dataclass(frozen=True, slots=True)
class SignalSent:
    """The agent tells another run something: a signal with this name, whose id is `core.ids.signal_id` of the step."""

    step: int
    run_id: str
    name: str
    data: str


@dataclass(frozen=True, slots=True)
class EventPublished:
    """The agent tells of something. The agents that were registered for it are started, a run each."""

    step: int
    name: str
    data: str
    agents: list[str]
