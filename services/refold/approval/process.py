"""What all lanes of an approval service share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from refold.approval.question import Tools
from refold.core.approval.signature import MAX_BYTES, SigningKey
from refold.ports.effects import News


@dataclass(frozen=True, slots=True)
class Limits:
    """What a lane keeps.

    **Units**: milliseconds and bytes. `parked` votes wait for an approval that is not known yet, `park_ms` each: the
    topics of a partition are read in any order. An approval keeps so many `votes`. `remember` is how many approvals and
    grants that are over are known, so that a request that comes once more is not asked again. A turn counts about
    `turn_votes` anew and leaves the rest to the next: half a second if every signature has to be verified, as a new key
    in the catalog makes it for all that is open.
    """

    park_ms: int = 60_000
    parked: int = 1_000
    votes: int = 1_000
    remember: int = 100_000
    turn_votes: int = 400
    payload_bytes: int = 1_048_576

    @property
    def said_bytes(self) -> int:
        """What a vote may bring into a decision, as JSON: base64 makes two thirds of the largest payload of it.

        The last third is for what is decided on, and who has decided.
        """
        return min(self.payload_bytes, MAX_BYTES) // 2


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
