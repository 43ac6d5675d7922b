"""Calls that nobody has answered: their requests go out again, when the executors have passed what went out before.

All of it is memory. The log has the deadline of an attempt once; what is asked again after it writes no entry, and what
still lies in the executors' queue is not asked again at all: an overload would only grow by it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from refold.core.ids import CallId
from refold.ports.effects import CommittedAt
from refold.ports.log import End


@dataclass(slots=True)
class SentRequest:
    """The last request of a call that is in its topic: where, since when, and how often the attempt went out before.

    `issued` is the run-log offset of the entry that ordered the attempt.
    """

    attempt: int
    topic: str
    offset: int
    at_ms: int
    issued: int
    times: int = 0


class Unanswered:
    """The requests of one lane. **Units**: milliseconds of the lane's clock."""

    def __init__(self) -> None:
        self._sent: dict[CallId, SentRequest] = {}
        self._late: list[tuple[int, CallId]] = []
        self._waiting: dict[str, list[tuple[int, CallId]]] = {}

    @property
    def topics(self) -> list[str]:
        """The topics in which somebody waits to hear how far the executors have come."""
        return [topic for topic, waiting in self._waiting.items() if waiting]

    def sent(self, call: CallId, sent: SentRequest) -> None:
        """A request is in its topic."""
        before = self._sent.get(call)
        if before is not None and before.attempt == sent.attempt:
            sent.times = before.times + 1
        self._sent[call] = sent

    def last(self, call: CallId) -> SentRequest | None:
        """The last request of a call, if one is known to be in its topic."""
        return self._sent.get(call)

    def close(self, call: CallId) -> None:
        """The call is settled."""
        self._sent.pop(call, None)

    def watch(self, call: CallId, due_ms: int) -> None:
        """Looks at a call again when it is that late."""
        heapq.heappush(self._late, (due_ms, call))

    def wait(self, call: CallId) -> None:
        """It is late: it goes out again once the executors have passed its request."""
        sent = self._sent[call]
        heapq.heappush(self._waiting.setdefault(sent.topic, []), (sent.offset, call))

    def told(self, answer: CommittedAt | End, partition: int) -> Iterable[CallId]:
        """The late calls of a topic that nobody will answer, now that executors or the topic are known to be so far."""
        if isinstance(answer, End):
            return self._lost(answer.topic, answer.offset)
        return self._passed(answer.topic, answer.positions.get(partition, 0))

    def _passed(self, topic: str, position: int) -> Iterator[CallId]:
        """Those whose requests lie below the executors' position."""
        waiting = self._waiting.get(topic, [])
        while waiting and waiting[0][0] < position:
            offset, call = heapq.heappop(waiting)
            if (sent := self._sent.get(call)) is not None and sent.offset == offset:
                yield call

    def _lost(self, topic: str, end: int) -> list[CallId]:
        """Those whose requests the topic had once and has no more: nobody can ever pass these."""
        waiting = self._waiting.get(topic, [])
        self._waiting[topic] = sorted(each for each in waiting if each[0] < end)
        return [call for offset, call in waiting if offset >= end]

    def due(self, now: int) -> Iterator[CallId]:
        """The calls that are to be looked at again, if they are still open."""
        while self._late and self._late[0][0] <= now:
            yield heapq.heappop(self._late)[1]

    def next_ms(self) -> int | None:
        """When something is to be looked at again."""
        return self._late[0][0] if self._late else None
