"""Ledger operations of a service: batches on their way, receivers of the replies, and repetition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from refold.ports.effects import Answers, AskLedger, Effect, Now
from refold.ports.ledger import Fill, Lapsed, Operation, Reply, Unpublished
from refold.runtime.lanes import Tokens

Who = TypeVar("Who")


class Batches(Generic[Who]):
    """One batch of operations a turn. If its outcome is unknown it is sent again unchanged, `resend_ms` later
    (monotonic). That is safe because operations are repeatable. Queries are not repeated: the next round sends new
    ones."""

    def __init__(self, number: Callable[[], int], *, resend_ms: int) -> None:
        self._resend_ms = resend_ms
        self._new: list[tuple[Who | None, Operation]] = []
        self._flying: Tokens[list[tuple[Who | None, Operation]]] = Tokens(number)
        self._again: list[tuple[int, list[tuple[Who | None, Operation]]]] = []

    def __len__(self) -> int:
        return len(self._new) + len(self._flying) + len(self._again)

    def ask(self, operation: Operation, asker: Who | None = None) -> None:
        self._new.append((asker, operation))

    def answered(self, answers: Answers, now: Now) -> list[tuple[Who | None, Operation, Reply]]:
        """Operations of a batch with askers and replies; empty if the batch is another service's or has no answer."""
        asked = self._flying.take(answers.batch)
        if asked is None:
            return []
        if answers.replies is not None:
            return [(*each, reply) for each, reply in zip(asked, answers.replies, strict=True)]
        if asked := [each for each in asked if not isinstance(each[1], (Lapsed, Unpublished, Fill))]:
            self._again.append((now.mono_ms + self._resend_ms, asked))
        return []

    def send(self, now: Now) -> list[Effect]:
        """The batch of this turn, with operations that are due to be repeated."""
        while self._again and self._again[0][0] <= now.mono_ms:
            self._new += self._again.pop(0)[1]
        if not self._new:
            return []
        asked, self._new = self._new, []
        return [AskLedger(self._flying.give(asked), [operation for _, operation in asked])]
