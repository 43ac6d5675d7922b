"""What whoever lives in a simulated world may know of it and ask of it. The world itself knows them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from refold.core.approval.signature import SigningKey
from refold.simulator.reading.witness import Witness
from refold.simulator.settings import Role, SimSettings
from refold.simulator.world.broker import Broker
from refold.simulator.world.faults import Chance
from refold.simulator.world.receiver import Receiver


class Surroundings(Protocol):
    """A world from the inside: its time, its log, and what is outside of the system.

    **Units**: `now_ms` is the true time; processes read clocks that may be wrong. `decision_key` is what approval
    services sign with that start now.
    """

    settings: SimSettings
    chance: Chance
    broker: Broker
    receiver: Receiver
    witness: Witness
    counts: Counter[str]
    now_ms: int
    decision_key: SigningKey

    @property
    def unsafe(self) -> bool:
        """Whether chance may still do harm."""
        ...

    def at(self, delay_ms: int, what: Callable[[], object], *, waits: bool = True) -> None:
        """Does something later. `waits`: the world is not at rest before."""
        ...

    def note(self, *line: object) -> None:
        """Adds a line to the trace that is no boundary."""
        ...

    def kill(self, role: Role) -> None:
        """Ends every process of a role; a supervisor starts them again."""
        ...
