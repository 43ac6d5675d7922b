"""What is tried, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from tests.security.hijack import Hijack, Outcome

Kind = Literal["attack", "limit", "control"]


class Play(NamedTuple):
    """Something to try.

    `kind`: an `attack` is stopped; a `limit` is what the design does not stop, and says so; a `control` shows that what
    is allowed happens. `allowed` is how many effects have to be seen: those of an attack had somebody's leave.
    """

    what: str
    run: Callable[[Hijack], Outcome]
    kind: Kind = "attack"
    allowed: int = 0


class Row(NamedTuple):
    """What became of it. `effects` is the outside world's count."""

    play: Play
    outcome: Outcome
    effects: int

    @property
    def wrong(self) -> bool:
        """Whether this is a finding."""
        return self.effects != self.play.allowed or self.outcome.stopped != (self.play.kind != "limit")
