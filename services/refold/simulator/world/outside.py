"""Who answers callbacks: systems outside that were given a token, once, again, too late, or wrongly."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from refold.core.ids import RunId, callback_token, home
from refold.core.topics import RUN_SIGNALLED
from refold.ports.log import Outgoing


class Reply(NamedTuple):
    """What is said with a token, so long after the callback was made. With a `failure` that, else `data`."""

    after_ms: int
    data: Any = None
    failure: str = ""
    key: str = ""
    stray: bool = False


class Outside:
    """All who are given tokens by a scenario: they say what its `replies` are (None: what chance has them say)."""

    def __init__(
        self,
        replies: tuple[Reply, ...] | None,
        partitions: int,
        *,
        at: Callable[[int, Callable[[], None]], None],
        write: Callable[[Outgoing], object],
    ) -> None:
        self._replies, self._partitions, self._at, self._write = replies, partitions, at, write

    def made(self, run: str, seed: str, number: int) -> None:
        """A run has made its callback of this number."""
        token = callback_token(RunId(run), seed, number)
        replies = self._replies if self._replies is not None else _by_chance(Random(token))
        for reply in replies:
            self._at(reply.after_ms, lambda reply=reply: self._say(run, token, reply))  # type: ignore[misc]

    def _say(self, run: str, token: str, reply: Reply) -> None:
        said = {"kind": "callback", "callback": token, "actor": "outside", "key": reply.key}
        said |= {"failure": reply.failure} if reply.failure else {"data": reply.data}
        place = (home(run, self._partitions) + reply.stray) % self._partitions
        self._write(Outgoing(RUN_SIGNALLED, place, token.encode(), json.dumps(said).encode(), (), 0))


def _by_chance(rng: Random) -> tuple[Reply, ...]:
    stray, after_ms = rng.random() < 0.2, rng.choice((5, 50, 300, 1_480, 1_600))
    first = Reply(after_ms, rng.choice((1, 2)), rng.choice(("", "", "", "no")), rng.choice(("", "k")), stray)
    again = first._replace(after_ms=after_ms + rng.randrange(400))
    other = Reply(after_ms + rng.randrange(400), 3, key="other")
    unfit = Reply(max(0, after_ms - 3), "not a number")
    return rng.choice(((first,), (first, again), (first, other), (unfit, first), (first, again, other), ()))
