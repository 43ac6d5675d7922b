"""Who answers callbacks: systems outside that were given a token, once, again, too late, or wrongly."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from refold.core.ids import LIFE_CALLBACKS, RunId, callback_digest, callback_token, home
from refold.core.topics import RUN_SIGNALLED
from refold.engine.ports.log import Outgoing

_MOST_MADE, _MOST_LIVES = 1_000, 9
"""Callbacks of a run in one of its lives, and these."""


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
        at: Callable[[int, Callable[[], object]], None],
        write: Callable[[Outgoing], object],
    ) -> None:
        self._replies, self._partitions, self._at, self._write = replies, partitions, at, write

    def made(self, run: str, seed: str, digest: str) -> None:
        """A run has made a callback, of which the log has the digest of the token."""
        # Those that were made and given up in the same moment are counted, and are in no log.
        numbers = (LIFE_CALLBACKS * life + number for number in range(1, _MOST_MADE) for life in range(_MOST_LIVES))
        tokens = (callback_token(RunId(run), seed, number) for number in numbers)
        token = next(token for token in tokens if callback_digest(token) == digest)
        replies = self._replies if self._replies is not None else _by_chance(Random(token))
        for reply in replies:
            self._at(reply.after_ms, lambda reply=reply: self._say(run, token, reply))  # type: ignore[misc]

    def waits(self, run: str, event: dict[str, Any], by: str = "w") -> None:
        """A run has begun to wait: mostly it is told what it waits for, or nearly that, or twice, `by` somebody."""
        rng = Random(f"{run}/{event['step']}")
        for number in range(rng.choice((0, 1, 1, 1, 2))):
            data = rng.choice((None, {"n": 1}, {"n": 2}))
            if event["match"] and rng.random() < 0.7:
                data = {"n": int(event["match"][-1])}
            said = {
                "kind": "signal",
                "run_id": run,
                "signal_id": f"{by}-{event['step']}-{number}",
                "name": event["name"],
            }
            said |= {"data": data, "actor": "outside"}
            key, value = f"{run}/{said['signal_id']}".encode(), json.dumps(said).encode()
            record = Outgoing(RUN_SIGNALLED, home(run, self._partitions), key, value, (), 0)
            after_ms = rng.choice((0, 5, 40, 200, 700))
            for at_ms in (after_ms, after_ms + 30) if rng.random() < 0.15 else (after_ms,):
                self._at(at_ms, lambda record=record: self._write(record))  # type: ignore[misc]

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
