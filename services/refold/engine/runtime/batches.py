"""Batches of ledger operations of a service, with receivers and repetition."""

from collections.abc import Callable
from typing import Generic, TypeVar

from refold.engine.ports.effects import Answers, AskLedger, Effect, Now
from refold.engine.ports.ledger import Fill, Lapsed, Operation, Reply, Unpublished
from refold.engine.runtime.lanes import Tokens

Who = TypeVar("Who")


class Batches(Generic[Who]):
    """Ledger operations of a service, one batch per turn, sent again `resend_ms` after an unknown outcome."""

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
        """Askers, operations and replies of an answered batch; empty if it is another service's or has no answer."""
        batch = self._flying.take(answers.batch)
        if batch is None:
            return []
        if answers.replies is not None:
            return [(*pair, reply) for pair, reply in zip(batch, answers.replies, strict=True)]
        # Operations are repeatable, so that an unknown outcome is safe to repeat. Queries are dropped: the next round
        # sends new ones.
        if batch := [pair for pair in batch if not isinstance(pair[1], (Lapsed, Unpublished, Fill))]:
            self._again.append((now.mono_ms + self._resend_ms, batch))
        return []

    def send(self, now: Now) -> list[Effect]:
        while self._again and self._again[0][0] <= now.mono_ms:
            self._new += self._again.pop(0)[1]
        if not self._new:
            return []
        batch, self._new = self._new, []
        return [AskLedger(self._flying.give(batch), [operation for _, operation in batch])]
