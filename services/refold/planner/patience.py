"""Inputs about runs that are not known: they wait until every request that was there before them is decided.

A request may lie in any partition, so the ends of all of them are captured after the input was read. When the planners
have passed these, what strayed has come home, and the end of the own partition is captured once more: past that one the
run is not there. Positions and not minutes: behind a million requests a cancel waits as long as it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from refold.core.topics import RUN_REQUESTED
from refold.planner.inbox import Pending
from refold.ports.effects import AskCommitted, AskEnd, CommittedAt, Effect
from refold.ports.log import End

ASK_MS = 1_000
"""How often positions of others are asked for: they commit twice a second, and nobody waits for a dead letter."""


@dataclass(slots=True)
class Round:
    """Inputs of one partition that began to wait together; `home_end` is the end that is captured last."""

    partition: int
    items: list[Pending]
    ends: dict[int, int] = field(default_factory=dict)
    home_end: int | None = None


class Patience:
    """What the lanes of a planner wait for. **Units**: milliseconds, monotonic."""

    def __init__(self, group: str, partitions: int) -> None:
        self._group, self._partitions = group, partitions
        self._fresh: dict[int, list[Pending]] = {}
        self._rounds: list[Round] = []
        self._committed: Mapping[int, int] = {}
        self._due_ms = 0

    def add(self, partition: int, item: Pending) -> None:
        """An input of this partition waits from now on."""
        self._fresh.setdefault(partition, []).append(item)

    def forget(self, partition: int) -> None:
        """The partition is another's: whoever serves it reads its inputs again."""
        self._fresh.pop(partition, None)
        self._rounds = [each for each in self._rounds if each.partition != partition]

    def asks(self, now_ms: int) -> list[Effect]:
        """What has to be asked, if it is time."""
        if now_ms < self._due_ms or not (self._fresh or self._rounds):
            return []
        self._due_ms = now_ms + ASK_MS
        effects: list[Effect] = []
        if self._fresh:
            self._rounds += [Round(partition, items) for partition, items in self._fresh.items()]
            self._fresh = {}
            effects += [AskEnd(RUN_REQUESTED, number) for number in range(self._partitions)]
        if self._partitions > 1:
            effects.append(AskCommitted(self._group, RUN_REQUESTED))
        last = {each.partition for each in self._rounds if each.ends and each.home_end is None and self._passed(each)}
        return effects + [AskEnd(RUN_REQUESTED, number) for number in sorted(last)]

    def next_due_ms(self) -> int | None:
        """When `asks` wants to be asked."""
        return self._due_ms if self._fresh or self._rounds else None

    def take(self, answer: End | CommittedAt, now_ms: int) -> None:
        """What was asked for; it may have taken long, and all else has waited for it."""
        self._due_ms = now_ms + ASK_MS
        if isinstance(answer, CommittedAt):
            self._committed = answer.positions
            return
        for each in self._rounds:
            if len(each.ends) < self._partitions:
                each.ends.setdefault(answer.partition, answer.offset)
            elif answer.partition == each.partition and each.home_end is None and self._passed(each):
                each.home_end = answer.offset

    def over(self, decided: Callable[[int], int]) -> Iterator[tuple[int, Pending]]:
        """The inputs that have waited long enough, with their partition. `decided`: how far an own lane has come."""
        if not self._rounds:
            return
        waiting: list[Round] = []
        for each in self._rounds:
            if each.home_end is not None and decided(each.partition) >= each.home_end:
                yield from ((each.partition, item) for item in each.items)
            else:
                waiting.append(each)
        self._rounds = waiting

    def _passed(self, each: Round) -> bool:
        """Whether the planners have decided all that lay in the other partitions."""
        return len(each.ends) == self._partitions and all(
            self._committed.get(number, 0) >= end for number, end in each.ends.items() if number != each.partition
        )
