"""Votes of one partition that are not counted: without a request, or not usable so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from refold.core.approval.ballot import Objection
from refold.core.approval.catalog import Catalog
from refold.engine.approval.outbox import ApprovalOutbox
from refold.engine.approval.question import OpenQuestion, ToolDefs
from refold.engine.ports.log import Record
from refold.engine.runtime.lanes import INPUT_OVERHEAD, record_bytes
from refold.engine.runtime.unresolved import UnresolvedInputs


@dataclass(frozen=True, slots=True)
class Parked:
    """A vote that waits for its request."""

    record: Record
    token: str


class Hearing:
    """Votes of a lane on their way to its `questions`, which are read up to `questions_end`. **Units**: `most_void` in
    bytes."""

    def __init__(self, questions: Mapping[str, OpenQuestion], outbox: ApprovalOutbox, *, most_void: int) -> None:
        self._questions, self._outbox, self._most_void = questions, outbox, most_void
        self.unresolved: UnresolvedInputs[Parked] = UnresolvedInputs()
        self.questions_end = 0
        self._votes: list[tuple[OpenQuestion, Record, str]] = []
        self._void: deque[tuple[str, str]] = deque()
        self._void_bytes = 0

    def park(self, approval: str, record: Record, token: str) -> None:
        """Keep a vote until its request is read, or is known to be missing."""
        self.unresolved.park(approval, Parked(record, token), record_bytes(record))

    def hear(self, question: OpenQuestion, record: Record, token: str) -> None:
        question.tokens.setdefault(token, record.at_ms)
        self._votes.append((question, record, token))

    def sift(self, catalog: Catalog, tools: ToolDefs, answer: Callable[[Record, Objection], None]) -> None:
        """Pass votes on to their questions; answer unusable ones, and those without a question."""
        records, self._votes = self._votes, []
        for question, record, token in records:
            vote = question.read(token, catalog, tools)
            if not isinstance(vote, Objection):
                question.fresh.append((self._outbox.answerable(record), token))
                continue
            answer(record, vote)
            # An answered vote is kept as far as there is room: the key that signed it may come later.
            self._void.append((question.request.approval_id, token))
            self._void_bytes += INPUT_OVERHEAD + len(token)
        for parked in self.unresolved.over(self.questions_end):
            answer(parked.record, Objection("unknown", "there is no such approval"))
        while self._void_bytes > self._most_void:
            approval, token = self._void.popleft()
            self._void_bytes -= INPUT_OVERHEAD + len(token)
            if open_question := self._questions.get(approval):
                open_question.give_up(token, catalog, tools)
