"""What all lanes of an approval service share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from refold.approval.poll import Tools
from refold.core.capability import SigningKey
from refold.ports.effects import News


@dataclass(frozen=True, slots=True)
class Limits:
    """What a lane keeps.

    **Units**: milliseconds and bytes. `parked` votes wait for an approval that is not known yet, `park_ms` each: the
    topics of a partition are read in any order. An approval takes so many `votes`. `remember` is how many approvals
    that are over are known, so that a request that comes once more is not asked again.
    """

    park_ms: int = 60_000
    parked: int = 1_000
    votes: int = 1_000
    remember: int = 100_000
    payload_bytes: int = 1_048_576


@dataclass(frozen=True, slots=True)
class Seat:
    """What all lanes of a process share."""

    partitions: int
    environment: str
    member: str
    key: SigningKey
    tools: Tools
    limits: Limits
    nonce: Callable[[], str]
    token: Callable[[], int]
    counts: Counter[str]
    news: list[News]

    def tell(self, name: str, **fields: object) -> None:
        """Counts something and says it."""
        self.counts[name] += 1
        self.news.append((name, fields))
